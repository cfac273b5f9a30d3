//! `remex top`.

use clap::Args;

use super::Outcome;
use crate::failure::Failure;

/// Flags of `remex top`.
#[derive(Debug, Args)]
pub(crate) struct Flags {}

pub(crate) async fn run(_flags: &Flags) -> Outcome {
    Err(Failure::new("not there yet", "wait"))
}

//! `remex man`.

use clap::Args;

use super::Outcome;
use crate::failure::Failure;

/// Flags of `remex man`.
#[derive(Debug, Args)]
pub(crate) struct Flags {}

pub(crate) fn run(_flags: &Flags) -> Outcome {
    Err(Failure::new("not there yet", "wait"))
}

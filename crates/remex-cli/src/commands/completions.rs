//! `remex completions`: prints the completion script for a shell.

use super::Outcome;
use crate::{
    args::completions::{Flags, script},
    render::print,
};

pub(crate) fn run(flags: &Flags) -> Outcome {
    print::out(script(flags.shell))?;
    Ok(0)
}

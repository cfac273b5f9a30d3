//! The arguments of `remex inspect`.

use clap::Args;

use crate::args::shared::{Format, On};

/// Flags of `remex inspect`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// The processes, by name or unambiguous prefix
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,

    #[command(flatten)]
    pub(crate) on: On,

    #[command(flatten)]
    pub(crate) format: Format,
}

const EXAMPLES: &str = "\
Examples:
  Everything that the server knows about a process:
    remex inspect build
  For programs, in the format of `remex ps --json`:
    remex inspect build --json
";

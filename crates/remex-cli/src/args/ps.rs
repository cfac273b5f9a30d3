//! The arguments of `remex ps`.

use clap::Args;

use crate::args::shared::{Format, On};

/// Flags of `remex ps`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    #[command(flatten)]
    pub(crate) on: On,

    /// Look at your own server and at every environment, whatever `--on` says
    #[arg(long, conflicts_with = "quiet")]
    pub(crate) all_envs: bool,

    /// Show also what has ended and is still remembered: with what, and how long ago
    #[arg(short, long)]
    pub(crate) all: bool,

    /// Print names alone, one a line, for scripts
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,

    #[command(flatten)]
    pub(crate) format: Format,
}

const EXAMPLES: &str = "\
Examples:
  What was left running on this machine:
    remex ps
  Also what has ended:
    remex ps --all
  Everywhere at once:
    remex ps --all-envs
  On another machine, for a program:
    remex ps --on build --json
  End everything that runs:
    remex ps -q | xargs -r remex kill --tree
";

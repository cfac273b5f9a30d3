//! The arguments of `remex ps`.

use clap::Args;

use crate::args::shared::{Format, On};

/// Flags of `remex ps`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    #[command(flatten)]
    pub(crate) on: On,

    /// List the processes of your local remex server and of every environment, ignoring `--on`
    #[arg(long, conflicts_with = "quiet")]
    pub(crate) all_envs: bool,

    /// Include exited processes that are still retained, with their exit status and age
    #[arg(short, long)]
    pub(crate) all: bool,

    /// Print only names, one per line, for scripts
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

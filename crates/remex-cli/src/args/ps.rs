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
  Background processes on this machine:
    remex ps
  Including exited ones:
    remex ps --all
  On this machine and all environments:
    remex ps --all-envs
  On an environment, as JSON for programs:
    remex ps --on build --json
  End everything that runs:
    remex ps -q | xargs -r remex kill --tree
";

//! The arguments of `remex rm`.

use clap::Args;

use crate::args::shared::On;

/// Flags of `remex rm`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// The processes, each by its whole name; on a terminal you are asked about the beginning of one
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,

    #[command(flatten)]
    pub(crate) on: On,
}

const EXAMPLES: &str = "\
Examples:
  Forget a process that has ended, and what it said:
    remex rm build
  Forget all of them:
    remex prune

What runs is refused: end it with `remex kill` first.
Without this, a process is forgotten a day after its end.";

/// Flags of `remex prune`.
#[derive(Debug, Args)]
#[command(after_help = PRUNE_EXAMPLES)]
pub(crate) struct Prune {
    #[command(flatten)]
    pub(crate) on: On,
}

const PRUNE_EXAMPLES: &str = "\
Examples:
  Forget everything on this machine that has ended:
    remex prune
  On an environment:
    remex prune --on build

Processes of a client that is connected, or may come back within ten minutes, are left to it.";

//! The arguments of `remex rm`.

use clap::Args;

use crate::args::shared::On;

/// Flags of `remex rm`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// The processes, by full name; on a terminal, a prefix asks for confirmation
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,

    #[command(flatten)]
    pub(crate) on: On,
}

const EXAMPLES: &str = "\
Examples:
  Remove an exited process and its output:
    remex rm build
  Remove all of them:
    remex prune

Running processes are refused: end them with `remex kill` first.
Otherwise, a process is removed a day after its exit.";

/// Flags of `remex prune`.
#[derive(Debug, Args)]
#[command(after_help = PRUNE_EXAMPLES)]
pub(crate) struct Prune {
    #[command(flatten)]
    pub(crate) on: On,
}

const PRUNE_EXAMPLES: &str = "\
Examples:
  Remove all exited processes on this machine:
    remex prune
  On an environment:
    remex prune --on build

Processes of clients that are connected, or may reconnect within an hour, are kept.";

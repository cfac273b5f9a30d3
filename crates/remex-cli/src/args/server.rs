//! The arguments of `remex server`.

use clap::{Args, Subcommand};

use crate::args::shared::Format;

/// Flags of `remex server`.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true, after_help = EXAMPLES)]
pub(crate) struct Flags {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Tell whether it runs, and what is on it
    Status(Status),
    /// End it with everything that runs on it
    Stop(Stop),
}

const EXAMPLES: &str = "\
Examples:
  See whether it runs:
    remex server status
  End it:
    remex server stop

It is started when it is needed, and ends by itself when it was idle for ten minutes.";

/// Flags of `remex server status`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  For people:
    remex server status
  For programs:
    remex server status --json

The exit code is 3 when it does not run.")]
pub(crate) struct Status {
    #[command(flatten)]
    pub(crate) format: Format,
}

/// Flags of `remex server stop`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  Only if nothing runs, or after a yes on a terminal:
    remex server stop
  With everything that runs on it:
    remex server stop --force")]
pub(crate) struct Stop {
    /// End it also when something runs on it, without asking
    #[arg(short, long)]
    pub(crate) force: bool,
}

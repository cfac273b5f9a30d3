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
    /// Show whether it is running, and its processes
    Status(Status),
    /// Stop it and everything running on it
    Stop(Stop),
}

const EXAMPLES: &str = "\
Examples:
  Check whether it is running:
    remex server status
  Stop it:
    remex server stop

It is started on demand, and exits after ten minutes without work.";

/// Flags of `remex server status`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  For people:
    remex server status
  For programs:
    remex server status --json

The exit code is 3 if it is not running.")]
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
    /// Stop it without asking, even if processes are running on it
    #[arg(short, long)]
    pub(crate) force: bool,
}

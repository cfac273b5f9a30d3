//! The arguments of `remex server`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::args::shared::{Format, absolute};

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
    /// Stop it and everything running on it, or another server
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
    remex server stop --force
  A server that was started with `remex serve --state /var/lib/remex`; its durable processes run on:
    remex server stop --state /var/lib/remex
  The same with its durable processes, also after the server itself was stopped with Ctrl-C:
    remex server stop --state /var/lib/remex --all
  Everything of yours on another server:
    remex server stop --on build --all

With `--on`, the processes of the identity of your credential are ended. The server itself is then stopped too if it is your local one on an ssh host, or on a unix socket of this machine; otherwise it runs on, and has to be stopped there.

Without `--state` and `--on`, durable processes end, too, and their output is deleted; they survive the end of your local server in every other way. With `--state DIR --all` their output is kept.")]
pub(crate) struct Stop {
    /// Stop it without asking, even if processes are running on it
    #[arg(short, long)]
    pub(crate) force: bool,

    /// Stop the server of this state directory instead of your local one
    #[arg(long, value_name = "DIR", conflicts_with = "on", value_parser = absolute())]
    pub(crate) state: Option<PathBuf>,

    /// End everything on the server of this environment or address; requires `--all`
    #[arg(long, value_name = "ENV|URL", requires = "all")]
    pub(crate) on: Option<String>,

    /// End its durable processes as well, without asking
    #[arg(long)]
    pub(crate) all: bool,
}

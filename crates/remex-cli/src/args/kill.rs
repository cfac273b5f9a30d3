//! The arguments of `remex kill`.

use std::time::Duration;

use clap::Args;
use remex_client::process::SignalName;

use crate::{
    args::{
        shared::{Format, On},
        signal::signal,
    },
    render::text::duration,
};

/// Flags of `remex kill`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// The processes, by full name; on a terminal, a prefix asks for confirmation
    #[arg(required_unless_present = "all", value_name = "NAME")]
    pub(crate) names: Vec<String>,

    #[command(flatten)]
    pub(crate) on: On,

    /// The signal for the process and its process group: a name such as `INT` or `SIGINT`, or its number on Linux; `-9` and `-KILL` work too; TERM by default
    #[arg(short, long, value_name = "SIGNAL", value_parser = signal)]
    pub(crate) signal: Option<SignalName>,

    /// End it and everything it started, and wait until all have exited: TERM, then KILL after the grace period; KILL at
    /// once with `--signal KILL`
    #[arg(short, long)]
    pub(crate) tree: bool,

    /// All processes that are running on this server, with `--tree` also what exited ones left behind; asks for
    /// confirmation
    #[arg(long, conflicts_with = "names")]
    pub(crate) all: bool,

    /// Do not ask for confirmation
    #[arg(short, long, requires = "all", conflicts_with = "names")]
    pub(crate) yes: bool,

    /// The grace period between TERM and KILL, such as `500ms` or `5s`
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration, requires = "tree")]
    pub(crate) grace: Duration,

    #[command(flatten)]
    pub(crate) format: Format,
}

const EXAMPLES: &str = "\
Examples:
  Ask a process to reread its configuration:
    remex kill build --signal HUP
  Kill it with its process group, but not what has left the group:
    remex kill -9 build
  End it with everything it started, gracefully:
    remex kill build --tree
  At once:
    remex kill build --tree --signal KILL
  End everything on an environment, from a script:
    remex kill --all --tree --yes --on build
";

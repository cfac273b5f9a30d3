//! The arguments of `remex attach`.

use clap::{Args, ValueEnum};

use crate::args::shared::{Escape, On, Reconnect};

/// Flags of `remex attach`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    #[command(flatten)]
    pub(crate) on: On,

    /// Forward standard input even if it is not a terminal; end of file closes the input of the process
    #[arg(short, long)]
    pub(crate) interactive: bool,

    /// Read-only: neither keys nor Ctrl-C reach the process
    #[arg(short, long, conflicts_with = "interactive")]
    pub(crate) read_only: bool,

    /// Let the process use your ssh agent while you are attached; it must have been started with `-A`
    #[arg(short = 'A', long)]
    pub(crate) forward_agent: bool,

    #[command(flatten)]
    pub(crate) escape: Escape,

    /// What Ctrl-C does to a process without a terminal: ask the first time, interrupt it, or detach; on a terminal it is
    /// a key of the process
    #[arg(
        long,
        value_name = "ask|interrupt|detach",
        env = "REMEX_CTRL_C",
        default_value = "ask",
        hide_possible_values = true
    )]
    pub(crate) ctrl_c: CtrlC,
    #[command(flatten)]
    pub(crate) reconnect: Reconnect,

    /// The process, by name or unambiguous prefix; optional if exactly one is running
    pub(crate) name: Option<String>,
}

/// What Ctrl-C does to a process without a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CtrlC {
    Ask,
    Interrupt,
    Detach,
}

const EXAMPLES: &str = "\
Examples:
  Attach to a process that you detached from:
    remex attach build
  On an environment, without sending input:
    remex attach --on build --read-only work
  With your ssh agent, to a shell that was started with it:
    remex attach --on far -A work

`~.` at the start of a line detaches and leaves the process running; so do closing this terminal, and Ctrl-C with `--read-only`.
After a disconnect, remex reconnects for an hour, or as long as `--reconnect` says; the process runs on in any case.
Several clients can attach to a process: all of them see the same output, and the keys of all of them reach it.
The exit code is that of the process if it exits while you are attached, and 0 if you detach.";

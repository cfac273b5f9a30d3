//! The arguments of `remex attach`.

use clap::Args;

use crate::args::shared::{Escape, On};

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

    #[command(flatten)]
    pub(crate) escape: Escape,

    /// The process, by name or unambiguous prefix; optional if exactly one is running
    pub(crate) name: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  Back to what you left running:
    remex attach build
  On an environment, to look only:
    remex attach --on build --read-only work

`~.` at the beginning of a line leaves it running; so does the end of this terminal, and Ctrl-C with `--read-only`.
Whoever has the process keeps it: everybody sees the same output, and keys of all reach it.
The exit code is that of the process if it ends meanwhile, and 0 if you leave.";

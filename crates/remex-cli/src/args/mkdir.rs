//! The arguments of `remex mkdir`.

use clap::Args;

use crate::remote::path_arg::PathArg;

/// Flags of `remex mkdir`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// Directories: `ENV:path` in an environment, `:path` in the one selected by REMEX_ON or `remex env default`,
    /// `[URL]:path` at an address; a plain path is always on this machine
    #[arg(required = true, value_name = "[ENV:]PATH")]
    pub(crate) paths: Vec<PathArg>,

    /// Create missing parents as well; a directory that exists is no error
    #[arg(short, long)]
    pub(crate) parents: bool,
}

const EXAMPLES: &str = "\
Examples:
  A directory in the home directory on `build`:
    remex mkdir build:logs
  With its parents:
    remex mkdir -p build:releases/2026/11";

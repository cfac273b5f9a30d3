//! The arguments of `remex cat`.

use clap::Args;

use crate::remote::path_arg::PathArg;

/// Flags of `remex cat`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// Files: `ENV:path` in an environment, `:path` in the one selected by REMEX_ON or `remex env default`, `[URL]:path`
    /// at an address; a plain path is always on this machine
    #[arg(required = true, value_name = "[ENV:]PATH")]
    pub(crate) paths: Vec<PathArg>,
}

const EXAMPLES: &str = "\
Examples:
  A file in the home directory on `build`:
    remex cat build:notes.txt
  Two files one after the other, one of them here:
    remex cat notes.txt gpu:notes.txt
  List an archive on `build`:
    remex cat build:app.tar | tar -t";

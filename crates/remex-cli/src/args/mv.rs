//! The arguments of `remex mv`.

use clap::Args;

use crate::remote::path_arg::PathArg;

/// Flags of `remex mv`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// Files and directories: `ENV:path` in an environment, `:path` in the one selected by REMEX_ON or `remex env
    /// default`, `[URL]:path` at an address; a plain path is always on this machine
    #[arg(required = true, value_name = "SRC")]
    pub(crate) sources: Vec<PathArg>,

    /// The destination on the same host: an existing directory, or the new name of a single source
    #[arg(value_name = "DST")]
    pub(crate) destination: PathArg,

    /// Fail instead of replacing an existing file
    #[arg(short = 'n', long)]
    pub(crate) no_clobber: bool,

    /// Accepted for compatibility: there are no questions
    #[arg(short = 'f', long = "force", hide = true)]
    pub(crate) _force: bool,
}

const EXAMPLES: &str = "\
Examples:
  Rename a file on `build`:
    remex mv build:notes.txt build:notes-2026.txt
  Move it into a directory:
    remex mv build:notes.txt build:site

An existing file at the destination is replaced in one step; a directory only if it is empty.
Between two hosts, copy with `remex cp` and remove the source with `remex rm`; between two file systems of one host, run `mv` there.";

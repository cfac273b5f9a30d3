//! The arguments of `remex edit`.

use clap::Args;

use crate::remote::path_arg::PathArg;

/// Flags of `remex edit`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// A file: `ENV:path` in an environment, `:path` in the one selected by REMEX_ON or `remex env default`, `[URL]:path`
    /// at an address; a plain path is always on this machine
    #[arg(value_name = "[ENV:]PATH")]
    pub(crate) path: PathArg,
}

const EXAMPLES: &str = "\
Examples:
  In the editor that VISUAL or EDITOR names, or vi:
    remex edit build:notes.txt
  In another editor, this time only:
    EDITOR='sed -i s/old/new/' remex edit build:notes.txt

The file is written in one step, if you changed it and it was not changed on the host in the meantime; otherwise your version is kept on this machine, and a message says where.";

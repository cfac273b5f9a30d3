//! The arguments of `remex watch`.

use clap::Args;

use crate::{args::shared::Format, remote::path_arg::PathArg};

/// Flags of `remex watch`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// A directory or file: `ENV:path` in an environment, `:path` in the one selected by REMEX_ON or `remex env default`,
    /// `[URL]:path` at an address; a plain path is always on this machine
    #[arg(value_name = "[ENV:]PATH", default_value = ".")]
    pub(crate) path: PathArg,

    /// Only the directory itself, not its subdirectories
    #[arg(long)]
    pub(crate) flat: bool,

    #[command(flatten)]
    pub(crate) format: Format,
}

const EXAMPLES: &str = "\
Examples:
  Everything below a directory of `build`, until Ctrl-C:
    remex watch build:site
  Only the directory itself, for a program:
    remex watch --flat --json build:site

Ctrl-C ends it with exit code 0.";

//! The arguments of `remex ls`.

use clap::Args;

use crate::{args::shared::Format, remote::path_arg::PathArg};

/// Flags of `remex ls`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, disable_help_flag = true)]
pub(crate) struct Flags {
    /// Directories or files: `ENV:path` in an environment, `:path` in the one selected by REMEX_ON or `remex env default`,
    /// `[URL]:path` at an address; a plain path is always on this machine
    #[arg(value_name = "[ENV:]PATH", default_value = ".")]
    pub(crate) paths: Vec<PathArg>,

    /// Show permissions, size in bytes, modification time with the zone of this machine, and link targets
    #[arg(short = 'l', long)]
    pub(crate) long: bool,

    /// With `--long`, print human-readable sizes such as `1.5KiB`
    #[arg(short = 'h', long)]
    pub(crate) human_readable: bool,

    /// With `--long`, print times in UTC
    #[arg(long)]
    pub(crate) utc: bool,

    /// Include names that start with a dot
    #[arg(short = 'a', long)]
    pub(crate) all: bool,

    #[command(flatten)]
    pub(crate) format: Format,

    /// Print help
    // `-h` is for sizes, as in every other `ls`.
    #[arg(long, action = clap::ArgAction::Help)]
    pub(crate) help: Option<bool>,
}

const EXAMPLES: &str = "\
Examples:
  The home directory on `build`:
    remex ls build:
  A directory with sizes and times:
    remex ls -l build:site
  The same with sizes that are easy to read:
    remex ls -lh build:site
  For a program:
    remex ls --json build:site";

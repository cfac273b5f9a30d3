//! The arguments of `remex cp`.

use clap::Args;

use crate::{args::shared::Format, remote::path_arg::PathArg};

/// Flags of `remex cp`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// Files and directories: `ENV:path` in an environment, `:path` in the one selected by REMEX_ON or `remex env
    /// default`, `[URL]:path` at an address; a plain path is always on this machine
    #[arg(required = true, value_name = "SRC")]
    pub(crate) sources: Vec<PathArg>,

    /// The destination: an existing directory, or the new name of a single source
    #[arg(value_name = "DST")]
    pub(crate) destination: PathArg,

    /// Exclude entries of copied directories, by a rule in the syntax of `.gitignore`: `target/`, `*.log`, `/build`,
    /// `!important.log`; can be repeated, and later rules take precedence
    #[arg(long, value_name = "RULE")]
    pub(crate) exclude: Vec<String>,

    /// Exclude what the `.gitignore` files in copied directories exclude
    #[arg(long)]
    pub(crate) gitignore: bool,

    /// Skip files of the same content instead of those of the same size and time; both hosts read them completely
    #[arg(short, long)]
    pub(crate) checksum: bool,

    /// Delete what a copied directory does not have from its copy, after everything was copied without a failure; what
    /// `--exclude` and `--gitignore` exclude stays
    #[arg(long)]
    pub(crate) delete: bool,

    /// Print what would be copied, deleted and skipped, without changing anything
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,

    /// Print each file
    #[arg(short, long)]
    pub(crate) verbose: bool,

    /// Print errors only, no progress and no summary
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,

    #[command(flatten)]
    pub(crate) format: Format,

    /// Accepted for compatibility: directories are always copied recursively
    #[arg(short = 'r', short_alias = 'R', long = "recursive", hide = true)]
    pub(crate) _recursive: bool,

    /// Accepted for compatibility: permissions and times are always preserved
    #[arg(short = 'a', long = "archive", hide = true)]
    pub(crate) _archive: bool,

    /// Accepted for compatibility, like `--archive`
    #[arg(short = 'p', long = "preserve", hide = true)]
    pub(crate) _preserve: bool,
}

const EXAMPLES: &str = "\
Examples:
  A file to the home directory on `build`:
    remex cp notes.txt build:
  A directory, and only what is in it:
    remex cp site build:site-copy
    remex cp site/. build:site-copy
  From one environment to another, under another name:
    remex cp build:app.tar gpu:app-of-build.tar
  A project without what can be built again:
    remex cp --gitignore --exclude .git site/. build:site-copy
  Show what would be copied:
    remex cp --dry-run site notes.txt build:
  Make a directory on `build` the same as this one:
    remex cp --delete site/. build:site-copy

Relative remote paths start at the home directory on that host. Write a local name that contains a colon as `./a:b`.
Permissions, symbolic links and times are kept, as with `cp -a` (`-a` is accepted and has no effect). Files that already exist with the same size and time are skipped.
Excluded entries at the destination stay, and without `--delete` so does everything else that the source does not have.
Pipes, sockets and devices in a directory are named and left out.
After an interruption or a failure, the same command continues where it stopped: a tree contains a file `.remex-part` until it is complete, and a large file is collected in `.NAME.remex-part`.";

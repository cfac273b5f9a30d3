//! The arguments of `remex gc`.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use crate::{
    args::{
        limit::size,
        shared::{Format, On, absolute},
    },
    render::{failure::InvalidArg, text::duration},
};

/// Flags of `remex gc`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    #[command(flatten)]
    pub(crate) on: On,

    /// Collect in this state directory, which no server uses, instead of through a server
    #[arg(long, value_name = "DIR", conflicts_with = "all_identities", value_parser = absolute())]
    pub(crate) state: Option<PathBuf>,

    /// Only processes that ended at least this long ago, such as `7d` or `12h`
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) older_than: Option<Duration>,

    /// Only as many as it takes, the oldest first, until the others need at most this much disk space, such as `1GiB`
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(crate) keep_bytes: Option<u64>,

    /// Also those of other identities; needs a credential with the scope `admin`
    #[arg(long)]
    pub(crate) all_identities: bool,

    /// Only print what would be removed
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,

    #[command(flatten)]
    pub(crate) format: Format,
}

const EXAMPLES: &str = "\
Examples:
  What could be removed on this machine, and how much space that frees:
    remex gc --dry-run
  Everything that ended more than a week ago:
    remex gc --older-than 7d
  The oldest, until the rest needs at most 1 GiB, on an environment:
    remex gc --keep-bytes 1GiB --on build
  In the state directory of a server that does not run:
    remex gc --state /var/lib/remex --older-than 30d

Only processes that have ended and closed their output are removed, with their logs.
What a client has not received yet is kept while it is connected or may reconnect within an hour.
With both `--older-than` and `--keep-bytes`, what either selects is removed; with neither, all of them.";

fn bytes(text: &str) -> Result<u64, InvalidArg> {
    size(text).ok_or_else(|| {
        InvalidArg::new("it is not a size", "write a number of bytes such as `500M`, `1GiB` or `0`")
    })
}

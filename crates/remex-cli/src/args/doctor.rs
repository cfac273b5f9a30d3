//! The arguments of `remex doctor`.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use crate::{
    args::shared::{Format, OnOrigin},
    render::text::duration,
};

/// Flags of `remex doctor`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    // Before `on`, whose origin is unknown once its value is taken.
    #[command(flatten)]
    pub(crate) origin: OnOrigin,

    /// Check a server: the name of an environment (`remex env list`), or an address such as `ws://host:7070`
    #[arg(long, value_name = "ENV|URL", env = "REMEX_ON")]
    pub(crate) on: Option<String>,

    /// Read the bearer token from this file, instead of the token of the environment
    #[arg(long, value_name = "PATH", requires = "on")]
    pub(crate) token_file: Option<PathBuf>,

    /// Check this machine, ignoring REMEX_ON
    #[arg(long)]
    pub(crate) here: bool,

    /// The timeout for the server, such as `10s`
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub(crate) timeout: Duration,

    #[command(flatten)]
    pub(crate) format: Format,
}

const EXAMPLES: &str = "\
Examples:
  Check this machine:
    remex doctor
  Check a server and its host:
    remex doctor --on build
  For programs:
    remex doctor --json

The exit code is 1 if there is a problem; warnings do not count.";

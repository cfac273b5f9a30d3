//! The arguments of `remex wait`.

use std::time::Duration;

use clap::Args;

use crate::{
    args::shared::{Format, On},
    render::text::duration,
};

/// Flags of `remex wait`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// The processes, by name or unambiguous prefix
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,

    #[command(flatten)]
    pub(crate) on: On,

    /// Give up after this time, such as `30s` or `5m`, and exit with code 124
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,

    #[command(flatten)]
    pub(crate) format: Format,
}

const EXAMPLES: &str = "\
Examples:
  Wait, and exit with the code of the process:
    remex wait build
  With a timeout; exit code 124 means that it is still running:
    remex wait build --timeout 5m
  As JSON, for programs:
    remex wait build --timeout 1h --json

The exit code is that of the process, as with `remex run`: 128 + the number of the signal that ended it, and 124 also when its own `--timeout` ended it.";

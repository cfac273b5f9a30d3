//! The arguments of `remex env test`.

use std::time::Duration;

use clap::Args;

use crate::{args::shared::Format, render::text::duration};

/// Flags of `remex env test`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// Names of environments, or addresses such as `ws://host:7070`
    #[arg(value_name = "ENV|URL", required_unless_present = "all")]
    pub(crate) names: Vec<String>,

    /// Check all environments
    #[arg(long, conflicts_with = "names")]
    pub(crate) all: bool,

    /// The timeout for each, such as `10s`
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub(crate) timeout: Duration,

    #[command(flatten)]
    pub(crate) format: Format,
}

const EXAMPLES: &str = "\
Examples:
  Check one:
    remex env test build
  Check all of them, including this machine:
    remex env test --all
  For programs:
    remex env test build gpu --json

The exit code is 0 if everything works, 4 if one cannot be reached, else 1.";

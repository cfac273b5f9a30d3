//! The arguments of `remex upgrade`.

use std::path::PathBuf;

use clap::Args;

use crate::args::shared::absolute;

/// Flags of `remex upgrade`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  Your local server, after a new remex was installed:
    remex upgrade
  A server that was started with `remex serve --state /var/lib/remex`:
    remex upgrade --state /var/lib/remex
  The server on an ssh host, after `remex env set far --install`:
    remex upgrade --on far

The server is replaced by the program that is now where it was started from. Its pid, its listening sockets and its
durable processes stay, and clients reconnect by themselves. Other processes end. SIGUSR2 does the same.")]
pub(crate) struct Flags {
    /// Upgrade the server on the ssh host of this environment, or of an address such as `ssh://host`
    #[arg(long, value_name = "ENV|URL", conflicts_with = "state")]
    pub(crate) on: Option<String>,

    /// Upgrade the server of this state directory instead of your local one
    #[arg(long, value_name = "DIR", value_parser = absolute())]
    pub(crate) state: Option<PathBuf>,
}

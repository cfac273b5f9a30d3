//! The arguments of `remex mcp`.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, ValueEnum};

use super::sandbox::Confine;

/// Flags of `remex mcp`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// An environment that the model may use, or an address; repeat it for several, the first one is the default
    #[arg(long, value_name = "ENV|URL", env = "REMEX_ON")]
    pub(crate) on: Vec<String>,

    /// Offer only these tools; repeat it for several
    #[arg(long, value_name = "TOOLS")]
    pub(crate) allow: Vec<Allowed>,

    /// Run the commands of this machine in this program, so that they end with it, instead of in your local remex server
    #[arg(long)]
    pub(crate) ephemeral: bool,

    #[command(flatten)]
    pub(crate) confine: Confine,

    /// Serve over streamable HTTP on this address, instead of on stdin and stdout
    #[arg(long, value_name = "ADDRESS", requires = "token_file")]
    pub(crate) listen: Option<SocketAddr>,

    /// With `--listen`: the file with the token that clients have to present
    #[arg(long, value_name = "PATH", requires = "listen")]
    pub(crate) token_file: Option<PathBuf>,

    /// With `--listen`: another name of this host that requests may use, besides `localhost`
    #[arg(long, value_name = "NAME", requires = "listen")]
    pub(crate) host: Vec<String>,
}

/// A group of tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Allowed {
    /// Run commands, write to them, read their output, stop and list them
    Commands,
    /// Read, list and search files
    ReadFiles,
    /// Write, edit and copy files; editing and copying need `read-files` as well
    WriteFiles,
}

const EXAMPLES: &str = "\
Examples:
  As an MCP server of Codex; docs/agents.md has the lines for other agents:
    codex mcp add remex -- remex mcp
  On two hosts, the first of which is the default:
    remex mcp --on build --on ssh://db.example
  To look, but not to touch:
    remex mcp --allow read-files
  To work on this directory, and to leave everything else as it is:
    remex mcp --sandbox workspace-write
  Over HTTP, at http://127.0.0.1:7080/mcp:
    remex mcp --listen 127.0.0.1:7080 --token-file ~/.config/remex/mcp-token

Without `--on`, the model can use this machine and all environments of `remex env list`, and the default one is their default.
`--sandbox` and `--net` confine all commands and file tools; the workspace is the directory in which this program runs, on other hosts the working directory of their servers. Processes that it did not start itself are then out of its reach.
Commands keep running when the client or this program ends, and are found again by their names, also with `remex ps`.
Commands of this machine run in your local remex server, which is started on demand.";

//! The arguments of `remex cert`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// Flags of `remex cert`.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true, after_help = EXAMPLES)]
pub(crate) struct Flags {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a certificate, and a CA that signs it if there is none yet
    New(New),
}

/// Flags of `remex cert new`.
#[derive(Debug, Args)]
#[command(after_help = NEW_EXAMPLES)]
pub(crate) struct New {
    /// Who the certificate is for
    pub(crate) kind: Kind,

    /// The names of the certificate: all DNS names and IP addresses of a server, or the name of one client
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,

    /// The directory of the CA and its certificates; created if it does not exist
    #[arg(long, value_name = "PATH", default_value = "certs")]
    pub(crate) dir: PathBuf,

    /// The SPIFFE URI of the certificate, such as `spiffe://example.com/ci`; identifies the client to servers
    #[arg(long, value_name = "URI")]
    pub(crate) spiffe: Option<String>,

    /// How many days the certificate is valid
    #[arg(long, value_name = "N", default_value = "825", value_parser = clap::value_parser!(u32).range(1..=3650))]
    pub(crate) days: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// For `remex serve --tls-cert`
    Server,
    /// For `remex env add --client-cert`
    Client,
}

const EXAMPLES: &str = "\
Examples:
  Make a CA and a certificate for a server:
    remex cert new server build.example 10.0.0.5";

const NEW_EXAMPLES: &str = "\
Examples:
  A server with two names; the CA is made first, as `certs/ca.pem` and `certs/ca.key`:
    remex cert new server build.example 10.0.0.5
  A client that the server knows as `dns:ann`:
    remex cert new client ann
  A client that the server knows by its SPIFFE URI, for a month:
    remex cert new client ci --spiffe spiffe://example.com/ci --days 30

Files are named after the first name, keys can be read by you only, and no file is ever replaced.
Servers and clients need `ca.pem`; keep `ca.key` away from both, because anyone who has it can impersonate all of them.";

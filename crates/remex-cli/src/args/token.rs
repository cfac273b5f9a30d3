//! The arguments of `remex token`.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};

use crate::render::text::duration;

/// Flags of `remex token`.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true, after_help = EXAMPLES)]
pub(crate) struct Flags {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print a new capability token, or a signed JWT
    New(New),
    /// Print the public key of a signing key as a JWKS, for `remex serve --ws-jwks-file`
    Jwks(Jwks),
    /// Print the header and the claims of a JWT without verifying them
    Show(Show),
}

const EXAMPLES: &str = "\
Examples:
  A token for the file of `remex serve --ws-token-file`:
    remex token new --name ci --scope processes,files:read=/srv --expires 30d
  Show the claims of a JWT:
    remex token show eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4iLCJleHAiOjE4OTM0NTYwMDB9.AA

Scopes, with commas between them:
  all                     Everything but `admin`
  processes[=MAX]         Start, read and control processes, at most MAX at a time
  processes:read          List processes and read their output
  files:read[=/PATH]      Read files, everywhere or below a directory
  files:write[=/PATH]     Change files, everywhere or below a directory
  files:setid             Let written files have set-user-ID and set-group-ID
  http                    Make HTTP requests from the server
  metrics                 Read `/metrics`
  sandbox=PROFILE         Confine what the others allow: `read-only` or `workspace-write`
  admin                   Everything, also with the sessions of others";

/// Flags of `remex token new`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  A token that allows everything but `admin` and never expires, in a file that only you can read:
    (umask 077 && remex token new > token.txt)
  A token that may read files below one directory, for a month:
    remex token new --name reader --scope files:read=/srv --expires 30d
  A JWT signed with the secret that the server knows:
    remex token new --secret-file secret.txt --subject ann --expires 8h
  A JWT signed with a private key; the server needs only the public one:
    remex token new --key key.pem --subject ann --audience remex --expires 8h")]
pub(crate) struct New {
    /// What the token allows, as in `remex token --help` [default: all]
    #[arg(long, value_name = "SCOPES")]
    pub(crate) scope: Option<String>,

    /// The name of the token in the server's logs [default: the first digits of its digest]
    #[arg(long, value_name = "NAME", conflicts_with_all = ["secret_file", "key"])]
    pub(crate) name: Option<String>,

    /// How long it is valid, such as `8h` or `30d`; required for a JWT
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) expires: Option<Duration>,

    /// Sign a JWT with HS256 and the secret in this file
    #[arg(long, value_name = "PATH", conflicts_with = "key")]
    pub(crate) secret_file: Option<PathBuf>,

    /// Sign a JWT with EdDSA and the Ed25519 private key in this file, in PKCS#8 PEM format
    #[arg(long, value_name = "PATH")]
    pub(crate) key: Option<PathBuf>,

    /// The subject of the JWT (`sub`), which its sessions belong to
    #[arg(long, value_name = "SUBJECT")]
    pub(crate) subject: Option<String>,

    /// The issuer of the JWT (`iss`)
    #[arg(long, value_name = "ISSUER")]
    pub(crate) issuer: Option<String>,

    /// The audience of the JWT (`aud`), as the server has it in `--ws-audience`
    #[arg(long, value_name = "AUDIENCE")]
    pub(crate) audience: Option<String>,
}

/// Flags of `remex token jwks`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  A new key, and its public part for the server:
    (umask 077 && openssl genpkey -algorithm ed25519 -out key.pem)
    remex token jwks key.pem > jwks.json")]
pub(crate) struct Jwks {
    /// The Ed25519 private key, in PKCS#8 PEM format
    #[arg(value_name = "PATH")]
    pub(crate) key: PathBuf,
}

/// Flags of `remex token show`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  From a file:
    remex token show - < jwt.txt")]
pub(crate) struct Show {
    /// The JWT, or `-` to read it from stdin
    #[arg(value_name = "TOKEN")]
    pub(crate) token: String,
}

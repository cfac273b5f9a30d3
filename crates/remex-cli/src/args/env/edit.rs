//! The arguments of `remex env add`, `set`, `default` and `remove`.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use crate::{remote::reconnect::window, render::text};

/// Flags of `remex env add`.
#[derive(Debug, Args)]
#[command(after_help = ADD_EXAMPLES)]
pub(crate) struct Add {
    /// Its name: letters, digits, `-` and `_`
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) settings: Settings,
}

/// Flags of `remex env set`.
#[derive(Debug, Args)]
#[command(after_help = SET_EXAMPLES)]
pub(crate) struct Set {
    /// The name of the environment
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) settings: Settings,
}

/// The settings of an environment.
#[derive(Debug, Args)]
pub(crate) struct Settings {
    /// The address of its server: `ws://host:port`, `wss://host:port`, `ssh://user@host:port`, `unix:///path` or `/path`
    #[arg(conflicts_with = "program")]
    pub(crate) url: Option<String>,

    /// After `--`: the program to connect through, such as `ssh HOST remex proxy`, with its arguments
    #[arg(last = true)]
    pub(crate) program: Vec<String>,

    /// The file with the bearer token
    #[arg(long, value_name = "PATH", conflicts_with = "program")]
    pub(crate) token_file: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) tls: Tls,

    /// Make it the default environment
    #[arg(long)]
    pub(crate) default: bool,

    /// The connect timeout, such as `5s`
    #[arg(long, value_name = "TIME", value_parser = text::duration)]
    pub(crate) connect_timeout: Option<Duration>,

    /// How long `run`, `shell` and `attach` try to reconnect, such as `30m`, or `forever`; `1h` unless set
    #[arg(long, value_name = "TIME|forever", value_parser = window)]
    pub(crate) reconnect: Option<Duration>,

    /// Copy this program to `.local/bin/remex` on the ssh host, and use it there
    #[arg(long)]
    pub(crate) install: bool,
}

/// How to recognize a `wss://` server, and which certificate to present to it.
#[derive(Debug, Args)]
pub(crate) struct Tls {
    /// The CAs of a `wss://` server, in PEM format, instead of those that this host trusts
    #[arg(long, value_name = "PATH", conflicts_with = "program")]
    pub(crate) ca: Option<PathBuf>,

    /// The public key of a `wss://` server, such as `sha256:…`; without `--ca` it suffices
    #[arg(long, value_name = "PIN", conflicts_with = "program")]
    pub(crate) pin: Option<String>,

    /// The certificate to present to a `wss://` server, in PEM format
    #[arg(long, value_name = "PATH", conflicts_with = "program")]
    pub(crate) client_cert: Option<PathBuf>,

    /// The private key of that certificate
    #[arg(long, value_name = "PATH", conflicts_with = "program")]
    pub(crate) client_key: Option<PathBuf>,
}

const ADD_EXAMPLES: &str = "\
Examples:
  A server on another port of this machine:
    remex env add dev ws://127.0.0.1:7070
  An ssh host that has no remex yet; processes there survive disconnects:
    remex env add far ssh://you@far.example --install
  The same with a command line of your own:
    remex env add far -- ssh far.example remex proxy
  A server that requires a token:
    remex env add lab ws://lab.example:7070 --token-file token.txt --connect-timeout 5s
  A server with TLS and a CA of your own, which wants a certificate from you (see `remex cert new`):
    remex env add vault wss://vault.example:7070 --ca certs/ca.pem --client-cert certs/me.pem --client-key certs/me.key

`ssh://` means `ssh -p PORT USER@HOST remex proxy`; ssh reads its own configuration as usual.";

const SET_EXAMPLES: &str = "\
Examples:
  Allow more time:
    remex env set gpu --connect-timeout 30s
  Update remex on an ssh host to the version of this one:
    remex env set far --install
  Change its address:
    remex env set gpu ws://127.0.0.1:7071

Other settings stay unchanged.";

/// Flags of `remex env default`.
#[derive(Debug, Args)]
#[command(after_help = DEFAULT_EXAMPLES)]
pub(crate) struct SetDefault {
    /// The environment; `local` is this machine. Without a name, print the current default
    pub(crate) name: Option<String>,

    /// Unset the default, so that commands use this machine
    #[arg(long, conflicts_with = "name")]
    pub(crate) unset: bool,
}

const DEFAULT_EXAMPLES: &str = "\
Examples:
  Use `build` from now on:
    remex env default build
  Show the default:
    remex env default
  Use this machine again:
    remex env default --unset

`run`, `shell`, `ps`, `top`, `logs`, `attach`, `kill`, `wait`, `resize`, `rm`, `prune` and `gc` use it; `cp`, `ls`, `cat`, `edit` and `watch` use it for `:path`, while plain paths are always local.
`--on`, `--here` and REMEX_ON take precedence.";

/// Flags of `remex env remove`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  Remove the entry; processes there keep running:
    remex env remove gpu")]
pub(crate) struct Remove {
    /// The name of the environment
    pub(crate) name: String,
}

//! The arguments of `remex env add`, `set`, `default` and `remove`.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use crate::render::text;

/// Flags of `remex env add`.
#[derive(Debug, Args)]
#[command(after_help = ADD_EXAMPLES)]
pub(crate) struct Add {
    /// What to call it: letters, digits, `-` and `_`
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) settings: Settings,
}

/// Flags of `remex env set`.
#[derive(Debug, Args)]
#[command(after_help = SET_EXAMPLES)]
pub(crate) struct Set {
    /// Which
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) settings: Settings,
}

/// What an environment consists of.
#[derive(Debug, Args)]
pub(crate) struct Settings {
    /// Where its server is: `ws://host:port`, `ssh://user@host:port`, `unix:///path` or `/path`
    #[arg(conflicts_with = "program")]
    pub(crate) url: Option<String>,

    /// After `--`: the program that leads there, such as `ssh HOST remex proxy`, with its arguments
    #[arg(last = true)]
    pub(crate) program: Vec<String>,

    /// The file that has the token to present
    #[arg(long, value_name = "PATH", conflicts_with = "program")]
    pub(crate) token_file: Option<PathBuf>,

    /// Make it the default: where commands and programs work when nothing says where
    #[arg(long)]
    pub(crate) default: bool,

    /// How long connecting may take, such as `5s`
    #[arg(long, value_name = "TIME", value_parser = text::duration)]
    pub(crate) connect_timeout: Option<Duration>,

    /// Copy this program to `.local/bin/remex` on the machine that ssh leads to, and use it there
    #[arg(long)]
    pub(crate) install: bool,
}

const ADD_EXAMPLES: &str = "\
Examples:
  A server on another port of this machine:
    remex env add dev ws://127.0.0.1:7070
  A machine that ssh reaches and that has no remex yet; what runs there survives a disconnect:
    remex env add far ssh://ann@far.example --install
  The same with a command line of your own:
    remex env add far -- ssh far.example remex proxy
  A server that wants a token:
    remex env add lab ws://lab.example:7070 --token-file token.txt --connect-timeout 5s

`ssh://` stands for `ssh -p PORT USER@HOST remex proxy`; ssh reads its own configuration as always.";

const SET_EXAMPLES: &str = "\
Examples:
  Allow more time:
    remex env set gpu --connect-timeout 30s
  Bring the program on a machine that ssh reaches to the version of this one:
    remex env set far --install
  Lead it elsewhere:
    remex env set gpu ws://127.0.0.1:7071

What is not named stays as it is.";

/// Flags of `remex env default`.
#[derive(Debug, Args)]
#[command(after_help = DEFAULT_EXAMPLES)]
pub(crate) struct SetDefault {
    /// Which; `local` is this machine. Without a name, print which it is
    pub(crate) name: Option<String>,

    /// Have none, so that commands work on this machine
    #[arg(long, conflicts_with = "name")]
    pub(crate) unset: bool,
}

const DEFAULT_EXAMPLES: &str = "\
Examples:
  Work on `build` from now on:
    remex env default build
  Which is it?
    remex env default
  Work on this machine again:
    remex env default --unset

`run`, `shell`, `ps`, `top`, `logs`, `attach`, `kill`, `wait`, `resize`, `rm` and `prune` work there; `cp`, `ls`, `cat`, `edit` and `watch` use it for `:path`, and plain paths stay those of this machine.
`--on`, `--here` and REMEX_ON count more.";

/// Flags of `remex env remove`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  Forget where it is; what runs there goes on:
    remex env remove gpu")]
pub(crate) struct Remove {
    /// Which
    pub(crate) name: String,
}

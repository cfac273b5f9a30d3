//! The arguments of `remex shell`.

use clap::Args;

use super::{
    run::process_name,
    shared::{AsUser, Escape, On, Reconnect},
};

/// Flags of `remex shell`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    #[command(flatten)]
    pub(crate) on: On,

    /// Name the process for `remex ps` and other commands
    #[arg(long, value_parser = process_name)]
    pub(crate) name: Option<String>,

    /// The working directory; a relative path starts at the current directory, on a remote host at the working directory
    /// of its server; `~` is the home directory of that host
    #[arg(short = 'C', long, value_name = "DIR")]
    pub(crate) cwd: Option<String>,

    #[command(flatten)]
    pub(crate) as_user: AsUser,

    /// Let the shell use your ssh agent while you are attached, in an environment that uses ssh
    #[arg(short = 'A', long)]
    pub(crate) forward_agent: bool,

    #[command(flatten)]
    pub(crate) escape: Escape,

    #[command(flatten)]
    pub(crate) reconnect: Reconnect,
}

const EXAMPLES: &str = "\
Examples:
  On your local remex server, so that it survives the end of this terminal:
    remex shell
  On an environment, with a name to come back to:
    remex shell --on build --name work
  As another user of the host, where the server runs as root:
    remex shell --on build --user postgres

`~.` at the beginning of a line leaves it running, and so does the end of the terminal; `remex attach` comes back.
If standard input is not a terminal, the shell reads commands from it, has no terminal, and ends with it.
After a disconnect, remex reconnects for an hour, or as long as `--reconnect` says; the shell runs on in any case.
The exit code is that of the shell.";

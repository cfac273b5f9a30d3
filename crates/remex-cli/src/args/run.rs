//! The arguments of `remex run`.

use std::{ffi::OsString, time::Duration};

use clap::Args;
use remex_client::process::Restart;

use crate::{
    args::{
        limit::{Limit, limit},
        restart::restart,
        sandbox::Confine,
        shared::{AsUser, Escape, On, Reconnect},
        variables::Variables,
    },
    render::{failure::InvalidArg, text::duration},
};

/// Flags of `remex run`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    #[command(flatten)]
    pub(crate) on: On,

    /// Forward the keyboard; standard input from a pipe or a file is always forwarded
    #[arg(short, long)]
    pub(crate) interactive: bool,

    /// Allocate a terminal that follows the size of yours; `~.` at the start of a line detaches, `~?` shows help
    #[arg(short, long)]
    pub(crate) terminal: bool,

    #[command(flatten)]
    pub(crate) escape: Escape,

    #[command(flatten)]
    pub(crate) reconnect: Reconnect,

    /// Run in the background and print its name (without `--on`: on your local remex server, started on demand)
    #[arg(short, long)]
    pub(crate) detach: bool,

    /// With `--detach`, print JSON; docs/json.md documents the format
    #[arg(long, requires = "detach")]
    pub(crate) json: bool,

    /// Name the process for `remex ps` and other commands, with `--detach` or `--on`; a name can be used again once its
    /// process has exited
    #[arg(long, value_parser = process_name)]
    pub(crate) name: Option<String>,

    /// The working directory; a relative path starts at the current directory, on a remote host at the working directory
    /// of its server; `~` is the home directory of that host
    #[arg(short = 'C', long, value_name = "DIR")]
    pub(crate) cwd: Option<String>,

    #[command(flatten)]
    pub(crate) as_user: AsUser,

    #[command(flatten)]
    pub(crate) variables: Variables,

    /// Label the process, for `remex ps --label` and `remex inspect`; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = label)]
    pub(crate) label: Vec<(String, String)>,

    /// End the command and everything it started after this time, such as `30s` or `5m`: SIGTERM, then SIGKILL after
    /// `--grace`; the exit code is then 124
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,

    /// How long it may take to end after SIGTERM or SIGHUP to remex, which are passed on, or after `--timeout`; `0` kills
    /// it at once
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = grace)]
    pub(crate) grace: Duration,

    /// Limit what it may use: `cpu=TIME`, `memory=SIZE`, `files=N`, `processes=N` or `file-size=SIZE`; repeatable. A limit
    /// that the server cannot enforce is refused; `remex doctor` shows how it enforces each
    #[arg(long, value_name = "NAME=VALUE", value_parser = limit)]
    pub(crate) limit: Vec<Limit>,

    /// Run the command again when it fails, `on-failure`, so many times at most, `on-failure:N`, or whenever it ends,
    /// `always`: after 100 ms, then after twice as long each time up to a minute; not after SIGTERM, SIGHUP or Ctrl-C
    #[arg(long, value_name = "POLICY", value_parser = restart)]
    pub(crate) restart: Option<Restart>,

    /// Let the command use your ssh agent while you are attached, in an environment that uses ssh
    #[arg(short = 'A', long, conflicts_with_all = ["detach", "sandbox"])]
    pub(crate) forward_agent: bool,

    #[command(flatten)]
    pub(crate) confine: Confine,

    /// The command and its arguments; not run through a shell, use `sh -c '…'` for that
    #[arg(required = true, trailing_var_arg = true)]
    pub(crate) command: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  On this machine, without a server:
    remex run -- uname -a
  On an environment, with your standard input:
    remex run --on build -- wc -l < notes.txt
  In a terminal that survives short disconnects:
    remex run --on build -t -- top
  In the background on your local remex server:
    remex run --detach --name nightly -- sh -c 'echo started; sleep 1000'
  With labels that `remex ps --label team=web` finds:
    remex run --detach --label team=web --label tier=front -- sleep 1000
  With a timeout, a working directory and a variable:
    remex run --on build --timeout 1m --cwd '~' --env LANG=C -- ls
  As another user of the host, where the server runs as root:
    remex run --on build --user nobody -- id -un
  With your ssh agent, for as long as the command runs:
    remex run --on far -A -- git fetch
  With a secret that no command line shows:
    remex run --on build --secret DEPLOY_TOKEN=token.txt -- printenv DEPLOY_TOKEN
  With at most ten seconds of CPU time and 512 MiB of memory:
    remex run --limit cpu=10s --limit memory=512M -- sort notes.txt
  In the background, again when it fails:
    remex run --detach --name worker --restart on-failure -- sleep 1000
  Confined: it may read everything, write only the working directory, and has no network:
    remex run --sandbox workspace-write -- sort -o sorted.txt notes.txt

The exit code is that of the command, 128 + the number of the signal that ended it, 123 if it was lost with the keeper or the host that ran it, 124 after a timeout, 126 or 127 if it is not executable or not found, 2 after a usage or configuration error, and 125 after any other failure of remex.
Ctrl-C interrupts the command; a second one within two seconds kills it with everything it started. SIGTERM and SIGHUP are passed on, and `--grace` later what is left is killed; a second SIGTERM or Ctrl-C does that at once.
When the command exits, remex ends the processes that it left behind; use `--detach` to keep something running.
After a disconnect, remex reconnects for an hour, or as long as `--reconnect` says; meanwhile the server keeps the command and its output, and then ends it. Use `--detach` for a command that must survive longer.";

/// How long a command may take to end after SIGTERM or SIGHUP, unless `--grace` says otherwise.
pub(crate) const DEFAULT_GRACE: Duration = Duration::from_secs(10);

/// Parses a grace period; `0` needs no unit.
pub(crate) fn grace(text: &str) -> Result<Duration, InvalidArg> {
    if text == "0" { Ok(Duration::ZERO) } else { duration(text) }
}

/// Checks the name of a process, which must be easy to type and to display.
pub(crate) fn process_name(text: &str) -> Result<String, InvalidArg> {
    const MOST: usize = 64;
    // With a colon, `remex rm` takes it for a path.
    let fits = |letter: char| !letter.is_control() && !letter.is_whitespace() && !"/:".contains(letter);
    if text.is_empty() || text.len() > MOST || text.starts_with('-') || !text.chars().all(fits) {
        return Err(InvalidArg::new(
            "it is not a valid name",
            "use at most 64 bytes without spaces, slashes, colons or control characters, and not `-` at the start",
        ));
    }
    Ok(text.to_owned())
}

pub(crate) fn label(text: &str) -> Result<(String, String), InvalidArg> {
    match text.split_once('=') {
        Some(("", _)) => Err(InvalidArg::new("a label needs a name", "write `NAME=VALUE`")),
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err(InvalidArg::new("a label needs a value", format!("write `{text}=VALUE`"))),
    }
}

//! The arguments of `remex run`.

use std::{ffi::OsString, time::Duration};

use clap::Args;

use crate::{
    args::shared::{Escape, On},
    render::text::duration,
};

/// Flags of `remex run`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    #[command(flatten)]
    pub(crate) on: On,

    /// Forward the keyboard; a pipe or a file as standard input is always forwarded
    #[arg(short, long)]
    pub(crate) interactive: bool,

    /// Give it a terminal that follows yours; `~.` at the beginning of a line leaves it running, `~?` tells more
    #[arg(short, long)]
    pub(crate) terminal: bool,

    #[command(flatten)]
    pub(crate) escape: Escape,

    /// Leave it running and print its name; without `--on` on your own server, which is started if it is not there
    #[arg(short, long)]
    pub(crate) detach: bool,

    /// What to call it in `remex ps` and the others, with `--detach` or `--on`; a name whose command has ended is given
    /// to the new one
    #[arg(long, value_parser = process_name)]
    pub(crate) name: Option<String>,

    /// Where to run, relative to the directory of the server, `~` is the home there
    #[arg(short = 'C', long, value_name = "DIR")]
    pub(crate) cwd: Option<String>,

    /// A variable for it; without `=VALUE` the value that it has here
    #[arg(short, long, value_name = "NAME[=VALUE]", value_parser = variable)]
    pub(crate) env: Vec<(String, String)>,

    /// End it with everything it started after this time, such as `30s` or `5m`; the exit code is 124
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,

    /// The command and its arguments; no shell is between, say `sh -c '…'` for one
    #[arg(required = true, trailing_var_arg = true)]
    pub(crate) command: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  Here, with no server at all:
    remex run -- uname -a
  On an environment, with your standard input:
    remex run --on build -- wc -l < notes.txt
  In a terminal that survives a cut:
    remex run --on build -t -- top
  Left running on your own server, and looked after later:
    remex run --detach --name nightly -- sh -c 'echo started; sleep 1000'
  No longer than a minute, in a directory, with a variable:
    remex run --on build --timeout 1m --cwd '~' --env LANG=C -- ls

The exit code is that of the command, 128 + the number of the signal that ended it, 124 after a timeout, 126 or 127 when it cannot be run or is not there, and 125 when remex itself failed.
Ctrl-C interrupts the command; a second one within two seconds kills it with everything it started.
What it leaves behind when it exits is ended: leave things running with `--detach`.";

/// Checks a name that people are to type, and listings to show, later.
pub(crate) fn process_name(text: &str) -> Result<String, String> {
    const MOST: usize = 64;
    let fits = |letter: char| !letter.is_control() && !letter.is_whitespace() && letter != '/';
    if text.is_empty() || text.len() > MOST || text.starts_with('-') || !text.chars().all(fits) {
        let rule =
            "a name has up to 64 bytes, begins with no `-`, and has no space, slash or control character";
        return Err(rule.to_owned());
    }
    Ok(text.to_owned())
}

pub(crate) fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, value.to_owned()),
        None => (
            text,
            std::env::var(text)
                .map_err(|_| format!("`{text}` is not set here, or not UTF-8; add `=VALUE`"))?,
        ),
    };
    if name.is_empty() {
        return Err("a variable needs a name; write `NAME=VALUE`".to_owned());
    }
    Ok((name.to_owned(), value))
}

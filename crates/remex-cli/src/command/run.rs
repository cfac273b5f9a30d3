//! `remex run`: a command here or elsewhere, as if it were local.

use std::{ffi::OsString, io::IsTerminal as _, time::Duration};

use clap::Args;
use remex_client::{Options, Session, process::Input};

use super::Outcome;
use crate::{
    console::{Console, Ending, Interrupts, Remote, WhenEnded, say},
    cut, escape,
    failure::Failure,
    followed::Followed,
    launch::{Launch, Launched, Stay},
    place::{self, On, Otherwise, Place, PlaceKind},
    print,
    text::duration,
};

/// Flags of `remex run`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    #[command(flatten)]
    on: On,

    /// Forward the keyboard; a pipe or a file as standard input is always forwarded
    #[arg(short, long)]
    interactive: bool,

    /// Give it a terminal that follows yours; `~.` at the beginning of a line leaves it running, `~?` tells more
    #[arg(short, long)]
    terminal: bool,

    #[command(flatten)]
    escape: escape::Flag,

    /// Leave it running and print its name; without `--on` on your own server, which is started if it is not there
    #[arg(short, long)]
    detach: bool,

    /// What to call it in `remex ps` and the others, with `--detach` or `--on`; a name whose command has ended is given
    /// to the new one
    #[arg(long, value_parser = process_name)]
    name: Option<String>,

    /// Where to run, relative to the directory of the server, `~` is the home there
    #[arg(short = 'C', long, value_name = "DIR")]
    cwd: Option<String>,

    /// A variable for it; without `=VALUE` the value that it has here
    #[arg(short, long, value_name = "NAME[=VALUE]", value_parser = variable)]
    env: Vec<(String, String)>,

    /// End it with everything it started after this time, such as `30s` or `5m`; the exit code is 124
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Duration>,

    /// The command and its arguments; no shell is between, say `sh -c '…'` for one
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
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

pub(crate) async fn run(flags: &Flags) -> Outcome {
    let otherwise = if flags.detach { Otherwise::Own } else { Otherwise::Here };
    let place = flags.on.place(otherwise).await?;
    if flags.detach && place.kind == PlaceKind::Here {
        return Err(Failure::usage(
            "cannot leave anything running in this process",
            "leave `--on` away to use your own server",
        ));
    }
    if flags.name.is_some() && place.kind == PlaceKind::Here {
        return Err(Failure::usage(
            "`--name` means nothing for a command that runs in this process: nothing could find it by that name",
            "add `--detach` to run it on your own server, or say where with `--on`; otherwise leave `--name` away",
        ));
    }
    let forward = flags.interactive || flags.terminal || !std::io::stdin().is_terminal();
    let piped = if flags.detach { flags.interactive } else { forward };
    let launch = Launch {
        place: &place,
        argv: flags.command.clone(),
        cwd: flags.cwd.clone(),
        env: flags.env.clone(),
        terminal: flags.terminal,
        input: if piped { Input::Piped } else { Input::None },
        timeout: flags.timeout,
        name: flags.name.clone(),
        stay: if flags.detach { Stay::Left } else { Stay::Waited },
    };
    let launched = launch.start().await?;
    if flags.detach {
        return leave(&place, launched).await;
    }
    let shown =
        Shown { terminal: flags.terminal, forward, when_ended: WhenEnded::End, escape: flags.escape.escape };
    show(&place, launched, shown).await
}

/// How a command that was started is shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown {
    pub(super) terminal: bool,
    pub(super) forward: bool,
    pub(super) when_ended: WhenEnded,
    pub(super) escape: escape::Character,
}

/// Shows a command until it ends or is left running, and ends or keeps its session.
pub(super) async fn show(place: &Place, launched: Launched, shown: Shown) -> Outcome {
    let Launched { client, process, name } = launched;
    let followed = Followed::started(&process);
    let console = Console {
        remote: Remote::started(process),
        terminal: shown.terminal,
        forward: shown.forward,
        stay: match (place.kind, client.welcome().detach_ttl_ms) {
            (PlaceKind::Here, _) => {
                Some("it runs in this process and cannot be left running; `remex shell` and `remex run --detach` can".to_owned())
            }
            (_, Some(0)) => Some("its server ends it with this connection, so it cannot be left running".to_owned()),
            _ => None,
        },
        when_ended: shown.when_ended,
        interrupts: Interrupts::Pass,
        escape: shown.escape,
        place: place.kind,
    };
    let ending = console.show().await;
    match ending {
        Ok(Ending::Detached) => {
            let come_back = come_back(place, &name);
            keep(place, &followed, &name).await.map_err(|failure| {
                failure.context(&format!(
                    "left `{name}` without a word to its server; `{come_back}` tries to come back"
                ))
            })?;
            say(false, &format!("left running as `{name}`; `{come_back}` comes back to it"));
            Ok(0)
        }
        ended => {
            match (&ended, shown.when_ended) {
                (Ok(Ending::Deaf) | Err(_), WhenEnded::Leave) => client.disconnect().await,
                _ => cut::end(client).await,
            }
            match ended? {
                Ending::Exited(code) | Ending::Signalled(code) => Ok(code),
                Ending::Deaf => Ok(141),
                Ending::Detached => Ok(0),
            }
        }
    }
}

/// Leaves a process that somebody has waited for: from now on its session lives, and its output waits for nobody.
async fn keep(place: &Place, followed: &Followed, name: &str) -> Result<(), Failure> {
    followed.client.clone().disconnect().await;
    let session = Session::TakeOver(followed.session_id.clone());
    let client = place
        .connect(|options: &mut Options| {
            options.session = session;
            options.session_name = Some(name.to_owned());
            options.detach_ttl = Some(Duration::MAX);
        })
        .await?;
    Followed { client: client.clone(), ..followed.clone() }.release().await?;
    client.disconnect().await;
    Ok(())
}

/// Says what was left running, and goes.
async fn leave(place: &Place, launched: Launched) -> Outcome {
    let Launched { client, process, name } = launched;
    if std::io::stderr().is_terminal() {
        print::note(format!("left running; `{}` comes back to it", come_back(place, &name)));
    }
    if let Some(ms) = client.welcome().detach_ttl_ms {
        let time = crate::text::age(Duration::from_millis(ms));
        print::note(format!("{} keeps it for {time} without a connection", place.name));
    }
    client.disconnect().await;
    drop(process);
    print::out(format!("{name}\n"))?;
    Ok(0)
}

fn come_back(place: &Place, name: &str) -> String {
    match place.kind {
        PlaceKind::Elsewhere => format!("remex attach --on {} {name}", place.name),
        // Without a word about where, it would look there.
        PlaceKind::Here | PlaceKind::Own if is_elsewhere_selected() => format!("remex attach --here {name}"),
        PlaceKind::Here | PlaceKind::Own => format!("remex attach {name}"),
    }
}

fn is_elsewhere_selected() -> bool {
    place::selected().is_ok_and(|selected| selected.is_some_and(|selected| selected.word != "local"))
}

/// Checks a name that people are to type, and listings to show, later.
pub(super) fn process_name(text: &str) -> Result<String, String> {
    const MOST: usize = 64;
    let fits = |letter: char| !letter.is_control() && !letter.is_whitespace() && letter != '/';
    if text.is_empty() || text.len() > MOST || text.starts_with('-') || !text.chars().all(fits) {
        let rule =
            "a name has up to 64 bytes, begins with no `-`, and has no space, slash or control character";
        return Err(rule.to_owned());
    }
    Ok(text.to_owned())
}

fn variable(text: &str) -> Result<(String, String), String> {
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

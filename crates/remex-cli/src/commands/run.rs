//! `remex run`: runs a command on this machine or a remote host as if it were local.

mod interactive;

use std::{ffi::OsString, io::IsTerminal as _, time::Duration};

use remex_client::{
    Client, ConnectionState, Options, Session,
    process::{ProcessRef, Stdio},
};
use serde::Serialize;

use super::Outcome;
use crate::{
    args::{
        limit,
        run::Flags,
        sandbox::{Confine, Profile},
    },
    commands::launch::{CommandLine, Launch, Launched, RunMode, variables},
    console::{
        ConfinedBy, Console, EndNotices, Ending, Grace, Interrupts, ShownProcess, WhenEnded, escape, say,
    },
    remote::{
        endpoint::{self, DefaultEndpoint, Endpoint, EndpointKind},
        reconnect::{self, Absence},
    },
    render::{
        failure::{Failure, Kind},
        print,
        text::plain,
    },
};

pub(crate) async fn run(flags: &Flags) -> Outcome {
    let otherwise = if flags.detach { DefaultEndpoint::UserServer } else { DefaultEndpoint::InProcess };
    let mut endpoint = flags.on.endpoint(otherwise).await?;
    if flags.forward_agent {
        endpoint.forward_agent()?;
    }
    if flags.detach && endpoint.kind == EndpointKind::InProcess {
        return Err(Failure::usage(
            "`--detach` needs a server that outlives this command",
            "omit `--on` to use your local remex server",
        ));
    }
    if flags.name.is_some() && endpoint.kind == EndpointKind::InProcess {
        return Err(Failure::usage(
            "`--name` has no effect on a command that runs in this process",
            "add `--detach` to run it on your local remex server, or choose a server with `--on`; otherwise omit `--name`",
        ));
    }
    let has_secret = variables::takes_stdin(&flags.variables);
    if has_secret && (flags.interactive || flags.terminal) {
        return Err(Failure::usage(
            "standard input cannot be both a secret and the input of the command",
            "give the secret in a file or a variable, or omit `-i` and `-t`",
        ));
    }
    let forward = flags.interactive || flags.terminal || (!has_secret && !std::io::stdin().is_terminal());
    let piped = if flags.detach { flags.interactive } else { forward };
    let launch = Launch {
        endpoint: &endpoint,
        command: CommandLine::Given(flags.command.clone()),
        cwd: flags.cwd.clone(),
        user: flags.as_user.user.clone(),
        env: variables::read(&flags.variables)?,
        terminal: flags.terminal,
        input: if piped { Stdio::Piped } else { Stdio::Null },
        timeout: flags.timeout,
        grace: flags.grace,
        limits: limit::combined(&flags.limit)?,
        restart: flags.restart,
        confine: flags.confine.clone(),
        name: flags.name.clone(),
        labels: flags.label.clone(),
        mode: if flags.detach { RunMode::Background } else { RunMode::Foreground },
        reconnect: flags.reconnect.reconnect,
    };
    let mut end_notices = EndNotices::default();
    if let Some(limit) = flags.timeout {
        end_notices.timeout =
            format!("ended `{}` after {limit:?} (`--timeout`)", shown_program(&flags.command));
    }
    end_notices.cpu =
        launch.limits.cpu_seconds.is_some().then(|| {
            format!("ended `{}`: it used its CPU time (`--limit cpu`)", shown_program(&flags.command))
        });
    end_notices.confined_by = confined_by(&flags.confine);
    let is_typed = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if let Some(lack) = interactive::lack(&flags.command).filter(|_| is_typed && !forward && !flags.detach) {
        print::note(lack);
    }
    let launched = Box::pin(launch.start()).await?;
    if flags.detach {
        let announce = if flags.json { Announce::Json } else { Announce::Name };
        return leave(&endpoint, launched, announce).await;
    }
    let shown = ConsoleOptions {
        terminal: flags.terminal,
        forward,
        when_ended: WhenEnded::End,
        escape: flags.escape.escape,
        end_notices,
        grace: Grace { time: flags.grace, flag: Some("--grace") },
        reconnect: flags.reconnect.reconnect,
    };
    show(&endpoint, launched, shown).await
}

/// Returns the origin of the sandbox of a command, with the notice for one that the sandbox probably made fail.
fn confined_by(confine: &Confine) -> ConfinedBy {
    let Some(profile) = confine.sandbox else {
        return if confine.net.is_empty() { ConfinedBy::Server } else { ConfinedBy::Flags(None) };
    };
    ConfinedBy::Flags(Some(match profile {
        Profile::ReadOnly => {
            "the sandbox may be the reason: `read-only` lets the command write nowhere; add `--write PATH` for what it may write"
        }
        Profile::WorkspaceWrite => {
            "the sandbox may be the reason: `workspace-write` lets the command write only in its working directory, and there \
             not to `.git`, `.codex`, `.agents` and `.aws`; add `--write PATH` for more, such as `--write .git`"
        }
        Profile::Minimal => {
            "the sandbox may be the reason: `minimal` shows the command only system directories; add `--read PATH` or `--write \
             PATH` for more"
        }
    }))
}

/// Returns the program of a command, for messages.
pub(super) fn shown_program(command: &[OsString]) -> String {
    command.first().map(|program| plain(&program.to_string_lossy())).unwrap_or_default()
}

/// How a started command is attached to the console.
#[derive(Clone, Debug)]
pub(super) struct ConsoleOptions {
    pub(super) terminal: bool,
    pub(super) forward: bool,
    pub(super) when_ended: WhenEnded,
    pub(super) escape: escape::Character,
    /// The notices about some of its ends.
    pub(super) end_notices: EndNotices,
    /// How long it may take to end after SIGTERM or SIGHUP to this program, or after its timeout.
    pub(super) grace: Grace,
    /// How long to try to reconnect, if the user sets it.
    pub(super) reconnect: Option<Duration>,
}

/// Shows a command until it exits or is detached, and ends or keeps its session.
pub(super) async fn show(endpoint: &Endpoint, launched: Launched, shown: ConsoleOptions) -> Outcome {
    let Launched { client, process, name } = launched;
    let followed = process.reference();
    let absence = Absence {
        name: name.clone(),
        reattach: reattach(endpoint, &name),
        window: endpoint.reconnect_window(shown.reconnect),
        kept: client.welcome().detach_ttl_ms.map(Duration::from_millis),
    };
    let console = Console {
        process: ShownProcess::started(process),
        terminal: shown.terminal,
        forward: shown.forward,
        detach_refusal: match (endpoint.kind, client.welcome().detach_ttl_ms) {
            (EndpointKind::InProcess, _) => {
                Some("it runs in this process, so you cannot detach from it; use `remex shell` or `remex run --detach`".to_owned())
            }
            (_, Some(0)) => Some("its server ends it with this connection, so you cannot detach from it".to_owned()),
            _ => None,
        },
        when_ended: shown.when_ended,
        interrupts: Interrupts::Pass,
        end_notices: shown.end_notices,
        grace: shown.grace,
        escape: shown.escape,
        endpoint: endpoint.kind,
        absence: absence.clone(),
        redraw: None,
    };
    let ending = console.show().await;
    match ending {
        Ok(Ending::Detached) => {
            let reattach = reattach(endpoint, &name);
            let is_connected = client.connection_state() == ConnectionState::Connected;
            let kept = match shown.when_ended {
                // Its session lasts anyway, so one more login can be spared.
                WhenEnded::Leave if is_connected => release(client, &followed).await,
                _ => keep(endpoint, &followed).await,
            };
            kept.map_err(|failure| {
                failure.context(&format!(
                    "detached from `{name}` without a connection to its server; `{reattach}` tries to reattach"
                ))
            })?;
            say(false, &format!("detached; `{name}` keeps running, reattach with `{reattach}`"));
            Ok(0)
        }
        Ok(Ending::Left { away }) => {
            client.close().await;
            say(false, &absence.left(away));
            Ok(130)
        }
        Err(failure) if failure.kind() == Kind::Restarted => {
            // The new process belongs to the client that restarted it, so it does not end with this session.
            match shown.when_ended {
                WhenEnded::Leave => client.close().await,
                WhenEnded::End => drop(keep(endpoint, &followed).await),
            }
            Err(failure.of_restarted(&name, &reattach(endpoint, &name)))
        }
        ended => {
            if let (Ok(Ending::Stopped(_)), ConnectionState::Reconnecting { since, .. }) =
                (&ended, client.connection_state())
            {
                // The request to end it could not be sent.
                say(false, &absence.left(since.elapsed()));
            }
            match (&ended, shown.when_ended) {
                (Ok(Ending::OutputClosed) | Err(_), WhenEnded::Leave) => client.close().await,
                _ => reconnect::end(client).await,
            }
            let explain = |failure| match shown.when_ended {
                WhenEnded::Leave => reconnect::explain_left(failure, &name, &reattach(endpoint, &name)),
                WhenEnded::End => failure,
            };
            match ended.map_err(explain)? {
                Ending::Exited(code) | Ending::Stopped(code) => Ok(code),
                Ending::OutputClosed => Ok(141),
                Ending::Detached | Ending::Left { .. } => Ok(0),
            }
        }
    }
}

/// Detaches a process of a session that lasts: its output no longer blocks it.
async fn release(client: Client, followed: &ProcessRef) -> Result<(), Failure> {
    followed.discard_output().await?;
    client.close().await;
    Ok(())
}

/// Detaches a foreground process: its session persists, and its output no longer blocks it.
async fn keep(endpoint: &Endpoint, followed: &ProcessRef) -> Result<(), Failure> {
    followed.client().clone().close().await;
    let session = Session::Resume { id: followed.session_id().to_owned(), takeover: true };
    let client = endpoint
        .connect(|options: &mut Options| {
            options.session = session;
            options.detach_ttl = Some(Duration::MAX);
        })
        .await?;
    client.process_ref(followed.session_id(), followed.process_id()).discard_output().await?;
    client.close().await;
    Ok(())
}

/// How a background process is announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Announce {
    Name,
    Json,
}

/// The JSON of `run --detach`; docs/json.md documents it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Started<'a> {
    name: &'a str,
    environment: &'a str,
    process_id: &'a str,
    session_id: &'a str,
    pid: Option<u32>,
}

/// Prints the name of a background process, and disconnects.
async fn leave(endpoint: &Endpoint, launched: Launched, announce: Announce) -> Outcome {
    let Launched { client, process, name } = launched;
    let (process_id, session_id, pid) =
        (process.id().to_owned(), client.session_id().to_owned(), process.pid());
    if std::io::stderr().is_terminal() {
        print::note(format!("detached; it keeps running, reattach with `{}`", reattach(endpoint, &name)));
    }
    if let Some(ms) = client.welcome().detach_ttl_ms {
        let time = crate::render::text::age(Duration::from_millis(ms));
        print::note(format!("{} keeps it for {time} without a connection", endpoint.name));
    }
    client.close().await;
    drop(process);
    match announce {
        Announce::Name => print::out(format!("{name}\n"))?,
        Announce::Json => print::json(&Started {
            name: &name,
            environment: &endpoint.name,
            process_id: &process_id,
            session_id: &session_id,
            pid,
        })?,
    }
    Ok(0)
}

/// Returns the command that attaches to the process again.
pub(super) fn reattach(endpoint: &Endpoint, name: &str) -> String {
    match endpoint.kind {
        EndpointKind::Remote => format!("remex attach --on {} {name}", endpoint.name),
        // Without `--here` it would use the selected environment.
        EndpointKind::InProcess | EndpointKind::UserServer if is_elsewhere_selected() => {
            format!("remex attach --here {name}")
        }
        EndpointKind::InProcess | EndpointKind::UserServer => format!("remex attach {name}"),
    }
}

fn is_elsewhere_selected() -> bool {
    endpoint::selected().is_ok_and(|selected| selected.is_some_and(|selected| selected.word != "local"))
}

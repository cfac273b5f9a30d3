//! `remex kill`: signals a process, or ends its whole tree.

use std::time::Duration;

use remex_client::{
    Client,
    process::{ProcessRef, SignalName, Termination},
};

use serde::Serialize;

use super::Outcome;
use crate::{
    args::kill::Flags,
    remote::{
        endpoint::DefaultEndpoint,
        processes::{Action, Processes, Row},
        silent_keeper,
    },
    render::{confirm, failure::Failure, print, text::plain},
};

/// How often the server is asked for living processes after the output is closed.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How many processes the question of `--all` names.
const NAMED: usize = 5;

/// How long to wait after SIGKILL.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) async fn run(flags: &Flags) -> Outcome {
    let mode = kill_mode(flags)?;
    let endpoint = flags.on.endpoint(DefaultEndpoint::RunningUserServer).await?;
    let client = endpoint.connect(|_| {}).await?;
    let processes = Processes::list(&client).await?;
    let (mut failed, mut said, mut ended) = (None::<Failure>, Ok(()), Vec::new());
    let rows = if flags.all {
        all(&processes, &endpoint.name, mode, flags.yes).await?
    } else {
        processes.find_confirmed(&flags.names, Action::Kill).await?
    };
    for row in rows {
        match end(&client, &processes, row, mode).await {
            // Continue with the others even if stdout is closed.
            Ok(done) if flags.format.json => ended.push(EndedProcess::of(row, mode, done.pids)),
            Ok(done) => said = said.and_then(|()| print::out(format!("{}\n", done.text))),
            Err(failure) => {
                if let Some(earlier) = failed.replace(failure) {
                    earlier.print();
                }
            }
        }
    }
    if flags.format.json {
        said = print::json(&Listing { processes: ended });
    }
    let _ = client.end().await;
    match failed {
        Some(failure) => Err(failure),
        None => said.map(|()| 0),
    }
}

/// Returns everything that `--all` applies to, once the user has confirmed it.
async fn all<'a>(
    processes: &'a Processes,
    server: &str,
    mode: KillMode,
    is_confirmed: bool,
) -> Result<Vec<&'a Row>, Failure> {
    let applies = |row: &&Row| match mode {
        KillMode::Signal(_) => row.is_running(),
        KillMode::Tree(_) => row.is_alive(),
    };
    let rows: Vec<_> = processes.rows.iter().filter(applies).collect();
    if rows.is_empty() {
        print::note(format!("no processes are running on {}", plain(server)));
        return Ok(rows);
    }
    if is_confirmed {
        return Ok(rows);
    }
    let (verb, number) = (mode.verb(), rows.len());
    if !confirm::is_possible() {
        let noun = if number == 1 { "process" } else { "processes" };
        return Err(Failure::usage(
            format!("cannot ask whether to {verb} {number} {noun} on {}", plain(server)),
            "add `--yes`",
        )
        .because("standard input or standard error is not a terminal"));
    }
    let names: Vec<_> = rows.iter().take(NAMED).map(|row| format!("`{}`", plain(&row.name))).collect();
    let others = match number.saturating_sub(NAMED) {
        0 => String::new(),
        others => format!(" and {others} more"),
    };
    let question = format!("{verb} {}{others} on {}?", names.join(", "), plain(server));
    if !confirm::ask(&question).await {
        return Err(Failure::new("nothing was killed", "add `--yes` to skip the question"));
    }
    Ok(rows)
}

/// Ends a process with its whole tree, as `kill --tree` does, and returns a description for the user.
#[cfg(target_os = "linux")]
pub(super) async fn end_tree(
    client: &Client,
    processes: &Processes,
    row: &Row,
    grace: Duration,
) -> Result<String, Failure> {
    let done = end(client, processes, row, KillMode::Tree(Termination::Graceful(grace))).await?;
    Ok(done.text)
}

/// The JSON of `kill`; docs/json.md documents it.
#[derive(Serialize)]
struct Listing<'a> {
    processes: Vec<EndedProcess<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EndedProcess<'a> {
    name: &'a str,
    process_id: &'a str,
    session_id: &'a str,
    /// What was done: `signalled` or `ended`.
    action: &'static str,
    /// The signal that was sent.
    signal: Option<&'static str>,
    pids: Vec<u32>,
}

impl<'a> EndedProcess<'a> {
    fn of(row: &'a Row, mode: KillMode, pids: Vec<u32>) -> Self {
        let (action, signal) = match mode {
            KillMode::Signal(signal) => ("signalled", Some(signal.name())),
            KillMode::Tree(_) => ("ended", None),
        };
        let entry = &row.entry;
        Self {
            name: &row.name,
            process_id: &entry.process_id,
            session_id: &entry.session_id,
            action,
            signal,
            pids,
        }
    }
}

/// The outcome for one process.
struct Done {
    /// A description for people.
    text: String,
    /// The process that was signalled, or the tree that was ended.
    pids: Vec<u32>,
}

#[derive(Clone, Copy)]
enum KillMode {
    Signal(SignalName),
    Tree(Termination),
}

impl KillMode {
    fn verb(self) -> String {
        match self {
            Self::Signal(signal) => format!("send {signal} to"),
            Self::Tree(_) => "end".to_owned(),
        }
    }
}

fn kill_mode(flags: &Flags) -> Result<KillMode, Failure> {
    match (flags.tree, flags.signal) {
        (false, signal) => Ok(KillMode::Signal(signal.unwrap_or(SignalName::Term))),
        (true, None | Some(SignalName::Term)) => Ok(KillMode::Tree(Termination::Graceful(flags.grace))),
        (true, Some(SignalName::Kill)) => Ok(KillMode::Tree(Termination::Kill)),
        (true, Some(other)) => Err(Failure::usage(
            format!("cannot send {other} to a whole tree"),
            "omit `--tree` to signal the process and its group",
        )
        .because("`--tree` supports only TERM and KILL")),
    }
}

/// Signals or ends a process.
async fn end(client: &Client, processes: &Processes, row: &Row, mode: KillMode) -> Result<Done, Failure> {
    let process = processes.process_ref(row);
    let (name, outcome) = (plain(&row.name), row.outcome());
    match mode {
        KillMode::Signal(signal) if row.is_running() => {
            match process.signal(signal).await {
                Err(error) if ProcessRef::is_forgotten(&error) => {
                    return Err(Failure::new(format!("cannot kill `{name}`"), "see `remex ps`")
                        .because("it has already exited"));
                }
                sent => sent?,
            }
            let text = format!("sent {signal} to {}", row.described());
            Ok(Done { text, pids: row.entry.pid.into_iter().collect() })
        }
        KillMode::Signal(_) if row.is_alive() => {
            Err(Failure::new(format!("cannot signal `{name}`"), "add `--tree` to end them").because(format!(
                "it has exited ({outcome}), but processes it started are still running{}",
                pids(&row.entry.living_pids)
            )))
        }
        KillMode::Tree(mode) if row.is_alive() => {
            match silent_keeper::explained(client, process.terminate_tree(mode)).await {
                // Its session has ended, and the tree with it.
                Err(error) if ProcessRef::is_forgotten(&error) => {}
                asked => asked?,
            }
            wait_until_gone(processes, row, mode).await?;
            if matches!(mode, Termination::Graceful(_)) {
                confirm_gone(&process).await?;
            }
            if !silent_keeper::explained(client, process.closes_within(KILL_TIMEOUT)).await? {
                let what = format!("the end of `{name}` cannot be confirmed");
                if let Some(failure) = silent_keeper::failure(client, what).await {
                    return Err(failure);
                }
                return Err(Failure::new(
                    format!("a process that the server cannot find keeps the output of `{name}` open"),
                    "look for it on that host; it removed the tag of the server, as a hostile program may",
                ));
            }
            let living = &row.entry.living_pids;
            Ok(Done { text: format!("ended `{name}`{}", pids(living)), pids: living.clone() })
        }
        _ => {
            if matches!(mode, KillMode::Tree(_)) {
                confirm_gone(&process).await?;
            }
            Err(Failure::new(format!("cannot kill `{name}`"), "see `remex ps`")
                .because(format!("it has exited ({outcome})")))
        }
    }
}

/// Fails if something of the tree may be left that the list of living processes does not show.
async fn confirm_gone(process: &ProcessRef) -> Result<(), Failure> {
    match process.terminate_tree(Termination::Kill).await {
        Err(error) if ProcessRef::is_forgotten(&error) => Ok(()),
        confirmed => Ok(confirmed?),
    }
}

/// Formats the pids of a tree; empty if the server does not report them.
fn pids(pids: &[u32]) -> String {
    let list: Vec<_> = pids.iter().map(u32::to_string).collect();
    match list.len() {
        0 => String::new(),
        1 => format!(" (pid {})", list[0]),
        _ => format!(" (pids {})", list.join(", ")),
    }
}

/// Waits until the whole tree has exited. There is no notification for that, so the server is polled.
async fn wait_until_gone(processes: &Processes, row: &Row, mode: Termination) -> Result<(), Failure> {
    let grace = match mode {
        Termination::Graceful(grace) => grace,
        _ => Duration::ZERO,
    };
    let mut looks = tokio::time::interval(POLL_INTERVAL);
    let mut alive = Vec::new();
    let settled = tokio::time::timeout(grace.saturating_add(KILL_TIMEOUT), async {
        loop {
            looks.tick().await;
            match processes.living(row).await? {
                Some(living) => alive = living,
                None => return Ok(()),
            }
        }
    });
    let settled = settled.await;
    settled.unwrap_or_else(|_| {
        Err(Failure::new(
            format!(
                "processes started by `{}` are still alive after SIGKILL{}",
                plain(&row.name),
                pids(&alive)
            ),
            "look for processes blocked in the kernel on that host",
        ))
    })
}

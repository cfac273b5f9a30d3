//! `remex rm` and `remex prune`: remove exited processes and their output; `remex rm` also removes remote files.
//!
//! The colon decides which of the two an operand is, before anything is connected to: see [`Operand`].

mod paths;

use std::collections::BTreeSet;

use remex_client::process::{ExitCause, State};
use serde::Serialize;

use super::Outcome;
use crate::{
    args::{
        rm::{Flags, Operand, Prune},
        shared::{Format, OnOrigin},
    },
    remote::{
        endpoint::{CLIENT_NAME, DefaultEndpoint},
        processes::{Action, Processes, Row},
        reconnect::FOREVER,
        user_server,
    },
    render::{
        failure::{Failure, Kind},
        print,
        text::{now_ms, plain},
    },
};

/// A session that ends this soon may belong to a disconnected client; it needs no removal.
const SOON_MS: u64 = 60 * 60 * 1000;

pub(crate) async fn run(flags: &Flags) -> Outcome {
    let (mut names, mut paths) = (Vec::new(), Vec::new());
    for operand in &flags.operands {
        match operand {
            Operand::Process(name) => names.push(name.clone()),
            Operand::Path(path) => paths.push(path),
        }
    }
    if paths.is_empty() {
        check_for_processes(flags, &names)?;
        return remove_processes(flags, &names).await;
    }
    if let Some(name) = names.first() {
        let (name, path) = (plain(name), plain(&paths[0].shown()));
        return Err(Failure::usage(
            format!("cannot remove `{name}` and `{path}` with one command"),
            format!("remove them one by one; if `{name}` is meant to be a file, write `ENV:{name}`"),
        )
        .because("without a colon it is a process, and with one a path"));
    }
    if flags.on.here || flags.on.on.is_some() && flags.on.origin == OnOrigin::Flag {
        let path = plain(&paths[0].shown());
        return Err(Failure::usage(
            format!("`{path}` names its host itself"),
            "omit `--on` or `--here`, which are for processes",
        ));
    }
    if flags.format.json {
        return Err(Failure::usage("`--json` is for processes", "omit `--json`"));
    }
    paths::remove(&paths, flags).await
}

/// Refuses flags for files: `rm -r NAME` is meant for a directory, and must not remove a process of that name.
fn check_for_processes(flags: &Flags, names: &[String]) -> Result<(), Failure> {
    let flag = match (flags.recursive, flags.force) {
        (true, _) => "--recursive",
        (_, true) => "--force",
        _ => return Ok(()),
    };
    let name = names.first().map(|name| plain(name)).unwrap_or_default();
    Err(Failure::usage(
        format!("`{flag}` is for files, but `{name}` names a process"),
        format!("write `ENV:{name}` for a file in an environment; `rm` removes files of this machine"),
    ))
}

async fn remove_processes(flags: &Flags, names: &[String]) -> Outcome {
    let endpoint = flags.on.endpoint(DefaultEndpoint::RunningUserServer).await?;
    let client = endpoint.connect(|_| {}).await?;
    let processes = Processes::list(&client).await?;
    let rows =
        processes.find_confirmed(names, Action::Remove).await.map_err(|failure| explain(failure, names))?;
    if let Some(row) = rows.iter().find(|row| row.entry.state != State::Closed) {
        let name = plain(&row.name);
        let why = match row.entry.state {
            State::Unknown => {
                "its server is newer than this program, and describes its state by an unknown word"
            }
            _ if row.is_running() => "it is running",
            _ => "a process it started keeps its output open",
        };
        return Err(Failure::new(
            format!("cannot remove `{name}`"),
            format!("end it with `remex kill --tree {name}` first"),
        )
        .because(why));
    }
    remove(&processes, &rows, &flags.format).await?;
    let _ = client.end().await;
    Ok(0)
}

/// Hints at the colon if a name that is no process looks like a path.
fn explain(failure: Failure, names: &[String]) -> Failure {
    let is_path = |name: &&String| name.contains('/') || std::fs::symlink_metadata(name).is_ok();
    match names.iter().find(is_path) {
        Some(name) if failure.kind() == Kind::NotFound => failure.with_hint(format!(
            "if `{0}` is a file, write `ENV:{0}` for one in an environment; `rm` removes files of this machine",
            plain(name)
        )),
        _ => failure,
    }
}

pub(crate) async fn prune(flags: &Prune) -> Outcome {
    let Some(endpoint) = flags.on.find(DefaultEndpoint::RunningUserServer).await? else {
        print::note(user_server::not_running().await.message());
        if flags.format.json {
            print::json(&Removed { removed: Vec::new() })?;
        }
        return Ok(0);
    };
    // The answer is the longest time that the server allows.
    let client = endpoint.connect(|options| options.detach_ttl = Some(FOREVER)).await?;
    let longest = client.welcome().detach_ttl_ms;
    let processes = Processes::list(&client).await?;
    let soon = now_ms().saturating_add(SOON_MS);
    // Only its client needs a foreground command without a name, or one whose client has asked for a limited time to
    // reconnect; a command in the background has the longest time.
    let has_window = |row: &Row| row.detach_ttl_ms.is_some_and(|ttl| longest.is_none_or(|most| ttl < most));
    let is_awaited =
        |row: &Row| row.client_name == CLIENT_NAME && (row.session_name.is_none() || has_window(row));
    let may_return =
        |row: &Row| row.attached || is_awaited(row) || row.expires_at_ms.is_some_and(|at| at <= soon);
    let is_left = |row: &&Row| row.entry.state == State::Closed && !may_return(row);
    let rows: Vec<_> = processes.rows.iter().filter(is_left).collect();
    if rows.is_empty() && !flags.format.json {
        print::note("no exited processes");
    }
    remove(&processes, &rows, &flags.format).await?;
    let _ = client.end().await;
    Ok(0)
}

/// Removes processes, and then empty sessions; continues even if stdout is closed.
async fn remove(processes: &Processes, rows: &[&Row], format: &Format) -> Result<(), Failure> {
    let (mut sessions, mut said) = (BTreeSet::new(), Ok(()));
    for row in rows {
        processes.forget(row).await?;
        sessions.insert(row.entry.session_id.as_str());
        if !format.json {
            let text = format!("removed `{}` ({})\n", plain(&row.name), row.exit_clause());
            said = said.and_then(|()| print::out(text));
        }
    }
    if format.json {
        said = print::json(&Removed { removed: rows.iter().map(|row| RemovedProcess::of(row)).collect() });
    }
    processes.end_empty(&sessions).await?;
    said
}

/// The JSON of `rm` and `prune`; docs/json.md documents it.
#[derive(Serialize)]
struct Removed<'a> {
    removed: Vec<RemovedProcess<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RemovedProcess<'a> {
    name: &'a str,
    process_id: &'a str,
    session_id: &'a str,
    ended_at_ms: Option<u64>,
    exit_code: Option<i32>,
    signal: Option<&'a str>,
    cause: Option<ExitCause>,
}

impl<'a> RemovedProcess<'a> {
    fn of(row: &'a Row) -> Self {
        let entry = &row.entry;
        Self {
            name: &row.name,
            process_id: &entry.process_id,
            session_id: &entry.session_id,
            ended_at_ms: entry.ended_at_ms,
            exit_code: entry.exit_code,
            signal: entry.signal.as_deref(),
            cause: entry.cause,
        }
    }
}

//! `remex wait`: waits for processes to exit.

use std::time::Duration;

use remex_client::process::{Exit, ExitCause, ProcessRef};
use serde::Serialize;
use tokio::time::{Instant, timeout_at};

use super::Outcome;
use crate::{
    args::wait::Flags,
    console,
    remote::{
        endpoint::DefaultEndpoint,
        processes::{Processes, Row},
        reconnect,
    },
    render::{failure::Failure, print, text::plain},
};

/// The exit code after the timeout.
const TIMED_OUT: u8 = 124;

pub(crate) async fn run(flags: &Flags) -> Outcome {
    // Tokio timers do not support longer sleeps.
    let limit = flags.timeout.unwrap_or(Duration::MAX).min(Duration::from_secs(100 * 365 * 24 * 3600));
    let deadline = Instant::now() + limit;
    let endpoint = flags.on.endpoint(DefaultEndpoint::RunningUserServer).await?;
    let listed = timeout_at(deadline, async {
        let client = endpoint.connect(reconnect::keep_session).await?;
        let processes = Processes::list(&client).await?;
        Ok::<_, Failure>((client, processes))
    });
    let Ok(listed) = listed.await else {
        let what = format!("gave up after {limit:?}: the server does not answer");
        Failure::new(what, "check it with `remex ps`, or raise `--timeout`").print();
        return Ok(TIMED_OUT);
    };
    let (client, processes) = listed?;
    let rows = processes.find_all(&flags.names)?;
    // Concurrently, so that exits are noticed in any order.
    let waiting: Vec<_> = rows
        .iter()
        .map(|row| tokio::spawn(end(processes.listed_ref(row), known_end(row), deadline)))
        .collect();
    let gathered = reconnect::with_notices(endpoint.kind, &client, async {
        let mut ended = Vec::new();
        for (row, waiting) in rows.into_iter().zip(waiting) {
            let end = waiting.await.map_err(|error| {
                Failure::new("a wait ended early", "report this as a defect").because(error.to_string())
            })?;
            let end = end.map_err(|failure: Failure| {
                let name = plain(&row.name);
                failure.of_restarted(&name, &format!("remex ps -a {name}"))
            });
            ended.push((row, end?));
        }
        Ok::<_, Failure>(ended)
    });
    let ended = gathered.await?;
    for (row, _) in ended.iter().filter(|(_, end)| end.as_ref().is_some_and(is_lost)) {
        print::note(format!("`{}`: {}", plain(&row.name), console::LOST_NOTICE));
    }
    let code = match ended.iter().map(|(_, end)| end.as_ref()).collect::<Option<Vec<_>>>() {
        Some(ends) => ends.last().map_or(0, |end| console::code(end.code, end.cause)),
        None => TIMED_OUT,
    };
    if flags.format.json {
        print::json(&Listing {
            processes: ended.iter().map(|(row, end)| ExitJson::of(row, end.as_ref())).collect(),
        })?;
    } else {
        let running = ended.iter().filter(|(_, end)| end.is_none());
        let running: Vec<_> = running.map(|(row, _)| format!("`{}`", plain(&row.name))).collect();
        if !running.is_empty() {
            let verb = if running.len() == 1 { "is" } else { "are" };
            let what = format!("gave up after {limit:?}: {} {verb} still running", running.join(", "));
            Failure::new(what, "wait longer (`--timeout`), or look at the output with `remex logs`").print();
        }
    }
    let _ = client.end().await;
    Ok(code)
}

/// Waits for a process to exit; `None` after the deadline.
async fn end(process: ProcessRef, known: Option<Exit>, deadline: Instant) -> Result<Option<Exit>, Failure> {
    if known.is_some() {
        return Ok(known);
    }
    Ok(timeout_at(deadline, process.wait()).await.ok().transpose()?)
}

fn is_lost(end: &Exit) -> bool {
    end.cause == Some(ExitCause::ServerLost)
}

/// Returns the exit of a process that had exited when it was listed.
fn known_end(row: &Row) -> Option<Exit> {
    let entry = &row.entry;
    let code = entry.exit_code.filter(|_| !row.is_running())?;
    let mut exit = Exit::new(code);
    exit.signal.clone_from(&entry.signal);
    exit.cause = entry.cause;
    Some(exit)
}

/// The JSON of `wait`; docs/json.md documents it.
#[derive(Serialize)]
struct Listing<'a> {
    processes: Vec<ExitJson<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ExitJson<'a> {
    name: &'a str,
    process_id: &'a str,
    session_id: &'a str,
    running: bool,
    exit_code: Option<i32>,
    signal: Option<&'a str>,
    cause: Option<ExitCause>,
}

impl<'a> ExitJson<'a> {
    fn of(row: &'a Row, end: Option<&'a Exit>) -> Self {
        Self {
            name: &row.name,
            process_id: &row.entry.process_id,
            session_id: &row.entry.session_id,
            running: end.is_none(),
            exit_code: end.map(|end| end.code),
            signal: end.and_then(|end| end.signal.as_deref()),
            cause: end.and_then(|end| end.cause),
        }
    }
}

//! `remex rm` and `remex prune`: remove exited processes and their output.

use std::collections::BTreeSet;

use remex_client::process::State;

use super::Outcome;
use crate::{
    args::rm::{Flags, Prune},
    remote::{
        endpoint::{CLIENT_NAME, DefaultEndpoint},
        processes::{Action, Processes, Row},
        user_server,
    },
    render::{
        failure::Failure,
        print,
        text::{now_ms, plain},
    },
};

/// A session that ends this soon may belong to a disconnected client; it needs no removal.
const SOON_MS: u64 = 60 * 60 * 1000;

pub(crate) async fn run(flags: &Flags) -> Outcome {
    let endpoint = flags.on.endpoint(DefaultEndpoint::RunningUserServer).await?;
    let client = endpoint.connect(|_| {}).await?;
    let processes = Processes::list(&client).await?;
    let rows = processes.find_confirmed(&flags.names, Action::Remove).await?;
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
    remove(&processes, &rows).await?;
    let _ = client.end().await;
    Ok(0)
}

pub(crate) async fn prune(flags: &Prune) -> Outcome {
    let Some(endpoint) = flags.on.find(DefaultEndpoint::RunningUserServer).await? else {
        print::note(user_server::not_running().await.message());
        return Ok(0);
    };
    let client = endpoint.connect(|_| {}).await?;
    let processes = Processes::list(&client).await?;
    let soon = now_ms().saturating_add(SOON_MS);
    // A foreground command without a name of its own is there for nobody but its client.
    let is_awaited = |row: &Row| row.client_name == CLIENT_NAME && row.session_name.is_none();
    let may_return =
        |row: &Row| row.attached || is_awaited(row) || row.expires_at_ms.is_some_and(|at| at <= soon);
    let is_left = |row: &&Row| row.entry.state == State::Closed && !may_return(row);
    let rows: Vec<_> = processes.rows.iter().filter(is_left).collect();
    if rows.is_empty() {
        print::note("no exited processes");
    }
    remove(&processes, &rows).await?;
    let _ = client.end().await;
    Ok(0)
}

/// Removes processes, and then empty sessions; continues even if stdout is closed.
async fn remove(processes: &Processes, rows: &[&Row]) -> Result<(), Failure> {
    let (mut sessions, mut said) = (BTreeSet::new(), Ok(()));
    for row in rows {
        processes.forget(row).await?;
        sessions.insert(row.entry.session_id.as_str());
        said = said
            .and_then(|()| print::out(format!("removed `{}` ({})\n", plain(&row.name), row.exit_clause())));
    }
    processes.end_empty(&sessions).await?;
    said
}

//! `remex rm` and `remex prune`: processes that have ended are forgotten, with their output.

use std::collections::BTreeSet;

use clap::Args;
use remex_proto::process::State;

use super::Outcome;
use crate::{
    failure::Failure,
    find::{Processes, Row},
    own,
    place::{On, Otherwise},
    print,
    text::{now_ms, plain},
};

/// Flags of `remex rm`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// The processes, each by its whole name; on a terminal you are asked about the beginning of one
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,

    #[command(flatten)]
    on: On,
}

const EXAMPLES: &str = "\
Examples:
  Forget a process that has ended, and what it said:
    remex rm build
  Forget all of them:
    remex prune

What runs is refused: end it with `remex kill` first.
Without this, a process is forgotten a day after its end.";

/// Flags of `remex prune`.
#[derive(Debug, Args)]
#[command(after_help = PRUNE_EXAMPLES)]
pub(crate) struct Prune {
    #[command(flatten)]
    on: On,
}

const PRUNE_EXAMPLES: &str = "\
Examples:
  Forget everything on this machine that has ended:
    remex prune
  On an environment:
    remex prune --on build

Processes of a client that is connected, or may come back within ten minutes, are left to it.";

/// A session that ends so soon may wait for a client whose connection was cut; it needs no removal.
const SOON_MS: u64 = 10 * 60 * 1000;

pub(crate) async fn run(flags: &Flags) -> Outcome {
    let place = flags.on.place(Otherwise::OwnIfThere).await?;
    let client = place.connect(|_| {}).await?;
    let processes = Processes::list(&client).await?;
    let rows = processes.find_whole(&flags.names, "remove").await?;
    if let Some(row) = rows.iter().find(|row| row.entry.state != State::Closed) {
        let name = plain(&row.name);
        let why = if row.is_running() { "it runs" } else { "what it started holds its output open" };
        return Err(Failure::new(
            format!("cannot remove `{name}`: {why}"),
            format!("end it with `remex kill --tree {name}` first"),
        ));
    }
    remove(&processes, &rows).await?;
    let _ = client.end().await;
    Ok(0)
}

pub(crate) async fn prune(flags: &Prune) -> Outcome {
    let Some(place) = flags.on.find(Otherwise::OwnIfThere).await? else {
        print::note(own::not_running().await.what());
        return Ok(0);
    };
    let client = place.connect(|_| {}).await?;
    let processes = Processes::list(&client).await?;
    let soon = now_ms().saturating_add(SOON_MS);
    let may_return = |row: &Row| row.attached || row.expires_at_ms.is_some_and(|at| at <= soon);
    let is_left = |row: &&Row| row.entry.state == State::Closed && !may_return(row);
    let rows: Vec<_> = processes.rows.iter().filter(is_left).collect();
    if rows.is_empty() {
        print::note("nothing that has ended is remembered");
    }
    remove(&processes, &rows).await?;
    let _ = client.end().await;
    Ok(0)
}

/// Forgets processes, and then the sessions in which nothing is left; all of them, also when nobody reads which.
async fn remove(processes: &Processes, rows: &[&Row]) -> Result<(), Failure> {
    let (mut sessions, mut said) = (BTreeSet::new(), Ok(()));
    for row in rows {
        processes.forget(row).await?;
        sessions.insert(row.entry.session_id.as_str());
        said = said.and_then(|()| print::out(format!("removed `{}` ({})\n", plain(&row.name), row.state())));
    }
    processes.end_empty(&sessions).await?;
    said
}

//! `remex kill`: a signal for a process, or the end of everything it started.

use std::time::Duration;

use remex_client::process::{ProcessRef, SignalName, Termination};

use super::Outcome;
use crate::{
    args::kill::Flags,
    remote::{
        endpoint::DefaultEndpoint,
        processes::{Processes, Row},
    },
    render::{failure::Failure, print, text::plain},
};

/// How often it is looked whether something of a tree still lives once its output has ended.
const LOOK: Duration = Duration::from_millis(100);

/// How long the server may take to kill what outlived its grace.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) async fn run(flags: &Flags) -> Outcome {
    let mode = kill_mode(flags)?;
    let endpoint = flags.on.endpoint(DefaultEndpoint::RunningUserServer).await?;
    let client = endpoint.connect(|_| {}).await?;
    let processes = Processes::list(&client).await?;
    let (mut failed, mut said) = (None::<Failure>, Ok(()));
    for row in processes.find_whole(&flags.names, "kill").await? {
        match end(&processes, row, mode).await {
            // Those that follow are to end also when nobody reads which.
            Ok(done) => said = said.and_then(|()| print::out(format!("{done}\n"))),
            Err(failure) => {
                if let Some(earlier) = failed.replace(failure) {
                    earlier.print();
                }
            }
        }
    }
    let _ = client.end().await;
    match failed {
        Some(failure) => Err(failure),
        None => said.map(|()| 0),
    }
}

#[derive(Clone, Copy)]
enum KillMode {
    Signal(SignalName),
    Tree(Termination),
}

fn kill_mode(flags: &Flags) -> Result<KillMode, Failure> {
    match (flags.tree, flags.signal) {
        (false, signal) => Ok(KillMode::Signal(signal.unwrap_or(SignalName::Term))),
        (true, None | Some(SignalName::Term)) => Ok(KillMode::Tree(Termination::Graceful(flags.grace))),
        (true, Some(SignalName::Kill)) => Ok(KillMode::Tree(Termination::Kill)),
        (true, Some(other)) => Err(Failure::usage(
            format!("cannot send {other} to a whole tree: a tree is only ended, with TERM or KILL"),
            "leave out `--tree` to signal the process and its group",
        )),
    }
}

/// Signals or ends a process, and returns what was done.
async fn end(processes: &Processes, row: &Row, mode: KillMode) -> Result<String, Failure> {
    let process = processes.process_ref(row);
    let (name, outcome) = (plain(&row.name), row.outcome());
    match mode {
        KillMode::Signal(signal) if row.is_running() => {
            match process.signal(signal).await {
                Err(error) if ProcessRef::is_forgotten(&error) => {
                    return Err(Failure::new(
                        format!("cannot kill `{name}`: it has ended meanwhile"),
                        "see `remex ps`",
                    ));
                }
                sent => sent?,
            }
            Ok(format!("sent {signal} to {}", row.described()))
        }
        KillMode::Signal(_) if row.lives() => Err(Failure::new(
            format!(
                "cannot signal `{name}`: it has ended ({outcome}), and only what it started lives on{}",
                pids(&row.entry.living_pids)
            ),
            "`--tree` ends that, too",
        )),
        KillMode::Tree(mode) if row.lives() => {
            match process.terminate_tree(mode).await {
                // The end of its session has ended all of it.
                Err(error) if ProcessRef::is_forgotten(&error) => {}
                asked => asked?,
            }
            gone(processes, row, mode).await?;
            if !process.closes_within(PATIENCE).await? {
                return Err(Failure::new(
                    format!("something holds the output of `{name}` open that the server cannot find"),
                    "look for it on that machine; it gave up the mark of the server, as a hostile program may",
                ));
            }
            Ok(format!("ended {name}{}", pids(&row.entry.living_pids)))
        }
        _ => Err(Failure::new(format!("cannot kill `{name}`: it has ended ({outcome})"), "see `remex ps`")),
    }
}

/// Names processes behind the name of a tree; nothing where the server does not tell which they are.
fn pids(pids: &[u32]) -> String {
    let list: Vec<_> = pids.iter().map(u32::to_string).collect();
    match list.len() {
        0 => String::new(),
        1 => format!(" (pid {})", list[0]),
        _ => format!(" (pids {})", list.join(", ")),
    }
}

/// Waits until nothing of the tree lives. Servers do not tell when that is, so they are asked.
async fn gone(processes: &Processes, row: &Row, mode: Termination) -> Result<(), Failure> {
    let grace = match mode {
        Termination::Kill => Duration::ZERO,
        Termination::Graceful(grace) => grace,
    };
    let mut looks = tokio::time::interval(LOOK);
    let mut alive = Vec::new();
    let settled = tokio::time::timeout(grace.saturating_add(PATIENCE), async {
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
            "look for a process that hangs in the kernel on that machine",
        ))
    })
}

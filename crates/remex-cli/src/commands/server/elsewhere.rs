//! Stopping servers other than the user's local one: that of a state directory, and that of an environment.
//!
//! Start at [`stop_in_state`] and [`end_all_on`].

use std::{
    io,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use remex_base::quote::shell_word;
use remex_client::Target;
use rustix::process::{Pid, Signal};
use tokio::task::JoinSet;

use super::STOP_TIMEOUT;
use crate::{
    commands::{Outcome, kill, there},
    remote::{
        endpoint::Endpoint,
        lock_holder::{Ending, Found, check_here, holder},
        processes::{Processes, Row},
        user_server,
    },
    render::{
        failure::{Failure, Kind},
        print,
        text::plain,
    },
};

/// How long processes may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

/// How long a starting server or keeper may take to identify itself.
const START_PATIENCE: Duration = Duration::from_secs(5);
const START_PAUSE: Duration = Duration::from_millis(10);

/// What becomes of durable processes when their server is stopped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DurableProcesses {
    RunOn,
    End,
}

/// Stops the server of a state directory, and its keeper if that is to end the durable processes.
pub(super) async fn stop_in_state(state: &Path, durable: DurableProcesses) -> Outcome {
    let directory = state.to_owned();
    let stopping = tokio::task::spawn_blocking(move || {
        let server = stop_holder(&directory.join("server.lock"), "the server")?;
        // After the server, which would start another one.
        let keeper = directory.join("keeper.lock");
        let keeper = match durable {
            DurableProcesses::End => stop_holder(&keeper, "the keeper of its durable processes")?,
            DurableProcesses::RunOn => None,
        };
        Ok::<_, Failure>((server, keeper))
    });
    let (server, keeper) = stopping
        .await
        .map_err(|error| Failure::new("cannot stop the server", "try again").because(error.to_string()))??;
    let (shown, quoted) = (state.display(), shell_word(&state.display().to_string()).into_owned());
    let has_keeper = matches!(holder(&state.join("keeper.lock")), Ok(Found::By(_) | Found::Starting));
    if server.is_none() && keeper.is_none() {
        let nobody = Failure::of(
            Kind::NotFound,
            format!("no server uses the state directory `{shown}`"),
            "name the directory that the server was started with",
        );
        return Err(if has_keeper {
            nobody.with_hint(format!(
                "its durable processes may still be running; `remex server stop --state {quoted} --all` ends them"
            ))
        } else {
            nobody
        });
    }
    if let Some(pid) = server {
        print::out(format!("stopped the server of `{shown}` (pid {})\n", pid.as_raw_nonzero()))?;
    }
    if keeper.is_some() {
        print::out(format!("ended the durable processes of `{shown}`; their output is kept\n"))?;
    } else if has_keeper {
        print::out(format!(
            "its durable processes run on; `remex server stop --state {quoted} --all` ends them\n"
        ))?;
    }
    Ok(0)
}

/// Ends the process that holds a lock file, and returns which one that was; blocks.
fn stop_holder(lock: &Path, what: &str) -> Result<Option<Pid>, Failure> {
    let io_failure = |error: io::Error| Failure::io(&format!("stop {what} of `{}`", lock.display()), &error);
    let deadline = Instant::now() + START_PATIENCE;
    let found = || -> io::Result<Option<Pid>> {
        loop {
            match holder(lock)? {
                Found::Starting if Instant::now() < deadline => std::thread::sleep(START_PAUSE),
                Found::By(found) => return Ok(Some(found.pid)),
                Found::Nobody | Found::Starting => return Ok(None),
            }
        }
    };
    let Some(pid) = found().map_err(io_failure)? else { return Ok(None) };
    let process = match Ending::open(pid) {
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {
            return Ok(None);
        }
        opened => opened.map_err(io_failure)?,
    };
    // Until it was opened, its number could have become that of another process.
    if found().map_err(io_failure)? != Some(pid) {
        return Ok(None);
    }
    check_here(pid, lock, &format!("stop {what} of `{}`", lock.display()))?;
    process.signal(Signal::TERM).map_err(io_failure)?;
    if process.exits_within(STOP_TIMEOUT) {
        return Ok(Some(pid));
    }
    Err(Failure::new(
        format!("{what} (pid {}) does not exit", pid.as_raw_nonzero()),
        "try again, or look for a process blocked in the kernel",
    ))
}

/// Ends everything that the identity of the user's credential runs on a server, and the server itself where that is
/// possible.
pub(super) async fn end_all_on(endpoint: &Endpoint) -> Outcome {
    if let Some(command) = there::command(endpoint, &["server", "stop", "--force"]) {
        let goal = format!("stop the server on `{}`", plain(&endpoint.name));
        return there::run(endpoint, command, &goal).await;
    }
    let client = endpoint.connect(|_| {}).await?;
    let processes = Arc::new(Processes::list(&client).await?);
    let alive: Vec<_> = processes.rows.iter().filter(|row| Row::is_alive(row)).cloned().collect();
    let mut ending: JoinSet<_> = alive
        .into_iter()
        .map(|row| {
            let (client, processes) = (client.clone(), Arc::clone(&processes));
            async move { kill::end_tree(&client, &processes, &row, GRACE).await }
        })
        .collect();
    let mut failed = None::<Failure>;
    while let Some(ended) = ending.join_next().await {
        let ended = ended.unwrap_or_else(|error| {
            Err(Failure::new("cannot end a process", "try again").because(error.to_string()))
        });
        match ended {
            Ok(done) => print::out(format!("{done}\n"))?,
            Err(failure) => {
                failed = Some(match failed {
                    Some(earlier) => earlier.and(failure),
                    None => failure,
                });
            }
        }
    }
    let _ = client.end().await;
    if let Some(failure) = failed {
        return Err(failure);
    }
    match &endpoint.target {
        Target::Unix(path) => stop_at(path).await,
        other => {
            let other = plain(&other.to_string());
            print::out(format!(
                "nothing of yours runs on {other} any more; the server itself runs on, and is stopped on its host\n"
            ))?;
            Ok(0)
        }
    }
}

/// Stops the server that listens on a unix socket.
async fn stop_at(path: &Path) -> Outcome {
    let io_failure =
        |error: io::Error| Failure::io(&format!("stop the server at `{}`", path.display()), &error);
    let pid = user_server::listening_on(path).await.map_err(|missing| match missing {
        user_server::Missing::Io(error) => io_failure(error),
        user_server::Missing::Other => Failure::new(
            format!("cannot stop the server at `{}`", path.display()),
            "stop its unit or its container; nothing of yours runs on it any more",
        )
        .because("its socket was created by systemd or another program, or by another user"),
    })?;
    let process = Ending::open(pid).map_err(io_failure)?;
    process.signal(Signal::TERM).map_err(io_failure)?;
    let ended = tokio::task::spawn_blocking(move || process.exits_within(STOP_TIMEOUT)).await;
    if !ended.is_ok_and(|ended| ended) {
        return Err(Failure::new(
            format!("the server (pid {}) does not exit", pid.as_raw_nonzero()),
            "look for a process blocked in the kernel",
        ));
    }
    print::out(format!("stopped the server at `{}` (pid {})\n", path.display(), pid.as_raw_nonzero()))?;
    Ok(0)
}

//! `remex upgrade`: replaces a running server by the program that is now on disk.

use std::{
    io::{self, Read as _},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::Duration,
};

use remex_client::Client;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::FlockOperation,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

use super::{
    Outcome,
    serve::handover::{REFUSED, SERVING, version_of},
};
use crate::{
    args::upgrade::Flags,
    remote::{
        endpoint::Endpoint,
        processes::{Processes, Row},
        user_server::{self, ServerStatus, Socket},
    },
    render::{failure::Failure, print},
};

/// How long the new program may take until it serves.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(10);

pub(crate) async fn run(flags: &Flags) -> Outcome {
    let text = match &flags.state {
        Some(directory) => upgrade(directory).await.map(|Upgraded { pid, program, version }| {
            format!("the server (pid {pid}) now runs {version} from {}\n", program.display())
        })?,
        None => upgrade_own().await?,
    };
    print::out(text)?;
    Ok(0)
}

/// A server that was replaced.
struct Upgraded {
    pid: i32,
    program: PathBuf,
    /// What the new program says with `--version`.
    version: String,
}

async fn upgrade_own() -> Result<String, Failure> {
    let ServerStatus::Running(socket) = user_server::find().await? else {
        return Err(user_server::not_running().await);
    };
    let Some(state) = socket.state().filter(|state| state.is_dir()) else {
        return Err(Failure::new(
            "cannot upgrade your local remex server",
            "stop it with `remex server stop`; the next command starts the new program",
        )
        .because("it has no state directory, so its processes would end with it"));
    };
    let Upgraded { pid, version, .. } = upgrade(&state).await?;
    let client = connect(&socket).await?;
    let running = Processes::list(&client).await?.rows.iter().filter(|row| Row::is_running(row)).count();
    let _ = client.end().await;
    let processes = if running == 1 { "process runs" } else { "processes run" };
    Ok(format!("your local remex server (pid {pid}) now runs {version}; {running} {processes} on\n"))
}

async fn connect(socket: &Socket) -> Result<Client, Failure> {
    Endpoint::user_server(socket.clone()).connect(|_| {}).await
}

/// Replaces the server of a state directory, and waits until the new program serves.
async fn upgrade(state: &Path) -> Result<Upgraded, Failure> {
    let lock = state.join("server.lock");
    let cannot = |what: &str| {
        let what = format!("cannot {what}");
        move |error: io::Error| Failure::io(&what, &error)
    };
    let unreadable = cannot(&format!("read `{}`", lock.display()));
    let before = tokio::time::timeout(PATIENCE, started(&lock));
    let before = match before.await {
        Ok(before) => before.map_err(unreadable)?.ok_or_else(|| {
            Failure::new(
                format!("no server uses the state directory `{}`", state.display()),
                "name the directory that the server was started with, or start it",
            )
        })?,
        Err(_) => {
            return Err(Failure::new(
                format!("the server of `{}` does not serve after {} s", state.display(), PATIENCE.as_secs()),
                "see its log for the reason",
            ));
        }
    };
    let Holder { pid, program, .. } = before;
    let server =
        pidfd_open(pid, PidfdFlags::empty()).map_err(|error| cannot("find the server")(error.into()))?;
    let pid: i32 = pid.as_raw_nonzero().into();
    let path = program.clone();
    let version = tokio::task::spawn_blocking(move || version_of(&path))
        .await
        .unwrap_or_else(|error| Err(error.to_string()));
    let version = version.map_err(|why| {
        Failure::new("cannot upgrade the server", "install a working remex there first").because(why)
    })?;
    pidfd_send_signal(&server, Signal::USR2).map_err(|error| cannot("signal the server")(error.into()))?;
    let replaced = async {
        loop {
            match holder(&lock) {
                Ok(Found::By(now)) if now.when != before.when && now.status == SERVING => {
                    return Ok(now.pid == before.pid);
                }
                Ok(Found::By(now)) if now.when != before.when && now.status.starts_with(REFUSED) => {
                    return Err(now.status);
                }
                _ if has_ended(&server) => return Ok(false),
                _ => tokio::time::sleep(PAUSE).await,
            }
        }
    };
    match tokio::time::timeout(PATIENCE, replaced).await {
        Ok(Ok(true)) => Ok(Upgraded { pid, program, version }),
        Ok(Ok(false)) => Err(Failure::new(
            format!("the server (pid {pid}) has ended"),
            "see its log, and start it again: its durable processes run on",
        )),
        Ok(Err(refusal)) => Err(Failure::new(
            "cannot upgrade the server",
            "install a working remex there; the server runs on with its old program",
        )
        .because(refusal.trim_start_matches(REFUSED))),
        Err(_) => Err(Failure::new(
            format!("the server (pid {pid}) does not serve after {} s", PATIENCE.as_secs()),
            "see its log for the reason",
        )),
    }
}

fn has_ended(process: &OwnedFd) -> bool {
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Waits until the server that holds a lock file has started; returns none if there is no server.
async fn started(lock: &Path) -> io::Result<Option<Holder>> {
    loop {
        match holder(lock)? {
            Found::Nobody => return Ok(None),
            Found::By(holder) if holder.status == SERVING || holder.status.starts_with(REFUSED) => {
                return Ok(Some(holder));
            }
            Found::By(_) | Found::Starting => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// Who holds a lock file.
enum Found {
    Nobody,
    /// A server that has not said who it is.
    Starting,
    By(Holder),
}

/// The server that holds a lock file, and what it says.
struct Holder {
    pid: Pid,
    program: PathBuf,
    /// How it is, as [`handover`](super::serve::handover) has it.
    status: String,
    /// When it said so, as text that is compared only.
    when: String,
}

/// Returns who holds a lock file.
fn holder(lock: &Path) -> io::Result<Found> {
    let mut file = match remex_rpc::open_regular(lock) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nobody),
        opened => opened?,
    };
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        return Ok(Found::Nobody);
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let mut lines = text.lines();
    let pid = lines.next().and_then(|line| line.parse().ok()).and_then(Pid::from_raw);
    let (Some(pid), Some(program), Some(status), Some(when)) =
        (pid, lines.next(), lines.next(), lines.next())
    else {
        return Ok(Found::Starting);
    };
    Ok(Found::By(Holder { pid, program: program.into(), status: status.to_owned(), when: when.to_owned() }))
}

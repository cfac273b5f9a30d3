//! `remex upgrade`: replaces a running server by the program that is now on disk.

use std::{
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
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
    let Some(before) = holder(&lock).map_err(unreadable)? else {
        return Err(Failure::new(
            format!("no server uses the state directory `{}`", state.display()),
            "name the directory that the server was started with, or start it",
        ));
    };
    let pid: i32 = before.pid.as_raw_nonzero().into();
    let server = pidfd_open(before.pid, PidfdFlags::empty())
        .map_err(|error| cannot("find the server")(error.into()))?;
    let Some(program) =
        before.program.filter(|_| before.status == SERVING || before.status.starts_with(REFUSED))
    else {
        return Err(Failure::new(
            format!("the server (pid {pid}) is just starting"),
            "try again in a second",
        ));
    };
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
                Ok(Some(now)) if now.at != before.at && now.status == SERVING => {
                    return Ok(now.pid == before.pid);
                }
                Ok(Some(now)) if now.at != before.at && now.status.starts_with(REFUSED) => {
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

/// Who holds a lock file, and what that program says.
struct Holder {
    pid: Pid,
    program: Option<PathBuf>,
    /// How it is, as [`handover`](super::serve::handover) has it; empty while it starts.
    status: String,
    /// When it said so.
    at: SystemTime,
}

/// Returns who holds a lock file.
fn holder(lock: &Path) -> io::Result<Option<Holder>> {
    let file = match fs::File::open(lock) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        return Ok(None);
    }
    let text = fs::read_to_string(lock)?;
    let mut lines = text.lines();
    let pid = lines.next().and_then(|line| line.parse().ok()).and_then(Pid::from_raw);
    let Some(pid) = pid else { return Ok(None) };
    let program = lines.next().map(PathBuf::from);
    let status = lines.next().unwrap_or_default().to_owned();
    Ok(Some(Holder { pid, program, status, at: file.metadata()?.modified()? }))
}

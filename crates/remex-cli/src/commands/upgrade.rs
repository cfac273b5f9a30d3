//! `remex upgrade`: replaces a running server by the program that is now on disk.

use std::{
    ffi::OsStr,
    fs, io,
    os::{
        fd::OwnedFd,
        unix::ffi::{OsStrExt as _, OsStringExt as _},
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, SystemTime},
};

use remex_client::Client;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::FlockOperation,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

use super::Outcome;
use crate::{
    args::upgrade::Flags,
    remote::{
        endpoint::Endpoint,
        processes::{Processes, Row},
        user_server::{self, ServerStatus, Socket},
    },
    render::{failure::Failure, print},
};

/// How long the new program may take until it has the state directory.
const PATIENCE: Duration = Duration::from_secs(60);
const VERSION_PATIENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };
const PAUSE: Duration = Duration::from_millis(10);

/// Where the kernel says that a program is whose file was replaced.
const DELETED: &[u8] = b" (deleted)";

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

/// Replaces the server of a state directory, and waits until the new program has that directory.
async fn upgrade(state: &Path) -> Result<Upgraded, Failure> {
    let lock = state.join("server.lock");
    let cannot = |what: &str| {
        let what = format!("cannot {what}");
        move |error: io::Error| Failure::io(&what, &error)
    };
    let Some((pid, locked_at)) = holder(&lock).map_err(cannot(&format!("read `{}`", lock.display())))? else {
        return Err(Failure::new(
            format!("no server uses the state directory `{}`", state.display()),
            "name the directory that the server was started with, or start it",
        ));
    };
    let number: i32 = pid.as_raw_nonzero().into();
    let server =
        pidfd_open(pid, PidfdFlags::empty()).map_err(|error| cannot("find the server")(error.into()))?;
    let program = program_of(number).map_err(cannot("find the program of the server"))?;
    let version = version_of(&program)?;
    pidfd_send_signal(&server, Signal::USR2).map_err(|error| cannot("signal the server")(error.into()))?;
    let replaced = async {
        loop {
            match holder(&lock) {
                Ok(Some((holder, at))) if at != locked_at => return holder == pid,
                _ if has_ended(&server) => return false,
                _ => tokio::time::sleep(PAUSE).await,
            }
        }
    };
    match tokio::time::timeout(PATIENCE, replaced).await {
        Ok(true) => Ok(Upgraded { pid: number, program, version }),
        Ok(false) => Err(Failure::new(
            format!("the server (pid {number}) has ended"),
            "see its log, and start it again: its durable processes run on",
        )),
        Err(_) => Err(Failure::new(
            format!("the server (pid {number}) was not replaced within {} s", PATIENCE.as_secs()),
            "see its log for the reason",
        )),
    }
}

fn has_ended(process: &OwnedFd) -> bool {
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Returns who holds a lock file, and since when.
fn holder(lock: &Path) -> io::Result<Option<(Pid, SystemTime)>> {
    let file = match fs::File::open(lock) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        return Ok(None);
    }
    let text = fs::read_to_string(lock)?;
    let pid = text.trim().parse().ok().and_then(Pid::from_raw);
    Ok(pid.zip(Some(file.metadata()?.modified()?)))
}

/// Returns where the program of a process was started from; that file may be another one now.
fn program_of(pid: i32) -> io::Result<PathBuf> {
    let link = fs::read_link(format!("/proc/{pid}/exe"))?.into_os_string().into_vec();
    Ok(OsStr::from_bytes(link.strip_suffix(DELETED).unwrap_or(&link)).into())
}

/// Returns what a program says about its version.
fn version_of(program: &Path) -> Result<String, Failure> {
    let trouble = |why: String| {
        Failure::new("cannot upgrade the server", "install a working remex there first").because(why)
    };
    let cannot = |error: io::Error| trouble(format!("cannot run `{}`: {error}", program.display()));
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(cannot)?;
    let ended = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
        .and_then(|pidfd| poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&VERSION_PATIENCE)));
    if ended == Ok(0) {
        let _ = child.kill();
    }
    // What it prints fits into the pipe.
    let output = child.wait_with_output().map_err(cannot)?;
    match output.status {
        status if status.success() => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        status => Err(trouble(format!("`{} --version` ended with {status}", program.display()))),
    }
}

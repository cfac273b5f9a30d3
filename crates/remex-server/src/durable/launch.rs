//! Starts a keeper, in a unit of its own if possible.

use std::{
    ffi::OsString,
    fs::OpenOptions,
    io::{BufRead as _, BufReader},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    process::{Child, ChildStdout, Command, Stdio},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{config::StateConfig, state_dir::StateDir};

/// How long a launcher and the keeper after it may take. Their bus may hang.
const LAUNCH_PATIENCE: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

/// How much of what a launcher says is logged.
const MAX_REASON: usize = 1 << 10;

/// Starts a keeper and waits until servers can connect to it; returns its process, or why there is none.
pub(super) fn keeper(state: &StateDir, config: &StateConfig) -> Result<Child, String> {
    if !config.launcher.is_empty() {
        match start(state, config.launcher.iter().chain(&config.keeper), Some(&LAUNCH_PATIENCE)) {
            Ok(child) => return Ok(child),
            Err(reason) => tracing::warn!(
                reason,
                "the keeper cannot get a unit of its own; it ends with the unit of the server, and all processes with it, \
                 unless that has `KillMode=process`"
            ),
        }
    }
    start(state, config.keeper.iter(), None)
}

fn start<'a>(
    state: &StateDir,
    mut words: impl Iterator<Item = &'a OsString>,
    patience: Option<&Timespec>,
) -> Result<Child, String> {
    let path = state.path().join("keeper.log");
    let log = OpenOptions::new().create(true).read(true).append(true).mode(0o600).open(path);
    let log = log.map_err(|error| format!("cannot open its log: {error}"))?;
    let said_before = log.metadata().map_or(u64::MAX, |log| log.len());
    let stderr = log.try_clone().map_err(|error| format!("cannot use its log: {error}"))?;
    let program = words.next().ok_or("no program was named for it")?;
    let mut child = Command::new(program)
        .args(words)
        .arg(state.path())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(stderr)
        .spawn()
        .map_err(|error| format!("cannot execute `{}`: {error}", program.display()))?;
    let said = child.stdout.take().map_or_else(|| Ok(String::new()), |out| first_line(out, patience));
    if said.as_ref().is_ok_and(|said| said == "ready") {
        return Ok(child);
    }
    let _ = child.kill();
    let _ = child.wait();
    Err(match said? {
        said if !said.is_empty() => said,
        _ => {
            let mut reason = vec![0; MAX_REASON];
            let len = log.read_at(&mut reason, said_before).unwrap_or(0);
            reason.truncate(len);
            match String::from_utf8_lossy(&reason).trim() {
                "" => "it ended at once".to_owned(),
                reason => reason.to_owned(),
            }
        }
    })
}

/// Returns the first line, or nothing if there is none.
fn first_line(out: ChildStdout, patience: Option<&Timespec>) -> Result<String, String> {
    let mut ready = [PollFd::new(&out, PollFlags::IN)];
    // After an error, reading waits as well.
    if poll(&mut ready, patience) == Ok(0) {
        return Err(format!("it does not respond within {} s", LAUNCH_PATIENCE.tv_sec));
    }
    let mut said = String::new();
    BufReader::new(out).read_line(&mut said).map_err(|error| error.to_string())?;
    Ok(said.trim().to_owned())
}

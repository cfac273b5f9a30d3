//! Starts a keeper, in a unit of its own if possible.

use std::{
    ffi::OsString,
    fs::OpenOptions,
    io::{self, Read as _},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    process::{Child, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use remex_base::trace::LOG_TARGET;
use remex_process::spawn_own;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

use super::StateConfig;
use crate::state::state_dir::{StateDir, open_regular};

/// How long a launcher and the keeper after it may take. Their bus may hang.
const LAUNCH_PATIENCE: Duration = Duration::from_secs(30);

/// How much of what a launcher says is logged.
const MAX_REASON: usize = 1 << 10;

/// Starts a keeper and waits until servers can connect to it; returns its process, or why there is none.
pub(super) fn keeper(state: &StateDir, config: &StateConfig) -> Result<Child, String> {
    if !config.launcher.is_empty() {
        match start(state, config.launcher.iter().chain(&config.keeper), Some(LAUNCH_PATIENCE)) {
            Ok(child) => return Ok(child),
            Err(reason) => tracing::warn!(
                target: LOG_TARGET,
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
    patience: Option<Duration>,
) -> Result<Child, String> {
    let path = state.path().join("keeper.log");
    let mut options = OpenOptions::new();
    options.create(true).read(true).append(true).mode(0o600);
    let log = open_regular(&options, &path);
    let log = log.map_err(|error| format!("cannot open its log: {error}"))?;
    let said_before = log.metadata().map_or(u64::MAX, |log| log.len());
    let stderr = log.try_clone().map_err(|error| format!("cannot use its log: {error}"))?;
    let program = words.next().ok_or("no program was named for it")?;
    let mut command = Command::new(program);
    command.args(words).arg(state.path()).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
    let mut child = spawn_own(&mut command)
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
fn first_line(mut out: ChildStdout, patience: Option<Duration>) -> Result<String, String> {
    let deadline = patience.map(|patience| Instant::now() + patience);
    let mut said = Vec::new();
    while !said.ends_with(b"\n") && said.len() < MAX_REASON {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = left.map(|left| Timespec {
            tv_sec: left.as_secs().cast_signed(),
            tv_nsec: left.subsec_nanos().into(),
        });
        let mut ready = [PollFd::new(&out, PollFlags::IN)];
        match poll(&mut ready, left.as_ref()) {
            Ok(0) => return Err(format!("it does not respond within {} s", LAUNCH_PATIENCE.as_secs())),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.to_string()),
        }
        let mut byte = [0];
        match out.read(&mut byte) {
            Ok(0) => break,
            Ok(_) => said.push(byte[0]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(String::from_utf8_lossy(&said).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_line_of(script: &str, patience: Duration) -> Result<String, String> {
        let mut child =
            Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().expect("there is a shell");
        let said = first_line(child.stdout.take().expect("it is piped"), Some(patience));
        let _ = child.kill();
        let _ = child.wait();
        said
    }

    #[test]
    fn a_launcher_that_prints_an_incomplete_line_times_out() {
        let said = first_line_of("printf rea; exec sleep 1000", Duration::from_millis(100));
        assert!(said.is_err_and(|reason| reason.contains("does not respond")));
        assert_eq!(
            first_line_of("printf rea; echo dy; exec sleep 1000", Duration::from_secs(60)).as_deref(),
            Ok("ready")
        );
        assert_eq!(first_line_of("exit 1", Duration::from_secs(60)).as_deref(), Ok(""));
    }
}

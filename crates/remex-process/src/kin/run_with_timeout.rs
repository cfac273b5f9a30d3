//! Runs a helper program for a limited time and captures its output.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _},
    os::unix::process::CommandExt as _,
    process::{Command, ExitStatus, Stdio},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{MemfdFlags, memfd_create},
    io::retry_on_intr,
    process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open},
};

use crate::kin::adoption::spawn_own;

/// The most output that is returned, in bytes.
const MAX_OUTPUT: u64 = 4096;

/// Runs a command without input, and returns its exit status and the beginning of its output. Blocks.
///
/// # Errors
///
/// If it cannot be executed; [`io::ErrorKind::TimedOut`] if it takes longer, after killing its process group.
pub fn run_with_timeout(mut command: Command, patience: Duration) -> io::Result<(ExitStatus, String)> {
    // A file instead of a pipe, which a descendant could hold open.
    let mut output = File::from(memfd_create("output", MemfdFlags::CLOEXEC)?);
    let stdout = output.try_clone()?;
    command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::null()).process_group(0);
    let mut child = spawn_own(&mut command)?;
    let pid = Pid::from_child(&child);
    let patience = Timespec::try_from(patience).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
    let ended = pidfd_open(pid, PidfdFlags::empty())
        .and_then(|pidfd| retry_on_intr(|| poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&patience))));
    if ended != Ok(1) {
        let _ = kill_process_group(pid, Signal::KILL);
        child.wait()?;
        return Err(io::Error::new(io::ErrorKind::TimedOut, "it does not end"));
    }
    let status = child.wait()?;
    let mut text = Vec::new();
    output.rewind()?;
    output.take(MAX_OUTPUT).read_to_end(&mut text)?;
    Ok((status, String::from_utf8_lossy(&text).into_owned()))
}

#[cfg(test)]
mod tests {
    use rustix::process::kill_process;

    use super::*;

    fn shell(line: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", line]);
        command
    }

    #[test]
    fn output_is_returned_even_if_a_descendant_keeps_it_open() {
        let (status, text) =
            run_with_timeout(shell("sleep 1000 & echo $!; exit 3"), Duration::from_secs(60)).unwrap();
        assert_eq!(status.code(), Some(3));
        let started = text.trim().parse().ok().and_then(Pid::from_raw).expect("it says what it started");
        kill_process(started, Signal::KILL).expect("that goes on");
    }

    #[test]
    fn a_program_that_exceeds_its_timeout_is_killed_with_its_process_group() {
        let error = run_with_timeout(shell("sleep 1000; sleep 1000"), Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}

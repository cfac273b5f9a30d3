//! Hands the terminal to `remex attach`, and takes it back.

use std::{
    ffi::OsString,
    io,
    process::{Command, ExitStatus},
};

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};

/// Runs `remex attach` with these arguments until it ends, and returns how it ended.
///
/// When the user suspends it, this program stops with it, and both are resumed together.
pub(super) async fn run(args: Vec<OsString>) -> io::Result<ExitStatus> {
    let waiting = tokio::task::spawn_blocking(move || {
        let mut child = Command::new(std::env::current_exe()?).args(args).spawn()?;
        let pid = Pid::from_child(&child);
        loop {
            // It is not reaped here while it only stops.
            match waitpid(Some(pid), WaitOptions::UNTRACED) {
                Ok(Some((_, status))) if status.stopped() => {
                    kill_process(getpid(), Signal::STOP)?;
                    kill_process(pid, Signal::CONT)?;
                }
                Ok(Some((_, status))) => {
                    return Ok(std::os::unix::process::ExitStatusExt::from_raw(status.as_raw()));
                }
                Ok(None) => return child.wait(),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    });
    waiting.await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

//! Which process is at the other end of a unix socket, as far as jails are concerned.

use std::{
    fs, io,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
};

use remex_rpc::PeerProcess;
use rustix::io::Errno;
use tokio::net::UnixStream;

/// Finds out whether a jail confines the process that made a connection.
///
/// The pid may have been reused by now; the pidfd of the kernel, where there is one, detects that.
pub fn find(stream: &UnixStream) -> io::Result<PeerProcess> {
    let pid = stream.peer_cred()?.pid().unwrap_or(0).cast_unsigned();
    match remex_process::peer_pidfd(stream.as_fd()) {
        Ok(process) => {
            let found = PeerProcess::find(pid);
            Ok(if pid != 0 && was_reaped(&process) { PeerProcess::Gone } else { found })
        }
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::SRCH | Errno::INVAL) => Ok(PeerProcess::Gone),
            // An older kernel.
            _ => Ok(PeerProcess::find(pid)),
        },
    }
}

/// Returns whether a process has ended and its number may be in use again.
fn was_reaped(process: &OwnedFd) -> bool {
    let shown = fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", process.as_raw_fd()));
    // Without `/proc`, nothing was found out by the number either.
    shown.is_ok_and(|text| {
        text.lines().any(|line| line.strip_prefix("Pid:").is_some_and(|pid| pid.trim() == "-1"))
    })
}

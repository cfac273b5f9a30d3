//! Replaces this program by another one that goes on with its listening sockets.
#![allow(unsafe_code)]

use std::{
    ffi::OsStr,
    io,
    os::{
        fd::{AsRawFd as _, OwnedFd, RawFd},
        unix::process::CommandExt as _,
    },
    process::Command,
};

/// The first descriptor that a program passes on, as systemd does it.
const FIRST: RawFd = 3;

/// Executes `command` in place of this program, with `sockets` from descriptor 3 on, as systemd passes them.
///
/// SIGUSR2, which asks for such a replacement, is ignored until the new program handles it. Returns only if it fails. By then descriptors of this program are replaced, so it must end; nothing else may use
/// descriptors meanwhile.
pub fn exec_with_sockets(mut command: Command, sockets: Vec<OwnedFd>) -> io::Error {
    let count = sockets.len();
    let past = FIRST.saturating_add(RawFd::try_from(count).unwrap_or(RawFd::MAX));
    let moved: io::Result<Vec<OwnedFd>> =
        sockets.into_iter().map(|socket| Ok(rustix::io::fcntl_dupfd_cloexec(&socket, past)?)).collect();
    let moved = match moved {
        Ok(moved) => moved,
        Err(error) => return error,
    };
    for (socket, number) in moved.iter().zip(FIRST..) {
        // SAFETY: whoever owns the descriptor with this number does not use it again, because this program is replaced
        // or ends. The new one is inherited.
        if unsafe { libc::dup2(socket.as_raw_fd(), number) } < 0 {
            return io::Error::last_os_error();
        }
    }
    // Asking once more must not end the new program before it listens to that.
    // SAFETY: no handler is installed, and ignored signals stay ignored in the new program until it changes that.
    unsafe { libc::signal(libc::SIGUSR2, libc::SIG_IGN) };
    let pid = std::process::id().to_string();
    command.env("LISTEN_FDS", count.to_string()).env("LISTEN_PID", OsStr::new(&pid)).exec()
}

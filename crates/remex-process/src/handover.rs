//! Replaces this program by another one that goes on with its descriptors.
#![allow(unsafe_code)]

use std::{
    ffi::{CString, OsStr, OsString},
    io,
    os::{
        fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
        unix::{ffi::OsStringExt as _, process::CommandExt as _},
    },
    process::Command,
    ptr,
};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

use crate::{early_signals, sys};

/// The first descriptor that a program passes on, as systemd does it.
const FIRST: RawFd = 3;

/// Executes `command` in place of this program, with `sockets` from descriptor 3 on, as systemd passes them.
///
/// SIGUSR2 and SIGHUP stay pending until the new program calls [`note_signals`](crate::note_signals). Returns only if it
/// fails. By then descriptors of this program are replaced, so it must end; nothing else may use descriptors meanwhile.
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
    let pid = std::process::id().to_string();
    command.env("LISTEN_FDS", count.to_string()).env("LISTEN_PID", OsStr::new(&pid));
    // Those that ask for a replacement or a reload must not end the new program before it handles them.
    let pending = [libc::SIGUSR2, libc::SIGHUP];
    early_signals::block(&pending);
    let failed = command.exec();
    early_signals::unblock(&pending);
    failed
}

/// Executes `program` in place of this one, which passes on `kept` under the same numbers, and its children.
///
/// The first argument is the name of the program. All signals are blocked until the new program calls
/// [`take_signals`], so that none is lost. Returns only if it fails; then nothing has changed.
pub fn exec_keeping(program: OsString, args: Vec<OsString>, kept: &[BorrowedFd<'_>]) -> io::Error {
    let plain = |text: OsString| CString::new(text.into_vec());
    let (program, args) = match (plain(program), args.into_iter().map(plain).collect::<Result<Vec<_>, _>>()) {
        (Ok(program), Ok(args)) => (program, args),
        (Err(error), _) | (_, Err(error)) => return error.into(),
    };
    let mut pointers: Vec<_> = args.iter().map(|arg| arg.as_ptr()).collect();
    pointers.push(ptr::null());
    let inherit = |flags: FdFlags| kept.iter().try_for_each(|fd| fcntl_setfd(fd, flags));
    let failed = match inherit(FdFlags::empty()) {
        Ok(()) => sys::with_all_signals_blocked(|| {
            // SAFETY: both are strings that end with zero, and the list of them ends with a null pointer.
            unsafe { libc::execv(program.as_ptr(), pointers.as_ptr()) };
            io::Error::last_os_error()
        }),
        Err(error) => error.into(),
    };
    // One that cannot be changed was not changed before.
    let _ = inherit(FdFlags::CLOEXEC);
    failed
}

/// Takes a descriptor that [`exec_keeping`] has passed on.
///
/// # Errors
/// If it is not open, or was taken already.
pub fn take_kept(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: it is only borrowed to ask whether it is open.
    let fd = unsafe { BorrowedFd::borrow_raw(number.max(0)) };
    if number <= 2 || fcntl_getfd(fd)?.contains(FdFlags::CLOEXEC) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("descriptor {number} was not passed on"),
        ));
    }
    fcntl_setfd(fd, FdFlags::CLOEXEC)?;
    // SAFETY: it was inherited and not taken yet, or the flag would be set; everything that this program opens has it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Lets signals in that [`exec_keeping`] has blocked, once their handlers are installed.
pub fn take_signals() {
    sys::unblock_signals();
}

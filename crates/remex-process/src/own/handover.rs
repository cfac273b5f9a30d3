//! Replaces this program with another one, which inherits its descriptors.
#![allow(unsafe_code)]

use std::{
    ffi::{CString, OsString},
    io,
    os::{
        fd::{BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
        unix::{ffi::OsStringExt as _, process::CommandExt as _},
    },
    process::Command,
    ptr,
};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

use crate::{base::sys, own::early_signals};

/// Executes `command` in place of this program, which passes on `kept` under the same numbers.
///
/// Descriptors keep their numbers because threads of this program use theirs until the very end. SIGUSR2 and SIGHUP
/// stay pending until the new program calls [`defer_signals`](crate::defer_signals). Returns only if it fails; then
/// nothing has changed.
pub fn exec_command_with_fds(mut command: Command, kept: &[BorrowedFd<'_>]) -> io::Error {
    inheriting(kept, || {
        early_signals::block();
        let failed = command.exec();
        early_signals::unblock();
        failed
    })
}

/// Executes `program` in place of this one, which passes on `kept` under the same numbers, and its children.
///
/// The first argument is the name of the program. All signals are blocked until the new program calls
/// [`unblock_signals_after_exec`], so that none is lost. Returns only if it fails; then nothing has changed.
pub fn exec_with_fds(program: OsString, args: Vec<OsString>, kept: &[BorrowedFd<'_>]) -> io::Error {
    let plain = |text: OsString| CString::new(text.into_vec());
    let (program, args) = match (plain(program), args.into_iter().map(plain).collect::<Result<Vec<_>, _>>()) {
        (Ok(program), Ok(args)) => (program, args),
        (Err(error), _) | (_, Err(error)) => return error.into(),
    };
    let mut pointers: Vec<_> = args.iter().map(|arg| arg.as_ptr()).collect();
    pointers.push(ptr::null());
    inheriting(kept, || {
        sys::with_all_signals_blocked(|| {
            // SAFETY: both are strings that end with zero, and the list of them ends with a null pointer.
            unsafe { libc::execv(program.as_ptr(), pointers.as_ptr()) };
            io::Error::last_os_error()
        })
    })
}

/// Calls `exec` while programs inherit `kept`.
fn inheriting(kept: &[BorrowedFd<'_>], exec: impl FnOnce() -> io::Error) -> io::Error {
    let set = |flags: FdFlags| kept.iter().try_for_each(|fd| fcntl_setfd(fd, flags));
    let failed = match set(FdFlags::empty()) {
        Ok(()) => exec(),
        Err(error) => error.into(),
    };
    // A descriptor whose flag cannot be restored was not changed before either.
    let _ = set(FdFlags::CLOEXEC);
    failed
}

/// Takes ownership of a descriptor that [`exec_with_fds`] or [`exec_command_with_fds`] has passed on.
///
/// # Errors
/// If it is not open, or was taken already.
pub fn take_inherited_fd(number: RawFd) -> io::Result<OwnedFd> {
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

/// Unblocks the signals that [`exec_with_fds`] has blocked. Call it once their handlers are installed.
pub fn unblock_signals_after_exec() {
    sys::unblock_signals();
}

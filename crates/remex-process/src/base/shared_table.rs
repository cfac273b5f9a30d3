//! Whether a child may share our descriptor table until it copies the part that it needs.
//!
//! Linux before 6.11 has a bug (CVE-2024-45025) unless the fix was backported: in a copy of the beginning of a table,
//! some free numbers are marked as taken, and the program can open fewer files than its limit allows. There, a child
//! gets a copy of the whole table when it is created, as with `fork`, and a start takes longer the more descriptors are
//! open.
#![allow(unsafe_code)]

use std::{
    ffi::c_int,
    io,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, RawFd},
    sync::OnceLock,
    thread,
};

use rustix::fs::{Mode, OFlags};

use crate::base::sys;

/// How many descriptor numbers the kernel marks as taken at once.
const WORD: c_int = 64;

/// Returns the `clone` flag with which a child shares our descriptor table, or 0 if that does not work on this host.
pub(crate) fn flag() -> c_int {
    static FLAG: OnceLock<c_int> = OnceLock::new();
    // Without a free thread or descriptor for the probe, assume the bug: starts are then slower than necessary.
    *FLAG.get_or_init(|| if can_copy_the_beginning().unwrap_or(false) { libc::CLONE_FILES } else { 0 })
}

/// Gives the child its own table, with only those of our descriptors that are below `end`.
///
/// # Safety
/// Call it only in a child.
pub(crate) unsafe fn unshare_table(end: RawFd) -> Result<(), i32> {
    let (first, last) = (end.cast_unsigned(), libc::c_uint::MAX);
    // SAFETY: closes none of our descriptors, because a shared table is copied first. As the range extends to the end
    // of the table, the kernel copies only the part before it.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, libc::CLOSE_RANGE_UNSHARE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error().raw_os_error().unwrap_or(0)),
    }
}

/// Returns whether copying the beginning of a table works, that is, the kernel does not have the bug.
fn can_copy_the_beginning() -> io::Result<bool> {
    let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let null = null.as_fd();
    thread::scope(|scope| {
        let filling = thread::Builder::new().spawn_scoped(scope, || {
            sys::unshare_descriptors(null)?;
            fill(null, 2 * WORD)?;
            // The kernel copies a table only if it is shared.
            let copying = thread::Builder::new().spawn_scoped(scope, next_after_copy)?;
            Ok(copying.join().unwrap_or(-1) == WORD)
        })?;
        filling.join().unwrap_or(Ok(false))
    })
}

/// Opens all numbers below `end`, on a thread with its own descriptors.
fn fill(null: BorrowedFd<'_>, end: c_int) -> io::Result<()> {
    for number in 0..end {
        // SAFETY: nothing owns a descriptor in the table of this thread.
        if unsafe { libc::dup2(null.as_raw_fd(), number) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Copies the first word of the table and returns the next free number, which must be the one after that word.
fn next_after_copy() -> c_int {
    // SAFETY: affects only the table of this thread, in which nothing owns a descriptor, and which ends with it.
    unsafe { unshare_table(WORD).map_or(-1, |()| libc::dup(0)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probing_changes_no_descriptor() {
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let kept = std::fs::File::open("/dev/zero").unwrap();
        let before = open();
        for _ in 0..20 {
            can_copy_the_beginning().unwrap();
        }
        // Other tests open some at the same time.
        assert!(open() < before + 20 * WORD as usize / 2, "{before} were open, and then {}", open());
        let path = std::fs::read_link(format!("/proc/self/fd/{}", kept.as_raw_fd())).unwrap();
        assert_eq!(path.to_str(), Some("/dev/zero"));
    }
}

//! Whether a child may share our descriptors until it copies those that it needs.
//!
//! Linux before 6.11 has a defect (CVE-2024-45025), unless it was corrected since: in a copy of the beginning of a table,
//! numbers seem taken that are not, and the program could open fewer files than it may. There, a child gets a copy of the
//! whole table when it is created, as with `fork`, and a start takes the longer the more descriptors are open.
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

/// How many numbers the kernel marks as taken together.
const WORD: c_int = 64;

/// Returns the flag of `clone` that lets a child share our descriptors, if that works on this host.
pub(crate) fn flag() -> c_int {
    static FLAG: OnceLock<c_int> = OnceLock::new();
    // Without a thread or a descriptor to find out, starts are slower than they need to be.
    *FLAG.get_or_init(|| if can_copy_the_beginning().unwrap_or(false) { libc::CLONE_FILES } else { 0 })
}

/// Leaves the child only those of our descriptors that are below `end`, in its own table.
///
/// # Safety
/// Call it only in a child.
pub(crate) unsafe fn unshare_table(end: RawFd) -> Result<(), i32> {
    let (first, last) = (end.cast_unsigned(), libc::c_uint::MAX);
    // SAFETY: closes nothing of ours, because a table that is shared is copied first. As the range reaches to the end, the
    // kernel copies only what is before it.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, libc::CLOSE_RANGE_UNSHARE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error().raw_os_error().unwrap_or(0)),
    }
}

/// Returns whether the copy of the beginning of a table is as it should be.
fn can_copy_the_beginning() -> io::Result<bool> {
    let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let null = null.as_fd();
    thread::scope(|scope| {
        let filling = thread::Builder::new().spawn_scoped(scope, || {
            sys::unshare_descriptors(null)?;
            fill(null, 2 * WORD)?;
            // Only a table that is shared is copied.
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

/// Copies the first word of the table, and returns the next number, which is the one after it.
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

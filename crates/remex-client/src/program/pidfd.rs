//! Processes as descriptors: they can be waited for together with other things, and never mean another process
//! that was given the same number.
//!
//! Only Linux has them. Elsewhere [`open`] fails, and its callers know a way without.

#[cfg(not(target_os = "linux"))]
pub(super) use absent::{open, signal};
#[cfg(target_os = "linux")]
pub(super) use linux::{open, signal};

#[cfg(target_os = "linux")]
mod linux {
    use std::os::fd::{BorrowedFd, OwnedFd};

    use rustix::{
        io,
        process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
    };

    /// Returns a descriptor that can be read when the process has ended, reaped or not.
    pub(in super::super) fn open(pid: Pid) -> io::Result<OwnedFd> {
        pidfd_open(pid, PidfdFlags::empty())
    }

    pub(in super::super) fn signal(process: BorrowedFd<'_>, signal: Signal) -> io::Result<()> {
        pidfd_send_signal(process, signal)
    }
}

#[cfg(not(target_os = "linux"))]
mod absent {
    use std::os::fd::{BorrowedFd, OwnedFd};

    use rustix::{
        io::{self, Errno},
        process::{Pid, Signal},
    };

    pub(in super::super) fn open(_: Pid) -> io::Result<OwnedFd> {
        Err(Errno::NOSYS)
    }

    pub(in super::super) fn signal(_: BorrowedFd<'_>, _: Signal) -> io::Result<()> {
        Err(Errno::NOSYS)
    }
}

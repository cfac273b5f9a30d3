//! Processes as file descriptors, which can be polled, and never refer to another process after the pid was reused.
//!
//! Only Linux has them. Elsewhere [`open`] fails, and its callers fall back to pids.

#[cfg(not(target_os = "linux"))]
pub(super) use absent::{next_stop, open, signal};
#[cfg(target_os = "linux")]
pub(super) use linux::{next_stop, open, signal};

#[cfg(target_os = "linux")]
mod linux {
    use std::os::fd::{BorrowedFd, OwnedFd};

    use rustix::{
        io::{self, retry_on_intr},
        process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid},
    };

    /// Returns a descriptor that becomes readable when the process has exited, reaped or not.
    pub(in super::super) fn open(pid: Pid) -> io::Result<OwnedFd> {
        pidfd_open(pid, PidfdFlags::empty())
    }

    pub(in super::super) fn signal(process: BorrowedFd<'_>, signal: Signal) -> io::Result<()> {
        pidfd_send_signal(process, signal)
    }

    /// Waits until a child is stopped, and returns the signal that stopped it; `None` when it has exited. Does not reap it.
    pub(in super::super) fn next_stop(child: BorrowedFd<'_>) -> Option<i32> {
        let changes = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let status = retry_on_intr(|| waitid(WaitId::PidFd(child), changes)).ok()??;
        let signal = status.stopping_signal()?;
        // Consumes the status, which would be reported again otherwise; a child resumed meanwhile has none.
        let _ = waitid(WaitId::PidFd(child), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
        Some(signal)
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

    pub(in super::super) fn next_stop(_: BorrowedFd<'_>) -> Option<i32> {
        None
    }
}

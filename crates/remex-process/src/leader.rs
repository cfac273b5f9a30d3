//! The first process of a tree, by its number as long as that number is its own.

use std::{
    io,
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{
    Pid, Signal,
    sys::{self, Patience, Reaped},
};

/// A started process that leads its session and its group; clones are the same process.
///
/// Once a process has been reaped, the kernel may give its number to a stranger. Everything that acts on the number goes
/// through here, and nothing does after the reap.
#[derive(Clone, Debug)]
pub struct Leader {
    pid: Pid,
    /// Whether it has been reaped. A mutex and not an atomic, because nobody may reap between a look at this and what
    /// follows from it; held for one system call that does not wait.
    reaped: Arc<Mutex<bool>>,
}

impl Leader {
    pub(crate) fn new(pid: Pid) -> Self {
        Self { pid, reaped: Arc::default() }
    }

    /// Returns its number, to show it.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Sends a signal to every process of its group. An empty group is no error, and neither is a reaped leader, whose
    /// group gets nothing.
    ///
    /// # Errors
    /// `PermissionDenied` when not one member may be signalled.
    pub fn signal_group(&self, signal: Signal) -> io::Result<()> {
        let reaped = self.reaped();
        if *reaped { Ok(()) } else { sys::group_signal(self.pid, signal) }
    }

    /// Tells whether the number may be a stranger's; if not, it was this process's until now.
    pub(crate) fn is_reaped(&self) -> bool {
        *self.reaped()
    }

    /// Takes the exit status out of the kernel, or returns `None` while the process runs.
    pub(crate) fn reap(&self, pidfd: BorrowedFd<'_>) -> io::Result<Option<Reaped>> {
        let mut reaped = self.reaped();
        let status = sys::reap(pidfd, Patience::Return);
        // An error means that somebody else has reaped it.
        *reaped = !matches!(status, Ok(None));
        status
    }

    /// Says that somebody else is going to reap it.
    pub(crate) fn give_up(&self) {
        *self.reaped() = true;
    }

    fn reaped(&self) -> MutexGuard<'_, bool> {
        self.reaped.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

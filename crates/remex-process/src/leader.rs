//! The first process of a tree, by its number as long as that number is its own.

use std::{
    io,
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{
    Pid, Signal,
    sys::{self, Reaped, WaitMode},
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
        let status = sys::reap(pidfd, WaitMode::Return);
        // An error means that it was reaped elsewhere.
        *reaped = !matches!(status, Ok(None));
        status
    }

    /// Notes that it will be reaped elsewhere.
    pub(crate) fn abandon(&self) {
        *self.reaped() = true;
    }

    fn reaped(&self) -> MutexGuard<'_, bool> {
        self.reaped.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::fd::AsFd as _,
        process::Command,
        sync::mpsc,
        thread,
        time::{Duration, Instant},
    };

    use rustix::process::{PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};

    use super::*;

    /// Longer than a reap takes that nothing keeps from happening.
    const A_WHILE: Duration = Duration::from_millis(100);

    #[test]
    #[expect(clippy::zombie_processes, reason = "it is reaped by its leader")]
    fn a_process_is_not_reaped_while_its_number_is_in_use() {
        let child = Command::new("true").spawn().unwrap();
        let number = rustix::process::Pid::from_child(&child);
        let pidfd = pidfd_open(number, PidfdFlags::empty()).unwrap();
        waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
        let leader = Leader::new(Pid::new(number.as_raw_nonzero().get()).unwrap());
        let has_number = || fs::exists(format!("/proc/{}", child.id())).unwrap();
        let (begin, begun) = mpsc::channel();
        thread::scope(|scope| {
            let in_use = leader.reaped();
            let reaping = scope.spawn(|| {
                begin.send(()).unwrap();
                leader.reap(pidfd.as_fd())
            });
            begun.recv().unwrap();
            let deadline = Instant::now() + A_WHILE;
            while has_number() && Instant::now() < deadline {
                thread::yield_now();
            }
            assert!(has_number(), "the number is free while a signal may be on its way to it");
            drop(in_use);
            assert!(reaping.join().unwrap().unwrap().is_some(), "the process has ended");
        });
        assert!(leader.is_reaped() && !has_number());
    }
}

//! The first process of a tree, identified by its pid until it is reaped.

use std::{
    io,
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, MutexGuard},
};

use remex_base::lock;

use crate::{
    Pid, Signal,
    base::sys::{self, Reaped, WaitMode},
    kin::adoption,
};

/// A started process that leads its session and its group; clones are the same process.
///
/// Once a process has been reaped, the kernel may reuse its pid. Everything that acts on the pid goes through this
/// type, which does nothing after the reap.
#[derive(Clone, Debug)]
pub struct Leader {
    pid: Pid,
    /// Whether it has been reaped. A mutex instead of an atomic, because no reap may happen between a check and the
    /// action that follows; held for one system call that does not block.
    reaped: Arc<Mutex<bool>>,
}

impl Leader {
    pub(crate) fn new(pid: Pid) -> Self {
        Self { pid, reaped: Arc::default() }
    }

    /// Returns its pid, for display.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Sends a signal to every process of its group. An empty group is not an error. If the leader is reaped, does
    /// nothing.
    ///
    /// # Errors
    /// `PermissionDenied` if no member may be signalled.
    pub fn signal_group(&self, signal: Signal) -> io::Result<()> {
        let reaped = self.reaped();
        if *reaped { Ok(()) } else { sys::group_signal(self.pid, signal) }
    }

    /// Returns whether the pid may have been reused; if not, it was this process's until now.
    pub(crate) fn is_reaped(&self) -> bool {
        *self.reaped()
    }

    /// Reaps the process and returns its exit status, or `None` while it runs.
    pub(crate) fn reap(&self, pidfd: BorrowedFd<'_>) -> io::Result<Option<Reaped>> {
        let mut reaped = self.reaped();
        let status = sys::reap(pidfd, WaitMode::Return);
        // An error means that it was reaped elsewhere.
        *reaped = !matches!(status, Ok(None));
        if *reaped {
            adoption::reaped(self.pid);
        }
        status
    }

    /// Records that it will be reaped elsewhere.
    pub(crate) fn abandon(&self) {
        *self.reaped() = true;
    }

    fn reaped(&self) -> MutexGuard<'_, bool> {
        lock(&self.reaped)
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

    /// Longer than a reap takes that nothing blocks.
    const A_WHILE: Duration = Duration::from_millis(100);

    #[test]
    #[expect(clippy::zombie_processes, reason = "it is reaped by its leader")]
    fn a_process_is_not_reaped_while_its_pid_is_in_use() {
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

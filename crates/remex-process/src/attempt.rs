//! A start in progress that can be aborted.
//!
//! An unresponsive file system can block a child in its first steps forever, and with it the thread that spawns it. The
//! caller need not wait for that: any thread can abort the attempt at any time.
#![allow(unsafe_code)]

use std::{
    os::fd::BorrowedFd,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicI32, Ordering::SeqCst},
    },
};

use tokio::sync::Notify;

use crate::{Pid, Signal, sys, tag_limit::TagLimit};

/// One attempt to start a program, which any thread can abort.
///
/// Belongs to a single call of [`Spawner::attempt`](crate::Spawner::attempt).
#[derive(Clone, Debug, Default)]
pub struct Attempt {
    pub(crate) progress: Arc<Progress>,
}

impl Attempt {
    /// Aborts the start: a child that has not executed its program yet is killed and never runs it.
    ///
    /// Needs no thread and no descriptor, and never blocks. A child stuck in the kernel dies when the kernel releases it.
    /// Has no effect on a running program.
    pub fn abort(&self) {
        let progress = &self.progress;
        progress.aborted.store(true, SeqCst);
        progress.changed.notify_waiters();
        let made = progress.made.lock().unwrap_or_else(PoisonError::into_inner);
        // A child that does not exist yet checks `aborted` first.
        if !*made && let Some(pid) = Pid::new(progress.pid.load(SeqCst)) {
            // SAFETY: the child exists, so the kernel has opened this descriptor for us, and it is not closed before
            // `made` is true, which our lock prevents.
            let pidfd = unsafe { BorrowedFd::borrow_raw(progress.pidfd.load(SeqCst)) };
            if let Err(error) = sys::pidfd_signal(pidfd, Signal::KILL) {
                tracing::warn!(%pid, %error, "cannot kill a child whose start was aborted");
            }
            // It will never run a program or have children, so no kill has to find it or wait for it.
            if let Some(limit) = TagLimit::chosen() {
                limit.clear(pid);
            }
        }
    }

    /// Waits until the attempt is aborted.
    pub async fn aborted(&self) {
        loop {
            let changed = self.progress.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.is_aborted() {
                return;
            }
            changed.await;
        }
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.progress.aborted.load(SeqCst)
    }
}

/// The state shared by the child, the thread that spawns it, and callers that abort it.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Set before `pid` is read, while the child sets `pid` before it reads this: one of the two sees the other.
    pub(crate) aborted: AtomicBool,
    /// The child's pid, written by the child as its first step; 0 before.
    pub(crate) pid: AtomicI32,
    /// The child's pidfd, written by the kernel before the child runs.
    pub(crate) pidfd: AtomicI32,
    /// Whether the thread that created the child owns the pidfd. A mutex, so that the pidfd is not closed while it is
    /// used; held for one system call.
    made: Mutex<bool>,
    changed: Notify,
}

impl Progress {
    /// Records that the spawning thread now owns the pidfd.
    pub(crate) fn on_child_created(&self) {
        *self.made.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            aborted: AtomicBool::new(false),
            pid: AtomicI32::new(0),
            pidfd: AtomicI32::new(-1),
            made: Mutex::new(false),
            changed: Notify::new(),
        }
    }
}

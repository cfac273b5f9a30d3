//! A start in progress that can be aborted.
//!
//! An unresponsive file system can block a child before it executes its program, and with it the thread that spawns it,
//! forever. The caller need not wait for that: any thread can abort the attempt at any time.
#![allow(unsafe_code)]

use std::{
    os::fd::BorrowedFd,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI32, Ordering::SeqCst},
    },
};

use remex_base::lock;
use tokio::sync::Notify;

use crate::{
    Signal,
    base::{sys, tag_limit::TagLimit},
};

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
    /// Needs no thread, and never blocks. A child stuck in the kernel dies when the kernel releases it.
    /// Has no effect on a running program.
    pub fn abort(&self) {
        let progress = &self.progress;
        progress.aborted.store(true, SeqCst);
        progress.changed.notify_waiters();
        [&progress.init, &progress.command].into_iter().for_each(CloneSlot::abort);
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

    /// Allows the spawning thread to create the children once more, after both have ended.
    pub(crate) fn begin_again(&self) {
        let progress = &self.progress;
        [&progress.init, &progress.command].into_iter().for_each(CloneSlot::begin_again);
    }
}

/// The state shared by the children, the thread that spawns them, and callers that abort it.
#[derive(Debug)]
pub(crate) struct Progress {
    aborted: Arc<AtomicBool>,
    /// The first process of a jail, if there is one.
    pub(crate) init: CloneSlot,
    /// The process that executes the program.
    pub(crate) command: CloneSlot,
    changed: Notify,
}

impl Default for Progress {
    fn default() -> Self {
        let aborted = Arc::new(AtomicBool::new(false));
        let (init, command) = (CloneSlot::new(aborted.clone()), CloneSlot::new(aborted.clone()));
        Self { aborted, init, command, changed: Notify::new() }
    }
}

/// Where a process that is being created records that it exists, and its pidfd.
#[derive(Debug)]
pub(crate) struct CloneSlot {
    /// Set before `exists` is read, while the child sets `exists` before it reads this: one of the two sees the other.
    aborted: Arc<AtomicBool>,
    /// Whether the child runs, written by the child as its first step.
    pub(crate) exists: AtomicBool,
    /// The child's pidfd, written by the kernel before the child runs.
    pub(crate) pidfd: AtomicI32,
    /// Whether the thread that created the child owns the pidfd. A mutex, so that the pidfd is not closed while it is
    /// used; held for a few system calls.
    is_owned: Mutex<bool>,
}

impl CloneSlot {
    fn new(aborted: Arc<AtomicBool>) -> Self {
        let (exists, pidfd) = (AtomicBool::new(false), AtomicI32::new(-1));
        Self { aborted, exists, pidfd, is_owned: Mutex::new(false) }
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(SeqCst)
    }

    /// Records that the spawning thread now owns the pidfd.
    pub(crate) fn on_created(&self) {
        *lock(&self.is_owned) = true;
    }

    fn begin_again(&self) {
        let mut is_owned = lock(&self.is_owned);
        *is_owned = false;
        self.exists.store(false, SeqCst);
        self.pidfd.store(-1, SeqCst);
    }

    fn abort(&self) {
        let is_owned = lock(&self.is_owned);
        // A child that does not exist yet checks `aborted` first.
        if *is_owned || !self.exists.load(SeqCst) {
            return;
        }
        // SAFETY: the child exists, so the kernel has opened this descriptor for us, and it is not closed before
        // `is_owned` is true, which our lock prevents.
        let pidfd = unsafe { BorrowedFd::borrow_raw(self.pidfd.load(SeqCst)) };
        if let Err(error) = sys::pidfd_signal(pidfd, Signal::KILL) {
            tracing::warn!(%error, "cannot kill a child whose start was aborted");
        }
        // It will never run a program or have children, so no kill has to find it or wait for it. Its own view of its
        // pid would be that of its namespace.
        if let (Some(limit), Some(pid)) = (TagLimit::chosen(), sys::pidfd_pid(pidfd)) {
            limit.clear(pid);
        }
    }
}

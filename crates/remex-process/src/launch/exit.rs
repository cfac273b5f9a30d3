//! Waiting for a child to exit.

use std::{
    any::Any,
    future, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use rustix::process::{PidfdFlags, pidfd_open};
use tokio::io::{Interest, unix::AsyncFd};

use crate::{
    Leader, Pid, Signal, Tag,
    base::sys::{self, Reaped},
    kin::{adoption, reaper},
    launch::init::Init,
};

/// The kernel keeps memory counters per processor, so two readings differ slightly.
const RSS_TOLERANCE_BYTES: u64 = 1024 * 1024;

/// How long an exit is delayed at most until the placeholders of the jail are removed; usually much less.
const JANITOR_PATIENCE: Duration = Duration::from_millis(50);

/// Waits for a child and returns its exit status; signals it until then.
///
/// Dropping it before the child has exited kills the child (not its tree, unless it is confined) and reaps it in the
/// background.
#[derive(Debug)]
pub struct Exit {
    state: ExitState,
    leader: Leader,
    inherited_rss_bytes: u64,
    /// The first process of its jail, until it exits.
    init: Option<Init>,
    /// The process that removes the placeholders of its jail, until it is done.
    janitor: Option<AsyncFd<OwnedFd>>,
    /// Keeps the thread that created the child alive: its end would trigger the parent-death signal.
    #[expect(dead_code, reason = "held, not read")]
    thread: Arc<dyn Any + Send + Sync>,
}

#[derive(Debug)]
enum ExitState {
    Running(AsyncFd<OwnedFd>),
    Ended(ExitStatus),
}

/// The status reported for a child whose real status was lost.
const LOST: ExitStatus = ExitStatus {
    code: 255,
    signal: None,
    usage: Usage { user: Duration::ZERO, system: Duration::ZERO, max_rss_bytes: None },
};

/// The exit status of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ExitStatus {
    /// The exit status, or 128 plus the number of the signal.
    pub code: i32,
    /// The signal that ended it, if one did.
    pub signal: Option<Signal>,
    /// Resources used by it and by the children it waited for.
    pub usage: Usage,
}

/// The resources a process used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Usage {
    /// User CPU time.
    pub user: Duration,
    /// System CPU time.
    pub system: Duration,
    /// Peak memory. `None` if it does not exceed that of the server at the start: the two share memory for a moment,
    /// and the kernel reports the larger value.
    pub max_rss_bytes: Option<u64>,
}

/// The state of a child for the program that replaces this one, besides the descriptor in [`Exit::jail`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ExitRecord {
    pid: Pid,
    inherited_rss_bytes: u64,
    /// The status, if the child was reaped.
    status: Option<ExitStatus>,
}

impl Exit {
    /// Describes the child to the program that this one executes in its place.
    #[must_use]
    pub fn record(&self) -> ExitRecord {
        let status = match self.state {
            ExitState::Running(_) => None,
            ExitState::Ended(status) => Some(status),
        };
        ExitRecord { pid: self.leader.pid(), inherited_rss_bytes: self.inherited_rss_bytes, status }
    }

    /// Returns the descriptor that keeps the jail of the child alive, to be passed on with [`record`](Self::record).
    /// Closing it ends the jail.
    #[must_use]
    pub fn jail(&self) -> Option<BorrowedFd<'_>> {
        self.init.as_ref().map(Init::control)
    }

    /// Resumes a child of the program that this one has replaced, by the tag of its start. Must be called within a
    /// runtime.
    ///
    /// # Errors
    /// If there is no such child, or it cannot be watched.
    pub fn resume(tag: Tag, record: &ExitRecord, jail: Option<OwnedFd>) -> io::Result<Self> {
        let ExitRecord { pid, inherited_rss_bytes, status } = *record;
        let leader = Leader::new(pid);
        let state = match status {
            Some(status) => {
                leader.abandon();
                ExitState::Ended(status)
            }
            None => {
                // Its parent has not reaped it, so the pid is still its own.
                adoption::resume_leader(tag, pid);
                let number =
                    rustix::process::Pid::from_raw(pid.as_raw()).ok_or(io::ErrorKind::InvalidInput)?;
                ExitState::Running(sys::register_fd(
                    pidfd_open(number, PidfdFlags::empty())?,
                    Interest::READABLE,
                )?)
            }
        };
        Ok(Self {
            state,
            leader,
            inherited_rss_bytes,
            init: jail.map(Init::new),
            janitor: None,
            thread: Arc::new(()),
        })
    }

    /// Takes over a new child whose pidfd is registered with the runtime; `thread` keeps its creating thread alive.
    pub(crate) fn new(
        leader: Leader,
        pidfd: AsyncFd<OwnedFd>,
        inherited_rss_bytes: u64,
        init: Option<Init>,
        thread: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self { state: ExitState::Running(pidfd), leader, inherited_rss_bytes, init, janitor: None, thread }
    }

    /// Also waits a moment for the process that removes the placeholders of its jail.
    pub(crate) fn with_janitor(mut self, janitor: Option<AsyncFd<OwnedFd>>) -> Self {
        self.janitor = janitor;
        self
    }

    /// Returns the process by its pid, which is invalid once the exit status was returned.
    #[must_use]
    pub fn leader(&self) -> &Leader {
        &self.leader
    }

    /// Returns whether it runs in a jail: dropping this then kills everything in the jail.
    #[must_use]
    pub fn is_confined(&self) -> bool {
        self.init.is_some()
    }

    /// Waits until the process exits. Cancel-safe; returns the same status when called again.
    pub async fn wait(&mut self) -> ExitStatus {
        loop {
            let pidfd = match &self.state {
                ExitState::Running(pidfd) => pidfd,
                ExitState::Ended(status) => {
                    let status = *status;
                    if let Some(janitor) = &self.janitor {
                        // Not longer: other processes of the jail may keep running, and the janitor waits for them.
                        _ = tokio::time::timeout(JANITOR_PATIENCE, janitor.readable()).await;
                        self.janitor = None;
                    }
                    return status;
                }
            };
            match pidfd.readable().await {
                Ok(mut ready) => {
                    // Cleared before the attempt, so that an exit in between is not missed: it sets the readiness
                    // again.
                    ready.clear_ready();
                }
                // The runtime is shutting down and will never poll us again.
                Err(_) => future::pending().await,
            }
            self.try_wait();
        }
    }

    /// Returns the exit status, or `None` while the process runs.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        let pidfd = match &self.state {
            ExitState::Running(pidfd) => pidfd,
            ExitState::Ended(status) => return Some(*status),
        };
        let status = match self.leader.reap(pidfd.as_fd()) {
            Ok(None) => return None,
            Ok(Some(reaped)) => self.status(reaped),
            Err(error) => {
                tracing::error!(%error, "exit status lost: other code in this program reaps its children");
                LOST
            }
        };
        // Closes the descriptor now instead of when the value is dropped.
        self.state = ExitState::Ended(status);
        if let Some(init) = self.init.take() {
            init.release();
        }
        Some(status)
    }

    /// Sends a signal to the process only. Does nothing if it has exited.
    ///
    /// # Errors
    /// `PermissionDenied` if the process now belongs to another user.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        match &self.state {
            ExitState::Running(pidfd) => sys::pidfd_signal(pidfd.as_fd(), signal),
            ExitState::Ended(_) => Ok(()),
        }
    }

    fn status(&self, reaped: Reaped) -> ExitStatus {
        let Reaped { code, signal, user, system, max_rss_bytes } = reaped;
        let own = max_rss_bytes > self.inherited_rss_bytes + RSS_TOLERANCE_BYTES;
        ExitStatus {
            code,
            signal,
            usage: Usage { user, system, max_rss_bytes: own.then_some(max_rss_bytes) },
        }
    }
}

impl Drop for Exit {
    fn drop(&mut self) {
        if let ExitState::Running(pidfd) = std::mem::replace(&mut self.state, ExitState::Ended(LOST)) {
            kill_and_reap(&self.leader, pidfd.into_inner());
        }
    }
}

/// Kills a child and has it reaped in the background.
pub(crate) fn kill_and_reap(leader: &Leader, pidfd: OwnedFd) {
    leader.abandon();
    if let Err(error) = sys::pidfd_signal(pidfd.as_fd(), Signal::KILL) {
        tracing::warn!(%error, "cannot kill an abandoned process");
    }
    reaper::adopt(pidfd);
}

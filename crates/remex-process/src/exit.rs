//! The end of a child.

use std::{
    any::Any,
    future, io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use tokio::io::unix::AsyncFd;

use crate::{
    Leader, Signal, reaper,
    sys::{self, Reaped},
};

/// The kernel's count of our memory is spread over the processors, so two readings differ by a little.
const RSS_TOLERANCE_BYTES: u64 = 1024 * 1024;

/// The right to know how a child ended, and to signal it until then.
///
/// A child whose `Exit` is dropped before it ended is killed, alone, and reaped in the background.
#[derive(Debug)]
pub struct Exit {
    state: State,
    leader: Leader,
    inherited_rss_bytes: u64,
    /// Keeps the thread that made the child alive: its end would send the parent-death signal.
    #[expect(dead_code, reason = "held, not read")]
    thread: Arc<dyn Any + Send + Sync>,
}

#[derive(Debug)]
enum State {
    Running(AsyncFd<OwnedFd>),
    Ended(ExitStatus),
}

/// What is said of a child whose status is not to be had.
const LOST: ExitStatus = ExitStatus {
    code: 255,
    signal: None,
    usage: Usage { user: Duration::ZERO, system: Duration::ZERO, max_rss_bytes: None },
};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitStatus {
    /// The exit status, or 128 plus the number of the signal.
    pub code: i32,
    /// The signal that ended it, if one did.
    pub signal: Option<Signal>,
    /// What it used, together with those of its children that it waited for.
    pub usage: Usage,
}

/// What a process used in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Time on a processor in its own code.
    pub user: Duration,
    /// Time on a processor in the kernel.
    pub system: Duration,
    /// The most memory it had at once. `None` when that is not more than the server had at the start: the two share
    /// their memory for a moment, and the kernel reports the larger figure.
    pub max_rss_bytes: Option<u64>,
}

impl Exit {
    /// Takes over a new child that is watched for being readable; `thread` keeps the thread alive that made it.
    pub(crate) fn new(
        leader: Leader,
        pidfd: AsyncFd<OwnedFd>,
        inherited_rss_bytes: u64,
        thread: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self { state: State::Running(pidfd), leader, inherited_rss_bytes, thread }
    }

    /// Returns the process by its number, which is of no use any more once this has told how it ended.
    #[must_use]
    pub fn leader(&self) -> &Leader {
        &self.leader
    }

    /// Waits until the process ends. Cancel-safe, and gives the same answer when called again.
    pub async fn wait(&mut self) -> ExitStatus {
        loop {
            let pidfd = match &self.state {
                State::Running(pidfd) => pidfd,
                State::Ended(status) => return *status,
            };
            match pidfd.readable().await {
                Ok(mut ready) => {
                    // Cleared before the try, so that an end in between is not missed: it rings again.
                    ready.clear_ready();
                }
                // The runtime is shutting down and will never poll us again.
                Err(_) => future::pending().await,
            }
            self.try_wait();
        }
    }

    /// Returns how the process ended, or `None` while it runs.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        let pidfd = match &self.state {
            State::Running(pidfd) => pidfd,
            State::Ended(status) => return Some(*status),
        };
        let status = match self.leader.reap(pidfd.as_fd()) {
            Ok(None) => return None,
            Ok(Some(reaped)) => self.status(reaped),
            Err(error) => {
                tracing::error!(%error, "an exit status was lost: something else in this program reaps its children");
                LOST
            }
        };
        // The descriptor is closed here, not when somebody lets go of the status.
        self.state = State::Ended(status);
        Some(status)
    }

    /// Sends a signal to the process alone. One that has ended already is no error.
    ///
    /// # Errors
    /// `PermissionDenied` when the process has become another user's.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        match &self.state {
            State::Running(pidfd) => sys::pidfd_signal(pidfd.as_fd(), signal),
            State::Ended(_) => Ok(()),
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
        if let State::Running(pidfd) = std::mem::replace(&mut self.state, State::Ended(LOST)) {
            end(&self.leader, pidfd.into_inner());
        }
    }
}

/// Kills a child and has it reaped in the background.
pub(crate) fn end(leader: &Leader, pidfd: OwnedFd) {
    leader.abandon();
    if let Err(error) = sys::pidfd_signal(pidfd.as_fd(), Signal::KILL) {
        tracing::warn!(%error, "cannot kill an abandoned process");
    }
    reaper::adopt(pidfd);
}

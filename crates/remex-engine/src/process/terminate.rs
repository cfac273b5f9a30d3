//! Terminating a process together with everything it started.
//!
//! The thread of `remex_process::tree` does the work. It takes a while, so separate tasks owned by the host
//! wait for it, not the task of the process.

use std::{
    io, mem,
    sync::{Arc, MutexGuard},
    time::Duration,
};

use remex_base::lock;
use remex_process::{Exit, Leader, Pid, Scope, Signal, tree};
use remex_proto::{
    ErrorKind, RpcError,
    process::{TerminateMode, Terminated},
};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use tracing::Instrument as _;

use super::{Audience, Caller, Engine, Kind};
use crate::process::LOG_TARGET;

/// Longer than any machine runs, yet short enough to add to a clock.
const LONGEST_GRACE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Kills the whole tree, then answers.
pub(super) fn force<A: Audience, K: Kind<A>>(
    process: &Arc<Engine<A, K>>,
    leader: &Leader,
    caller: Option<A::Caller>,
) {
    let (process, killed) = (Arc::clone(process), tree::kill_start(process.tag, leader));
    let host = Arc::clone(&process.host);
    let killing = async move {
        let result = killed.await.map_err(|error| not_ended(&error));
        match (caller, result) {
            (Some(caller), result) => caller.answer(result.map(|_| Terminated { running: true }.into())),
            (None, Err(error)) => {
                tracing::error!(target: LOG_TARGET, process = %process.id, error = %error.message, "process tree is still alive after SIGKILL");
            }
            (None, Ok(_)) => {}
        }
    };
    host.spawn(killing.in_current_span());
}

/// Kills the tree of a child that cannot be watched, and waits until it has ended.
pub(super) async fn unwatched<A: Audience, K: Kind<A>>(process: &Engine<A, K>, exit: Exit) {
    if let Err(error) = kill(&Scope::Process(process.tag, exit.leader().clone())).await {
        tracing::error!(target: LOG_TARGET, process = %process.id, error = %error.message, "process tree is still alive after SIGKILL");
    }
}

/// Sends TERM to the whole tree, and kills the processes that remain after `time`.
pub(super) fn graceful<A: Audience, K: Kind<A>>(
    process: &Arc<Engine<A, K>>,
    leader: &Leader,
    time: Duration,
) {
    terminate_gracefully(Scope::Process(process.tag, leader.clone()), process, time);
}

/// Terminates the remaining process group of an exited process, so that its streams end.
pub(super) fn remaining_group<A: Audience, K: Kind<A>>(
    process: &Arc<Engine<A, K>>,
    pid: Pid,
    mode: TerminateMode,
    caller: A::Caller,
) {
    terminate_rest(Scope::Group(process.tag, pid), process, mode, caller);
}

/// Kills everything that is left of an exited process, and answers.
pub(super) fn kill_remaining<A: Audience, K: Kind<A>>(process: &Arc<Engine<A, K>>, caller: A::Caller) {
    terminate_rest(Scope::Start(process.tag), process, TerminateMode::Force, caller);
}

/// Terminates the remaining processes of an exited process, and answers.
fn terminate_rest<A: Audience, K: Kind<A>>(
    scope: Scope,
    process: &Arc<Engine<A, K>>,
    mode: TerminateMode,
    caller: A::Caller,
) {
    match mode {
        TerminateMode::Force => process.host.spawn(async move {
            caller.answer(kill(&scope).await.map(|()| Terminated { running: false }.into()));
        }),
        TerminateMode::Graceful { timeout_ms } => {
            terminate_gracefully(scope, process, Duration::from_millis(timeout_ms));
            caller.ok(Terminated { running: false });
        }
    }
}

/// Starts a graceful termination. One that is already in progress sends its signals again and uses the earlier
/// deadline.
pub(super) fn terminate_gracefully<A: Audience, K: Kind<A>>(
    scope: Scope,
    process: &Arc<Engine<A, K>>,
    time: Duration,
) {
    begin_gracefully(scope, process, time, false);
}

fn begin_gracefully<A: Audience, K: Kind<A>>(
    scope: Scope,
    process: &Arc<Engine<A, K>>,
    time: Duration,
    is_signalled: bool,
) {
    let deadline = Instant::now() + time.min(LONGEST_GRACE);
    let breadth = mem::discriminant(&scope);
    let mut graceful_terminations = process.graceful_terminations();
    // Remove those whose task has panicked.
    graceful_terminations.retain(|(_, deadlines)| !deadlines.is_closed());
    if let Some((_, under_way)) = graceful_terminations.iter().find(|(known, _)| *known == breadth) {
        under_way.send_modify(|known| *known = deadline.min(*known));
        return;
    }
    let (sender, receiver) = watch::channel(deadline);
    graceful_terminations.push((breadth, sender));
    drop(graceful_terminations);
    let (host, process) = (Arc::clone(&process.host), Arc::clone(process));
    let terminating = async move {
        GracefulTermination { scope, process: &process, deadlines: receiver, is_signalled }.run().await;
    };
    host.spawn(terminating.in_current_span());
}

/// The deadlines of the graceful terminations in progress, one for each kind of scope.
pub(super) type GracefulTerminations = Vec<(mem::Discriminant<Scope>, watch::Sender<Instant>)>;

/// A graceful termination in progress.
struct GracefulTermination<'a, A: Audience, K: Kind<A>> {
    scope: Scope,
    process: &'a Arc<Engine<A, K>>,
    /// When it turns into a kill; further requests change it.
    deadlines: watch::Receiver<Instant>,
    /// Whether the program before this one has sent the signals.
    is_signalled: bool,
}

impl<A: Audience, K: Kind<A>> GracefulTermination<'_, A, K> {
    async fn run(mut self) {
        loop {
            let deadline = *self.deadlines.borrow_and_update();
            // A stopped process handles TERM only after it continues.
            if !mem::take(&mut self.is_signalled)
                && let Err(error) = tree::signal(&self.scope, &[Signal::TERM, Signal::CONT]).await
            {
                tracing::warn!(target: LOG_TARGET, process = %self.process.id, %error, "cannot send SIGTERM to the process tree");
            }
            // A further request replaces only the wait, never the kill: endless requests could postpone it forever.
            let has_ended = tokio::select! {
                biased;
                () = sleep_until(deadline) => false,
                Ok(()) = self.deadlines.changed() => continue,
                () = ended(&self.scope, self.process) => true,
            };
            if !has_ended && let Err(error) = kill(&self.scope).await {
                tracing::error!(target: LOG_TARGET, process = %self.process.id, error = %error.message, "process tree is still alive after SIGKILL");
            }
            // No request can arrive between this check and the removal, because both hold the same lock.
            let mut graceful_terminations = self.process.graceful_terminations();
            if !self.deadlines.has_changed().unwrap_or(false) {
                let breadth = mem::discriminant(&self.scope);
                graceful_terminations.retain(|(known, _)| *known != breadth);
                return;
            }
        }
    }
}

/// Waits until everything in `scope` has ended; pending for good if something outlives the output of the process.
async fn ended<A: Audience, K: Kind<A>>(scope: &Scope, process: &Engine<A, K>) {
    process.exited().await;
    if has_ended(scope).await {
        return;
    }
    process.closed().await;
    if !has_ended(scope).await {
        std::future::pending::<()>().await;
    }
}

pub(super) async fn kill(scope: &Scope) -> Result<(), RpcError> {
    tree::kill(scope).await.map(drop).map_err(|error| not_ended(&error))
}

fn not_ended(error: &io::Error) -> RpcError {
    RpcError::new(ErrorKind::Internal, format!("cannot kill the process tree: {error}"))
}

async fn has_ended(scope: &Scope) -> bool {
    tree::members(scope).await.is_ok_and(|members| members.is_empty())
}

/// A graceful termination in progress, as plain data.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct GraceRecord {
    breadth: Breadth,
    left_ms: u64,
}

/// The processes that a graceful termination covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Breadth {
    Process,
    Group,
    Start,
}

impl Breadth {
    const ALL: [Self; 3] = [Breadth::Process, Breadth::Group, Breadth::Start];

    fn scope<A: Audience, K: Kind<A>>(self, process: &Engine<A, K>, leader: &Leader) -> Scope {
        match self {
            Breadth::Process => Scope::Process(process.tag, leader.clone()),
            Breadth::Group => Scope::Group(process.tag, leader.pid()),
            Breadth::Start => Scope::Start(process.tag),
        }
    }
}

impl<A: Audience, K: Kind<A>> Engine<A, K> {
    /// Describes the graceful terminations in progress.
    pub(super) fn graces(&self, leader: &Leader) -> Vec<GraceRecord> {
        let under_way = self.graceful_terminations();
        let record = |breadth: Breadth| {
            let scope = mem::discriminant(&breadth.scope(self, leader));
            let (_, deadlines) = under_way.iter().find(|(known, _)| *known == scope)?;
            let left = deadlines.borrow().saturating_duration_since(Instant::now());
            Some(GraceRecord { breadth, left_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX) })
        };
        Breadth::ALL.into_iter().filter_map(record).collect()
    }

    /// Goes on with graceful terminations.
    pub(super) fn resume_graces(self: &Arc<Self>, graces: &[GraceRecord], leader: &Leader) {
        for GraceRecord { breadth, left_ms } in graces {
            begin_gracefully(breadth.scope(self, leader), self, Duration::from_millis(*left_ms), true);
        }
    }

    /// Terminates everything that is left of an exited process, including what has left its group and session.
    pub(super) fn terminate_remaining(self: &Arc<Self>, mode: TerminateMode, caller: A::Caller) {
        if self.owner.strong_count() == 0 {
            // Everything ended with the owner, and the tag may have been reused.
            return caller.ok(Terminated { running: false });
        }
        match mode {
            TerminateMode::Force => K::kill_remaining(self, caller),
            TerminateMode::Graceful { .. } => terminate_rest(Scope::Start(self.tag), self, mode, caller),
        }
    }

    fn graceful_terminations(&self) -> MutexGuard<'_, GracefulTerminations> {
        lock(&self.graceful_terminations)
    }
}

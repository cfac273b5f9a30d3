//! Ending a process with everything it started.
//!
//! The thread of `remex_process::tree` does the work, which takes a while: who waits for it are tasks beside the
//! process's own, owned by the server.

use std::{io, sync::Arc, time::Duration};

use remex_process::{Exit, Leader, Pid, Scope, Signal, tree};
use remex_proto::{
    ErrorKind, RpcError,
    process::{TerminateMode, Terminated},
};

use super::{Process, State};
use crate::{outbox::Responder, session::Session};

/// Longer than any machine runs, and short enough to add to a clock.
const LONGEST_GRACE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Kills the whole tree, then answers.
pub(super) fn force(
    process: &Arc<Process>,
    session: &Arc<Session>,
    leader: &Leader,
    responder: Option<Responder>,
) {
    let (process, killed) = (Arc::clone(process), tree::kill_start(process.tag, leader));
    session.server().track(async move {
        let result = killed.await.map_err(|error| not_ended(&error));
        match (responder, result) {
            (Some(responder), result) => responder.answer(result.map(|_| Terminated { running: true })),
            (None, Err(error)) => {
                tracing::error!(process = %process.id, error = %error.message, "process tree did not end");
            }
            (None, Ok(_)) => {}
        }
    });
}

/// Ends the tree of a child that cannot be watched, and returns when it is gone.
pub(super) async fn unwatched(process: &Process, exit: Exit) {
    if let Err(error) = kill(&Scope::Process(process.tag, exit.leader().clone())).await {
        tracing::error!(process = %process.id, error = %error.message, "process tree did not end");
    }
}

/// Asks the whole tree to end and kills what is left of it when the time is up.
pub(super) fn graceful(process: &Arc<Process>, session: &Arc<Session>, leader: &Leader, time: Duration) {
    end_gently(Scope::Process(process.tag, leader.clone()), process, session, time);
}

/// Ends what is left of the group of a process that has exited, so that its streams end.
pub(super) fn remains(
    process: &Arc<Process>,
    session: &Arc<Session>,
    pid: Pid,
    mode: TerminateMode,
    responder: Responder,
) {
    end_rest(Scope::Group(process.tag, pid), process, session, mode, responder);
}

/// Ends what is left of a process that has exited, and answers.
fn end_rest(
    scope: Scope,
    process: &Arc<Process>,
    session: &Arc<Session>,
    mode: TerminateMode,
    responder: Responder,
) {
    match mode {
        TerminateMode::Force => session.server().track(async move {
            responder.answer(kill(&scope).await.map(|()| Terminated { running: false }));
        }),
        TerminateMode::Graceful { timeout_ms } => {
            end_gently(scope, process, session, Duration::from_millis(timeout_ms));
            responder.ok(Terminated { running: false });
        }
    }
}

fn end_gently(scope: Scope, process: &Arc<Process>, session: &Arc<Session>, time: Duration) {
    let process = Arc::clone(process);
    session.server().track(async move {
        // What is stopped hears it only when it goes on.
        if let Err(error) = tree::signal(&scope, &[Signal::TERM, Signal::CONT]).await {
            tracing::warn!(process = %process.id, %error, "process tree cannot be asked to end");
        }
        let deadline = tokio::time::Instant::now() + time.min(LONGEST_GRACE);
        let exited = tokio::time::timeout_at(deadline, process.ended()).await.is_ok();
        if exited && is_gone(&scope).await {
            return;
        }
        let _ = tokio::time::timeout_at(deadline, process.closed()).await;
        if is_gone(&scope).await {
            return;
        }
        tokio::time::sleep_until(deadline).await;
        if let Err(error) = kill(&scope).await {
            tracing::error!(process = %process.id, error = %error.message, "process tree did not end");
        }
    });
}

pub(super) async fn kill(scope: &Scope) -> Result<(), RpcError> {
    tree::kill(scope).await.map(drop).map_err(|error| not_ended(&error))
}

fn not_ended(error: &io::Error) -> RpcError {
    RpcError::new(ErrorKind::Internal, format!("cannot end the process tree: {error}"))
}

async fn is_gone(scope: &Scope) -> bool {
    tree::members(scope).await.is_ok_and(|members| members.is_empty())
}

impl Process {
    /// Ends everything that lives of a process that has exited, also what left its group and session.
    pub(super) fn end_remains(self: &Arc<Self>, mode: TerminateMode, responder: Responder) {
        match self.session.upgrade() {
            Some(session) => end_rest(Scope::Start(self.tag), self, &session, mode, responder),
            // It has ended, with everything.
            None => responder.ok(Terminated { running: false }),
        }
    }

    /// Waits until the direct child has ended.
    async fn ended(&self) {
        self.until(|state| state.exit.is_some()).await;
    }

    /// Waits until nothing more will come.
    async fn closed(&self) {
        self.until(|state| state.log.is_closed()).await;
    }

    async fn until(&self, holds: impl Fn(&State) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if holds(&self.state()) {
                return;
            }
            changed.await;
        }
    }
}

//! Ending a process with everything it started.
//!
//! Looking for what belongs to a process scans the process table, which blocks: it runs beside the
//! process's own task, owned by the server.

use std::{sync::Arc, time::Duration};

use remex_process::{Pid, Scope, Signal, group_signal, tree};
use remex_proto::{
    ErrorKind, RpcError,
    process::{TerminateMode, Terminated},
};

use super::{Process, State};
use crate::{outbox::Responder, session::Session};

/// Longer than any machine runs, and short enough to add to a clock.
const LONGEST_GRACE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Kills the whole tree, then answers.
pub(super) fn force(process: &Arc<Process>, session: &Arc<Session>, pid: Pid, responder: Option<Responder>) {
    // The group dies at once; what left it is looked for.
    let _ = group_signal(pid, Signal::KILL);
    let scope = Scope::Process(process.tag, pid);
    session.server().track(async move {
        let result = kill(scope).await;
        if let Some(responder) = responder {
            responder.answer(result.map(|()| Terminated { running: true }));
        }
    });
}

/// Asks the whole tree to end and kills what is left of it when the time is up.
pub(super) fn graceful(process: &Arc<Process>, session: &Arc<Session>, pid: Pid, time: Duration) {
    end_gently(Scope::Process(process.tag, pid), process, session, time);
}

/// Ends what is left of the group of a process that has exited, so that its streams end.
pub(super) fn remains(
    process: &Arc<Process>,
    session: &Arc<Session>,
    pid: Pid,
    mode: TerminateMode,
    responder: Responder,
) {
    let scope = Scope::Group(process.tag, pid);
    match mode {
        TerminateMode::Force => session.server().track(async move {
            responder.answer(kill(scope).await.map(|()| Terminated { running: false }));
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
        let _ = blocking(move || {
            tree::signal(scope, Signal::TERM)?;
            // What is stopped hears it only when it goes on.
            tree::signal(scope, Signal::CONT)
        })
        .await;
        let deadline = tokio::time::Instant::now() + time.min(LONGEST_GRACE);
        let exited = tokio::time::timeout_at(deadline, process.ended()).await.is_ok();
        // The number of a process that is reaped may be a stranger's soon: from then on only the tag counts.
        let scope = match scope {
            Scope::Process(tag, _) if exited => Scope::Remains(tag),
            scope => scope,
        };
        if exited && blocking(move || tree::members(scope)).await.is_ok_and(|members| members.is_empty()) {
            return;
        }
        let _ = tokio::time::timeout_at(deadline, process.closed()).await;
        if blocking(move || tree::members(scope)).await.is_ok_and(|members| members.is_empty()) {
            return;
        }
        tokio::time::sleep_until(deadline).await;
        let _ = kill(scope).await;
    });
}

async fn kill(scope: Scope) -> Result<(), RpcError> {
    match blocking(move || tree::kill(scope)).await {
        Ok(_) => Ok(()),
        Err(error) => {
            Err(RpcError::new(ErrorKind::Internal, format!("cannot end the process tree: {error}")))
        }
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(std::io::Error::other(error)))
}

impl Process {
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

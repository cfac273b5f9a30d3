//! `process/restart`: a process is ended, and the same is started again under its id.
//!
//! The one before is forgotten only when the new one runs, so that neither a failed start nor the end of the server loses
//! both: until then, it can be restarted once more. Start at [`Session::restart`].

use std::{
    collections::HashSet,
    sync::{Arc, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use remex_proto::{
    ErrorKind, RpcError,
    process::{self as wire, TerminateMode, TerminateScope},
};
use tokio::sync::Semaphore;
use tracing::Instrument as _;

use super::{Session, StartBounds, saved, starts::PendingStart};
use crate::{
    engine::{HANG_THRESHOLD, Request, StartRequest, Starting, broken, unknown_process},
    outbox::{AfterSend, ConnectionId, Outbox, Responder},
    process::{Followers, Process, ProcessOwner, StartAt, Viewer},
    supervise::defect,
    trace,
};

/// How long a killed process may take until all its output is in its log.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);

/// How long connections may take to be sent the rest of the output.
const SENT_PATIENCE: Duration = Duration::from_secs(2);

/// How often to look whether they were.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// How a new process comes into its session.
pub(super) enum Entry<'a> {
    /// Under an id that is free, for the connection that controls the session.
    New(ConnectionId),
    /// In place of one that has closed.
    Again(&'a Arc<Process>),
}

impl Entry<'_> {
    /// Returns whether it takes the place of this process.
    pub(super) fn replaces(&self, known: &Arc<Process>) -> bool {
        matches!(self, Entry::Again(old) if Arc::ptr_eq(old, known))
    }

    pub(super) fn followers(&self, process: &str) -> Followers {
        match self {
            Entry::New(_) => Followers::new(process),
            // Nothing is held for a client that is away, and that knows nothing of this one.
            Entry::Again(_) => Followers::restored(process, None),
        }
    }
}

/// A restart whose process has ended.
struct Prepared<'a> {
    old: Arc<Process>,
    start: wire::Start,
    /// Whether it had not closed before.
    was_running: bool,
    turn: Turn<'a>,
}

/// The turn of one restart of a process; others have to wait for it.
struct Turn<'a> {
    session: &'a Session,
    process: &'a str,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.session.restarting().remove(self.process);
    }
}

impl Session {
    /// Ends a process and starts it again, or answers with an error; returns at once.
    pub(crate) fn restart(
        self: &Arc<Self>,
        request: wire::StartAgain,
        responder: Responder,
        bounds: StartBounds,
        slots: &Arc<Semaphore>,
    ) {
        let restart_id = request.restart_id.as_deref();
        let Some(responder) = self.replay_start(restart_id, &request.process_id, responder) else { return };
        let (session, slots) = (Arc::clone(self), Arc::clone(slots));
        // Runs to completion even if the connection closes: half of it would be the end of the process.
        self.host.spawn(async move { session.carry_out(&request, responder, bounds, slots).await });
    }

    async fn carry_out(
        self: Arc<Self>,
        request: &wire::StartAgain,
        responder: Responder,
        mut bounds: StartBounds,
        slots: Arc<Semaphore>,
    ) {
        let restart_id = request.restart_id.as_deref();
        let pending = PendingStart { session: &self, start_id: restart_id };
        let refuse = |pending: PendingStart<'_>, responder: Responder, error: &RpcError| {
            // For repeats that wait; later ones try it again, because nothing was started.
            self.finish_start(restart_id, &Err(error.clone()));
            drop(pending);
            responder.error(error);
        };
        let prepared = self.prepare(request, &mut bounds, responder.outbox()).await;
        let Prepared { old, start, was_running, turn } = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return refuse(pending, responder, &error),
        };
        let admitted = self.admit(start, &Entry::Again(&old), &bounds);
        let (process, command) = match admitted {
            Ok(admitted) => admitted,
            Err(error)
                if self.is_saved() && error.kind == ErrorKind::ShuttingDown && self.host.is_stopping() =>
            {
                drop((pending, turn));
                return self.host.leave_to_next(responder);
            }
            Err(error) => return refuse(pending, responder, &not_again(&old.id, was_running, error)),
        };
        pending.hand_over();
        let (caller, answer) = Responder::within(responder.outbox());
        let (id, identity) = (&self.id, &self.owner.identity);
        let span = trace::process(&process.id, id, identity, responder.trace(), self.host.set_parent());
        let starting = Starting { process: Arc::clone(&process), command, start_id: None, caller, slots };
        let owner: Arc<dyn ProcessOwner> = Arc::clone(&self) as _;
        let saved = self.save_begun(&process);
        let running = async move {
            match saved::begun(saved, &starting.process).await {
                Ok(()) => broken::run(starting, owner).await,
                Err(error) => starting.refuse(&*owner, &error),
            }
        };
        self.host.spawn(running.instrument(span));
        let outcome = match answer.await {
            Ok(Ok(Some(started))) => Ok(started),
            Ok(Err(error)) => Err(not_again(&old.id, was_running, error)),
            Ok(Ok(None)) | Err(_) => Err(not_again(&old.id, was_running, defect())),
        };
        match &outcome {
            Ok(_) => {
                self.forget_replaced(&old);
                self.show_to_controller(&process, responder.outbox().id);
            }
            Err(_) => self.put_back(&old),
        }
        drop(turn);
        self.finish_start(restart_id, &outcome);
        match outcome {
            Ok(started) => responder.ok_then(started, AfterSend::Follow(process as _)),
            Err(error) => responder.error(&error),
        }
    }

    /// Ends the process to restart, if nothing that can be known before is against that.
    async fn prepare<'a>(
        &'a self,
        request: &'a wire::StartAgain,
        bounds: &mut StartBounds,
        outbox: &Arc<Outbox>,
    ) -> Result<Prepared<'a>, RpcError> {
        let id = &request.process_id;
        let turn = self.turn(id)?;
        let old = self.process_of(id, request.incarnation)?;
        if !old.started(Instant::now().checked_add(HANG_THRESHOLD)).await {
            return Err(unknown_process(id));
        }
        self.check_unattached(id, outbox.id)?;
        let Some(kept) = &old.spec.request else { return Err(StartRequest::not_kept(id)) };
        let (mut start, floor) = kept.decode()?;
        start.start_id.clone_from(&request.restart_id);
        bounds.floor = bounds.floor.max(floor);
        self.host.starts().check_any()?;
        let is_confined = start.enforce_managed_network
            || self.host.confinement().concerns_processes(&start.sandbox, bounds.floor);
        if !is_confined {
            self.host.starts().check_unconfined()?;
        }
        let was_running = self.end_process(&old, request.grace_ms, outbox).await?;
        Ok(Prepared { old, start, was_running, turn })
    }

    /// Refuses a restart while another connection holds the session: its client would take the end of the process for
    /// that of its work.
    fn check_unattached(&self, process: &str, connection: ConnectionId) -> Result<(), RpcError> {
        let subscribers = self.subscribers();
        if subscribers.controller.as_ref().is_none_or(|controller| controller.outbox.id == connection) {
            return Ok(());
        }
        let message =
            format!("cannot restart process `{process}`: another client is attached to its session");
        Err(RpcError::new(ErrorKind::SessionAttached, message)
            .with_hint("detach that client first, or restart it from there"))
    }

    fn turn<'a>(&'a self, process: &'a str) -> Result<Turn<'a>, RpcError> {
        if self.restarting().insert(process.to_owned()) {
            return Ok(Turn { session: self, process });
        }
        let message = format!("process `{process}` is being restarted by another request");
        Err(RpcError::new(ErrorKind::ProcessExists, message).with_hint("wait until it runs"))
    }

    /// Ends a process with its whole tree, and waits until its clients have seen that; returns whether it had not closed.
    async fn end_process(
        &self,
        old: &Arc<Process>,
        grace_ms: Option<u64>,
        outbox: &Arc<Outbox>,
    ) -> Result<bool, RpcError> {
        let was_open = old.is_live();
        if let Some(timeout_ms) = grace_ms.filter(|ms| *ms > 0 && was_open) {
            terminate(old, TerminateMode::Graceful { timeout_ms }, outbox).await?;
            let _ = tokio::time::timeout(Duration::from_millis(timeout_ms), self.has_closed(old)).await;
        }
        // Answered when nothing of it is left.
        terminate(old, TerminateMode::Force, outbox).await?;
        if tokio::time::timeout(CLOSE_PATIENCE, self.has_closed(old)).await.is_err() {
            let message = format!(
                "cannot restart process `{}`: something that the server cannot find keeps its output open",
                old.id
            );
            return Err(RpcError::new(ErrorKind::Internal, message).with_hint(
                "look for it on the host; it removed the tag of the server, as a hostile program may",
            ));
        }
        old.release();
        let begun = Instant::now();
        while !old.is_settled() && begun.elapsed() < SENT_PATIENCE {
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        Ok(was_open)
    }

    /// Waits until a process no longer counts as running.
    async fn has_closed(&self, process: &Process) {
        loop {
            let closed_one = self.closed_one.notified();
            tokio::pin!(closed_one);
            closed_one.as_mut().enable();
            if !process.is_live() {
                return;
            }
            closed_one.await;
        }
    }

    /// Forgets a closed process in whose place there is another one.
    pub(super) fn forget_replaced(&self, old: &Arc<Process>) {
        self.processes().forget(old);
        self.delete_log(Arc::clone(old));
    }

    /// Streams a new process to the connection that has resumed the session meanwhile.
    fn show_to_controller(&self, process: &Arc<Process>, asked_on: ConnectionId) {
        let _changing = self.changing();
        if let Some(viewer) = self.controlling().filter(|viewer| viewer.outbox.id != asked_on) {
            process.follow(&viewer, StartAt::After(0));
        }
    }

    /// Returns how the connection that controls the session follows its processes.
    pub(super) fn controlling(&self) -> Option<Viewer> {
        self.subscribers().controller.as_ref().map(|controller| controller.viewer(None))
    }

    /// Gives a closed process its id back, unless it was forgotten or there is another one.
    fn put_back(&self, old: &Arc<Process>) {
        let mut processes = self.processes();
        let is_known = processes.closed.iter().any(|closed| Arc::ptr_eq(closed, old));
        if is_known && !processes.by_id.contains_key(&old.id) {
            processes.by_id.insert(old.id.clone(), Arc::clone(old));
        }
    }

    fn restarting(&self) -> MutexGuard<'_, HashSet<String>> {
        self.restarting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends a process with its whole tree, as `process/terminate` does, and waits for the answer.
async fn terminate(
    process: &Arc<Process>,
    mode: TerminateMode,
    outbox: &Arc<Outbox>,
) -> Result<(), RpcError> {
    let (caller, answer) = Responder::within(outbox);
    process.request(Request::Terminate(mode, TerminateScope::Tree, caller));
    answer.await.unwrap_or_else(|_| Err(defect())).map(drop)
}

/// Says in the error of a start what has become of the process before it.
fn not_again(process: &str, was_running: bool, mut error: RpcError) -> RpcError {
    let before = if was_running {
        format!("process `{process}` was ended, but not started again")
    } else {
        format!("process `{process}` was not started again")
    };
    error.message = format!("{before}: {}", error.text());
    error.start = None;
    error
}

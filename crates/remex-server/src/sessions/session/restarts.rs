//! `process/restart`: ends a process, and starts the same command again under its id.
//!
//! The old process is forgotten only when the new one runs, so that neither a failed start nor the end of the server
//! loses both: until then, it can be restarted again. Start at [`Session::restart`].

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use remex_base::{
    supervise::{defect, in_phases},
    trace,
};
use remex_engine::{HANG_THRESHOLD, Phase, Request, StartRequest, Starting, broken, unknown_process};
use remex_proto::{
    ErrorKind, RpcError,
    process::{self as wire, TerminateMode, TerminateScope},
};
use tokio::sync::Semaphore;
use tracing::Instrument as _;

use super::{
    Session, StartBounds,
    active_restarts::{ActiveRestart, Joined},
    saved, shutting_down,
    starts::{PendingStart, StartKind},
};
use crate::{
    outbox::{AfterSend, ConnectionId, Outbox, Responder},
    sessions::process::{Followers, Process, ProcessOwner, Standing, StartAt, Viewer},
};

/// How long a killed process may take until all its output is in its log.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);

/// How long a client that has resumed may take to read what it missed.
const READ_PATIENCE: Duration = Duration::from_secs(2);

/// How long a process whose restart failed is retained at least, even if its slot or memory is needed.
const LEFT_PATIENCE: Duration = Duration::from_secs(60);

/// How a new process comes into its session.
pub(super) enum Entry<'a> {
    /// Under an id that is free, for the connection that controls the session.
    New(ConnectionId),
    /// In the place of one that has closed.
    Again(&'a mut RestartSlot),
}

impl Entry<'_> {
    pub(super) fn replaced(&self) -> Option<&Process> {
        match self {
            Entry::New(_) => None,
            Entry::Again(slot) => Some(&slot.old),
        }
    }

    pub(super) fn followers(&self, process: &str) -> Followers {
        match self {
            Entry::New(_) => Followers::new(process),
            // Nothing is held for a client that is away, and that knows nothing of this one.
            Entry::Again(_) => Followers::restored(process, None),
        }
    }
}

/// The slot of a restarted process within the limit of its session, reserved until the new process takes it over.
pub(super) struct RestartSlot {
    session: Arc<Session>,
    old: Process,
    is_taken: bool,
    is_replaced: bool,
}

impl RestartSlot {
    pub(super) fn old(&self) -> &Process {
        &self.old
    }

    /// Hands the slot over to the new process.
    pub(super) fn hand_over(&mut self) {
        self.is_taken = false;
    }

    /// Leaves the process that has ended to those that still follow it.
    fn replaced(mut self) {
        self.is_replaced = true;
        let old = &self.old;
        old.set_standing(Standing::Replaced);
        if old.try_keep_closed() {
            old.forget_if_settled();
        } else {
            self.session.forget(old);
        }
    }
}

impl Drop for RestartSlot {
    fn drop(&mut self) {
        if self.is_replaced {
            return;
        }
        let (session, old) = (&self.session, &self.old);
        let mut processes = session.processes();
        old.spare(LEFT_PATIENCE);
        if old.is_live() {
            return;
        }
        old.keep_closed();
        if self.is_taken {
            processes.live -= 1;
            session.owner.count_end();
        }
        let is_known = processes.closed.iter().any(|closed| closed.is(old));
        if is_known && !processes.by_id.contains_key(&old.id) {
            processes.by_id.insert(old.id.clone(), old.clone());
        }
        drop(processes);
        old.forget_after(old.spec().closed_ttl.max(old.spared_for()));
        session.closed_one.notify_waiters();
    }
}

/// A restart whose process has ended.
struct Prepared {
    slot: RestartSlot,
    start: wire::Start,
    /// Whether it had not closed before.
    was_running: bool,
}

/// What has become of a restart.
enum Outcome {
    Runs(wire::Started, Process),
    /// It was not attempted: a repeated request tries it again.
    Refused(RpcError),
    Failed(RpcError),
    /// The next server carries it out.
    Left,
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
        let Some(responder) =
            self.replay_start(restart_id, &request.process_id, StartKind::Restart, responder)
        else {
            return;
        };
        // Now, and not in the task: what comes after this request is for the new process.
        let Some((active, responder)) = self.begin_restart(&request, responder) else { return };
        let (session, slots) = (Arc::clone(self), Arc::clone(slots));
        // Runs to completion even if the connection closes: half of it would be the end of the process.
        self.host.spawn(async move { session.carry_out(&request, responder, bounds, slots, active).await });
    }

    async fn carry_out(
        self: Arc<Self>,
        request: &wire::StartAgain,
        responder: Responder,
        bounds: StartBounds,
        slots: Arc<Semaphore>,
        mut active: ActiveRestart,
    ) {
        let restart_id = request.restart_id.as_deref();
        let pending = PendingStart { session: &self, start_id: restart_id };
        let outcome = self.start_again(request, &responder, bounds, slots, &mut active).await;
        let joined = match outcome {
            Outcome::Left => active.leave_to_next_server(),
            _ => active.end(),
        };
        if matches!(outcome, Outcome::Runs(..) | Outcome::Failed(_)) {
            pending.hand_over();
            self.answer_restart(restart_id, &outcome, responder);
        } else {
            self.answer_restart(restart_id, &outcome, responder);
            drop(pending);
        }
        for Joined { restart_id, responder } in joined {
            self.answer_restart(restart_id.as_deref(), &outcome, responder);
            if matches!(outcome, Outcome::Refused(_) | Outcome::Left) {
                self.forget_start(restart_id.as_deref());
            }
        }
    }

    fn answer_restart(&self, restart_id: Option<&str>, outcome: &Outcome, responder: Responder) {
        match outcome {
            Outcome::Runs(started, process) => {
                self.finish_start(restart_id, &Ok(started.clone()));
                responder.ok_then(started.clone(), AfterSend::Follow(process.source()));
            }
            Outcome::Refused(error) | Outcome::Failed(error) => {
                self.finish_start(restart_id, &Err(error.clone()));
                responder.error(error);
            }
            Outcome::Left => self.host.leave_to_next(responder),
        }
    }

    async fn start_again(
        self: &Arc<Self>,
        request: &wire::StartAgain,
        responder: &Responder,
        mut bounds: StartBounds,
        slots: Arc<Semaphore>,
        active: &mut ActiveRestart,
    ) -> Outcome {
        let is_left = |error: &RpcError| {
            self.is_saved() && error.kind == ErrorKind::ShuttingDown && self.host.is_stopping()
        };
        let refused = |error: RpcError| if is_left(&error) { Outcome::Left } else { Outcome::Refused(error) };
        let prepared = self.prepare(request, &mut bounds, responder.outbox(), active).await;
        let Prepared { mut slot, start, was_running } = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return refused(error),
        };
        let old = slot.old.clone();
        let admitted = match active.commit() {
            Ok(()) => self
                .admit(start, Entry::Again(&mut slot), &bounds)
                .map_err(|error| not_again(&old, was_running, error)),
            Err(error) => Err(error),
        };
        let (process, command) = match admitted {
            Ok(admitted) => admitted,
            Err(error) => return refused(error),
        };
        active.hand_to(&process);
        let (caller, answer) = Responder::within(responder.outbox());
        let (id, identity) = (&self.id, &self.owner.identity);
        let span = trace::process(&process.id, id, identity, responder.trace(), self.host.set_parent());
        let starting = Starting { process: process.clone().into(), command, start_id: None, caller, slots };
        let owner: Arc<dyn ProcessOwner> = Arc::clone(self) as _;
        let saved = self.save_begun(&starting.process);
        let running = in_phases(async move {
            match saved::begun(saved, &starting.process).await {
                Ok(()) => return Some(broken::run(starting, owner)),
                Err(error) => starting.refuse(&*owner, &error),
            }
            None
        });
        self.host.spawn(running.instrument(span));
        let answered = tokio::select! {
            answered = answer => answered,
            () = self.host.reaches(Phase::Disconnecting) => Ok(Err(shutting_down())),
        };
        let error = match answered {
            Ok(Ok(Some(started))) => {
                slot.replaced();
                self.show_to_controller(&process, responder.outbox().id);
                return Outcome::Runs(started, process);
            }
            Ok(Err(error)) => error,
            Ok(Ok(None)) | Err(_) => defect(),
        };
        // The next server finds what the keeper has started meanwhile.
        if process.is_durable() && is_left(&error) {
            return Outcome::Left;
        }
        Outcome::Failed(not_again(&old, was_running, error))
    }

    /// Ends the process to restart, if nothing that can be known before is against that.
    async fn prepare(
        self: &Arc<Self>,
        request: &wire::StartAgain,
        bounds: &mut StartBounds,
        outbox: &Arc<Outbox>,
        active: &mut ActiveRestart,
    ) -> Result<Prepared, RpcError> {
        let id = &request.process_id;
        let old = self.process_of(id, request.incarnation)?;
        if !old.started(Instant::now().checked_add(HANG_THRESHOLD)).await {
            return Err(unknown_process(id));
        }
        let Some(kept) = &old.spec().request else { return Err(StartRequest::not_saved(id)) };
        let (mut start, floor) = kept.decode()?;
        start.start_id.clone_from(&request.restart_id);
        (bounds.floor, bounds.first_floor) = (bounds.floor.max(floor), Some(floor));
        StartRequest::check_confined(&start, bounds.floor, &self.host, &self.owner.identity).await?;
        self.check_unattached(id, outbox.id)?;
        let slot = self.slot_for_next(&old, bounds)?;
        let was_running = old.is_live();
        let ended = async {
            old.check_space().await.map_err(|error| not_again(&old, was_running, error))?;
            self.end_process(&old, request.grace_ms, outbox, active).await
        };
        tokio::select! {
            ended = ended => ended?,
            // The next server carries it out.
            () = self.host.reaches(Phase::Stopping) => return Err(not_again(&old, was_running, shutting_down())),
        }
        Ok(Prepared { slot, start, was_running })
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

    /// Keeps the place of a process for the next one; it counts once, whether it runs or has ended.
    fn slot_for_next(self: &Arc<Self>, old: &Process, bounds: &StartBounds) -> Result<RestartSlot, RpcError> {
        let mut processes = self.processes();
        self.check_starts(&processes)?;
        if !processes.has(old) {
            return Err(unknown_process(&old.id));
        }
        if old.is_live() {
            self.owner.check_instead(bounds.max_processes)?;
        } else {
            self.count_start(&mut processes, bounds)?;
        }
        old.set_standing(Standing::Restarting);
        processes.spare(old);
        Ok(RestartSlot { session: Arc::clone(self), old: old.clone(), is_taken: true, is_replaced: false })
    }

    /// Ends a process with its whole tree, and waits until all its output is in its log.
    async fn end_process(
        &self,
        old: &Process,
        grace_ms: Option<u64>,
        outbox: &Arc<Outbox>,
        active: &mut ActiveRestart,
    ) -> Result<(), RpcError> {
        let was_running = old.is_live();
        let failed = |error| not_again(old, was_running, error);
        if let Some(timeout_ms) = grace_ms.filter(|ms| *ms > 0 && was_running) {
            terminate(old, TerminateMode::Graceful { timeout_ms }, outbox).await.map_err(failed)?;
            let closes = async {
                old.exited().await;
                // A full log waits for its reader, who may be waiting for this restart.
                old.read_rest();
                self.has_closed(old).await;
            };
            tokio::select! {
                () = closes => {}
                () = active.grace_over() => {}
            }
        }
        active.begin_kill()?;
        // Answered when nothing of it is left.
        terminate(old, TerminateMode::Force, outbox).await.map_err(failed)?;
        if was_running {
            old.read_rest();
        }
        if tokio::time::timeout(CLOSE_PATIENCE, self.has_closed(old)).await.is_err() {
            return Err(failed(not_closed(old).await));
        }
        old.release();
        _ = tokio::time::timeout(READ_PATIENCE, old.caught_up()).await;
        Ok(())
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
    pub(super) fn forget_replaced(&self, old: &Process) {
        self.processes().forget(old);
        self.delete_log(old.clone());
    }

    /// Streams a new process to the connection that has resumed the session meanwhile.
    fn show_to_controller(&self, process: &Process, asked_on: ConnectionId) {
        let _changing = self.changing();
        if let Some(viewer) = self.controlling().filter(|viewer| viewer.outbox.id != asked_on) {
            process.follow(&viewer, StartAt::After(0));
        }
    }

    /// Returns how the connection that controls the session follows its processes.
    pub(super) fn controlling(&self) -> Option<Viewer> {
        self.subscribers().controller.as_ref().map(|controller| controller.viewer(None))
    }
}

/// Ends a process with its whole tree, as `process/terminate` does, and waits for the answer.
async fn terminate(process: &Process, mode: TerminateMode, outbox: &Arc<Outbox>) -> Result<(), RpcError> {
    let (caller, answer) = Responder::within(outbox);
    process.request(Request::Terminate(mode, TerminateScope::Tree, caller));
    answer.await.unwrap_or_else(|_| Err(defect())).map(drop)
}

/// Returns why a process has not closed although nothing of it is left.
async fn not_closed(process: &Process) -> RpcError {
    if let Err(silent) = process.check_keeper().await {
        return silent;
    }
    if process.waits_for_room() {
        let message = "there is no space left for the rest of its output, or something that the server cannot find keeps it open";
        return RpcError::new(ErrorKind::LimitExceeded, message)
            .with_hint("free space on the disk of the state directory, or forget processes that have ended");
    }
    let message = "something that the server cannot find keeps its output open";
    RpcError::new(ErrorKind::Internal, message)
        .with_hint("look for it on the host; it removed the tag of the server, as a hostile program may")
}

/// Says in the error of a restart what has become of the process.
fn not_again(process: &Process, was_running: bool, mut error: RpcError) -> RpcError {
    let id = &process.id;
    let before = if was_running && (process.has_exited() || !process.is_live()) {
        format!("process `{id}` was ended, but not started again")
    } else {
        format!("process `{id}` was not started again")
    };
    error.message = format!("{before}: {}", error.text());
    error.start = None;
    error
}

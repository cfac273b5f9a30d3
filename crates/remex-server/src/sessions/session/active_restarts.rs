//! Restarts in progress, at most one per process, and the requests that wait for them.
//!
//! Requests for a process that is being restarted are meant for the new one, but a termination cancels the restart.
//! Start at [`ActiveRestart`].

use std::{
    collections::HashMap,
    mem,
    sync::{Arc, MutexGuard},
    time::{Duration, Instant},
};

use remex_base::{lock, supervise::defect};
use remex_engine::Request;
use remex_proto::{ErrorKind, RpcError, process as wire};
use tokio::sync::watch;

use super::Session;
use crate::{
    outbox::Responder,
    sessions::process::{Process, ProcessOwner as _},
};

/// Practically forever, yet short enough to add to a clock.
const LONGEST_GRACE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The restarts of a session that are in progress, by process.
#[derive(Debug, Default)]
pub(super) struct ActiveRestarts(HashMap<String, Pending>);

#[derive(Debug)]
struct Pending {
    stage: Stage,
    /// Whether the client of the session has asked for it.
    is_own: bool,
    /// When the process is killed if it has not ended by then; `None` once the restart is cancelled.
    kill_at: watch::Sender<Option<Instant>>,
    /// In the order of arrival; bounded by the open requests of connections.
    requests: Vec<AddressedRequest>,
    joined: Vec<Joined>,
}

/// A request for a process, with the incarnation that it names.
type AddressedRequest = (Request<Responder>, Option<u64>);

/// How far a restart is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The process may still end by itself.
    Grace,
    Killing,
    /// It has ended, and the restart can no longer be cancelled.
    Ended,
    /// The new process takes requests.
    Starting,
}

/// A restart that gets the outcome of one that was in progress already.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) restart_id: Option<String>,
    pub(super) responder: Responder,
}

impl ActiveRestarts {
    /// Begins a restart, or joins one that would take longer; returns the responder of one that may do neither.
    fn take(
        &mut self,
        request: &wire::StartAgain,
        is_own: bool,
        responder: Responder,
    ) -> Result<Option<Begun>, Box<Responder>> {
        let now = Instant::now();
        let grace = Duration::from_millis(request.grace_ms.unwrap_or(0)).min(LONGEST_GRACE);
        let kill_at = now + grace;
        if let Some(pending) = self.0.get_mut(&request.process_id) {
            let is_sooner = pending.kill_at.borrow().is_some_and(|known| kill_at < known);
            if pending.stage != Stage::Grace || !is_sooner {
                return Err(Box::new(responder));
            }
            pending.kill_at.send_replace(Some(kill_at));
            pending.joined.push(Joined { restart_id: request.restart_id.clone(), responder });
            return Ok(None);
        }
        let (sender, receiver) = watch::channel(Some(kill_at));
        let stage = if grace.is_zero() { Stage::Killing } else { Stage::Grace };
        let pending = Pending { stage, is_own, kill_at: sender, requests: Vec::new(), joined: Vec::new() };
        self.0.insert(request.process_id.clone(), pending);
        Ok(Some((receiver, responder)))
    }

    /// Queues a request that is meant for the process after the restart; returns any other.
    fn keep(&mut self, process: &str, request: AddressedRequest) -> Option<AddressedRequest> {
        let Some(pending) = self.0.get_mut(process) else { return Some(request) };
        match (pending.stage, &request.0) {
            (Stage::Starting, _) => return Some(request),
            (Stage::Grace | Stage::Killing, Request::Terminate(..)) => {
                pending.kill_at.send_replace(None);
                return Some(request);
            }
            // Nothing but their own start delays them.
            (Stage::Grace, Request::Signal(..)) => return Some(request),
            _ => pending.requests.push(request),
        }
        None
    }
}

/// When the process is killed, and the responder of the restart.
type Begun = (watch::Receiver<Option<Instant>>, Responder);

/// One restart in progress; dropped, it ends, and its queued requests are passed on.
#[derive(Debug)]
pub(super) struct ActiveRestart {
    session: Arc<Session>,
    process: String,
    kill_at: watch::Receiver<Option<Instant>>,
}

impl ActiveRestart {
    /// Waits until the grace is over, however that changes.
    pub(super) async fn grace_over(&mut self) {
        loop {
            let Some(at) = *self.kill_at.borrow_and_update() else { return };
            if tokio::time::timeout_at(at.into(), self.kill_at.changed()).await.is_err() {
                return;
            }
        }
    }

    /// Begins to kill the process, unless the restart was cancelled.
    pub(super) fn begin_kill(&self) -> Result<(), RpcError> {
        self.advance(Stage::Killing)
    }

    /// Ends the time in which the restart can be cancelled.
    pub(super) fn commit(&self) -> Result<(), RpcError> {
        self.advance(Stage::Ended)
    }

    fn advance(&self, stage: Stage) -> Result<(), RpcError> {
        let mut active = self.session.active_restarts();
        let Some(pending) = active.0.get_mut(&self.process) else { return Err(defect()) };
        if pending.kill_at.borrow().is_none() {
            let message = format!(
                "cannot restart process `{}`: it was terminated meanwhile, and stays ended",
                self.process
            );
            return Err(RpcError::new(ErrorKind::Cancelled, message).with_hint("restart it again"));
        }
        pending.stage = stage;
        Ok(())
    }

    /// Passes the queued requests on to the new process.
    pub(super) fn hand_to(&self, process: &Process) {
        let mut active = self.session.active_restarts();
        let Some(pending) = active.0.get_mut(&self.process) else { return };
        pending.stage = Stage::Starting;
        // Still locked, so that nothing overtakes them.
        for request in mem::take(&mut pending.requests) {
            self.session.pass_to(process, request);
        }
    }

    /// Ends the restart; returns those that have joined it.
    pub(super) fn end(self) -> Vec<Joined> {
        let (requests, joined) = self.remove();
        for request in requests {
            self.session.pass(&self.process, request);
        }
        joined
    }

    /// Leaves the restart and its queued requests to the next server; returns the restarts that have joined it.
    pub(super) fn leave_to_next_server(self) -> Vec<Joined> {
        let (requests, joined) = self.remove();
        for (request, _) in requests {
            self.session.host.leave_to_next(request);
        }
        joined
    }

    fn remove(&self) -> (Vec<AddressedRequest>, Vec<Joined>) {
        let pending = self.session.active_restarts().0.remove(&self.process);
        pending.map_or_else(Default::default, |pending| (pending.requests, pending.joined))
    }
}

impl Drop for ActiveRestart {
    fn drop(&mut self) {
        let (requests, joined) = self.remove();
        for request in requests {
            self.session.pass(&self.process, request);
        }
        for Joined { restart_id, responder } in joined {
            self.session.forget_start(restart_id.as_deref());
            responder.error(&defect());
        }
    }
}

impl Session {
    /// Begins a restart, unless one is in progress: then joins that, or answers with an error.
    pub(super) fn begin_restart(
        self: &Arc<Self>,
        request: &wire::StartAgain,
        responder: Responder,
    ) -> Option<(ActiveRestart, Responder)> {
        let is_own = self.controller(responder.outbox().id).is_some();
        let taken = self.active_restarts().take(request, is_own, responder);
        match taken {
            Ok(Some((kill_at, responder))) => {
                let (session, process) = (Arc::clone(self), request.process_id.clone());
                Some((ActiveRestart { session, process, kill_at }, responder))
            }
            Ok(None) => None,
            Err(responder) => {
                let message =
                    format!("process `{}` is being restarted by another request", request.process_id);
                let error = RpcError::new(ErrorKind::ProcessExists, message).with_hint("wait until it runs");
                // For repeats that wait; later ones try it again.
                self.finish_start(request.restart_id.as_deref(), &Err(error.clone()));
                self.forget_start(request.restart_id.as_deref());
                responder.error(&error);
                None
            }
        }
    }

    /// Returns whether a restart is in progress that another client than that of the session requested.
    pub(super) fn is_restarted_by_others(&self) -> bool {
        self.active_restarts().0.values().any(|pending| !pending.is_own)
    }

    /// Passes a request on to a process; while it is restarted, it may have to wait for the new one.
    pub(crate) fn request(&self, process: &str, incarnation: Option<u64>, request: Request<Responder>) {
        // A request for an earlier incarnation neither waits for the next one nor cancels its start.
        if let Some(Err(error)) = self.process(process).map(|known| known.check_incarnation(incarnation)) {
            return request.into_caller().error(&error);
        }
        let request = self.active_restarts().keep(process, (request, incarnation));
        if let Some(request) = request {
            self.pass(process, request);
        }
    }

    fn pass(&self, process: &str, request: AddressedRequest) {
        match self.process(process) {
            Some(process) => self.pass_to(&process, request),
            None => request.0.answer_unknown(),
        }
    }

    fn pass_to(&self, process: &Process, (request, incarnation): AddressedRequest) {
        // A request that names another incarnation fails, whatever it asks for.
        if let Err(error) = process.check_incarnation(incarnation) {
            return request.into_caller().error(&error);
        }
        if request.is_input() {
            // While it waited for a restart, nothing could be asked to cancel it.
            if request.caller().is_cancelled() {
                return;
            }
            request.caller().set_input_of(Arc::downgrade(&process.source()));
            if self.host.audit().is_on() {
                process.set_input_of(request.caller().outbox().id);
            }
        }
        process.request(request);
    }

    fn active_restarts(&self) -> MutexGuard<'_, ActiveRestarts> {
        lock(&self.active_restarts)
    }
}

//! The server's view of processes in the keeper: requests are forwarded to it, and events come from it.
//!
//! The task that reads the link applies each message of the keeper at once. The task of the process only sends what the
//! log must hold, and retires the process at its end. Start at [`RemoteProcess`].

mod denial;
mod description;
mod kind;
mod relinking;
mod space;
mod starting;
mod without_keeper;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use remex_base::{clock::now_ms, threads::ServerWork};
use remex_process::Pid;
use remex_proto::{
    ErrorKind, RpcError,
    call::Empty,
    process::{self as wire, ExitCause},
    state::output::{Hold, Point},
};
use tokio::sync::oneshot;

use super::{
    Caller, Engine, EngineContext, Exit, Holding, Kind, Lifecycle, LogState as _, Owner as _, ProcessState,
    Request, Served, ServerAudience, ServerLog, Spec,
    denied::denied_by_stored_output,
    log::DiskLogView,
    start::{Announce, ConfinementLevel, started_reply},
    start_request::StartRequest,
};
use crate::{
    process::LOG_TARGET,
    shared::host::Phase,
    state::{
        durable::close_lost,
        keeper_link::{
            Epoch, KeeperLink, LinkListener, Sent,
            message::{
                ExitRecord, FromKeeper, KeeperAnswer, KeeperRequest, Progress, ReportedProcess,
                RequestNumber, StartFailure, ToKeeper,
            },
        },
    },
};
pub use description::Description;
pub(crate) use kind::{Remote, RemoteState};

/// A process whose child runs in the keeper, as the server sees it.
pub type RemoteProcess<A> = Engine<A, Remote>;

/// The start and the requests that the keeper has not answered, and the hold that was sent to it.
#[derive(Debug)]
struct PendingAtKeeper<C> {
    requests: BTreeMap<RequestNumber, Unanswered<C>>,
    /// The connection over which this state was synchronized; nothing is sent over another one.
    epoch: Epoch,
    start: Option<oneshot::Sender<StartAnswer>>,
    /// The answer to a start that an earlier server requested.
    restored_start: Option<oneshot::Receiver<StartAnswer>>,
    hold: Hold<Point>,
    confined: ConfinementLevel,
    /// The progress with the exit, delayed while the output is searched for a denial.
    delayed_exit: Option<Box<Progress>>,
}

/// A request that the keeper has not answered.
#[derive(Debug)]
struct Unanswered<C> {
    request: Request<C>,
    /// Whether the request may have arrived.
    is_sent: bool,
    /// Dropped with the request, which cancels `end_unless_answered`.
    _fallback: Option<oneshot::Sender<()>>,
}

/// The pid and the time of a start, or why there is none.
type StartAnswer = Result<(u32, u64), StartFailure>;

impl<C> Default for PendingAtKeeper<C> {
    fn default() -> Self {
        let requests = BTreeMap::new();
        PendingAtKeeper {
            requests,
            epoch: 0,
            start: None,
            restored_start: None,
            hold: Hold::ALL,
            confined: ConfinementLevel::No,
            delayed_exit: None,
        }
    }
}

/// Which changes of the hold are sent to the keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HoldUpdate {
    /// Only if it matters: the change is large, or the process waits.
    Large,
    All,
}

impl<A: ServerAudience> RemoteProcess<A> {
    /// Returns what was asked for.
    pub fn spec(&self) -> &Spec {
        &self.kind.served.spec
    }

    fn has_keeper(&self) -> bool {
        !self.kind.link.is_lost()
    }

    /// Creates the handle of a process that an earlier server started.
    pub fn restore(
        description: &Description,
        link: Arc<KeeperLink>,
        reported: ReportedProcess,
        context: EngineContext<'_, A>,
        audience: A,
    ) -> Option<Arc<Self>> {
        let ReportedProcess { key, started, mut progress, hold, request, .. } = reported;
        let spec = description.spec(StartRequest::from_keeper(request));
        progress.inline = Vec::new();
        let (exit, is_full, is_over) = (progress.exit.take(), progress.is_full, progress.is_closed);
        let log = DiskLogView::new(link.dir_of(key), progress);
        let has_output = log.produced() != wire::Produced::default();
        let kind = Remote { served: Served::new(spec, context.account), link, key };
        let state = RemoteState::new(log);
        let process = Arc::new(Engine::new(description.id.clone(), context, audience, kind, state));
        {
            let mut state = process.state();
            state.kind.pending.confined = description.confined;
            state.kind.pending.hold = hold;
            state.kind.pending.epoch = process.kind.link.epoch();
            state.full = is_full;
            match started.and_then(|(pid, started_at_ms)| Some((to_pid(pid)?, started_at_ms))) {
                Some((pid, started_at_ms)) if is_over => {
                    state.lifecycle = Lifecycle::Over { pid: Some(pid), started_at_ms };
                }
                Some((pid, started_at_ms)) => {
                    state.lifecycle = Lifecycle::Running { pid, started_at_ms };
                }
                // The process was lost before it ran.
                None if is_over && !has_output => return None,
                None if is_over => {
                    let started_at_ms = description.asked_at_ms;
                    state.lifecycle = Lifecycle::Over { pid: None, started_at_ms };
                }
                None => {
                    let (sender, answer) = oneshot::channel();
                    state.kind.pending.start = Some(sender);
                    state.kind.pending.restored_start = Some(answer);
                }
            }
            if let Some(exit) = exit {
                process.apply_exit(&mut state, exit);
                if !state.judge_without_output(description.confined) {
                    // The server does not serve yet, so this delays no client.
                    let is_denied =
                        denied_by_stored_output(&mut state.kind.log.files(), description.confined);
                    state.set_denied(is_denied.unwrap_or(false));
                }
            }
        }
        process.kind.link.listen(key, &process);
        Some(process)
    }

    /// Waits until a process whose start an earlier server was asked for runs, and then until it has closed.
    pub async fn run_restored(self: Arc<Self>, owner: Arc<A::Owner>) {
        let start = self.state().kind.pending.restored_start.take();
        if let Some(answer) = start {
            let start_id = self.spec().start_id.clone();
            let announce = Announce { start_id, caller: None, started_at_ms: None };
            match answer.await.unwrap_or_else(|_| Err(lost_start())) {
                Ok(started) => self.announce_remote_start(&*owner, started, announce),
                Err(failure) => {
                    let error = match failure {
                        StartFailure::Refused(error) => self.start_error(&error),
                        StartFailure::Other(failure) => failure.into(),
                    };
                    return self.fail(&*owner, announce, &error);
                }
            }
        }
        self.follow_keeper(owner).await;
    }

    /// Returns the directory of its log and when it ended, once it has closed.
    pub fn closed_log(&self) -> Option<(PathBuf, u64)> {
        let state = self.state();
        let ended_at_ms = state.ended_at_ms.unwrap_or(self.spec().asked_at_ms);
        let log = Some(&state.kind.log).filter(|log| log.is_closed())?;
        Some((log.dir().to_owned(), ended_at_ms))
    }

    /// Returns how long ago it ended.
    pub fn ended_for(&self) -> Option<Duration> {
        let ended_at_ms = self.state().ended_at_ms?;
        Some(Duration::from_millis(now_ms().saturating_sub(ended_at_ms)))
    }

    /// Returns the answer to the start of a process that an earlier server started.
    pub fn started_before(&self) -> Option<wire::Started> {
        let state = self.state();
        let (pid, started_at_ms) = match &state.lifecycle {
            Lifecycle::Running { pid, started_at_ms } => (*pid, *started_at_ms),
            Lifecycle::Over { pid, started_at_ms } => ((*pid)?, *started_at_ms),
            Lifecycle::Starting(_) | Lifecycle::Failed => return None,
        };
        let (pid, incarnation) = (pid.as_raw().unsigned_abs(), self.spec().incarnation);
        Some(started_reply(&self.id, pid, started_at_ms, state.kind.pending.confined, incarnation))
    }

    /// Records that the child runs in the keeper, answers the start, and passes on what was asked meanwhile.
    pub(super) fn announce_remote_start(
        self: &Arc<Self>,
        owner: &A::Owner,
        (pid, started_at_ms): (u32, u64),
        announce: Announce<A::Caller>,
    ) {
        let Some(pid) = to_pid(pid) else { return };
        let confined = {
            let mut state = self.state();
            state.lifecycle = Lifecycle::Running { pid, started_at_ms };
            while let Some(request) = state.requests.pop_front() {
                self.forward(&mut state, request);
            }
            state.kind.pending.confined
        };
        let (pid, incarnation) = (pid.as_raw().unsigned_abs(), self.spec().incarnation);
        let started = started_reply(&self.id, pid, started_at_ms, confined, incarnation);
        self.answer_start(owner, started, announce);
    }

    /// Sends the keeper what the log must hold, until the process has closed or the server hands it over to the next one.
    pub(crate) async fn follow_keeper(self: &Arc<Self>, owner: Arc<A::Owner>) {
        let mut phase = self.host.phase().subscribe();
        tokio::select! {
            () = self.follow_to_close() => {}
            _ = phase.wait_for(|phase| *phase == Phase::Disconnecting) => return,
        }
        self.retire();
        owner.on_closed(&<Remote as Kind<A>>::handle(self));
        tracing::info!(target: LOG_TARGET, session = owner.id(), identity = %owner.identity(), process = %self.id, "process closed");
    }

    async fn follow_to_close(&self) {
        loop {
            let again_at = {
                let mut state = self.state();
                if state.kind.log.is_closed() {
                    return;
                }
                self.tell_hold(&mut state, HoldUpdate::All);
                state.recheck_at(&self.spec().rules, &self.host.limits())
            };
            match again_at {
                None => self.wake.notified().await,
                Some(at) => {
                    let _ = tokio::time::timeout_at(at.into(), self.wake.notified()).await;
                }
            }
        }
    }
}

impl<A: ServerAudience> RemoteProcess<A> {
    /// Passes a request on to the keeper; without a connection, as soon as there is one.
    pub(super) fn forward(
        self: &Arc<Self>,
        state: &mut ProcessState<A, RemoteState<A::Caller>>,
        mut request: Request<A::Caller>,
    ) {
        let Remote { link, key, .. } = &self.kind;
        let number = link.new_number();
        let message = ToKeeper::Request { key: *key, number, request: asked(&request) };
        let is_sent = match link.send_in(state.kind.pending.epoch, &message) {
            Sent::Yes => {
                forget_unrepeatable(&mut request);
                true
            }
            Sent::Unlinked => false,
            Sent::Lost => return request.into_caller().error(&lost()),
            Sent::TooLong => return request.into_caller().error(&too_long("request")),
        };
        let fallback =
            without_keeper::can_do_without_keeper(&request).then(|| self.end_unless_answered(number));
        state.kind.pending.requests.insert(number, Unanswered { request, is_sent, _fallback: fallback });
    }

    /// Deletes the log of a closed process.
    pub fn discard(&self) {
        self.kind.link.unlisten(self.kind.key);
        self.kind.link.forget(self.kind.key);
    }

    pub(super) fn abandon_at_keeper(&self) {
        self.kind.link.abandon(self.kind.key);
    }

    /// Cancels forwarded input that `is_cancelled` selects; returns whether the keeper was asked to, and what is cancelled
    /// without it, because it drops its input at the end of a connection.
    pub(super) fn cancel_forwarded(
        &self,
        state: &mut ProcessState<A, RemoteState<A::Caller>>,
        is_cancelled: impl Fn(&A::Caller) -> bool,
    ) -> (bool, Vec<Request<A::Caller>>) {
        let Remote { link, key, .. } = &self.kind;
        let requests = &mut state.kind.pending.requests;
        let input = requests.iter().filter(|(_, unanswered)| {
            unanswered.request.is_input() && is_cancelled(unanswered.request.caller())
        });
        let numbers: Vec<_> = input.map(|(number, _)| *number).collect();
        if numbers.is_empty() {
            return (false, Vec::new());
        }
        let cancel = ToKeeper::Cancel { key: *key, numbers: numbers.clone() };
        if link.send_in(state.kind.pending.epoch, &cancel) == Sent::Yes {
            return (true, Vec::new());
        }
        let cancelled = numbers.iter().filter_map(|number| requests.remove(number));
        (false, cancelled.map(|unanswered| unanswered.request).collect())
    }
}

impl<A: ServerAudience> RemoteProcess<A> {
    /// Records how far the process has come.
    fn apply(self: &Arc<Self>, state: &mut ProcessState<A, RemoteState<A::Caller>>, progress: Progress) {
        let view = &mut state.kind.log;
        let (before, evicted) = (view.newest(), view.lost());
        let (newest, is_full, exit) = (progress.newest, progress.is_full, progress.exit.clone());
        let exhausted = progress.exhausted;
        let was_synced = view.sync_failure().is_none();
        view.advance(progress);
        if was_synced && let Some(failure) = view.sync_failure() {
            tracing::error!(target: LOG_TARGET, process = %self.id, error = failure, "output may not survive a power failure");
        }
        let (len, lost) = (view.produced_since(before), view.lost().saturating_sub(evicted));
        let metrics = self.host.metrics();
        metrics.output_bytes.add(len);
        let now = Instant::now();
        self.count_evicted(state, lost, now);
        if is_full && !state.full {
            metrics.pauses.add(1);
            state.audience.on_full();
            // Its task looks again when the hold ends by itself.
            self.wake.notify_one();
        }
        if len > 0 || state.full && !is_full {
            state.last_output = now;
        }
        state.full = is_full;
        if let Some(exit) = exit
            && state.exit.is_none()
        {
            self.apply_exit(state, exit);
        }
        self.charge(state);
        self.tell_hold(state, HoldUpdate::Large);
        if newest > before.seq {
            self.notify(state);
        }
        if state.kind.log.is_closed() {
            self.wake.notify_one();
        }
        if let (Some(quota), Some(durable)) = (exhausted, self.host.durable()) {
            // Not now: it locks other processes.
            let (durable, owner) = (Arc::clone(durable), self.owner.upgrade());
            let session = owner.map(|owner| owner.id().to_owned()).unwrap_or_default();
            self.host.spawn(async move { _ = durable.collect(quota, &session) });
        }
    }

    fn apply_exit(&self, state: &mut ProcessState<A, RemoteState<A::Caller>>, exit: ExitRecord) {
        let ExitRecord { code, signal, cause, usage, at_ms } = exit;
        // The end of a session may kill a process before the keeper learns why.
        let cause = match (cause, state.ended_for) {
            (ExitCause::Signal, Some(known)) => known,
            _ => cause,
        };
        tracing::info!(target: LOG_TARGET, process = %self.id, code, ?cause, "process exited");
        state.exit = Some(Exit { code, signal, cause, usage, sandbox_denied: false });
        state.ended_at_ms = Some(at_ms);
        self.changed.notify_waiters();
    }

    /// Tells the keeper what the log must hold, if that has changed.
    fn tell_hold(&self, state: &mut ProcessState<A, RemoteState<A::Caller>>, update: HoldUpdate) {
        let Remote { link, key, .. } = &self.kind;
        let holding = if state.full { Holding::Least } else { Holding::Generous };
        let hold = match <Remote as Kind<A>>::view(state).hold(
            &self.spec().rules,
            &self.host.limits(),
            holding,
            Instant::now(),
        ) {
            Hold::Nothing => Hold::Nothing,
            Hold::After(seq) => Hold::After(state.kind.log.known_end_by(seq)),
        };
        let is_due = match (state.kind.pending.hold, hold) {
            (known, hold) if known == hold => false,
            (Hold::After(Point { offset: known, .. }), Hold::After(Point { offset, .. })) => {
                let step = self.spec().rules.retain_bytes as u64 / 4;
                // A hold never goes back.
                offset > known && (update == HoldUpdate::All || state.full || offset >= known + step)
            }
            _ => true,
        };
        let epoch = state.kind.pending.epoch;
        if is_due && link.send_in(epoch, &ToKeeper::Hold { key: *key, hold }) == Sent::Yes {
            state.kind.pending.hold = hold;
        }
    }
}

impl<A: ServerAudience> LinkListener for RemoteProcess<A> {
    fn on_message(self: Arc<Self>, message: FromKeeper) {
        let mut state = self.state();
        match message {
            FromKeeper::Progress { progress, .. } => self.on_progress(&mut state, progress),
            FromKeeper::Answer { number, answer, .. } => {
                let Some(unanswered) = state.kind.pending.requests.remove(&number) else { return };
                drop(state);
                reply(unanswered.request, answer);
            }
            FromKeeper::Started { pid, started_at_ms, .. } => {
                state.kind.pending.finish_start(Ok((pid, started_at_ms)));
            }
            FromKeeper::NotStarted { failure, .. } => state.kind.pending.finish_start(Err(failure)),
            FromKeeper::Processes(_)
            | FromKeeper::Status(_)
            | FromKeeper::Deleted(_)
            | FromKeeper::LogTried(..) => {}
        }
    }

    fn on_relinked(self: Arc<Self>, epoch: Epoch, reported: Option<ReportedProcess>) {
        self.synchronize(epoch, reported);
    }

    fn on_keeper_lost(self: Arc<Self>) {
        let (requests, start, dir) = {
            let mut state = self.state();
            let dir = state.kind.log.dir().to_owned();
            let start = state.kind.pending.start.take();
            (std::mem::take(&mut state.kind.pending.requests), start, dir)
        };
        drop(start);
        requests.into_values().for_each(|unanswered| unanswered.request.into_caller().error(&lost()));
        if self.is_closed() {
            return;
        }
        let host = Arc::clone(&self.host);
        host.spawn(async move {
            let closing = self.host.own_threads().run(ServerWork::Logs, move || close_lost(&dir)).await;
            let mut state = self.state();
            let closed = match closing {
                Ok(Ok(progress)) => progress,
                // The end exists only for the clients of this server.
                _ => {
                    let RemoteState { log: view, pending, .. } = &state.kind;
                    let exit = ExitRecord::lost(now_ms());
                    match &pending.delayed_exit {
                        None => view.closed_now(exit),
                        Some(known) => view.stored_at(known).view().closed_now(exit),
                    }
                }
            };
            self.on_progress(&mut state, closed);
        });
    }
}

impl<C> PendingAtKeeper<C> {
    fn finish_start(&mut self, outcome: Result<(u32, u64), StartFailure>) {
        if let Some(start) = self.start.take() {
            let _ = start.send(outcome);
        }
    }
}

/// Returns what the keeper has to know of a request.
fn asked<C>(request: &Request<C>) -> KeeperRequest {
    match request {
        Request::Write(write) => {
            KeeperRequest::Write { chunk: write.chunk.clone(), write_id: write.write_id.clone() }
        }
        Request::CloseStdin(..) => KeeperRequest::CloseStdin,
        Request::Resize(size, ..) => KeeperRequest::Resize(*size),
        Request::Signal(signal, _) => KeeperRequest::Signal(*signal),
        Request::Terminate(mode, scope, _) => {
            let grace_ms = match mode {
                wire::TerminateMode::Force => None,
                wire::TerminateMode::Graceful { timeout_ms } => Some(*timeout_ms),
            };
            KeeperRequest::Terminate { grace_ms, whole_tree: *scope == wire::TerminateScope::Tree }
        }
    }
}

/// Frees what is only needed to send a request again, if that must not be done.
fn forget_unrepeatable<C>(request: &mut Request<C>) {
    if let Request::Write(write) = request
        && write.write_id.is_none()
    {
        write.chunk = Bytes::new();
    }
}

fn reply<C: Caller>(request: Request<C>, answer: KeeperAnswer) {
    match (request, answer) {
        (Request::Write(write), KeeperAnswer::Written(status)) => write.answer(status),
        (request, KeeperAnswer::Terminated { running }) => {
            request.into_caller().ok(wire::Terminated { running });
        }
        (request, KeeperAnswer::Failed(failure)) => request.into_caller().error(&failure.into()),
        // Dropping the caller answers its client.
        (request, KeeperAnswer::Cancelled) => drop(request),
        (request, KeeperAnswer::Done | KeeperAnswer::Written(_)) => request.into_caller().ok(Empty {}),
    }
}

/// The error for what was asked of a keeper that is gone.
fn lost() -> RpcError {
    RpcError::new(ErrorKind::Internal, "the keeper of this process has died, and the process with it")
        .with_hint("read its output, and start it again")
}

/// The error for what is longer than a message to the keeper may be.
fn too_long(what: &str) -> RpcError {
    let message = format!("the {what} is too long for the process that runs durable processes");
    RpcError::new(ErrorKind::LimitExceeded, message).with_hint("send less at once")
}

fn lost_start() -> StartFailure {
    let error = RpcError::new(ErrorKind::Internal, "the process that runs durable processes has died")
        .with_hint("see `keeper.log` in the state directory, and start it again");
    StartFailure::Other((&error).into())
}

fn to_pid(pid: u32) -> Option<Pid> {
    Pid::new(i32::try_from(pid).ok()?)
}

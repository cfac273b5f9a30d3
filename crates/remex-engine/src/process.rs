//! The engine of one process: starts the child, moves its bytes, carries out requests, and records its end.
//!
//! The task in [`task`] owns the child and is the only writer of the log. Everything else reads the log with a
//! cursor or queues a [`Request`]. The engine knows no session, no connection and no outbox: its [`Audience`]
//! reads the log, a [`Caller`] sends requests, and an [`Owner`] owns it.
//!
//! There are three types of processes: a [`LocalProcess`] of a server, a [`KeeperProcess`], and a [`RemoteProcess`], which
//! is what the server sees of the second. Start at [`Engine`], and at [`ServerProcess`] for what sessions use.

mod as_user;
mod audience;
pub mod broken;
mod child;
mod coalesce;
mod denied;
mod eviction;
mod footprint;
mod handover;
mod in_keeper;
mod incarnation;
mod input;
mod kind;
mod launch;
mod listing;
mod load;
mod log;
mod managed;
mod owner;
mod pipes;
mod read;
mod remote_process;
mod request;
mod searches;
mod seek;
mod server_process;
mod snapshot;
mod spec;
mod start;
mod start_request;
mod supervised;
mod task;
mod terminate;
mod wait;
mod watched;

use std::{
    collections::VecDeque,
    ops::{Deref, DerefMut},
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use remex_access::account::{self, Account};
use remex_base::{limits::Limits, lock};
use remex_process::{Attempt, Pid, Tag};
use remex_proto::{
    process::{self as wire, ExitCause},
    state::output::Hold,
};
use tokio::sync::Notify;

use crate::{shared::host::Host, state::keeper_link::message::ExitRecord};

pub use audience::{Audience, Caller, Holding, Outcome};
pub(crate) use child::{ChildState, RunsChild};
use eviction::Evictions;
pub(crate) use handover::ProcessRecord;
pub(crate) use in_keeper::{InKeeper, KeeperAudience, KeeperProcess, KeeperSpec, KeeperState};
pub use input::StdinWrite;
pub(crate) use kind::{Kind, KindState, Local, LocalProcess, Served};
pub use kind::{ServedKind, ServedState};
pub use load::Backoff;
pub use log::{Block, ServerLog};
pub(crate) use log::{
    DiskLogView, DiskLogWriter, LogReader, LogState, LogWriter, ProcessLog, SyncJob, SyncStep,
};
pub use owner::{Owner, PendingDecision};
pub use read::{Read, ReadError, ReadExtent, StoredRead, unreadable};
pub(crate) use remote_process::Remote;
pub use remote_process::{Description, RemoteProcess};
pub use request::{Request, unknown_process};
use request::{no_end_of_input, not_a_terminal};
pub use server_process::{Runner, ServerAudience, ServerProcess, WeakServerProcess};
pub(crate) use snapshot::SnapshotUse;
pub use snapshot::Snapshots;
pub use spec::ChildRules;
pub(crate) use spec::Spec;
pub use start::{Command, HANG_THRESHOLD, Starting};
pub use start_request::{StartFloor, StartRequest};
use terminate::GracefulTerminations;
pub use wait::Waiter;

/// The target of log lines about processes, which filters of users name.
pub(crate) const LOG_TARGET: &str = "remex_server::engine";

/// One process: what all three kinds have, and with `K` what only one of them has.
#[derive(Debug)]
pub struct Engine<A: Audience, K: Kind<A>> {
    core: Core<A>,
    kind: K,
    /// Shared by the task, which writes the log, and by readers and callers; held briefly.
    state: Mutex<ProcessState<A, K::State>>,
}

/// What a process is, whatever its kind.
#[derive(Debug)]
pub struct Core<A: Audience> {
    pub id: Box<str>,
    owner: Weak<A::Owner>,
    host: Arc<Host>,
    /// The account that its log and its input are charged to.
    account: Arc<Account>,
    pub tag: Tag,
    /// Graceful terminations in progress. Separate from the state, which is locked when some of them begin;
    /// held briefly.
    graceful_terminations: Mutex<GracefulTerminations>,
    /// Wakes the task: requests were queued, or the log may have room again.
    wake: Notify,
    /// Wakes waits for the start, the exit and the close, which output does not.
    changed: Notify,
    /// Whether the owner counts the process among those that are not closed.
    is_live: AtomicBool,
}

/// The mutable state of a process; by default as its audience sees it.
#[derive(Debug)]
pub struct ProcessState<A: Audience, S: ?Sized = <A as Audience>::State> {
    lifecycle: Lifecycle,
    requests: VecDeque<Request<A::Caller>>,
    /// Who reads the log.
    pub audience: A,
    /// How the direct child has exited.
    pub exit: Option<Exit>,
    ended_at_ms: Option<u64>,
    /// Why the server ended it, if it did.
    ended_for: Option<ExitCause>,
    /// When output last arrived, for the idle timeout.
    last_output: Instant,
    /// The process waits for room in the log.
    full: bool,
    /// Whether the rest of the output is read even if the log is full, once it has no writer left.
    reads_rest: bool,
    /// Bytes charged to the account.
    charged: usize,
    /// The task panicked.
    is_broken: bool,
    evictions: Evictions,
    /// The part that only this kind of process has.
    pub kind: S,
}

#[derive(Clone, Debug)]
enum Lifecycle {
    Starting(Attempt),
    Running {
        pid: Pid,
        started_at_ms: u64,
    },
    /// The process has closed and its task has ended.
    Over {
        /// `None` if an earlier server did not leave it readable.
        pid: Option<Pid>,
        started_at_ms: u64,
    },
    Failed,
}

/// How the direct child exited.
#[derive(Clone, Debug)]
pub struct Exit {
    /// The exit code.
    pub code: i32,
    /// The name of the signal that ended it.
    pub signal: Option<String>,
    /// Why it ended.
    pub cause: ExitCause,
    /// The resources that it has used.
    pub usage: wire::Usage,
    /// Whether the sandbox probably caused a failure.
    pub sandbox_denied: bool,
}

impl Exit {
    fn record(&self, at_ms: u64) -> ExitRecord {
        let Exit { code, cause, usage, .. } = *self;
        ExitRecord { code, signal: self.signal.clone(), cause, usage, at_ms }
    }
}

/// The owner, host and account of a new process.
#[derive(Debug)]
pub struct EngineContext<'a, A: Audience> {
    /// Who owns the process.
    pub owner: Weak<A::Owner>,
    /// The host.
    pub host: &'a Arc<Host>,
    /// The account that it is charged to.
    pub account: &'a Arc<Account>,
    /// The tag that everything started by it inherits.
    pub tag: Tag,
}

impl<A: Audience, K: Kind<A>> Deref for Engine<A, K> {
    type Target = Core<A>;

    fn deref(&self) -> &Core<A> {
        &self.core
    }
}

impl<A: Audience, K: Kind<A>> Engine<A, K> {
    fn new(id: String, context: EngineContext<'_, A>, audience: A, kind: K, state: K::State) -> Self {
        let EngineContext { owner, host, account, tag } = context;
        let core = Core {
            id: id.into(),
            owner,
            host: Arc::clone(host),
            account: Arc::clone(account),
            tag,
            graceful_terminations: Mutex::default(),
            wake: Notify::new(),
            changed: Notify::new(),
            is_live: AtomicBool::new(false),
        };
        let state = Mutex::new(ProcessState {
            lifecycle: Lifecycle::Starting(Attempt::default()),
            requests: VecDeque::new(),
            audience,
            exit: None,
            ended_at_ms: None,
            ended_for: None,
            last_output: Instant::now(),
            full: false,
            reads_rest: false,
            charged: 0,
            is_broken: false,
            evictions: Evictions::default(),
            kind: state,
        });
        Engine { core, kind, state }
    }

    /// Notifies the audience, reads and waits of new events in the log.
    fn notify(self: &Arc<Self>, state: &mut ProcessState<A, K::State>) {
        self.notify_of(&K::handle(self), K::view(state));
    }

    fn notify_of(&self, handle: &A::Handle, state: &mut ProcessState<A>) {
        A::on_events(handle, state);
        state.kind.on_notified(Instant::now());
        self.kind.on_output();
        if state.exit.is_some() || state.kind.log_state().is_closed() {
            self.changed.notify_waiters();
        }
    }

    /// Carries out a request, or queues it until the process has started. Answers it directly if the task has ended.
    pub fn request(self: &Arc<Self>, request: Request<A::Caller>) {
        let mut state = self.state();
        // The client sends unanswered input again after it reconnects. If the process took it now, it would
        // precede input that was sent earlier.
        if request.is_input() && request.caller().is_disconnected() {
            drop(state);
            return;
        }
        match state.lifecycle {
            Lifecycle::Starting(_) => {
                state.requests.push_back(request);
                drop(state);
                self.wake.notify_one();
            }
            Lifecycle::Running { .. } => K::request(self, &mut state, request),
            Lifecycle::Over { .. } => request.answer_closed(self, &mut state),
            Lifecycle::Failed => {
                drop(state);
                request.answer_unknown();
            }
        }
    }

    /// Cancels all pending input that `is_cancelled` selects; returns whether there was any.
    pub fn cancel_input(&self, is_cancelled: impl Fn(&A::Caller) -> bool) -> bool {
        let mut state = self.state();
        let (is_asked, waiting) = K::cancel_input(self, &mut state, &is_cancelled);
        let queued = state.cancel_queued(is_cancelled);
        drop(state);
        is_asked || !waiting.is_empty() || !queued.is_empty()
    }

    /// Has what is left read into the log, whether or not there is room for it, as soon as nothing writes to it any more.
    pub fn read_rest(&self) {
        self.state().reads_rest = true;
        K::read_rest(self);
    }

    /// Returns whether the log is closed: no further event follows.
    pub fn is_closed(&self) -> bool {
        self.state().kind.log_state().is_closed()
    }

    /// Ends the task: from now on, requests are answered without it.
    fn retire(self: &Arc<Self>) {
        let mut state = self.state();
        if let Lifecycle::Running { pid, started_at_ms } = state.lifecycle {
            state.lifecycle = Lifecycle::Over { pid: Some(pid), started_at_ms };
        }
        while let Some(request) = state.requests.pop_front() {
            request.answer_closed(self, &mut state);
        }
        K::on_retired(&mut state.kind);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Waits until the start has succeeded or failed, or until `deadline`; returns `false` if it failed.
    pub async fn started(&self, deadline: Option<Instant>) -> bool {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            match self.state().lifecycle {
                Lifecycle::Starting(_) => {}
                Lifecycle::Running { .. } | Lifecycle::Over { .. } => return true,
                Lifecycle::Failed => return false,
            }
            match deadline {
                Some(at) => {
                    if tokio::time::timeout_at(at.into(), changed).await.is_err() {
                        return true;
                    }
                }
                None => changed.await,
            }
        }
    }

    /// Records why the process is about to end, unless a cause is already known.
    pub fn will_end_for(&self, cause: ExitCause) {
        let mut state = self.state();
        if state.exit.is_none() {
            state.ended_for.get_or_insert(cause);
        }
    }

    /// Kills the process after its session has ended; its output is no longer held for anyone.
    ///
    /// Returns whether the start is still in progress, so that a child may appear later.
    pub fn abandon(&self) -> bool {
        let mut state = self.state();
        state.audience.on_abandoned();
        match &state.lifecycle {
            Lifecycle::Starting(attempt) => attempt.abort(),
            Lifecycle::Running { .. } => K::kill(self, &state.kind),
            _ => {}
        }
        let is_starting = matches!(state.lifecycle, Lifecycle::Starting(_));
        drop(state);
        self.wake.notify_one();
        is_starting
    }

    /// Aborts the start if it is still in progress, because the server is shutting down.
    pub fn abort_start(&self) {
        if let Lifecycle::Starting(attempt) = &self.state().lifecycle {
            attempt.abort();
        }
    }

    /// Waits until the direct child has exited.
    pub async fn exited(&self) {
        self.until(|state| state.exit.is_some()).await;
    }

    /// Waits until the log is closed.
    async fn closed(&self) {
        self.until(|state| state.kind.log_state().is_closed()).await;
    }

    async fn until(&self, holds: impl Fn(&ProcessState<A, K::State>) -> bool) {
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

    /// Locks the state.
    pub fn state(&self) -> StateGuard<'_, A, K> {
        StateGuard(lock(&self.state))
    }
}

impl<A: Audience> Core<A> {
    /// Wakes the task: the log may have room again.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    pub fn owner(&self) -> Option<Arc<A::Owner>> {
        self.owner.upgrade()
    }

    pub fn host(&self) -> &Arc<Host> {
        &self.host
    }

    /// Records whether the process counts as not closed; returns whether that changed.
    pub fn set_live(&self, is_live: bool) -> bool {
        self.is_live.swap(is_live, Ordering::Relaxed) != is_live
    }

    /// Returns whether the owner counts the process as not closed.
    pub fn is_live(&self) -> bool {
        self.is_live.load(Ordering::Relaxed)
    }

    /// Charges the account with what the log needs now.
    pub fn charge<S: KindState + ?Sized>(&self, state: &mut ProcessState<A, S>) {
        let memory = state.kind.log_state().memory();
        self.account.charge(account::Kind::Output, state.charged, memory);
        state.charged = memory;
    }
}

/// The locked state of a process; when the lock is released, its log frees what readers have taken, and its input is
/// charged.
#[derive(Debug)]
pub struct StateGuard<'a, A: Audience, K: Kind<A>>(MutexGuard<'a, ProcessState<A, K::State>>);

impl<A: Audience, K: Kind<A>> Deref for StateGuard<'_, A, K> {
    type Target = ProcessState<A, K::State>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<A: Audience, K: Kind<A>> DerefMut for StateGuard<'_, A, K> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl<A: Audience, K: Kind<A>> Drop for StateGuard<'_, A, K> {
    fn drop(&mut self) {
        self.0.kind.on_unlock();
    }
}

impl<A: Audience, K: Kind<A>> Drop for Engine<A, K> {
    fn drop(&mut self) {
        let charged = self.state().charged;
        self.account.charge(account::Kind::Output, charged, 0);
    }
}

impl<A: Audience> ProcessState<A> {
    /// Returns what must stay in the log.
    fn hold(&mut self, rules: &ChildRules, limits: &Limits, holding: Holding, now: Instant) -> Hold {
        match (self.audience.hold(&self.kind, rules, limits, holding, now), self.kind.oldest_search()) {
            (Hold::After(seq), Some(searched)) if rules.overflow != wire::Overflow::Evict => {
                Hold::After(seq.min(searched))
            }
            (hold, _) => hold,
        }
    }
}

impl<A: Audience, S: ?Sized> ProcessState<A, S> {
    /// Returns when to check a full log again even if no acknowledgement arrives.
    fn recheck_at(&self, rules: &ChildRules, limits: &Limits) -> Option<Instant> {
        self.full.then(|| self.audience.hold_changes_at(rules, limits)).flatten()
    }

    /// Returns whether the task waits for room in the log.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Removes all queued input that `is_cancelled` selects and returns its callers.
    fn cancel_queued(&mut self, is_cancelled: impl Fn(&A::Caller) -> bool) -> Vec<A::Caller> {
        let (cancelled, kept) = std::mem::take(&mut self.requests)
            .into_iter()
            .partition::<VecDeque<_>, _>(|request| request.is_input() && is_cancelled(request.caller()));
        self.requests = kept;
        cancelled.into_iter().map(Request::into_caller).collect()
    }
}

//! The engine of one process: starts the child, moves its bytes, carries out requests, and records its end.
//!
//! The task in [`task`] owns the child and is the only writer of the log. Everything else reads the log with a
//! cursor or queues a [`Request`]. The engine knows no session, no connection and no outbox: its [`Audience`]
//! reads the log, a [`Caller`] sends requests, and an [`Owner`] owns it. Start at [`Engine`].

mod as_user;
mod audience;
pub(crate) mod broken;
mod coalesce;
mod denied;
mod draining;
mod eviction;
mod footprint;
mod in_keeper;
mod incarnation;
mod input;
mod leaving;
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
    time::{Duration, Instant},
};

use remex_access::account::{Account, Charge, Kind};
use remex_base::{clock::now_ms, limits::Limits, lock};
use remex_process::{Attempt, Leader, Pid, Tag, tree};
use remex_proto::{
    process::{self as wire, ExitCause},
    state::output::Hold,
};
use tokio::sync::Notify;

use crate::{
    shared::{host::Host, proxy::Denials},
    state::keeper_link::{
        KeeperLink,
        message::{ExitRecord, Key},
    },
};

pub(crate) use audience::{Audience, Caller, Holding, Outcome};
use coalesce::ReadCoalescing;
use eviction::Evictions;
pub(crate) use in_keeper::KeptSpec;
use input::Input;
pub(crate) use input::StdinWrite;
use leaving::Leaving;
pub(crate) use leaving::ProcessRecord;
pub(crate) use load::Backoff;
pub(crate) use log::{
    Block, DiskLogView, DiskLogWriter, LogReader, LogState, LogWriter, ProcessLog, ServerLog, SyncJob,
    SyncStep,
};
pub(crate) use owner::{Owner, PendingDecision};
pub(crate) use read::{NotRead, Read, ReadExtent, StoredRead, unreadable};
pub(crate) use remote_process::Description;
use remote_process::Forwarded;
pub(crate) use request::{Request, unknown_process};
use request::{no_end_of_input, not_a_terminal};
use searches::Searches;
pub(crate) use snapshot::{SnapshotUse, Snapshots};
pub(crate) use spec::Spec;
pub(crate) use start::{Command, HANG_THRESHOLD, Starting};
pub(crate) use start_request::{StartFloor, StartRequest};
pub(crate) use task::GATHER;
use terminate::GracefulTerminations;
pub(crate) use wait::Waiter;

/// A handle on one process.
#[derive(Debug)]
pub(crate) struct Engine<A: Audience> {
    pub(crate) id: Box<str>,
    owner: Weak<A::Owner>,
    host: Arc<Host>,
    /// The account that its log and its input are charged to.
    account: Arc<Account>,
    /// What else it keeps: ids, the command line, labels.
    kept: Charge,
    pub(crate) spec: Spec,
    pub(crate) tag: Tag,
    /// Where the child runs.
    place: Place,
    /// Shared by the task, which writes the log, and by readers and callers; held briefly.
    state: Mutex<ProcessState<A>>,
    /// Graceful terminations in progress. Separate from the state, which is locked when some of them begin;
    /// held briefly.
    graceful_terminations: Mutex<GracefulTerminations>,
    /// Wakes the task: requests were queued, or the log may have room again.
    wake: Notify,
    /// Wakes reads, searches and waits for silence: the log has new events.
    output: Notify,
    /// Wakes waits for the start, the exit and the close, which output does not.
    changed: Notify,
    /// Whether the owner counts the process among those that are not closed.
    is_live: AtomicBool,
}

/// Where a child runs.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// In this process.
    Here,
    /// In the keeper.
    Keeper { link: Arc<KeeperLink>, key: Key },
}

/// The mutable state of a process.
#[derive(Debug)]
pub(crate) struct ProcessState<A: Audience> {
    lifecycle: Lifecycle,
    /// The child of a start that is not answered yet. If the task panics, it is killed with its tree.
    unannounced_child: Option<Leader>,
    requests: VecDeque<Request<A::Caller>>,
    pub(crate) log: A::Log,
    pub(crate) audience: A,
    input: Input<A::Caller>,
    /// The memory of `input`.
    input_charge: Charge,
    /// Whether another program will go on with it.
    leaving: Leaving<A>,
    /// Requests that the keeper has not answered.
    forwarded: Forwarded<A::Caller>,
    searches: Searches,
    pub(crate) exit: Option<Exit>,
    ended_at_ms: Option<u64>,
    /// The hosts that its sandbox refuses, if it reaches any through the proxy.
    pub(crate) denials: Option<Arc<Denials>>,
    /// Why the server ended it, if it did.
    ended_for: Option<ExitCause>,
    /// When output last arrived, for the idle timeout.
    last_output: Instant,
    /// Whether the task delays its next read.
    coalescing: ReadCoalescing,
    /// When the audience was last notified.
    last_notified: Instant,
    /// The client has written since the last notification: the next output answers it and is announced at once.
    answer_due: bool,
    /// The task waits for room in the log.
    full: bool,
    /// What is left of the output, once nothing writes to it any more, is to be read even if the log is full.
    reads_rest: bool,
    /// Bytes charged to the account.
    charged: usize,
    /// The task panicked.
    is_broken: bool,
    evictions: Evictions,
}

#[derive(Clone, Debug)]
enum Lifecycle {
    Starting(Attempt),
    Running {
        child: Running,
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

/// A child that runs.
#[derive(Clone, Debug)]
enum Running {
    Here(Leader),
    Keeper(Pid),
}

impl Running {
    fn pid(&self) -> Pid {
        match self {
            Running::Here(leader) => leader.pid(),
            Running::Keeper(pid) => *pid,
        }
    }
}

/// How the direct child exited.
#[derive(Clone, Debug)]
pub(crate) struct Exit {
    pub(crate) code: i32,
    pub(crate) signal: Option<String>,
    pub(crate) cause: ExitCause,
    pub(crate) usage: wire::Usage,
    /// Whether the sandbox probably caused a failure.
    pub(crate) sandbox_denied: bool,
}

impl Exit {
    fn record(&self, at_ms: u64) -> ExitRecord {
        let Exit { code, cause, usage, .. } = *self;
        ExitRecord { code, signal: self.signal.clone(), cause, usage, at_ms }
    }
}

/// The owner, host and account of a new process.
#[derive(Debug)]
pub(crate) struct Placement<'a, A: Audience> {
    pub(crate) owner: Weak<A::Owner>,
    pub(crate) host: &'a Arc<Host>,
    pub(crate) account: &'a Arc<Account>,
    pub(crate) tag: Tag,
    pub(crate) place: Place,
}

impl<A: Audience> Engine<A> {
    fn new(id: String, spec: Spec, placement: Placement<'_, A>, log: A::Log, audience: A) -> Self {
        let (now, limits) = (Instant::now(), placement.host.limits());
        let charge = |kind| placement.account.take(kind, 0);
        Engine {
            kept: charge(Kind::Processes),
            id: id.into(),
            owner: placement.owner,
            host: Arc::clone(placement.host),
            account: Arc::clone(placement.account),
            tag: placement.tag,
            place: placement.place,
            state: Mutex::new(ProcessState {
                lifecycle: Lifecycle::Starting(Attempt::default()),
                unannounced_child: None,
                requests: VecDeque::new(),
                log,
                audience,
                input: Input::new(&limits, placement.account),
                input_charge: charge(Kind::Input),
                leaving: Leaving::No,
                forwarded: Forwarded::default(),
                searches: Searches::default(),
                exit: None,
                ended_at_ms: None,
                denials: None,
                ended_for: None,
                last_output: now,
                coalescing: ReadCoalescing::default(),
                last_notified: now.checked_sub(GATHER).unwrap_or(now),
                answer_due: true,
                full: false,
                reads_rest: false,
                charged: 0,
                is_broken: false,
                evictions: Evictions::default(),
            }),
            spec,
            graceful_terminations: Mutex::default(),
            wake: Notify::new(),
            output: Notify::new(),
            changed: Notify::new(),
            is_live: AtomicBool::new(false),
        }
    }

    /// Queues a request, which the task handles after the start. Answers it directly if the task has ended.
    pub(crate) fn request(self: &Arc<Self>, request: Request<A::Caller>) {
        let mut state = self.state();
        // The client sends unanswered input again after it reconnects. If the process took it now, it would
        // precede input that was sent earlier.
        if request.is_input() && request.caller().is_disconnected() {
            drop(state);
            return;
        }
        match state.lifecycle {
            Lifecycle::Running { child: Running::Keeper(_), .. } => self.forward(&mut state, request),
            Lifecycle::Starting(_) | Lifecycle::Running { .. } => {
                state.requests.push_back(request);
                drop(state);
                self.wake.notify_one();
            }
            // The keeper knows whether it accepted the write earlier.
            Lifecycle::Over { .. } if matches!(request, Request::Write(_)) && self.has_keeper() => {
                self.forward(&mut state, request);
            }
            Lifecycle::Over { .. } => request.answer_closed(self, &mut state.input),
            Lifecycle::Failed => {
                drop(state);
                request.answer_unknown();
            }
        }
    }

    /// Cancels all pending input that `is_cancelled` selects; returns whether there was any.
    ///
    /// What the keeper has not accepted is cancelled there, and answered when that is certain.
    pub(crate) fn cancel_input(&self, is_cancelled: impl Fn(&A::Caller) -> bool) -> bool {
        let mut state = self.state();
        let (is_asked, withdrawn) = self.cancel_forwarded(&mut state, &is_cancelled);
        let cancelled = state.cancel_input(is_cancelled);
        drop(state);
        is_asked || !withdrawn.is_empty() || !cancelled.is_empty()
    }

    /// Wakes the task: the log may have room again.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    pub(crate) fn owner(&self) -> Option<Arc<A::Owner>> {
        self.owner.upgrade()
    }

    pub(crate) fn host(&self) -> &Arc<Host> {
        &self.host
    }

    /// Notifies the audience, reads and waits of new events in the log.
    pub(crate) fn notify(self: &Arc<Self>, state: &mut ProcessState<A>) {
        A::on_events(self, state);
        state.last_notified = Instant::now();
        state.answer_due = false;
        self.output.notify_waiters();
        if state.exit.is_some() || state.log.is_closed() {
            self.changed.notify_waiters();
        }
    }

    /// Announces output at once after a quiet period or after input, and gathers it while output continues.
    ///
    /// Returns the latest time for the notification if it was deferred.
    fn announce(self: &Arc<Self>, state: &mut ProcessState<A>, now: Instant) -> Option<Instant> {
        let is_due = state.answer_due
            || now >= state.last_notified + GATHER
            || state.audience.has_large_backlog(&state.log);
        if is_due {
            self.notify(state);
            return None;
        }
        Some(state.last_notified + GATHER)
    }

    /// Returns whether the log is closed: no further event follows.
    pub(crate) fn is_closed(&self) -> bool {
        self.state().log.is_closed()
    }

    /// Records whether the process counts as not closed; returns whether that changed.
    pub(crate) fn set_live(&self, is_live: bool) -> bool {
        self.is_live.swap(is_live, Ordering::Relaxed) != is_live
    }

    /// Returns whether the owner counts the process as not closed.
    pub(crate) fn is_live(&self) -> bool {
        self.is_live.load(Ordering::Relaxed)
    }

    /// Ends the task: from now on, requests are answered without it.
    fn retire(self: &Arc<Self>) {
        let mut state = self.state();
        if let Lifecycle::Running { child, started_at_ms } = &state.lifecycle {
            state.lifecycle = Lifecycle::Over { pid: Some(child.pid()), started_at_ms: *started_at_ms };
        }
        while let Some(request) = state.requests.pop_front() {
            request.answer_closed(self, &mut state.input);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Waits until the start has succeeded or failed, or until `deadline`; returns `false` if it failed.
    pub(crate) async fn started(&self, deadline: Option<Instant>) -> bool {
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
    pub(crate) fn will_end_for(&self, cause: ExitCause) {
        let mut state = self.state();
        if state.exit.is_none() {
            state.ended_for.get_or_insert(cause);
        }
    }

    /// Kills the process after its session has ended; its output is no longer held for anyone.
    ///
    /// Returns whether the start is still in progress, so that a child may appear later.
    pub(crate) fn abandon(&self) -> bool {
        let mut state = self.state();
        state.audience.on_abandoned();
        match &state.lifecycle {
            Lifecycle::Starting(attempt) => attempt.abort(),
            // Ending the session kills everything with its tag and reports failures; this also kills processes
            // that have lost the tag.
            Lifecycle::Running { child: Running::Here(leader), .. } => {
                drop(tree::kill_start(self.tag, leader));
            }
            Lifecycle::Running { child: Running::Keeper(_), .. } => self.abandon_kept(),
            _ => {}
        }
        let is_starting = matches!(state.lifecycle, Lifecycle::Starting(_));
        drop(state);
        self.wake.notify_one();
        is_starting
    }

    /// Aborts the start if it is still in progress, because the server is shutting down.
    pub(crate) fn abort_start(&self) {
        if let Lifecycle::Starting(attempt) = &self.state().lifecycle {
            attempt.abort();
        }
    }

    /// Returns how much the log may hold now, given what session and server have left.
    fn budget(&self, state: &ProcessState<A>) -> usize {
        let chunk = self.host.limits().chunk_bytes;
        state.log.footprint().saturating_add(self.account.left(Kind::Output)).max(chunk)
    }

    /// Charges the account with what the log needs now.
    pub(crate) fn charge(&self, state: &mut ProcessState<A>) {
        let memory = state.log.memory();
        self.account.charge(Kind::Output, state.charged, memory);
        state.charged = memory;
    }

    pub(crate) fn state(&self) -> StateGuard<'_, A> {
        StateGuard(lock(&self.state))
    }
}

/// The locked state of a process; when the lock is released, its log frees what readers have taken, and its input is
/// charged.
#[derive(Debug)]
pub(crate) struct StateGuard<'a, A: Audience>(MutexGuard<'a, ProcessState<A>>);

impl<A: Audience> Deref for StateGuard<'_, A> {
    type Target = ProcessState<A>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<A: Audience> DerefMut for StateGuard<'_, A> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl<A: Audience> Drop for StateGuard<'_, A> {
    fn drop(&mut self) {
        self.0.log.release();
        self.0.input_charge.set(self.0.input.memory());
    }
}

impl<A: Audience> Drop for Engine<A> {
    fn drop(&mut self) {
        let charged = self.state().charged;
        self.account.charge(Kind::Output, charged, 0);
    }
}

impl<A: Audience> ProcessState<A> {
    /// Returns what must stay in the log.
    fn hold(&mut self, spec: &Spec, limits: &Limits, holding: Holding, now: Instant) -> Hold {
        match (self.audience.hold(&self.log, spec, limits, holding, now), self.searches.oldest()) {
            (Hold::After(seq), Some(searched)) if spec.overflow != wire::Overflow::Evict => {
                Hold::After(seq.min(searched))
            }
            (hold, _) => hold,
        }
    }

    /// Returns when to check a full log again even if no acknowledgement arrives.
    fn recheck_at(&self, spec: &Spec, limits: &Limits) -> Option<Instant> {
        self.full.then(|| self.audience.hold_changes_at(spec, limits)).flatten()
    }

    /// Returns whether the task waits for room in the log.
    pub(crate) fn is_full(&self) -> bool {
        self.full
    }

    /// Removes all pending input that `is_cancelled` selects and returns its callers.
    fn cancel_input(&mut self, is_cancelled: impl Fn(&A::Caller) -> bool) -> Vec<A::Caller> {
        let (cancelled, kept) = std::mem::take(&mut self.requests)
            .into_iter()
            .partition::<VecDeque<_>, _>(|request| request.is_input() && is_cancelled(request.caller()));
        self.requests = kept;
        let mut cancelled: Vec<_> = cancelled.into_iter().map(Request::into_caller).collect();
        cancelled.extend(self.input.cancel(is_cancelled));
        cancelled
    }

    /// Returns when the process will have been idle for `time`; `None` while its output is not being read.
    fn idle_at(&self, time: Duration) -> Option<Instant> {
        if self.full { None } else { self.coalescing.idle_at(self.last_output, time) }
    }

    fn exited(&mut self, exit: Exit) {
        self.ended_at_ms = Some(now_ms());
        if let Some(log) = self.log.writer() {
            log.note_exit(exit.record(now_ms()));
        }
        self.exit = Some(exit);
    }

    /// Evicts what exceeds the limits, and returns how many bytes that was.
    fn evict(&mut self, hold: Hold, budget: usize) -> u64 {
        let before = self.log.evicted_bytes();
        if let Some(log) = self.log.writer() {
            log.evict(hold, budget);
        }
        self.log.evicted_bytes() - before
    }

    /// Records the exit in the log.
    fn push_exited(&mut self) {
        let now = now_ms();
        let at_ms = self.ended_at_ms.unwrap_or(now);
        let record = self.exit.as_ref().map_or_else(|| ExitRecord::lost(at_ms), |exit| exit.record(at_ms));
        if let Some(log) = self.log.writer() {
            log.push_exited(now, &record);
        }
    }

    /// Records in the log that no more events will follow.
    fn push_closed(&mut self) {
        if let Some(log) = self.log.writer() {
            log.push_closed(now_ms());
        }
        self.full = false;
    }
}

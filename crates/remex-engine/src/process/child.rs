//! The part of a process whose child this program runs itself, in a server or in the keeper. Start at [`ChildState`].

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use remex_access::account::{self, Account, Charge};
use remex_base::{clock::now_ms, limits::Limits};
use remex_process::{Leader, tree};
use remex_proto::state::output::Hold;

use super::{
    Audience, Engine, Exit, Holding, Kind, KindState, LogWriter, ProcessState, Request,
    coalesce::ReadCoalescing,
    input::Input,
    start::ConfinementLevel,
    task::{NOTIFY_INTERVAL, ProcessTask},
};
use crate::{shared::host::Host, state::keeper_link::message::ExitRecord};

/// A kind of process that has a child.
pub trait RunsChild<A: Audience>: Kind<A, State: HasChild<A::Caller>> {
    /// Enforces the limits of the child.
    type Limits: ChildLimits;

    /// Returns the incarnation, which distinguishes this start from others under the same id, if it is known.
    fn incarnation(&self) -> Option<u64>;

    /// Records whether the sandbox probably caused a failure, now that all output before the exit is in the log.
    fn judge_failure(state: &mut ProcessState<A, Self::State>, limits: &Self::Limits);

    /// Returns the task, unless it has to pause here for a handover.
    fn pause_if_requested(task: ProcessTask<A, Self>) -> Option<ProcessTask<A, Self>>;
}

/// Enforces the limits of a child, besides its jail.
pub trait ChildLimits: Send + Sync + 'static {
    /// Returns what the answer to the start says of its sandbox.
    fn level(&self) -> ConfinementLevel;

    /// Returns how many processes of its own cgroup the kernel has killed for lack of memory, if it has one.
    fn oom_kills(&self) -> Option<u64>;

    /// Kills everything in its own cgroup, if it has one.
    fn kill(&self) -> io::Result<()>;

    /// Called when the process has closed.
    fn on_closed(self, host: &Arc<Host>);
}

/// The state of a process with a child.
pub trait HasChild<C>: KindState {
    fn child(&self) -> &ChildState<C>;

    fn child_mut(&mut self) -> &mut ChildState<C>;

    fn writer(&mut self) -> &mut dyn LogWriter;
}

/// The mutable state of a child.
#[derive(Debug)]
pub struct ChildState<C> {
    /// The child, until its task has ended. If the task panics, it is killed with its tree.
    pub(super) leader: Option<Leader>,
    pub(super) input: Input<C>,
    /// The memory of `input`.
    input_charge: Charge,
    /// Whether the task delays its next read.
    pub(super) coalescing: ReadCoalescing,
    /// When the audience was last notified.
    pub(super) last_notified: Instant,
    /// The client has written since the last notification: the next output answers it and is announced at once.
    pub(super) answer_due: bool,
}

impl<C: super::Caller> ChildState<C> {
    pub(super) fn new(input: Input<C>, account: &Arc<Account>) -> Self {
        let now = Instant::now();
        ChildState {
            leader: None,
            input,
            input_charge: account.take(account::Kind::Input, 0),
            coalescing: ReadCoalescing::default(),
            last_notified: now.checked_sub(NOTIFY_INTERVAL).unwrap_or(now),
            answer_due: true,
        }
    }

    pub(super) fn on_notified(&mut self, now: Instant) {
        (self.last_notified, self.answer_due) = (now, false);
    }

    pub(super) fn charge_input(&mut self) {
        self.input_charge.set(self.input.memory());
    }
}

/// Queues a request for the task.
pub(super) fn queue<A: Audience, K: Kind<A>>(
    process: &Engine<A, K>,
    state: &mut ProcessState<A, K::State>,
    request: Request<A::Caller>,
) {
    state.requests.push_back(request);
    process.wake();
}

/// Kills a running child with its tree.
pub(super) fn kill<A: Audience, K: Kind<A>>(process: &Engine<A, K>, child: &ChildState<A::Caller>) {
    // Ending the session kills everything with its tag and reports failures; this also kills processes that have lost
    // the tag.
    if let Some(leader) = &child.leader {
        drop(tree::kill_start(process.tag, leader));
    }
}

/// Ends the log of a process whose task panicked.
pub(super) fn end_log<A: Audience, S: HasChild<A::Caller>>(state: &mut ProcessState<A, S>) {
    state.kind.child_mut().input.closed();
    state.note_exit();
    if state.kind.writer().exited().is_none() {
        state.push_exited();
    }
    if !state.kind.writer().is_closed() {
        state.push_closed();
    }
}

impl<A: Audience, K: RunsChild<A>> Engine<A, K> {
    /// Announces output at once after a quiet period or after input, and gathers it while output continues.
    ///
    /// Returns the latest time for the notification if it was deferred.
    pub(super) fn announce(
        self: &Arc<Self>,
        state: &mut ProcessState<A, K::State>,
        now: Instant,
    ) -> Option<Instant> {
        let child = state.kind.child();
        let (answer_due, at) = (child.answer_due, child.last_notified + NOTIFY_INTERVAL);
        let view = K::view(state);
        if answer_due || now >= at || view.audience.has_large_backlog(&view.kind) {
            self.notify(state);
            return None;
        }
        Some(at)
    }

    /// Returns how much the log may hold now, given what session and server have left.
    pub(super) fn budget(&self, state: &ProcessState<A, K::State>) -> usize {
        let chunk = self.host.limits().chunk_bytes;
        state.kind.log_state().footprint().saturating_add(self.account.left(account::Kind::Output)).max(chunk)
    }

    /// Returns what must stay in the log, and how many bytes may be appended now: `rest` of them even if it is full.
    ///
    /// The rest is what is left once nothing writes to the output any more: at most what two pipes or a terminal can
    /// buffer, once. Until it is in the log, the process does not close.
    pub(super) fn room(
        &self,
        state: &mut ProcessState<A, K::State>,
        limits: &Limits,
        budget: usize,
        rest: usize,
        now: Instant,
    ) -> (Hold, usize) {
        let rules = self.kind.rules();
        let generous = K::view(state).hold(rules, limits, Holding::Generous, now);
        let room = state.kind.writer().room(generous, budget);
        if room > 0 {
            return (generous, room);
        }
        let least = K::view(state).hold(rules, limits, Holding::Least, now);
        let log = state.kind.writer();
        match log.room(least, budget) {
            0 if rest > 0 => (least, log.room_for_rest(least).min(rest)),
            room => (least, room),
        }
    }
}

impl<A: Audience, S: HasChild<A::Caller>> ProcessState<A, S> {
    /// Returns when the process will have been idle for `time`; `None` while its output is not being read.
    pub(super) fn idle_at(&self, time: Duration) -> Option<Instant> {
        if self.full { None } else { self.kind.child().coalescing.idle_at(self.last_output, time) }
    }

    pub(super) fn exited(&mut self, exit: Exit) {
        self.ended_at_ms = Some(now_ms());
        self.exit = Some(exit);
        self.note_exit();
    }

    /// Tells the log how the process ended, before that is in it.
    fn note_exit(&mut self) {
        if let (Some(exit), Some(at_ms)) = (&self.exit, self.ended_at_ms) {
            self.kind.writer().note_exit(exit.record(at_ms));
        }
    }

    /// Evicts what exceeds the limits, and returns how many bytes that was.
    pub(super) fn evict(&mut self, hold: Hold, budget: usize) -> u64 {
        let log = self.kind.writer();
        let before = log.evicted_bytes();
        log.evict(hold, budget);
        log.evicted_bytes() - before
    }

    /// Records the exit in the log.
    pub(super) fn push_exited(&mut self) {
        let now = now_ms();
        let at_ms = self.ended_at_ms.unwrap_or(now);
        let record = self.exit.as_ref().map_or_else(|| ExitRecord::lost(at_ms), |exit| exit.record(at_ms));
        self.kind.writer().push_exited(now, &record);
    }

    /// Records in the log that no more events will follow.
    pub(super) fn push_closed(&mut self) {
        self.kind.writer().push_closed(now_ms());
        self.full = false;
    }
}

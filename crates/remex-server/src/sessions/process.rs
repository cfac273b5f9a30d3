//! A process as connections see it: which connections follow it, how fast, and what is held for them.
//!
//! The [`remex_engine::Engine`] runs the child; [`Followers`] are its audience and stream its log to connections. Start at
//! [`Process`].

mod control;
mod follow;
mod ledger;
mod loading;
mod read;
mod succession;
mod window;

use std::{
    ops::Deref,
    sync::Arc,
    time::{Duration, Instant},
};

use remex_base::{deadlines::Deadline, limits::Limits};
use remex_engine::{
    Audience, Caller, ChildRules, Holding, Outcome, Owner, ProcessState, ServedState, ServerAudience,
    ServerProcess, WeakServerProcess,
};
use remex_proto::{
    RpcError,
    process::Overflow,
    state::output_log::{Hold, Seq},
};
use tokio::sync::Notify;

use crate::outbox::{ConnectionId, Responder};
use control::Control;
use follow::Follow;
pub(crate) use follow::{StartAt, Viewer};
use ledger::Ledger;
pub(crate) use succession::Standing;
use succession::Succession;

/// A process that connections can follow.
#[derive(Clone, Debug)]
pub(crate) struct Process(ServerProcess<Followers>);

pub(crate) type WeakProcess = WeakServerProcess<Followers>;

/// The connections that follow a process, and what is held for the one that controls it.
#[derive(Debug)]
pub(crate) struct Followers {
    /// The process id as a JSON string, escaped once.
    id_json: Box<str>,
    follows: Vec<Follow>,
    control: Control,
    ledger: Ledger,
    /// The retention time is over, but the client has not received everything.
    overdue: bool,
    /// When the process is forgotten; dropped with the process.
    deadline: Option<Deadline>,
    /// The connection that the last input came on, where that is recorded.
    input_of: Option<ConnectionId>,
    /// Notified when a client has read more of what it missed, or has gone.
    reading: Arc<Notify>,
    succession: Succession,
}

/// An owner of processes that connections can follow: a session.
pub(crate) trait ProcessOwner: Owner<Followers> {
    /// Returns how the controlling connection follows a process, if it is `connection`.
    fn controller(&self, connection: ConnectionId) -> Option<Viewer>;

    /// Returns whether it still has a process.
    fn has(&self, process: &Process) -> bool;

    /// Forgets a closed process: frees its id and drops its output.
    fn forget(&self, process: &Process);
}

impl Followers {
    pub(crate) fn new(process_id: &str) -> Self {
        Followers {
            id_json: follow::quoted(process_id),
            follows: Vec::new(),
            control: Control::default(),
            ledger: Ledger::default(),
            overdue: false,
            deadline: None,
            input_of: None,
            reading: Arc::default(),
            succession: Succession::default(),
        }
    }
}

impl Followers {
    /// Returns the followers of a process of an earlier server, whose client has received everything up to an event and
    /// the bytes of output up to it; `None` if nothing was held for it.
    pub(crate) fn restored(process_id: &str, received: Option<(Seq, u64)>) -> Self {
        let control = Control::restored(received, Instant::now());
        Followers { control, ..Followers::new(process_id) }
    }
}

impl Audience for Followers {
    type Caller = Responder;
    type State = dyn ServedState;
    type Handle = ServerProcess<Self>;
    type Owner = dyn ProcessOwner;

    fn hold(
        &mut self,
        state: &Self::State,
        rules: &ChildRules,
        limits: &Limits,
        holding: Holding,
        now: Instant,
    ) -> Hold {
        match rules.overflow {
            Overflow::Evict => Hold::Nothing,
            Overflow::Pause | Overflow::Hold => self.control.hold(state.log(), rules, limits, holding, now),
        }
    }

    fn on_full(&self) {
        for follow in self.follows.iter().filter(|follow| follow.controls) {
            if self.control.lacks(follow.cursor.seq) {
                follow.want_mark();
            }
        }
    }

    fn end_of(&self, seq: Seq) -> Option<u64> {
        self.control.end_of(seq)
    }

    fn hold_changes_at(&self, rules: &ChildRules, limits: &Limits) -> Option<Instant> {
        self.control.hold_ends_at(rules, limits)
    }

    fn on_events(process: &ServerProcess<Self>, state: &mut ProcessState<Self>) {
        follow::queue(process, state);
    }

    fn has_large_backlog(&self, state: &Self::State) -> bool {
        self.follows.iter().any(|follow| follow.has_large_backlog(state.log()))
    }

    fn on_abandoned(&mut self) {
        self.control.on_abandoned();
    }
}

impl ServerAudience for Followers {
    fn on_expired(process: &ServerProcess<Self>) {
        Process::of(process).forget_if_settled();
    }

    fn expire_early(process: &ServerProcess<Self>) -> bool {
        let process = Process::of(process);
        if process.is_spared() {
            return false;
        }
        match (process.standing(), process.owner()) {
            (Standing::Replaced, Some(owner)) => owner.forget(&process),
            _ => process.forget_if_settled(),
        }
        true
    }
}

impl Caller for Responder {
    fn is_disconnected(&self) -> bool {
        self.outbox().is_disconnected()
    }

    fn answer(mut self, outcome: Result<Outcome, RpcError>) {
        if let Some(told) = self.take_internal_caller() {
            return drop(told.send(outcome.map(|_| None)));
        }
        match outcome {
            Ok(Outcome::Done(reply)) => self.ok(reply),
            Ok(Outcome::Written(reply)) => self.ok(reply),
            Ok(Outcome::Terminated(reply)) => self.ok(reply),
            Err(error) => self.error(&error),
        }
    }
}

impl Deref for Process {
    type Target = ServerProcess<Followers>;

    fn deref(&self) -> &ServerProcess<Followers> {
        &self.0
    }
}

impl From<ServerProcess<Followers>> for Process {
    fn from(process: ServerProcess<Followers>) -> Self {
        Process(process)
    }
}

impl From<Process> for ServerProcess<Followers> {
    fn from(process: Process) -> Self {
        process.0
    }
}

impl Process {
    /// Returns the process that the engine knows.
    pub(crate) fn of(process: &ServerProcess<Followers>) -> Self {
        Process(process.clone())
    }

    /// Forgets the process after `ttl`; replaces any earlier deadline.
    pub(crate) fn forget_after(&self, ttl: Duration) {
        let Some(at) = Instant::now().checked_add(ttl) else { return };
        let deadline = match &self.0 {
            ServerProcess::Local(process) => self.host().deadlines().add(process, at),
            ServerProcess::Remote(process) => self.host().deadlines().add(process, at),
        };
        let earlier = self.state().audience.deadline.replace(deadline);
        drop(earlier);
    }

    /// Returns whether its session has no longer this process.
    pub(crate) fn is_forgotten(&self) -> bool {
        self.owner().is_none_or(|owner| !owner.has(self))
    }

    /// Forgets the closed process, unless a connected client has not received everything, or one that holds output has
    /// not acknowledged it; then it is forgotten as soon as the client has.
    pub(crate) fn forget_if_settled(&self) {
        let Some(owner) = self.owner() else { return };
        let mut state = self.state();
        let ProcessState { audience, kind, .. } = &mut *state;
        audience.overdue = audience.is_awaited(kind.log(), &self.spec().rules);
        let is_settled = !audience.overdue;
        if !is_settled {
            audience.want_mark();
        }
        drop(state);
        if is_settled {
            owner.forget(self);
        }
    }

    /// Returns whether no connected client still waits for output.
    pub(crate) fn is_settled(&self) -> bool {
        let state = self.state();
        !state.audience.is_awaited(state.kind.log(), &self.spec().rules)
    }
}

//! What differs between the kinds of processes, and the local kind: children of the server itself.
//!
//! There are three kinds: a child of a server ([`Local`]), a child in its keeper, and what a server sees of that. Clients
//! read the first and the last; the first two have a child. Start at [`Kind`].

use std::{fmt, sync::Arc, time::Instant};

use remex_access::account::{self, Account, Charge};
use remex_process::Leader;
use remex_proto::state::{output::Seq, output_log::OutputLog};
use tokio::sync::Notify;

use super::{
    Audience, ChildRules, ChildState, Engine, LogWriter, ProcessLog, ProcessState, Request, ServerAudience,
    ServerLog, ServerProcess, Spec, StdinWrite,
    child::{self, HasChild, RunsChild},
    launch::Confinement,
    searches::Searches,
    task::ProcessTask,
    terminate,
};
use crate::shared::proxy::Denials;

/// One of the three kinds of processes, with its immutable part.
pub trait Kind<A: Audience>: fmt::Debug + Send + Sync + Sized + 'static {
    /// Its mutable part, within the state of the process.
    type State: KindState;

    fn rules(&self) -> &ChildRules;

    /// Returns the process as its owner and its audience know it.
    fn handle(process: &Arc<Engine<A, Self>>) -> A::Handle;

    /// Returns the state as its audience sees it.
    fn view(state: &mut ProcessState<A, Self::State>) -> &mut ProcessState<A>;

    /// Wakes those that wait for output.
    fn on_output(&self);

    /// Carries out a request of a running process, or queues it for its task.
    fn request(
        process: &Arc<Engine<A, Self>>,
        state: &mut ProcessState<A, Self::State>,
        request: Request<A::Caller>,
    );

    /// Cancels input that left the queue of requests; returns whether the keeper was asked to, and the callers of what is
    /// cancelled without it, which are dropped after the lock is released.
    fn cancel_input(
        process: &Engine<A, Self>,
        state: &mut ProcessState<A, Self::State>,
        is_cancelled: &dyn Fn(&A::Caller) -> bool,
    ) -> (bool, Vec<A::Caller>);

    /// Requests that the rest of the output is read, whichever program runs the child.
    fn read_rest(process: &Engine<A, Self>);

    /// Called when the task has ended.
    fn on_retired(state: &mut Self::State);

    /// Kills a running process whose session has ended.
    fn kill(process: &Engine<A, Self>, state: &Self::State);

    /// Answers a write to a closed process.
    fn write_closed(
        process: &Arc<Engine<A, Self>>,
        state: &mut ProcessState<A, Self::State>,
        write: StdinWrite<A::Caller>,
    );

    /// Kills everything that is left of an exited process.
    fn kill_remaining(process: &Arc<Engine<A, Self>>, caller: A::Caller);

    /// Returns the child, if this program runs it and its task has not ended.
    fn leader(state: &Self::State) -> Option<Leader>;

    /// Ends the log of a process whose task panicked.
    fn end_log(state: &mut ProcessState<A, Self::State>);
}

/// The mutable state of one kind of process.
pub trait KindState: fmt::Debug + Send + 'static {
    fn log_state(&self) -> &dyn ProcessLog;

    /// Returns the event up to which all searches that hold output have read.
    fn oldest_search(&self) -> Option<Seq>;

    /// Called when the audience was notified.
    fn on_notified(&mut self, now: Instant);

    /// Called when the state is unlocked.
    fn on_unlock(&mut self);
}

/// What clients of a server read a process by.
pub trait ServedState: KindState {
    /// Returns the log.
    fn log(&self) -> &dyn ServerLog;

    /// Returns the log to move cursors in it.
    fn log_mut(&mut self) -> &mut dyn ServerLog;

    /// Returns the log and the hosts that the sandbox refuses, if the process reaches any through the proxy.
    fn log_and_denials(&mut self) -> (&mut dyn ServerLog, Option<&Denials>);

    /// Returns the searches of the log.
    fn searches(&mut self) -> &mut Searches;

    /// Returns whether output is left unread for a moment on purpose.
    fn delays_reads(&self) -> bool;
}

/// A process in a server: what clients read it by, and how it is started.
pub trait ServedKind<A: ServerAudience>: Kind<A, State: ServedState> {
    /// Returns what all kinds of processes in a server have.
    fn served(&self) -> &Served;
}

/// The part that every process in a server has.
#[derive(Debug)]
pub struct Served {
    pub(super) spec: Spec,
    /// Memory besides output and input: ids, the command line, labels.
    pub(super) kept: Charge,
    /// Wakes reads, searches and waits for silence: the log has new events.
    pub(super) output: Notify,
}

impl Served {
    pub(super) fn new(spec: Spec, account: &Arc<Account>) -> Self {
        Served { spec, kept: account.take(account::Kind::Processes, 0), output: Notify::new() }
    }
}

/// A child of the server, with its output in memory.
#[derive(Debug)]
pub struct Local(pub(super) Served);

pub(crate) type LocalProcess<A> = Engine<A, Local>;

/// The mutable state of a child of the server.
#[derive(Debug)]
pub struct LocalState<C> {
    pub(super) log: OutputLog,
    pub(super) child: ChildState<C>,
    pub(super) searches: Searches,
    /// The hosts that its sandbox refuses, if it reaches any through the proxy.
    pub(super) denials: Option<Arc<Denials>>,
}

impl<A: ServerAudience> Kind<A> for Local {
    type State = LocalState<A::Caller>;

    fn rules(&self) -> &ChildRules {
        &self.0.spec.rules
    }

    fn handle(process: &Arc<LocalProcess<A>>) -> ServerProcess<A> {
        ServerProcess::Local(Arc::clone(process))
    }

    fn view(state: &mut ProcessState<A, Self::State>) -> &mut ProcessState<A> {
        state
    }

    fn on_output(&self) {
        self.0.output.notify_waiters();
    }

    fn request(
        process: &Arc<LocalProcess<A>>,
        state: &mut ProcessState<A, Self::State>,
        request: Request<A::Caller>,
    ) {
        child::queue(process, state, request);
    }

    fn cancel_input(
        _process: &LocalProcess<A>,
        state: &mut ProcessState<A, Self::State>,
        is_cancelled: &dyn Fn(&A::Caller) -> bool,
    ) -> (bool, Vec<A::Caller>) {
        (false, state.kind.child.input.cancel(is_cancelled))
    }

    fn read_rest(process: &LocalProcess<A>) {
        process.wake();
    }

    fn on_retired(state: &mut Self::State) {
        state.child.leader = None;
    }

    fn kill(process: &LocalProcess<A>, state: &Self::State) {
        child::kill(process, &state.child);
    }

    fn write_closed(
        _process: &Arc<LocalProcess<A>>,
        state: &mut ProcessState<A, Self::State>,
        write: StdinWrite<A::Caller>,
    ) {
        state.kind.child.input.write(write);
    }

    fn kill_remaining(process: &Arc<LocalProcess<A>>, caller: A::Caller) {
        terminate::kill_remaining(process, caller);
    }

    fn leader(state: &Self::State) -> Option<Leader> {
        state.child.leader.clone()
    }

    fn end_log(state: &mut ProcessState<A, Self::State>) {
        child::end_log(state);
    }
}

impl<A: ServerAudience> ServedKind<A> for Local {
    fn served(&self) -> &Served {
        &self.0
    }
}

impl<A: ServerAudience> RunsChild<A> for Local {
    type Limits = Confinement;

    fn incarnation(&self) -> Option<u64> {
        self.0.spec.incarnation
    }

    fn judge_failure(state: &mut ProcessState<A, Self::State>, limits: &Confinement) {
        state.judge_failure(limits.level);
    }

    fn pause_if_requested(task: ProcessTask<A, Self>) -> Option<ProcessTask<A, Self>> {
        Some(task)
    }
}

impl<C: super::Caller> KindState for LocalState<C> {
    fn log_state(&self) -> &dyn ProcessLog {
        &self.log
    }

    fn oldest_search(&self) -> Option<Seq> {
        self.searches.oldest()
    }

    fn on_notified(&mut self, now: Instant) {
        self.child.on_notified(now);
    }

    fn on_unlock(&mut self) {
        self.child.charge_input();
    }
}

impl<C: super::Caller> HasChild<C> for LocalState<C> {
    fn child(&self) -> &ChildState<C> {
        &self.child
    }

    fn child_mut(&mut self) -> &mut ChildState<C> {
        &mut self.child
    }

    fn writer(&mut self) -> &mut dyn LogWriter {
        &mut self.log
    }
}

impl<C: super::Caller> ServedState for LocalState<C> {
    fn log(&self) -> &dyn ServerLog {
        &self.log
    }

    fn log_mut(&mut self) -> &mut dyn ServerLog {
        &mut self.log
    }

    fn log_and_denials(&mut self) -> (&mut dyn ServerLog, Option<&Denials>) {
        (&mut self.log, self.denials.as_deref())
    }

    fn searches(&mut self) -> &mut Searches {
        &mut self.searches
    }

    fn delays_reads(&self) -> bool {
        self.child.coalescing.until().is_some()
    }
}

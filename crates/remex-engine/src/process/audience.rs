//! Traits for the readers of a process's log and for those that send it requests.

use std::{fmt, time::Instant};

use remex_base::limits::Limits;
use remex_proto::{
    RpcError,
    call::Empty,
    process::{self as wire, WriteReply},
    state::output_log::{Hold, Seq},
};

use super::{ChildRules, KindState, Owner, ProcessState};

/// Readers of a process's log. Part of the engine's state, so its methods run while that is locked.
pub trait Audience: fmt::Debug + Send + Sized + 'static {
    /// Sends requests to the process.
    type Caller: Caller;

    /// The view of the state that depends on the kind of process.
    type State: KindState + ?Sized;

    /// How it and the owner refer to a process.
    type Handle: Clone + fmt::Debug + Send + Sync + 'static;

    /// Owns the process.
    type Owner: Owner<Self> + ?Sized;

    /// Returns what must stay in the log for the audience.
    fn hold(
        &mut self,
        state: &Self::State,
        rules: &ChildRules,
        limits: &Limits,
        holding: Holding,
        now: Instant,
    ) -> Hold;

    /// Called when the log has no room, so that the audience acknowledges what it has received.
    fn on_full(&self) {}

    /// Returns the bytes of output up to an event, if the audience knows that of an event that the log no longer has.
    fn end_of(&self, _seq: Seq) -> Option<u64> {
        None
    }

    /// Returns when [`hold`](Self::hold) may change without any event.
    fn hold_changes_at(&self, rules: &ChildRules, limits: &Limits) -> Option<Instant>;

    /// Called when the log has new events.
    fn on_events(process: &Self::Handle, state: &mut ProcessState<Self>);

    /// Called after a change of the process that is not an event of its log.
    fn on_change(_process: &Self::Handle, _state: &mut ProcessState<Self>) {}

    /// Returns whether so much output is pending that the audience must be notified at once.
    fn has_large_backlog(&self, state: &Self::State) -> bool;

    /// Called when no client will return: nothing must be held any more.
    fn on_abandoned(&mut self);
}

/// How much a log holds for its audience.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holding {
    /// Everything that the audience may have to ask for again.
    Generous,
    /// Only what the audience has not received, if everything else was: the log has no room otherwise.
    Least,
}

/// The sender of a request. Dropped without an answer, it reports that to its client itself.
pub trait Caller: fmt::Debug + Send + Sized + 'static {
    /// Returns whether the client has disconnected; it sends unanswered requests again after it reconnects.
    fn is_disconnected(&self) -> bool;

    /// Answers the request.
    fn answer(self, outcome: Result<Outcome, RpcError>);

    /// Answers that the request was carried out.
    fn ok(self, outcome: impl Into<Outcome>) {
        self.answer(Ok(outcome.into()));
    }

    /// Answers why the request was not carried out.
    fn error(self, error: &RpcError) {
        self.answer(Err(error.clone()));
    }
}

/// The result of a request.
#[derive(Debug)]
pub enum Outcome {
    /// It was carried out.
    Done(Empty),
    /// Input was written.
    Written(WriteReply),
    /// The process is terminated.
    Terminated(wire::Terminated),
}

impl From<Empty> for Outcome {
    fn from(done: Empty) -> Self {
        Outcome::Done(done)
    }
}

impl From<WriteReply> for Outcome {
    fn from(reply: WriteReply) -> Self {
        Outcome::Written(reply)
    }
}

impl From<wire::Terminated> for Outcome {
    fn from(terminated: wire::Terminated) -> Self {
        Outcome::Terminated(terminated)
    }
}

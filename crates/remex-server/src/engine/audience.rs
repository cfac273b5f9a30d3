//! Who listens to a process, and who asks it for something.

use std::{fmt, sync::Arc, time::Instant};

use remex_proto::{
    RpcError,
    call::Empty,
    process::{self as wire, WriteReply},
    state::output_log::{Hold, OutputLog},
};

use super::{Engine, Owner, Spec, State};
use crate::config::Limits;

/// Who listens to a process; part of its state, and called while that is locked.
pub(crate) trait Audience: fmt::Debug + Send + Sized + 'static {
    /// Who asks for something.
    type Caller: Caller;

    /// Who owns the process.
    type Owner: Owner<Self> + ?Sized;

    /// Returns what must stay in the log for the audience.
    fn hold(&mut self, log: &mut OutputLog, spec: &Spec, limits: &Limits, now: Instant) -> Hold;

    /// Returns when that may change without anybody saying so.
    fn hold_changes_at(&self, spec: &Spec, limits: &Limits) -> Option<Instant>;

    /// Called when there is something new in the log.
    fn on_events(engine: &Arc<Engine<Self>>, state: &mut State<Self>);

    /// Tells whether so much waits in the log that the audience is to be told at once.
    fn wants_much(&self, log: &OutputLog) -> bool;

    /// Notes that nobody will come back: nothing has to be kept any more.
    fn let_go(&mut self);
}

/// Who asked a process for something; dropped without an answer, it reports that itself.
pub(crate) trait Caller: fmt::Debug + Send + Sized + 'static {
    /// Tells whether the caller is gone and asks again elsewhere for what was not answered.
    fn is_gone(&self) -> bool;

    fn answer(self, outcome: Result<Outcome, RpcError>);

    fn ok(self, outcome: impl Into<Outcome>) {
        self.answer(Ok(outcome.into()));
    }

    fn error(self, error: &RpcError) {
        self.answer(Err(error.clone()));
    }
}

/// What a request came to.
#[derive(Debug)]
pub(crate) enum Outcome {
    Done(Empty),
    Written(WriteReply),
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

//! Requests to a process, and their answers once it has closed or if it does not exist. Start at [`Request`].

use std::sync::Arc;

use remex_process::{Signal, Size};
use remex_proto::{ErrorKind, RpcError, call::Empty, process as wire};

use super::{Audience, Caller, Engine, Kind, ProcessState, StdinWrite, start::StartAbort};

/// A request to the task; handled in order of arrival.
#[derive(Debug)]
pub enum Request<C> {
    /// Writes input.
    Write(StdinWrite<C>),
    /// Closes the input of a process.
    CloseStdin(C, Box<str>),
    /// Sets the size of the terminal of a process.
    Resize(Size, C, Box<str>),
    /// Sends a signal.
    Signal(Signal, C),
    /// Ends the process.
    Terminate(wire::TerminateMode, wire::TerminateScope, C),
}

impl<C: Caller> Request<C> {
    /// Returns whether this is input, whose order must be preserved.
    pub fn is_input(&self) -> bool {
        matches!(self, Request::Write(_) | Request::CloseStdin(..))
    }

    /// Returns why this request aborts a start that hangs, if it does.
    pub(super) fn ends_start(&self) -> Option<StartAbort> {
        match self {
            Request::Terminate(..) => Some(StartAbort::Terminated),
            // Other signals stop a process, or have no effect on one without a handler.
            Request::Signal(signal, _) => signal.ends_by_default().then_some(StartAbort::Signalled),
            Request::Write(_) | Request::CloseStdin(..) | Request::Resize(..) => None,
        }
    }

    /// Returns who is answered.
    pub fn caller(&self) -> &C {
        match self {
            Request::Write(write) => &write.caller,
            Request::Signal(_, caller)
            | Request::Terminate(_, _, caller)
            | Request::CloseStdin(caller, _)
            | Request::Resize(_, caller, _) => caller,
        }
    }

    /// Takes who is answered.
    pub fn into_caller(self) -> C {
        match self {
            Request::Write(write) => write.caller,
            Request::Signal(_, caller)
            | Request::Terminate(_, _, caller)
            | Request::CloseStdin(caller, _)
            | Request::Resize(_, caller, _) => caller,
        }
    }

    /// Answers a request to a process that has closed.
    pub(super) fn answer_closed<A: Audience<Caller = C>, K: Kind<A>>(
        self,
        process: &Arc<Engine<A, K>>,
        state: &mut ProcessState<A, K::State>,
    ) {
        let rules = process.kind.rules();
        match self {
            // Reports whether the write was accepted earlier.
            Request::Write(write) => K::write_closed(process, state, write),
            Request::Terminate(mode, wire::TerminateScope::Tree, caller) => {
                process.terminate_remaining(mode, caller);
            }
            Request::Terminate(_, wire::TerminateScope::Usual, caller) => {
                caller.ok(wire::Terminated { running: false });
            }
            Request::Resize(_, caller, id) if !rules.tty => caller.error(&not_a_terminal(&id)),
            Request::CloseStdin(caller, id) if rules.tty => caller.error(&no_end_of_input(&id)),
            Request::Signal(_, caller) | Request::Resize(_, caller, _) | Request::CloseStdin(caller, _) => {
                caller.ok(Empty {});
            }
        }
    }

    /// Answers a request to a process that does not exist.
    pub fn answer_unknown(self) {
        let (caller, id) = match self {
            Request::Write(write) => return write.answer(wire::WriteStatus::UnknownProcess),
            Request::Signal(_, caller) => return caller.ok(Empty {}),
            Request::Terminate(_, _, caller) => return caller.ok(wire::Terminated { running: false }),
            Request::CloseStdin(caller, id) | Request::Resize(_, caller, id) => (caller, id),
        };
        caller.error(&unknown_process(&id));
    }
}

/// Returns the error for a process that never existed or was forgotten.
pub fn unknown_process(id: &str) -> RpcError {
    RpcError::new(ErrorKind::UnknownProcess, format!("unknown process id {id}"))
}

pub(super) fn not_a_terminal(id: &str) -> RpcError {
    let message = format!("cannot resize process `{id}`: it runs on pipes");
    RpcError::new(ErrorKind::NotATerminal, message).with_hint("start it with `tty`")
}

pub(super) fn no_end_of_input(id: &str) -> RpcError {
    let message = format!("process `{id}` runs on a terminal, which has no end of input");
    RpcError::new(ErrorKind::NotSupported, message)
        .with_hint("write its end-of-file character (usually 0x04) instead")
}

//! Another connection to the same keeper: what a process learns from it, and sends again.
//!
//! When a connection ends, the keeper drops the input that it has not accepted and goes on with everything else.

use std::sync::Arc;

use remex_proto::{ErrorKind, RpcError};

use super::{
    ProcessState, Remote, RemoteProcess, RemoteState, ServerAudience, Telling, Unanswered, asked,
    forget_unrepeatable,
};
use crate::{
    process::{Caller as _, Lifecycle, LogState as _, Request},
    state::keeper_link::{
        Epoch, KeptListener as _, Sent,
        message::{KeptProcess, ToKeeper},
    },
};

impl<A: ServerAudience> RemoteProcess<A> {
    /// Goes on over the connection `epoch`, whose keeper has this of the process; `None` if it does not know it.
    pub(super) fn synchronize(self: Arc<Self>, epoch: Epoch, kept: Option<KeptProcess>) {
        let mut state = self.state();
        if state.kind.forwarded.epoch >= epoch {
            // It was started over this connection.
            return;
        }
        state.kind.forwarded.epoch = epoch;
        let Some(kept) = kept else { return self.on_unknown(state) };
        if let Some(started) = kept.started {
            state.kind.forwarded.finish_start(Ok(started));
        }
        state.kind.forwarded.hold = kept.hold;
        self.on_progress(&mut state, kept.progress);
        let dropped = self.send_again(&mut state);
        self.tell_hold(&mut state, Telling::All);
        let reads_rest = state.reads_rest;
        drop(state);
        if reads_rest {
            self.read_rest();
        }
        dropped.into_iter().for_each(Undone::answer);
    }

    /// The keeper has nothing of the process: its start has not arrived, or it has closed and is forgotten.
    fn on_unknown(self: &Arc<Self>, mut state: crate::process::StateGuard<'_, A, Remote>) {
        if matches!(state.lifecycle, Lifecycle::Starting(_)) {
            // Whoever waits for the start sends it again.
            let start = state.kind.forwarded.start.take();
            drop(state);
            return drop(start);
        }
        if state.kind.log.is_closed() {
            let dropped = self.send_again(&mut state);
            drop(state);
            return dropped.into_iter().for_each(Undone::answer);
        }
        drop(state);
        Arc::clone(self).on_keeper_lost();
    }

    /// Sends all requests again that may have been lost, in their order; returns those that must not be repeated.
    fn send_again(&self, state: &mut ProcessState<A, RemoteState<A::Caller>>) -> Vec<Undone<A::Caller>> {
        let Remote { link, key, .. } = &self.kind;
        let (mut undone, epoch) = (Vec::new(), state.kind.forwarded.epoch);
        for (number, unanswered) in std::mem::take(&mut state.kind.forwarded.requests) {
            let Unanswered { mut request, is_sent, _insisting } = unanswered;
            if request.is_input() && request.caller().is_disconnected() {
                // Its client sends it again.
                undone.push(Undone::Cancelled(request));
                continue;
            }
            if is_sent && !is_repeatable(&request) {
                undone.push(Undone::Unknown(request));
                continue;
            }
            let message = ToKeeper::Request { key: *key, number, request: asked(&request) };
            let is_sent = link.send_in(epoch, &message) == Sent::Yes;
            if is_sent {
                forget_unrepeatable(&mut request);
            }
            state.kind.forwarded.requests.insert(number, Unanswered { request, is_sent, _insisting });
        }
        undone
    }
}

/// A request that is not sent again.
enum Undone<C> {
    /// Nobody waits for it.
    Cancelled(Request<C>),
    /// It may have been done.
    Unknown(Request<C>),
}

impl<C: crate::process::Caller> Undone<C> {
    fn answer(self) {
        match self {
            Undone::Cancelled(request) => drop(request),
            Undone::Unknown(request) => {
                let message = "the connection to the keeper of this process has ended; whether the keeper has done this is unknown";
                let error = RpcError::new(ErrorKind::Internal, message)
                    .with_hint("look at the process, and send it again if it was not done");
                request.into_caller().error(&error);
            }
        }
    }
}

/// Returns whether a request has the same effect when it is done twice: the keeper knows the ids of writes.
fn is_repeatable<C>(request: &Request<C>) -> bool {
    match request {
        Request::Write(write) => write.write_id.is_some(),
        Request::CloseStdin(..) | Request::Resize(..) | Request::Terminate(..) => true,
        Request::Signal(..) => false,
    }
}

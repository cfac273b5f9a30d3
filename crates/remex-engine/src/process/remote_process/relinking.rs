//! Reconnecting to the same keeper: how a process catches up, and which requests it repeats.
//!
//! When a connection ends, the keeper drops input that it has not accepted, and carries out all other requests.

use std::sync::Arc;

use remex_proto::{ErrorKind, RpcError};

use super::{
    HoldUpdate, ProcessState, Remote, RemoteProcess, RemoteState, ServerAudience, Unanswered, asked,
    forget_unrepeatable,
};
use crate::{
    process::{Caller as _, Lifecycle, LogState as _, Request},
    state::keeper_link::{
        Epoch, LinkListener as _, Sent,
        message::{ReportedProcess, ToKeeper},
    },
};

impl<A: ServerAudience> RemoteProcess<A> {
    /// Continues over the connection `epoch`, on which the keeper has reported this; `None` if it does not know the process.
    pub(super) fn synchronize(self: Arc<Self>, epoch: Epoch, report: Option<ReportedProcess>) {
        let mut state = self.state();
        if state.kind.pending.epoch >= epoch {
            // The process was started over this connection.
            return;
        }
        state.kind.pending.epoch = epoch;
        let Some(report) = report else { return self.on_unknown(state) };
        if let Some(started) = report.started {
            state.kind.pending.finish_start(Ok(started));
        }
        state.kind.pending.hold = report.hold;
        self.on_progress(&mut state, report.progress);
        let dropped = self.send_again(&mut state);
        self.tell_hold(&mut state, HoldUpdate::All);
        let reads_rest = state.reads_rest;
        drop(state);
        if reads_rest {
            self.read_rest();
        }
        dropped.into_iter().for_each(Unrepeated::answer);
    }

    /// The keeper has nothing of the process: its start has not arrived, or it has closed and is forgotten.
    fn on_unknown(self: &Arc<Self>, mut state: crate::process::StateGuard<'_, A, Remote>) {
        if matches!(state.lifecycle, Lifecycle::Starting(_)) {
            // The task that waits for the start sends it again.
            let start = state.kind.pending.start.take();
            drop(state);
            return drop(start);
        }
        if state.kind.log.is_closed() {
            let dropped = self.send_again(&mut state);
            drop(state);
            return dropped.into_iter().for_each(Unrepeated::answer);
        }
        drop(state);
        Arc::clone(self).on_keeper_lost();
    }

    /// Sends all requests again that may have been lost, in their order; returns those that must not be repeated.
    fn send_again(&self, state: &mut ProcessState<A, RemoteState<A::Caller>>) -> Vec<Unrepeated<A::Caller>> {
        let Remote { link, key, .. } = &self.kind;
        let (mut unrepeated, epoch) = (Vec::new(), state.kind.pending.epoch);
        for (number, unanswered) in std::mem::take(&mut state.kind.pending.requests) {
            let Unanswered { mut request, is_sent, _fallback } = unanswered;
            if request.is_input() && request.caller().is_disconnected() {
                // Its client sends it again.
                unrepeated.push(Unrepeated::Cancelled(request));
                continue;
            }
            if is_sent && !is_repeatable(&request) {
                unrepeated.push(Unrepeated::Unknown(request));
                continue;
            }
            let message = ToKeeper::Request { key: *key, number, request: asked(&request) };
            let is_sent = link.send_in(epoch, &message) == Sent::Yes;
            if is_sent {
                forget_unrepeatable(&mut request);
            }
            state.kind.pending.requests.insert(number, Unanswered { request, is_sent, _fallback });
        }
        unrepeated
    }
}

/// A request that is not sent again.
enum Unrepeated<C> {
    /// Its client has disconnected, and sends it again.
    Cancelled(Request<C>),
    /// It may have been carried out.
    Unknown(Request<C>),
}

impl<C: crate::process::Caller> Unrepeated<C> {
    fn answer(self) {
        match self {
            Unrepeated::Cancelled(request) => drop(request),
            Unrepeated::Unknown(request) => {
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

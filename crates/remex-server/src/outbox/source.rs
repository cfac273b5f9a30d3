//! What an outbox draws from: a process, or a fake in tests.

use std::{fmt, sync::Arc};

use remex_proto::state::output_log::Seq;

use super::{Acks, ConnectionId, Outbox, Responder, Sink};

/// Something whose events are streamed on connections, each as fast as its client acknowledges them.
pub(crate) trait Source: fmt::Debug + Send + Sync {
    /// Lets the controlling connection see events, now that the answer to the start is on its way.
    fn open(self: Arc<Self>, outbox: &Outbox);

    /// Puts what `connection` has not seen into `sink`, about `quota` bytes as they are sent.
    fn deliver(
        self: Arc<Self>,
        connection: ConnectionId,
        acks: Acks,
        sink: &mut Sink,
        quota: usize,
    ) -> Delivery;

    /// Notes that the client behind `connection` has got everything up to `seq`.
    fn acknowledge(&self, connection: ConnectionId, seq: Seq);

    /// Notes that an answer with everything up to `seq` was written for a client that cannot be asked whether it got it.
    fn acknowledge_unasked(&self, connection: ConnectionId, seq: Seq);

    /// Notes that an answer with everything up to `seq` is on its way, and comes before whatever is streamed from now on.
    fn on_answered(&self, connection: ConnectionId, seq: Seq);

    /// Drops the input requests that `is_cancelled` names; returns whether there were any.
    fn cancel_input(&self, is_cancelled: &dyn Fn(&Responder) -> bool) -> bool;
}

/// Identifies a source for as long as something refers to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SourceKey(usize);

impl SourceKey {
    pub(super) fn of<S: ?Sized>(source: &Arc<S>) -> Self {
        SourceKey(Arc::as_ptr(source).cast::<()>().addr())
    }
}

/// How urgent the events of a source are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// A little after a pause: goes before floods and outside the window.
    Fresh,
    Bulk,
}

/// What a source put into the send buffer in its turn.
#[derive(Debug, Default)]
pub(crate) struct Delivery {
    /// Output in it.
    pub(crate) bytes: usize,
    /// The same as it is sent, with all that is around it.
    pub(crate) sent_bytes: usize,
    /// The newest event delivered, if any.
    pub(crate) up_to: Option<Seq>,
    /// The log is small or full: ask for an acknowledgement now.
    pub(crate) wants_mark: bool,
    pub(crate) more: Option<Urgency>,
}

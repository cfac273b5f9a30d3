//! The trait for sources of an outbox: processes, or fakes in tests.

use std::{fmt, sync::Arc};

use remex_engine::ReadExtent;
use remex_proto::state::output_log::Seq;

use super::{ConnectionId, Outbox, Responder, Sink};

/// A source of events that are streamed on connections, each as fast as its client acknowledges them.
pub(crate) trait Source: fmt::Debug + Send + Sync {
    /// Opens the stream for the controlling connection; called once the answer to the start is in the send
    /// buffer.
    fn open(self: Arc<Self>, outbox: &Outbox);

    /// Puts events that `connection` has not seen into `sink`, about `quota` encoded bytes.
    fn deliver(self: Arc<Self>, connection: ConnectionId, sink: &mut Sink, quota: usize) -> Delivery;

    /// Records that the client of `connection` has received everything up to `seq`.
    fn acknowledge(self: Arc<Self>, connection: ConnectionId, seq: Seq);

    /// Records that an answer with everything up to `seq` is in the send buffer, ahead of all later stream
    /// output.
    fn on_answered(&self, connection: ConnectionId, seq: Seq, extent: Option<ReadExtent>);

    /// Drops the input requests that `is_cancelled` selects; returns whether there were any.
    fn cancel_input(&self, is_cancelled: &dyn Fn(&Responder) -> bool) -> bool;
}

/// Identifies a source while a reference to it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SourceKey(usize);

impl SourceKey {
    pub(super) fn of<S: ?Sized>(source: &Arc<S>) -> Self {
        SourceKey(Arc::as_ptr(source).cast::<()>().addr())
    }
}

/// How urgent the events of a source are: output is either fresh or bulk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// At most 4 KiB that are not sent yet, such as an echo: sent before bulk output and outside the window.
    Fresh,
    /// More than that: sources take turns, within the window.
    Bulk,
}

/// What a source put into the send buffer in one turn.
#[derive(Debug, Default)]
pub(crate) struct Delivery {
    /// Bytes of output.
    pub(crate) bytes: usize,
    /// The same in encoded bytes, including everything around it.
    pub(crate) sent_bytes: usize,
    /// The newest event delivered, if any.
    pub(crate) up_to: Option<Seq>,
    /// The log is small or full: request an acknowledgement now.
    pub(crate) wants_mark: bool,
    pub(crate) more: Option<Urgency>,
}

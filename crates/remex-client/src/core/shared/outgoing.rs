//! Messages waiting to be sent.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use remex_proto::{ClientNote, RequestId, flow, request};

use super::{Body, Core, CoreState};

/// How many requests of the server may wait to be refused; a server that sends more gets no answer to the rest.
const MAX_REFUSALS: usize = 256;

/// How many processes without a handle, and reports about them, may wait; no server has that many processes in a session.
pub(super) const MAX_DISCARDED: usize = 16 << 10;

/// The longest id that the protocol allows.
pub(super) const MAX_ID_BYTES: usize = 1 << 10;

/// Messages waiting to be sent, in the order of the fields, except that requests come last.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    /// The payload of the pong for the last ping.
    pong: Option<Bytes>,
    /// Whether to send a ping.
    ping: bool,
    /// The latest acknowledgement.
    pub(super) ack: Option<u64>,
    /// The position of the consumers of each process, by its id and its start.
    consumed: BTreeMap<(String, Option<u64>), u64>,
    /// The position of the reader of each body.
    body_consumed: BTreeMap<String, u64>,
    /// Requests of the server, all of which are refused.
    refusals: VecDeque<RequestId>,
    pub(super) cancels: VecDeque<u64>,
    pub(super) requests: VecDeque<u64>,
}

/// One message to send.
pub(crate) enum OutgoingItem {
    Ping,
    Pong(Bytes),
    Note(ClientNote),
    /// The answer to a request of the server.
    Refusal(RequestId),
    Request(u64, Body),
}

impl Core {
    /// Waits for the next message to send.
    pub(crate) async fn next_item(&self) -> OutgoingItem {
        loop {
            if let Some(item) = self.take_item() {
                return item;
            }
            self.bell.notified().await;
        }
    }

    /// Takes the next message to send, if any.
    pub(crate) fn take_item(&self) -> Option<OutgoingItem> {
        let mut state = self.lock();
        let CoreState { pending, outgoing, .. } = &mut *state;
        if let Some(payload) = outgoing.pong.take() {
            return Some(OutgoingItem::Pong(payload));
        }
        if std::mem::take(&mut outgoing.ping) {
            return Some(OutgoingItem::Ping);
        }
        if let Some(mark) = outgoing.ack.take() {
            return Some(OutgoingItem::Note(flow::Ack { mark }.into()));
        }
        if let Some(((process_id, incarnation), seq)) = outgoing.consumed.pop_first() {
            return Some(OutgoingItem::Note(flow::Consumed { process_id, incarnation, seq }.into()));
        }
        if let Some(request_id) = outgoing.body_consumed.keys().next().cloned() {
            let seq = outgoing.body_consumed.remove(&request_id).unwrap_or_default();
            return Some(OutgoingItem::Note(flow::BodyConsumed { request_id, seq }.into()));
        }
        if let Some(id) = outgoing.refusals.pop_front() {
            return Some(OutgoingItem::Refusal(id));
        }
        if let Some(id) = outgoing.cancels.pop_front() {
            return Some(OutgoingItem::Note(
                request::Cancel { id: RequestId::Integer(id.cast_signed()) }.into(),
            ));
        }
        while let Some(id) = outgoing.requests.pop_front() {
            if let Some(waiting) = pending.waiting(id) {
                let body = match &mut waiting.body {
                    Body::Wire(body) => Body::Wire(body.clone()),
                    Body::Attached(body) => Body::Attached(Arc::clone(body)),
                    Body::Memory(call) => Body::Memory(call.take()),
                };
                return Some(OutgoingItem::Request(id, body));
            }
        }
        None
    }

    /// Queues a ping; returns the number of answers so far.
    pub(crate) fn ping(&self) -> u64 {
        let mut state = self.lock();
        state.outgoing.ping = true;
        let answers = state.answers;
        drop(state);
        self.bell.notify_one();
        answers
    }

    pub(crate) fn pong(&self, payload: Bytes) {
        let mut state = self.lock();
        state.outgoing.pong = Some(payload);
        drop(state);
        self.bell.notify_one();
    }

    /// Refuses a request of the server.
    pub(super) fn refuse(&self, id: RequestId) {
        let mut state = self.lock();
        let is_short = !matches!(&id, RequestId::Text(id) if id.len() > MAX_ID_BYTES);
        if is_short && state.outgoing.refusals.len() < MAX_REFUSALS {
            state.outgoing.refusals.push_back(id);
            drop(state);
            self.bell.notify_one();
        }
    }

    /// Reports that output of a process without a handle is discarded. A server that sends more than it may gets no
    /// more reports, and then has to stop sending.
    pub(crate) fn discarded(&self, process_id: &str, incarnation: Option<u64>, seq: u64) {
        let is_known = {
            let state = self.lock();
            let reports = &state.outgoing.consumed;
            reports.len() < MAX_DISCARDED
                || reports.contains_key(&(process_id.to_owned(), incarnation))
                || state
                    .unfollowed
                    .get(process_id)
                    .is_some_and(|known| incarnation.is_none() || *known == incarnation)
        };
        if is_known && process_id.len() <= MAX_ID_BYTES {
            self.consumed(process_id, incarnation, seq);
        }
    }

    /// Reports the position of the consumers of a process to the server; without an incarnation, of whichever runs now.
    pub(crate) fn consumed(&self, process_id: &str, incarnation: Option<u64>, seq: u64) {
        let mut state = self.lock();
        if !state.enabled.consumed {
            return;
        }
        let told = state.outgoing.consumed.entry((process_id.to_owned(), incarnation)).or_default();
        *told = seq.max(*told);
        drop(state);
        self.bell.notify_one();
    }

    /// Reports the position of the reader of a body to the server.
    pub(crate) fn body_consumed(&self, request_id: &str, seq: u64) {
        let mut state = self.lock();
        if state.enabled.consumed {
            state.outgoing.body_consumed.insert(request_id.to_owned(), seq);
            drop(state);
            self.bell.notify_one();
        }
    }

    /// Cancels the stream of an answered call, if the server supports that.
    pub(crate) fn cancel(&self, id: u64) {
        let mut state = self.lock();
        if state.enabled.cancel {
            state.outgoing.cancels.push_back(id);
            drop(state);
            self.bell.notify_one();
        }
    }
}

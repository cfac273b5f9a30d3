//! The duty to answer one request.

use std::sync::Arc;

use remex_proto::{ErrorKind, RequestId, RpcError, message};
use serde::Serialize;

use super::{ConnectionId, Outbox, Then};

/// The duty to answer one request, exactly once.
///
/// Dropped without an answer it says that the request was cancelled, so no caller waits for ever.
#[derive(Debug)]
pub(crate) struct Responder {
    outbox: Arc<Outbox>,
    /// Taken when the answer is given.
    id: Option<RequestId>,
    request_bytes: usize,
}

impl Responder {
    pub(crate) fn new(outbox: &Arc<Outbox>, id: RequestId, request_bytes: usize) -> Self {
        outbox.register(&id, request_bytes);
        Responder { outbox: Arc::clone(outbox), id: Some(id), request_bytes }
    }

    pub(crate) fn is_for(&self, connection: ConnectionId, id: &RequestId) -> bool {
        self.outbox.id == connection && self.id.as_ref() == Some(id)
    }

    pub(crate) fn outbox(&self) -> &Arc<Outbox> {
        &self.outbox
    }

    pub(crate) fn answer<R: Serialize>(self, result: Result<R, RpcError>) {
        match result {
            Ok(reply) => self.ok(&reply),
            Err(error) => self.error(&error),
        }
    }

    pub(crate) fn ok(self, reply: &impl Serialize) {
        self.ok_then(reply, Then::Nothing);
    }

    pub(crate) fn ok_then(self, reply: &impl Serialize, then: Then) {
        self.result(then, |id, json| {
            json.reserve(128);
            message::write_result(json, id, reply);
        });
    }

    /// Answers with the JSON that `write` appends.
    pub(crate) fn ok_with(self, write: impl FnOnce(&mut Vec<u8>)) {
        self.result(Then::Nothing, |id, json| message::write_result_with(json, id, write));
    }

    fn result(mut self, then: Then, write: impl FnOnce(&RequestId, &mut Vec<u8>)) {
        let Some(id) = self.id.take() else { return };
        let mut json = Vec::new();
        if self.outbox.close_request(&id) {
            write(&id, &mut json);
        }
        // A cancelled request has its answer, but what it did has its consequences.
        self.outbox.push(json, then);
    }

    pub(crate) fn error(mut self, error: &RpcError) {
        self.send_error(error);
    }

    fn send_error(&mut self, error: &RpcError) {
        let Some(id) = self.id.take() else { return };
        if self.outbox.close_request(&id) {
            self.outbox.push_error(&id, error);
        }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if self.id.is_some() {
            self.send_error(&cancelled());
        }
        self.outbox.settle(self.request_bytes);
    }
}

/// Returns the answer to a request that was cancelled.
pub(super) fn cancelled() -> RpcError {
    RpcError::new(ErrorKind::Cancelled, "the request was cancelled; nothing was undone")
}

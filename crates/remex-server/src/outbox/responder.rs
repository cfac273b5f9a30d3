//! The duty to answer one request.

use std::{io, sync::Arc};

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

    /// Returns what tells long work whether to go on.
    pub(crate) fn wanted(&self) -> Wanted {
        Wanted { outbox: Arc::clone(&self.outbox), id: self.id.clone() }
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

/// Tells whether somebody still waits for the answer to a request.
#[derive(Debug)]
pub(crate) struct Wanted {
    outbox: Arc<Outbox>,
    id: Option<RequestId>,
}

impl Wanted {
    /// Fails when nobody does any more: the request was cancelled, or its connection has ended.
    pub(crate) fn check(&self) -> io::Result<()> {
        if self.id.as_ref().is_some_and(|id| self.outbox.is_open(id)) {
            return Ok(());
        }
        Err(io::Error::other("nobody waits for it any more"))
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

//! What changes in the file system, told to the connection that asked.

use remex_proto::{ErrorKind, RequestId, RpcError, fs as wire};

use crate::{connection::Connection, outbox::Responder};

/// The watches of one connection.
#[derive(Debug, Default)]
pub(crate) struct Watches {}

impl Connection {
    pub(crate) fn watch_missing(
        &mut self,
        _id: RequestId,
        _request: wire::WatchMissing,
        responder: Responder,
    ) {
        responder.error(&RpcError::new(ErrorKind::NotSupported, "not yet"));
    }

    pub(crate) fn watch(&mut self, _id: RequestId, _request: wire::Watch, responder: Responder) {
        responder.error(&RpcError::new(ErrorKind::NotSupported, "not yet"));
    }

    pub(crate) fn unwatch(&mut self, _request: &wire::Unwatch, responder: Responder) {
        responder.error(&RpcError::new(ErrorKind::NotSupported, "not yet"));
    }
}

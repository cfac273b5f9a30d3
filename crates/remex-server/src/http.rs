//! HTTP requests on behalf of the client.

use remex_proto::{ErrorKind, RequestId, RpcError, http as wire};

use crate::{connection::Connection, outbox::Responder};

/// The body streams of one connection.
#[derive(Debug, Default)]
pub(crate) struct Streams {}

impl Connection {
    pub(crate) fn http_request(&mut self, _id: RequestId, _request: wire::HttpRequest, responder: Responder) {
        responder.error(&RpcError::new(ErrorKind::NotSupported, "not yet"));
    }
}

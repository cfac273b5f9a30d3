//! The host's own configuration of the client, as far as the client asks for it.

use remex_proto::{ErrorKind, RequestId, RpcError, environment as wire};

use crate::{connection::Connection, outbox::Responder};

impl Connection {
    pub(crate) fn read_config(&mut self, _id: RequestId, _request: wire::ReadConfig, responder: Responder) {
        responder.error(&RpcError::new(ErrorKind::NotSupported, "not yet"));
    }
}

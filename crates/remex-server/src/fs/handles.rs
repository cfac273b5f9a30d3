//! Open files of one connection.

use remex_proto::{ErrorKind, RequestId, RpcError, fs as wire};

use crate::{connection::Connection, outbox::Responder};

impl Connection {
    pub(crate) fn read_file(&mut self, _id: RequestId, _request: wire::ReadFile, responder: Responder) {
        responder.error(&RpcError::new(ErrorKind::NotSupported, "not yet"));
    }
    pub(crate) fn open_file(&mut self, _id: RequestId, _request: wire::Open, responder: Responder) {
        responder.error(&RpcError::new(ErrorKind::NotSupported, "not yet"));
    }
    pub(crate) fn read_block(&mut self, _id: RequestId, _request: wire::ReadBlock, responder: Responder) {
        responder.error(&RpcError::new(ErrorKind::NotSupported, "not yet"));
    }
    pub(crate) fn write_block(&mut self, _id: RequestId, _request: wire::WriteBlock, responder: Responder) {
        responder.error(&RpcError::new(ErrorKind::NotSupported, "not yet"));
    }
    pub(crate) fn close_file(&mut self, _id: RequestId, _request: wire::Close, responder: Responder) {
        responder.error(&RpcError::new(ErrorKind::NotSupported, "not yet"));
    }
}

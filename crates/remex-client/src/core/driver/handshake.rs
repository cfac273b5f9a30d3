//! The first messages of a connection.

use std::collections::BTreeSet;

use remex_proto::{
    Call, Message, MessageLimits, RequestId, RpcError, TraceContext,
    call::{Initialized, Request as _},
    initialize::{Capability, Initialize, Reply as Welcome},
    message,
};
use remex_rpc::{
    FrameReader, Framing, Incoming, SendBuffer, WriteHalf,
    memory::{ClientEnd, ToClient, ToServer},
};

use super::traffic::{HANDSHAKE, describe, write_out};
use crate::{
    Error,
    core::shared::{MessageForm, RawReply},
    transport::link::{Link, Transport},
};

pub(super) fn capabilities(link: &Link) -> BTreeSet<Capability> {
    let mut wanted: BTreeSet<_> = [Capability::ProcessGap, Capability::Cancel, Capability::Consumed].into();
    if matches!(link.transport, Transport::Wire { .. }) {
        wanted.insert(Capability::BinaryFrames);
    }
    // On a WebSocket, ping and pong serve this purpose.
    if !matches!(link.transport, Transport::Wire { framing: Framing::WebSocket(_), .. }) {
        wanted.insert(Capability::Acks);
    }
    wanted
}

pub(super) enum HandshakeError {
    /// The server closed the connection.
    Closed(String),
    /// The server sent an invalid message.
    Malformed {
        what: String,
        line: Vec<u8>,
    },
    Failed(Error),
}

impl Link {
    pub(super) fn mode(&self) -> MessageForm {
        match self.transport {
            Transport::Wire { .. } => MessageForm::Wire,
            Transport::Memory(_) => MessageForm::Memory,
        }
    }

    pub(super) async fn handshake(
        &mut self,
        initialize: Initialize,
        trace: Option<&TraceContext>,
    ) -> Result<Welcome, HandshakeError> {
        match &mut self.transport {
            Transport::Wire { reader, writer, framing } => {
                let mut out = SendBuffer::new(*framing);
                out.message(256, |buffer| {
                    message::write_request(buffer, &HANDSHAKE, &initialize);
                    if let Some(trace) = trace {
                        message::write_trace(buffer, trace);
                    }
                });
                write_out(writer, &mut out).await.map_err(HandshakeError::Closed)?;
                let welcome = read_welcome(reader, writer, &mut out).await?;
                if welcome.capabilities.enabled.contains(&Capability::BinaryFrames) {
                    reader.accept_binary();
                }
                out.message(64, |buffer| message::write_notification(buffer, &Initialized {}));
                write_out(writer, &mut out).await.map_err(HandshakeError::Closed)?;
                Ok(welcome)
            }
            Transport::Memory(ClientEnd { sender, receiver }) => {
                let closed = || HandshakeError::Closed("the server has ended".to_owned());
                let call = ToServer::Call {
                    id: HANDSHAKE,
                    call: Call::Initialize(initialize),
                    trace: trace.cloned().map(Box::new),
                };
                sender.send(call).await.map_err(|_| closed())?;
                let outcome = loop {
                    match receiver.recv().await.ok_or_else(closed)? {
                        ToClient::Answer { id: HANDSHAKE, outcome } => break outcome,
                        ToClient::Answer { .. } | ToClient::Note(_) => {}
                        ToClient::Close { reason } => return Err(HandshakeError::Closed(reason)),
                    }
                };
                let welcome = outcome.map(RawReply::Value).map_err(Error::Refused);
                let welcome = welcome
                    .and_then(|arrived| arrived.decode(Initialize::METHOD))
                    .map_err(HandshakeError::Failed)?;
                sender.send(ToServer::Note(Initialized {}.into())).await.map_err(|_| closed())?;
                Ok(welcome)
            }
        }
    }
}

async fn read_welcome(
    reader: &mut FrameReader,
    writer: &mut WriteHalf,
    out: &mut SendBuffer,
) -> Result<Welcome, HandshakeError> {
    let nonsense = |what: String| HandshakeError::Failed(Error::Protocol { what });
    loop {
        let bytes = match reader.next().await {
            Incoming::Message(bytes) => bytes,
            Incoming::Ping(payload) => {
                out.pong(&payload);
                write_out(writer, out).await.map_err(HandshakeError::Closed)?;
                continue;
            }
            Incoming::Pong(_) => continue,
            other => return Err(HandshakeError::Closed(describe(&other))),
        };
        match Message::parse(&bytes, MessageLimits::FROM_SERVER) {
            Ok(Message::Response { id: HANDSHAKE, outcome: Ok(result) }) => {
                return serde_json::from_str(result).map_err(|error| {
                    nonsense(format!("cannot decode the response to `initialize`: {error}"))
                });
            }
            Ok(Message::Response { id: HANDSHAKE | RequestId::MALFORMED, outcome: Err(error) }) => {
                let error: RpcError = serde_json::from_str(error)
                    .map_err(|error| nonsense(format!("cannot decode an error response: {error}")))?;
                return Err(HandshakeError::Failed(error.into()));
            }
            Ok(_) => {}
            Err(_) if reader.has_ended() => return Err(HandshakeError::Closed(describe(&Incoming::End))),
            Err(malformed) => {
                return Err(HandshakeError::Malformed { what: malformed.to_string(), line: bytes.to_vec() });
            }
        }
    }
}

//! One call between its caller and the connection.

use std::sync::Arc;

use bytes::Bytes;
use remex_proto::{
    Call, RequestId, TraceContext,
    attachment::{self, Attached},
    binary, blob, message,
    process::Started,
};
use remex_rpc::{SendBuffer, memory::Reply};
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{Core, oldest};
use crate::{Error, core::event_queue::EventQueue};

/// Whether a call waits until the limits admit it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    WithinLimits,
    /// The call must not be delayed or dropped, such as a kill.
    Unbounded,
}

/// How messages are passed to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageForm {
    Wire,
    Memory,
}

/// A call that waits for its reply.
#[derive(Debug)]
pub(super) struct PendingCall {
    pub(super) method: &'static str,
    pub(super) body: Body,
    pub(super) answer: ReplyTo,
    /// Counts against the limit of open calls.
    pub(super) _slot: Option<OwnedSemaphorePermit>,
}

/// The content of a call.
#[derive(Debug)]
pub(crate) enum Body {
    /// An encoded request without its id; kept, because it may be resent.
    Wire(Bytes),
    /// A request with bytes beside its JSON.
    Attached(Arc<AttachedBody>),
    /// The call and its trace; taken when the call is sent.
    Memory(Option<(Box<Call>, Option<Box<TraceContext>>)>),
}

/// A request with bytes beside its JSON, for a connection that takes binary messages.
#[derive(Debug)]
pub(crate) struct AttachedBody {
    /// The JSON without its id.
    json: Vec<u8>,
    attached: Attached,
    /// What to encode for a server that reads no binary messages, after a reconnect.
    call: Call,
    trace: Option<TraceContext>,
}

impl Body {
    /// Encodes a call; with bytes beside it if `is_binary` and there are any.
    pub(super) fn encode(
        call: Call,
        trace: Option<TraceContext>,
        uses_plain_paths: bool,
        is_binary: bool,
    ) -> Self {
        if !is_binary {
            let mut body = encoded(&call, trace.as_ref());
            if uses_plain_paths {
                oldest::use_plain_paths(&mut body);
            }
            return Self::Wire(body.into());
        }
        let (json, attached) = attachment::collect(|| encoded(&call, trace.as_ref()));
        if attached.pieces.is_empty() {
            return Self::Wire(json.into());
        }
        Self::Attached(Arc::new(AttachedBody { json, attached, call, trace }))
    }

    /// Returns the length of its message without the id.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Wire(body) => body.len(),
            Self::Attached(body) => binary::MESSAGE_HEAD_LEN + body.json.len() + body.attached.len,
            Self::Memory(_) => 0,
        }
    }

    /// Returns that length for a connection that takes no binary messages.
    pub(super) fn json_len(&self) -> usize {
        match self {
            Self::Attached(body) => {
                let base64: usize =
                    body.attached.pieces.iter().map(|piece| blob::encoded_len(piece.len())).sum();
                body.json.len() + base64
            }
            Self::Wire(_) | Self::Memory(_) => self.len(),
        }
    }

    /// Appends the request with its id.
    pub(crate) fn append(&self, id: u64, out: &mut SendBuffer, is_binary: bool) {
        let id = RequestId::Integer(id.cast_signed());
        match self {
            Self::Wire(body) => append_json(&id, body, out),
            Self::Attached(body) if is_binary => {
                let mut json = Vec::with_capacity(body.json.len() + 32);
                message::write_request_with(&mut json, &id, |json| json.extend_from_slice(&body.json));
                let len = binary::MESSAGE_HEAD_LEN + json.len() + body.attached.len;
                out.binary(len, |buffer| {
                    binary::write_head(buffer, json.len());
                    binary::write_rest(buffer, &json, &body.attached);
                });
            }
            Self::Attached(body) => append_json(&id, &encoded(&body.call, body.trace.as_ref()), out),
            Self::Memory(_) => {}
        }
    }
}

fn append_json(id: &RequestId, body: &[u8], out: &mut SendBuffer) {
    out.message(body.len() + 32, |buffer| {
        message::write_request_with(buffer, id, |buffer| buffer.extend_from_slice(body));
    });
}

fn encoded(call: &Call, trace: Option<&TraceContext>) -> Vec<u8> {
    let mut body = Vec::with_capacity(256);
    call.write_body(&mut body);
    if let Some(trace) = trace {
        message::write_trace(&mut body, trace);
    }
    body
}

/// The recipient of a reply.
#[derive(Debug)]
pub(super) enum ReplyTo {
    Caller(oneshot::Sender<Result<RawReply, Error>>),
    /// The caller of a restart in the own session. The events of the new process follow the reply.
    Restart {
        process_id: String,
        /// The newest queue at the time of the request.
        before: Option<Arc<EventQueue>>,
        caller: oneshot::Sender<Result<RawReply, Error>>,
    },
    /// A read for an event queue.
    Queue(Arc<EventQueue>),
    /// A read that finds out whether another process has the id of a queue.
    Check(Arc<EventQueue>),
    /// A read of the newest position of a process without a handle.
    Unfollowed(String),
    Discard,
}

/// An undecoded reply.
#[derive(Debug)]
pub(crate) enum RawReply {
    /// The member `result`.
    Json(Bytes),
    /// The member `result`, and the bytes beside the message.
    Attached(Bytes, Bytes),
    Value(Reply),
}

impl RawReply {
    pub(crate) fn decode<R: DeserializeOwned + 'static>(self, method: &'static str) -> Result<R, Error> {
        let nonsense = |why: &dyn std::fmt::Display| Error::Protocol {
            what: format!("cannot decode the response to `{method}`: {why}"),
        };
        match self {
            RawReply::Json(json) => serde_json::from_slice(&json).map_err(|error| nonsense(&error)),
            RawReply::Attached(json, attached) => {
                attachment::with(attached, || serde_json::from_slice(&json)).map_err(|error| nonsense(&error))
            }
            RawReply::Value(reply) => reply.take().ok_or_else(|| nonsense(&"unexpected type")),
        }
    }
}

impl PendingCall {
    /// Passes the outcome to the recipient of the reply.
    pub(super) fn complete(self, core: &Core, outcome: Result<RawReply, Error>) {
        match self.answer {
            ReplyTo::Caller(caller) => drop(caller.send(outcome)),
            ReplyTo::Restart { process_id, before, caller } => {
                let outcome = outcome.and_then(|arrived| arrived.decode::<Started>(self.method));
                if let Ok(started) = &outcome {
                    core.on_restarted(&process_id, started, before.as_ref());
                }
                drop(caller.send(outcome.map(|started| RawReply::Value(Reply::new(started)))));
            }
            ReplyTo::Queue(queue) => {
                let action = queue.on_read_reply(outcome.and_then(|arrived| arrived.decode("process/read")));
                core.perform(&queue, action);
            }
            ReplyTo::Check(queue) => {
                core.on_checked(&queue, outcome.and_then(|arrived| arrived.decode("process/read")));
            }
            ReplyTo::Unfollowed(process_id) => {
                core.on_unfollowed_reply(
                    &process_id,
                    outcome.and_then(|arrived| arrived.decode("process/read")),
                );
            }
            ReplyTo::Discard => {}
        }
    }
}

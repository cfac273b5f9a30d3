//! One call between its caller and the connection.

use std::sync::Arc;

use bytes::Bytes;
use remex_proto::{Call, TraceContext, process::Started};
use remex_rpc::memory::Reply;
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::Core;
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
    /// The call and its trace; taken when the call is sent.
    Memory(Option<(Box<Call>, Option<Box<TraceContext>>)>),
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
    Value(Reply),
}

impl RawReply {
    pub(crate) fn decode<R: DeserializeOwned + 'static>(self, method: &'static str) -> Result<R, Error> {
        let nonsense = |why: &dyn std::fmt::Display| Error::Protocol {
            what: format!("cannot decode the response to `{method}`: {why}"),
        };
        match self {
            RawReply::Json(json) => serde_json::from_slice(&json).map_err(|error| nonsense(&error)),
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

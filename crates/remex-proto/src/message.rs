//! One message as bytes: what kind it is, and how to write one.
//!
//! Reading is strict and cheap: one pass over the text finds the parts of the envelope and proves
//! that the rest may be decoded, so a decoder that is fast and trusting can take it from there.
//! Start at [`Message::parse`].

mod decode;
mod encode;
mod scan;

use std::{borrow::Cow, fmt};

pub use encode::{
    BodyFrame, OutputFrame, write_error, write_notification, write_request, write_request_body,
    write_request_with, write_result, write_result_with,
};
use serde::{Deserialize, Serialize};

use crate::{ErrorKind, RpcError};

/// How much structure one message may have; its length is the transport's business.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageLimits {
    /// Every scalar, array and object counts one.
    pub max_values: usize,
    /// How deep arrays and objects may nest, the message itself included.
    pub max_depth: u8,
    /// How long the id of a request may be, because its answer repeats it.
    pub max_id_len: usize,
}

impl MessageLimits {
    /// The limits of the base dialect, 262,144 values and 127 levels, and ids of 1 KiB.
    pub const WIRE: Self = Self { max_values: 262_144, max_depth: 127, max_id_len: 1024 };
}

/// Those of the wire.
impl Default for MessageLimits {
    fn default() -> Self {
        Self::WIRE
    }
}

/// One message; parameters, results and errors are the sender's own JSON text, proven valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message<'a> {
    /// Wants an answer.
    Request {
        /// Goes into the answer.
        id: RequestId,
        /// What is asked.
        method: Cow<'a, str>,
        /// With what.
        params: Option<&'a str>,
    },
    /// Wants no answer.
    Notification {
        /// What is told.
        method: Cow<'a, str>,
        /// With what.
        params: Option<&'a str>,
    },
    /// Is an answer.
    Response {
        /// From the request.
        id: RequestId,
        /// The member `result` or the member `error`.
        outcome: Result<&'a str, &'a str>,
    },
}

impl<'a> Message<'a> {
    /// Reads one message.
    ///
    /// A malformed one is answered under [`RequestId::MALFORMED`], whatever id it carries.
    ///
    /// ```
    /// use remex_proto::{Message, MessageLimits, RequestId};
    ///
    /// let text = br#"{"id":1,"method":"process/read","params":{"processId":"p"}}"#;
    /// let message = Message::parse(text, MessageLimits::WIRE).unwrap();
    /// let Message::Request { id, method, params } = message else { panic!() };
    /// assert_eq!((id, &*method), (RequestId::Integer(1), "process/read"));
    /// assert_eq!(params, Some(r#"{"processId":"p"}"#));
    /// ```
    pub fn parse(bytes: &'a [u8], limits: MessageLimits) -> Result<Self, Malformed> {
        let text =
            std::str::from_utf8(bytes).map_err(|error| Malformed::NotUtf8 { at: error.valid_up_to() })?;
        let scan::Members { id, method, params, result, error, trace } = scan::members(text, limits)?;
        let id = id.map(|id| RequestId::parse(id, limits.max_id_len)).transpose()?;
        if let Some(trace) = trace {
            check_trace(trace)?;
        }
        if let Some(method) = method {
            let method = scan::unquote(method).ok_or(Malformed::Method)?;
            return Ok(match id {
                Some(id) => Self::Request { id, method, params },
                None => Self::Notification { method, params },
            });
        }
        let outcome = match (result, error.filter(|error| *error != "null")) {
            (_, Some(error)) if error.starts_with('{') => Err(error),
            (_, Some(_)) => return Err(Malformed::Error),
            (Some(result), None) => Ok(result),
            (None, None) => return Err(Malformed::Purpose),
        };
        Ok(Self::Response { id: id.ok_or(Malformed::Id)?, outcome })
    }
}

fn check_trace(trace: &str) -> Result<(), Malformed> {
    #[derive(Deserialize)]
    #[allow(dead_code)] // Only whether it decodes matters.
    struct Trace {
        traceparent: Option<String>,
        tracestate: Option<String>,
    }

    let is_carrier =
        trace == "null" || (trace.starts_with('{') && serde_json::from_str::<Trace>(trace).is_ok());
    if is_carrier { Ok(()) } else { Err(Malformed::Trace) }
}

/// What ties an answer to its request; echoed with the type it came with.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum RequestId {
    /// A number.
    Integer(i64),
    /// Any text, also none.
    Text(Box<str>),
}

impl RequestId {
    /// What the answer to a malformed message carries.
    pub const MALFORMED: Self = Self::Integer(-1);

    fn parse(json: &str, limit: usize) -> Result<Self, Malformed> {
        match scan::unquote(json) {
            Some(text) if text.len() > limit => Err(Malformed::LongId { limit }),
            Some(text) => Ok(Self::Text(text.into())),
            None => json.parse().map(Self::Integer).map_err(|_| Malformed::Id),
        }
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

/// Why bytes are not a message. The connection lives on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Some byte belongs to no character.
    #[error("not UTF-8 at byte {at}")]
    NotUtf8 {
        /// Offset in the message.
        at: usize,
    },
    /// Not JSON.
    #[error("not JSON: expected {expected} at byte {at}")]
    Syntax {
        /// What could have stood there.
        expected: &'static str,
        /// Offset in the message.
        at: usize,
    },
    /// Not an object; batches do not exist.
    #[error("a message must be one JSON object")]
    NotAnObject,
    /// A key that an object has twice.
    #[error("duplicate key `{key}`")]
    DuplicateKey {
        /// Without its escapes.
        key: String,
    },
    /// Too much in one message.
    #[error("more than {limit} values; send several messages")]
    TooManyValues {
        /// The limit.
        limit: usize,
    },
    /// Too deep.
    #[error("nested deeper than {limit} levels")]
    TooDeep {
        /// The limit.
        limit: u8,
    },
    /// A number that would not survive.
    #[error("number out of range at byte {at}")]
    NumberOutOfRange {
        /// Offset in the message.
        at: usize,
    },
    /// The member `id`.
    #[error("`id` must be a string or an integer of 64 bits")]
    Id,
    /// The member `id`, too long.
    #[error("`id` is longer than {limit} bytes; use a shorter one")]
    LongId {
        /// The limit.
        limit: usize,
    },
    /// The member `method`.
    #[error("`method` must be a string")]
    Method,
    /// The member `error`.
    #[error("`error` must be an object")]
    Error,
    /// The member `trace`.
    #[error("`trace` must be null or an object with the strings `traceparent` and `tracestate`")]
    Trace,
    /// Neither request nor notification nor answer.
    #[error("none of `method`, `result` and `error` is there")]
    Purpose,
}

impl Malformed {
    /// Returns the error that answers it, in the words that clients look for.
    pub fn into_error(self, source: Source) -> RpcError {
        let message = match source {
            Source::WebSocket => {
                format!("failed to parse websocket JSON-RPC message from exec-server websocket peer: {self}")
            }
            Source::Stdio => format!("failed to parse JSON-RPC message from exec-server stdio: {self}"),
            Source::Unix => format!("failed to parse JSON-RPC message from exec-server unix socket: {self}"),
        };
        RpcError::new(ErrorKind::Malformed, message)
    }
}

/// The kind of transport that a message came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A WebSocket.
    WebSocket,
    /// Standard input.
    Stdio,
    /// A unix socket.
    Unix,
}

//! Parsing and writing of one message as bytes.
//!
//! Parsing is strict and cheap: one pass over the text finds the members of the envelope and validates
//! the rest, so the decoders of params and results need not check it again.
//! Start at [`Message::parse`].

mod decode;
mod encode;
mod scan;

use std::{borrow::Cow, fmt};

pub use encode::{
    BodyFrame, OutputFrame, write_error, write_notification, write_request, write_request_body,
    write_request_with, write_result, write_result_with, write_trace,
};
use serde::{Deserialize, Serialize};

use crate::{ErrorKind, RpcError, TraceCarrier};

/// Limits on the structure of one message; transports limit its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageLimits {
    /// The number of values: every scalar, array and object counts as one.
    pub max_values: usize,
    /// The nesting depth of arrays and objects, including the message itself.
    pub max_depth: u8,
    /// The length of a request id in bytes, because the response repeats it.
    pub max_id_len: usize,
    /// The numbers that may occur anywhere.
    pub numbers: NumberRange,
}

/// Which numbers a message may contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumberRange {
    /// Integers of 64 bits, signed or unsigned, and fractions within the range of a double.
    Bits64,
    /// All: only the decoder of a member judges its number, so that unknown members may have any.
    Any,
}

impl MessageLimits {
    /// The limits of the base dialect, 262,144 values and 127 levels, numbers of 64 bits, and ids of 1 KiB.
    pub const WIRE: Self =
        Self { max_values: 262_144, max_depth: 127, max_id_len: 1024, numbers: NumberRange::Bits64 };

    /// The limits for messages of a server: a client accepts long ones, and any number in members that it does not
    /// know.
    pub const FROM_SERVER: Self = Self { max_values: usize::MAX, numbers: NumberRange::Any, ..Self::WIRE };
}

/// Returns [`MessageLimits::WIRE`].
impl Default for MessageLimits {
    fn default() -> Self {
        Self::WIRE
    }
}

/// One message; params, results and errors are validated JSON text, as the sender wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message<'a> {
    /// A request, which expects a response.
    Request {
        /// The id that the response repeats.
        id: RequestId,
        /// The name of the method.
        method: Cow<'a, str>,
        /// The member `params`.
        params: Option<&'a str>,
        /// The member `trace`.
        trace: Option<TraceCarrier>,
    },
    /// A notification, which expects no response.
    Notification {
        /// The name of the notification.
        method: Cow<'a, str>,
        /// The member `params`.
        params: Option<&'a str>,
    },
    /// The response to a request.
    Response {
        /// The id of the request.
        id: RequestId,
        /// The member `result` or the member `error`.
        outcome: Result<&'a str, &'a str>,
    },
}

impl<'a> Message<'a> {
    /// Parses one message.
    ///
    /// The response to a malformed message has the id [`RequestId::MALFORMED`], whatever id the message has.
    ///
    /// ```
    /// use remex_proto::{Message, MessageLimits, RequestId};
    ///
    /// let text = br#"{"id":1,"method":"process/read","params":{"processId":"p"}}"#;
    /// let message = Message::parse(text, MessageLimits::WIRE).unwrap();
    /// let Message::Request { id, method, params, .. } = message else { panic!() };
    /// assert_eq!((id, &*method), (RequestId::Integer(1), "process/read"));
    /// assert_eq!(params, Some(r#"{"processId":"p"}"#));
    /// ```
    pub fn parse(bytes: &'a [u8], limits: MessageLimits) -> Result<Self, Malformed> {
        let text =
            std::str::from_utf8(bytes).map_err(|error| Malformed::NotUtf8 { at: error.valid_up_to() })?;
        let scan::Members { id, method, params, result, error, trace } = scan::members(text, limits)?;
        let id = id.map(|id| RequestId::parse(id, limits.max_id_len)).transpose()?;
        let trace = trace.map_or(Ok(None), parse_trace)?;
        if let Some(method) = method {
            let method = scan::unquote(method).ok_or(Malformed::Method)?;
            return Ok(match id {
                Some(id) => Self::Request { id, method, params, trace },
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

fn parse_trace(trace: &str) -> Result<Option<TraceCarrier>, Malformed> {
    match trace.as_bytes() {
        b"null" => Ok(None),
        [b'{', ..] => serde_json::from_str(trace).map(Some).map_err(|_| Malformed::Trace),
        _ => Err(Malformed::Trace),
    }
}

/// The id that matches an answer to its request; echoed with its original type.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum RequestId {
    /// A number.
    Integer(i64),
    /// Any string, including the empty one.
    Text(Box<str>),
}

impl RequestId {
    /// The id in the response to a malformed message.
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

/// Why bytes are not a message. The connection stays open.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Not UTF-8.
    #[error("not UTF-8 at byte {at}")]
    NotUtf8 {
        /// Offset in the message.
        at: usize,
    },
    /// Not JSON.
    #[error("not JSON: expected {expected} at byte {at}")]
    Syntax {
        /// What was expected at that offset.
        expected: &'static str,
        /// Offset in the message.
        at: usize,
    },
    /// Not an object; there are no batches.
    #[error("a message must be one JSON object")]
    NotAnObject,
    /// An object has the same key twice.
    #[error("duplicate key `{key}`")]
    DuplicateKey {
        /// The key, unescaped.
        key: String,
    },
    /// The message has too many values.
    #[error("more than {limit} values; send several messages")]
    TooManyValues {
        /// The limit.
        limit: usize,
    },
    /// The message is nested too deeply.
    #[error("nested deeper than {limit} levels")]
    TooDeep {
        /// The limit.
        limit: u8,
    },
    /// A number does not fit 64 bits.
    #[error("number out of range at byte {at}")]
    NumberOutOfRange {
        /// Offset in the message.
        at: usize,
    },
    /// The member `id` has the wrong type.
    #[error("`id` must be a string or an integer of 64 bits")]
    Id,
    /// The member `id` is too long.
    #[error("`id` is longer than {limit} bytes; use a shorter one")]
    LongId {
        /// The limit.
        limit: usize,
    },
    /// The member `method` has the wrong type.
    #[error("`method` must be a string")]
    Method,
    /// The member `error` has the wrong type.
    #[error("`error` must be an object")]
    Error,
    /// The member `trace` has the wrong type.
    #[error("`trace` must be null or an object with the strings `traceparent` and `tracestate`")]
    Trace,
    /// Not a binary message that may be received here.
    #[error("{0}")]
    Binary(String),
    /// Neither a request, a notification nor a response.
    #[error("none of `method`, `result` and `error` is there")]
    Purpose,
}

impl Malformed {
    /// Returns the error to respond with; its message begins with the text that clients match on.
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

/// The transport that a message came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A WebSocket.
    WebSocket,
    /// Standard input.
    Stdio,
    /// A unix socket.
    Unix,
}

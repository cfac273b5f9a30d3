//! Parses the bytes of a message.

use bytes::Bytes;
use remex_access::budget;
use remex_base::compute::LARGE_MESSAGE;
use remex_proto::{
    Call, ClientNote, InvalidTrace, Malformed, Message, MessageLimits, ParseError, RequestId, TraceContext,
    attachment,
    binary::Binary,
    network::{Decision, PolicyReply},
};

/// The longest decision of a client that is read, in bytes; its reason is much shorter.
const MAX_DECISION: usize = 16 << 10;

/// A parsed message.
pub(super) enum Parsed {
    Malformed(Malformed),
    /// The message was valid, but there is no memory for its contents.
    NoMemory {
        id: RequestId,
    },
    Request {
        id: RequestId,
        call: Box<Result<Call, ParseError>>,
        trace: Result<Option<TraceContext>, InvalidTrace>,
    },
    Note(ClientNote),
    UnexpectedNote {
        method: String,
    },
    Response {
        id: RequestId,
        /// What the client has decided, if it says that.
        decision: Option<Decision>,
    },
}

impl Parsed {
    /// Parses a binary message.
    pub(super) fn of_binary(message: &Bytes) -> Self {
        match Binary::parse(message) {
            Ok(Binary::Message { json, attached }) => attachment::with(attached, || Parsed::of(&json)),
            Ok(Binary::Output(_)) => {
                Parsed::Malformed(Malformed::Binary("only a server sends output".to_owned()))
            }
            Err(malformed) => Parsed::Malformed(Malformed::Binary(malformed.to_string())),
        }
    }

    pub(super) fn of(bytes: &[u8]) -> Self {
        match Message::parse(bytes, MessageLimits::WIRE) {
            Err(malformed) => Parsed::Malformed(malformed),
            // Parsing copies the contents out of the message, so check now whether there is memory for them.
            Ok(Message::Request { id, .. })
                if bytes.len() > LARGE_MESSAGE && !budget::has_memory(bytes.len()) =>
            {
                Parsed::NoMemory { id }
            }
            Ok(Message::Request { id, method, params, trace }) => Parsed::Request {
                id,
                call: Box::new(Call::parse(&method, params)),
                trace: trace.map_or(Ok(None), |trace| trace.context()),
            },
            Ok(Message::Notification { method, params }) => match ClientNote::parse(&method, params) {
                Ok(note) => Parsed::Note(note),
                Err(_) => Parsed::UnexpectedNote { method: method.into_owned() },
            },
            Ok(Message::Response { id, outcome }) => {
                let reply = outcome.ok().filter(|result| result.len() <= MAX_DECISION);
                let reply = reply.and_then(|result| serde_json::from_str::<PolicyReply>(result).ok());
                Parsed::Response { id, decision: reply.map(|reply| reply.decision) }
            }
        }
    }
}

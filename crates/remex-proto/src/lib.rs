//! The protocol between a remex client and server: wire types, and the state each side keeps.
//!
//! Pure: no I/O, no clock, no tokio, no environment. Start at [`Message`] for one message as
//! bytes, at [`Call`] for a decoded request, and at [`state`] for the state machines.

pub mod message;

pub mod call;
pub mod error;

pub mod discovery;
pub mod flow;
pub mod fs;
pub mod http;
pub mod initialize;
pub mod network;
pub mod process;
pub mod request;
pub mod session;

pub mod blob;
pub mod environment;
pub mod path;
pub mod sandbox;
pub mod trace;

pub mod state;

#[cfg(feature = "schema")]
pub mod schema;

mod lenient;
mod method;
#[cfg(feature = "schema")]
mod words;

pub use blob::Blob;
pub use call::{Call, ClientNote, ParseError, ServerNote};
pub use error::{ErrorKind, FailedStart, RpcError};
pub use initialize::PROTOCOL_VERSION;
pub use message::{Malformed, Message, MessageLimits, NumberRange, RequestId};
pub use path::HostPath;
pub use trace::{InvalidTrace, TraceCarrier, TraceContext};

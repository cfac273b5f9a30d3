//! The protocol between a remex client and server: wire types, and the state each side keeps.
//!
//! Pure: no I/O, no clock, no tokio, no environment. Start at [`Message`] for one message as
//! bytes, at [`Call`] for a decoded request, and at [`state`] for the state machines.

mod areas;
mod base;
mod envelope;

pub use areas::{discovery, environment, fs, http, initialize, network, process, sandbox, session};
pub use base::{attachment, blob, error, flow, path, trace};
pub use envelope::{binary, call, message, request};

pub mod state;

#[cfg(feature = "schema")]
pub mod schema;

pub use areas::initialize::PROTOCOL_VERSION;
pub use base::blob::Blob;
pub use base::error::{ErrorKind, FailedStart, RpcError};
pub use base::path::HostPath;
pub use base::trace::{InvalidTrace, TraceCarrier, TraceContext};
pub use envelope::call::{Call, ClientNote, ParseError, ServerNote};
pub use envelope::message::{Malformed, Message, MessageLimits, NumberRange, RequestId};

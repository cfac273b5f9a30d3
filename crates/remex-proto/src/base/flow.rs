//! Acknowledgements and backpressure, for clients with the respective capabilities.
//!
//! With the capability `acks`, on transports without pings, the server sends a [`Mark`] after every few hundred KiB;
//! the client answers with an [`Ack`] once it has received everything before the mark. On a WebSocket, ping and pong do
//! the same. With the capability `consumed`, the client reports what it has consumed of each process ([`Consumed`]), so
//! that a stalled consumer blocks only its own process. Bodies of HTTP streams work the same way ([`BodyConsumed`]).

use serde::{Deserialize, Serialize};

/// `flow/mark`, from the server: acknowledge when you have read this far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Mark {
    /// Grows with each mark of one connection.
    pub mark: u64,
}

/// `flow/ack`, from the client: everything before this mark has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Ack {
    /// The newest mark seen; it acknowledges the earlier ones too.
    pub mark: u64,
}

/// `flow/consumed`, from the client: the client has consumed the events of a process up to `seq`.
///
/// The server streams no more than 256 KiB or 4,096 events beyond it, and keeps what is not consumed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Consumed {
    /// A process of the connection's own session.
    pub process_id: String,
    /// The start that it was read from: if the process was restarted since, this says nothing about the new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<u64>,
    /// The last consumed event; never decreases.
    pub seq: u64,
}

/// `flow/bodyConsumed`, from the client: the client has consumed the parts of a streamed body up to `seq`.
///
/// The server sends no more than 16 parts beyond it, and reads no more from the web server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct BodyConsumed {
    /// A stream of the connection.
    pub request_id: String,
    /// The last consumed part; never decreases.
    pub seq: u64,
}

/// How many unconsumed parts of one body may be in flight to a client with the capability `consumed`.
pub const WINDOW_PARTS: u64 = 16;

/// How much unconsumed output of one process may be in flight to a client with the capability `consumed`, in bytes.
pub const WINDOW_BYTES: u64 = 256 << 10;

/// How many unconsumed events of one process may be in flight to such a client.
pub const WINDOW_EVENTS: u64 = 4096;

//! Acknowledgements on transports without ping, for clients with the capability `acks`.
//!
//! The server sends a [`Mark`] after every few hundred KiB; the client answers with an [`Ack`]
//! once it has everything before the mark. On a WebSocket ping and pong do the same.

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

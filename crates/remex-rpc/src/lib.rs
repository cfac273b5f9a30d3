//! Moves frames between two ends of a connection: lines or WebSocket, over stdio, unix sockets and TCP.
//!
//! A frame is one message as bytes. Nothing here parses JSON or knows what a message asks for.
//! Start at [`Listener`] for where connections come from, at [`FrameReader`] for what arrives and at
//! [`SendBuffer`] for what leaves.

mod address;
mod connect;
mod frame_reader;
mod framing;
mod handshake;
mod http;
mod listener;
pub mod memory;
mod send_buffer;
mod stdio;
mod unix;
pub mod websocket;

use tokio::io::{AsyncRead, AsyncWrite};

pub use address::{AddressError, ListenAddress};
pub use connect::{ConnectError, Target, connect};
pub use frame_reader::{FrameReader, Incoming};
pub use framing::{Framing, Role};
pub use handshake::{Authorization, HandshakeConfig, NotUpgraded, Readiness, Upgraded, handshake};
pub use listener::{Accepted, BindError, Inherited, Listener};
pub use send_buffer::SendBuffer;
pub use stdio::stdio;

/// The receiving half of a connection, whatever it runs over.
pub type ReadHalf = Box<dyn AsyncRead + Send + Unpin>;

/// The sending half of a connection, whatever it runs over.
pub type WriteHalf = Box<dyn AsyncWrite + Send + Unpin>;

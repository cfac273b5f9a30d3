//! Transports frames over a connection: lines or WebSocket, over stdio, unix sockets and TCP.
//!
//! A frame is one message as bytes. Nothing here parses JSON or interprets messages.
//! Start at [`Listener`] for accepting connections, at [`FrameReader`] for receiving and at
//! [`SendBuffer`] for sending.

mod address;
mod connect;
mod frame_reader;
mod framing;
mod handshake;
mod http;
mod listener;
pub mod memory;
mod regular_file;
mod send_buffer;
mod stdio;
mod stream;
pub mod tls;
mod unix;
pub mod websocket;

use tokio::io::{AsyncRead, AsyncWrite};

pub use address::{AddressError, ListenAddress};
pub use connect::{ConnectError, Target, connect};
pub use frame_reader::{FrameReader, Incoming};
pub use framing::{Framing, Role};
pub use handshake::{
    HandshakeConfig, HostNames, NotUpgraded, Page, Readiness, Received, Refusal, Upgrade, receive,
    refuse_at_once,
};
pub use listener::{Accepted, BindError, Inherited, Listener};
pub use regular_file::open_regular;
pub use send_buffer::SendBuffer;
pub use stdio::stdio;
pub use stream::Stream;

/// The receiving half of a connection over any transport.
pub type ReadHalf = Box<dyn AsyncRead + Send + Unpin>;

/// The sending half of a connection over any transport.
pub type WriteHalf = Box<dyn AsyncWrite + Send + Unpin>;

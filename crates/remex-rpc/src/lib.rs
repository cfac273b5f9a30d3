//! Transports frames over a connection: lines or WebSocket, over stdio, unix sockets and TCP.
//!
//! A frame is one message as bytes. Nothing here parses JSON or interprets messages.
//! Start at [`Listener`] for accepting connections, at [`FrameReader`] for receiving and at
//! [`SendBuffer`] for sending.
//!
//! Features: `tls` encrypts, and `server` (which includes it) accepts connections, on Linux.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "server")]
mod address;
mod connect;
mod frame_reader;
mod framing;
#[cfg(feature = "server")]
mod handshake;
mod http;
#[cfg(feature = "server")]
mod listener;
pub mod memory;
#[cfg(target_os = "linux")]
mod peer_process;
#[cfg(feature = "server")]
mod regular_file;
mod send_buffer;
#[cfg(feature = "server")]
mod stdio;
mod stream;
#[cfg(feature = "tls")]
pub mod tls;
#[cfg(feature = "server")]
mod unix;
pub mod websocket;
#[cfg(feature = "server")]
mod writers;

use tokio::io::{AsyncRead, AsyncWrite};

#[cfg(feature = "server")]
pub use address::{AddressError, ListenAddress};
pub use connect::{ConnectError, Reason, Target, connect};
pub use frame_reader::{FrameReader, Incoming};
pub use framing::{Framing, Role};
#[cfg(feature = "server")]
pub use handshake::{
    HandshakeConfig, HostNames, NotUpgraded, Page, Readiness, Received, Refusal, Upgrade, receive,
    refuse_at_once,
};
#[cfg(feature = "server")]
pub use listener::{Accepted, BindError, Inherited, Kept, Listener};
#[cfg(target_os = "linux")]
pub use peer_process::{PeerProcess, jailed_on_own_network, processes};
#[cfg(feature = "server")]
pub use regular_file::{open_given, open_regular};
pub use send_buffer::SendBuffer;
#[cfg(feature = "server")]
pub use stdio::stdio;
pub use stream::Stream;
#[cfg(feature = "server")]
pub use writers::{OthersCanWrite, check_writers, is_unmapped};

/// The receiving half of a connection over any transport.
pub type ReadHalf = Box<dyn AsyncRead + Send + Unpin>;

/// The sending half of a connection over any transport.
pub type WriteHalf = Box<dyn AsyncWrite + Send + Unpin>;

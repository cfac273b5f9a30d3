//! Transports frames over a connection: lines or WebSocket, over stdio, unix sockets and TCP.
//!
//! A frame is one message as bytes. Nothing here parses JSON or interprets messages.
//! Start at [`Listener`] for accepting connections, at [`FrameReader`] for receiving and at
//! [`SendBuffer`] for sending.
//!
//! Features: `tls` encrypts, and `server` (which includes it) accepts connections, on Linux.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod base;
mod frames;
mod links;

pub use base::halves::{ReadHalf, WriteHalf};
pub use base::memory;
pub use frames::websocket;
#[cfg(feature = "tls")]
pub use links::tls;

pub use frames::frame_reader::{FrameReader, Incoming};
pub use frames::framing::{Framing, Role};
pub use frames::send_buffer::SendBuffer;
#[cfg(feature = "server")]
pub use links::address::{AddressError, ListenAddress};
pub use links::connect::{ConnectError, Reason, Target, connect};
#[cfg(feature = "server")]
pub use links::handshake::{
    HandshakeConfig, HostNames, NotUpgraded, Page, Readiness, Received, Refusal, Upgrade, receive,
    refuse_at_once,
};
#[cfg(feature = "server")]
pub use links::listener::{Accepted, BindError, HandoverSocket, Inherited, Listener};
#[cfg(target_os = "linux")]
pub use links::peer_process::{PeerProcess, jailed_on_own_network, processes};
#[cfg(feature = "server")]
pub use links::stdio::stdio;
pub use links::stream::Stream;

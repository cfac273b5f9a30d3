//! Streams of bytes: where to listen, how to connect, who the peer is.

#[cfg(feature = "server")]
pub(crate) mod address;
pub(crate) mod connect;
#[cfg(feature = "server")]
pub(crate) mod handshake;
#[cfg(feature = "server")]
pub(crate) mod listener;
#[cfg(target_os = "linux")]
pub(crate) mod peer_process;
#[cfg(feature = "server")]
pub(crate) mod stdio;
pub(crate) mod stream;
#[cfg(feature = "tls")]
pub mod tls;
#[cfg(feature = "server")]
pub(crate) mod unix;

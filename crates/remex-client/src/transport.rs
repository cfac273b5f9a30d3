//! Connections: targets and their addresses, TLS, programs, and dialling.

pub(crate) mod dial;
pub(crate) mod link;
pub(crate) mod program;
pub(crate) mod target;
#[cfg(feature = "tls")]
pub mod tls;

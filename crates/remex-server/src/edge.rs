//! Where clients come in: the listeners and TLS.

pub(crate) mod connection;
pub(crate) mod server;
pub(crate) mod tls;

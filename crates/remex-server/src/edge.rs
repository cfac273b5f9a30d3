//! Where clients come in, and what runs without them: the listeners, TLS, the keeper.

pub(crate) mod collect;
pub(crate) mod connection;
pub(crate) mod keeper;
pub(crate) mod server;
pub(crate) mod tls;

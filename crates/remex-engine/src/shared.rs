//! What all processes on this host share: the proxy of confined ones, limits, accounts of users, and the host itself.

pub(crate) mod host;
pub(crate) mod proxy;
pub(crate) mod resource_limits;
pub mod unix_peer;
pub(crate) mod user_account;

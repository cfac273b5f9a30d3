//! Who may do what, the record of it, and the configuration that says so.

pub(crate) mod admission;
pub(crate) mod audit;
pub(crate) mod auth;
pub(crate) mod config;
pub(crate) mod identity;
pub(crate) mod rate;
pub(crate) mod scope;
pub(crate) mod socket_owner;
pub(crate) mod ssh_login;
pub mod token;
pub(crate) mod unix_peer;
pub(crate) mod user_account;

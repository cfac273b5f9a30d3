//! Who is at the other end of a connection within this host, and the accounts of this host.

pub(crate) mod socket_owner;
pub(crate) mod ssh_login;
pub(crate) mod unix_peer;
pub(crate) mod user_account;

//! Who is at the other end of a connection within this host.

pub(crate) mod socket_owner;
pub(crate) mod ssh_login;

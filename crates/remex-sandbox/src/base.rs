//! Paths, hosts and patterns that policies are made of, and how a host is looked at.

pub(crate) mod access;
pub(crate) mod error;
pub(crate) mod host;
pub(crate) mod hosts;
#[cfg(feature = "serde")]
pub mod os_bytes;
pub(crate) mod pattern;

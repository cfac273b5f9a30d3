//! What everything on this host shares: HTTP clients, what it can enforce, and the host itself.

pub(crate) mod host;
pub(crate) mod jail_support;
pub(crate) mod web;

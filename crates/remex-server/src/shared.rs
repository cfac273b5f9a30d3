//! What everything on this host shares: the proxy, HTTP clients.

pub(crate) mod host;
pub(crate) mod jail_support;
pub(crate) mod proxy;
pub(crate) mod resource_limits;
pub(crate) mod web;

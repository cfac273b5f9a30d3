//! What everything on this host shares: confinement, the proxy, watchers, HTTP clients.

pub(crate) mod confinement;
pub(crate) mod host;
pub(crate) mod jail_support;
pub(crate) mod proxy;
pub(crate) mod resource_limits;
pub(crate) mod watcher;
pub(crate) mod web;

//! From a request to a running child: clones, jails, init processes, and who watches over them.

pub(crate) mod attempt;
pub(crate) mod clone;
pub(crate) mod create;
pub(crate) mod descriptors;
pub(crate) mod exit;
pub(crate) mod image;
pub(crate) mod init;
pub(crate) mod janitor;
pub(crate) mod prepared;
pub(crate) mod proxy;
pub(crate) mod resources;
pub(crate) mod spawner;
pub(crate) mod supervised;
pub(crate) mod support;
pub(crate) mod watchdog;

//! Servers: finding, starting and connecting to them, their processes, and paths on their hosts.
//!
//! Start at [`endpoint::Endpoint`].

pub(crate) mod agent_link;
pub(crate) mod endpoint;
pub(crate) mod local_server;
pub(crate) mod lock_holder;
pub(crate) mod path_arg;
pub(crate) mod probe;
pub(crate) mod processes;
pub(crate) mod reconnect;
pub(crate) mod silent_keeper;
pub(crate) mod ssh;
pub(crate) mod unit;
pub(crate) mod user_server;

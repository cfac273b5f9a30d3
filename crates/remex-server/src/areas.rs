//! Calls that need no process: files, HTTP, watches, the environment.

pub(crate) mod context;
pub(crate) mod environment;
pub(crate) mod fs;
pub(crate) mod http;
pub(crate) mod watch;

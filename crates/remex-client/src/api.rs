//! What programs use: clients, processes, files, HTTP, sessions, environments and agents.

#[cfg(feature = "agent")]
pub mod agent;
pub(crate) mod client;
#[cfg(feature = "environments")]
pub mod environment;
pub mod fs;
pub mod http;
pub mod process;
pub mod session;
#[cfg(feature = "stream")]
pub(crate) mod stream;
#[cfg(feature = "testing")]
pub mod testing;

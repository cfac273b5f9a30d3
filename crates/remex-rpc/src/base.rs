//! Memory of messages, and files that may be trusted.

pub(crate) mod halves;
pub mod memory;
#[cfg(feature = "server")]
pub(crate) mod regular_file;
#[cfg(feature = "server")]
pub(crate) mod writers;

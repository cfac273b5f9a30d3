//! What all messages are made of.

pub mod attachment;
pub mod blob;
pub mod error;
pub mod flow;
pub(crate) mod lenient;
pub(crate) mod method;
pub mod path;
pub mod trace;
#[cfg(feature = "schema")]
pub(crate) mod words;

//! Memory of messages, and the halves of a connection.

pub(crate) mod halves;
pub mod memory;

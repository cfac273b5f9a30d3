//! Living processes and their descendants: finding, adopting, reaping and ending them.

pub(crate) mod adoption;
pub(crate) mod hidden;
pub(crate) mod leader;
pub(crate) mod reaper;
pub(crate) mod run_with_timeout;
pub mod tree;

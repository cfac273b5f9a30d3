//! Living processes and their descendants: finding, adopting, reaping and ending them.

pub(crate) mod adoption;
pub(crate) mod brief;
pub(crate) mod hidden;
pub(crate) mod leader;
pub(crate) mod reaper;
pub mod tree;

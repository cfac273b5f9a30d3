//! Sessions, and the processes that their clients follow.

pub(crate) mod process;
pub(crate) mod session;

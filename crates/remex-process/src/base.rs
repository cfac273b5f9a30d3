//! What the kernel offers, as values and calls: identifiers, signals, limits, tables, memory.

pub(crate) mod memory;
pub(crate) mod pid;
pub(crate) mod proc;
pub(crate) mod rlimits;
#[cfg(feature = "serde")]
pub(crate) mod serde_numbers;
pub(crate) mod shared_table;
pub(crate) mod signal;
pub(crate) mod slots;
pub(crate) mod sys;
pub(crate) mod tag;
pub(crate) mod tag_limit;
pub(crate) mod user;

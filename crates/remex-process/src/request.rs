//! The description of a start: limits, jail, descriptors; and the errors that refuse it.

pub(crate) mod cgroup;
pub(crate) mod error;
pub(crate) mod jail;
#[cfg(feature = "serde")]
pub(crate) mod spec;
pub(crate) mod start;

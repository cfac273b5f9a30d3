//! The format on disk, and what it stores.

pub(crate) mod disk;
pub(crate) mod event;
pub(crate) mod format;
pub(crate) mod names;
pub(crate) mod scanner;
pub(crate) mod siphash;
pub(crate) mod space;

//! Plain values and tools: time, limits, tasks, threads, and what the host has left.

pub(crate) mod available_memory;
pub(crate) mod clock;
pub(crate) mod compute;
pub(crate) mod deadlines;
pub(crate) mod io_error;
pub(crate) mod limits;
pub(crate) mod log_limit;
pub(crate) mod metrics;
pub(crate) mod nofollow;
pub(crate) mod supervise;
pub(crate) mod threads;
pub(crate) mod trace;

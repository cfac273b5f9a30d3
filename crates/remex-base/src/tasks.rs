//! Tasks that panic, threads that may hang, threads that compute, and times to act.

pub mod compute;
pub mod deadlines;
pub mod supervise;
pub mod threads;

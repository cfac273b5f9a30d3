//! What a server reports about itself: counters, spans and log lines.

pub mod log_limit;
pub mod metrics;
pub mod trace;

//! The wall clock, for what people read; deadlines use [`std::time::Instant`].

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

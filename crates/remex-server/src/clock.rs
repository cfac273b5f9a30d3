//! The wall clock, for what people read; deadlines use [`std::time::Instant`], or [`steady_ms`] where people read them too.

use std::{
    sync::OnceLock,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

/// Returns milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Returns milliseconds since the Unix epoch as they would be if nobody had set the clock meanwhile.
///
/// A clock that is set must not end every session that waits for its client.
pub(crate) fn steady_ms() -> u64 {
    static BEGIN: OnceLock<(Instant, u64)> = OnceLock::new();
    let (begin, begin_ms) = BEGIN.get_or_init(|| (Instant::now(), now_ms()));
    begin_ms.saturating_add(u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX))
}

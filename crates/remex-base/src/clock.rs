//! The wall clock, for times shown to people, and times in the milliseconds of the wire. Deadlines use
//! [`std::time::Instant`], or [`steady_ms`] if people see them too.

use std::{
    sync::OnceLock,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Returns milliseconds since the Unix epoch.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, millis)
}

/// Returns a duration in whole milliseconds; the largest number if it is longer.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns milliseconds since the Unix epoch, unaffected by changes to the clock since the server started.
///
/// Setting the clock must not expire every detached session.
pub fn steady_ms() -> u64 {
    static BEGIN: OnceLock<(Instant, u64)> = OnceLock::new();
    let (begin, begin_ms) = BEGIN.get_or_init(|| (Instant::now(), now_ms()));
    begin_ms.saturating_add(millis(begin.elapsed()))
}

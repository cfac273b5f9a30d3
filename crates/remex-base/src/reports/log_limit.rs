//! Limits how often the same message is logged, so that frequent events do not fill the log.
//!
//! Start at [`LogLimit`].

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

use crate::lock;

/// The messages of one kind: up to an allowance per interval are logged, and the others are counted.
#[derive(Debug)]
pub struct LogLimit {
    allowance: u32,
    interval: Duration,
    /// Shared by everything that logs messages of this kind; held briefly.
    count: Mutex<Count>,
}

#[derive(Debug)]
struct Count {
    began: Option<Instant>,
    logged: u32,
    suppressed: u64,
}

impl LogLimit {
    /// Allows `allowance` messages within `interval`.
    pub const fn new(allowance: u32, interval: Duration) -> Self {
        let count = Mutex::new(Count { began: None, logged: 0, suppressed: 0 });
        LogLimit { allowance, interval, count }
    }

    /// Counts a message. If it is to be logged, returns how many were not logged before it.
    pub fn count(&self, now: Instant) -> Option<u64> {
        let mut count = lock(&self.count);
        if count.began.is_none_or(|began| now.duration_since(began) >= self.interval) {
            (count.began, count.logged) = (Some(now), 0);
        }
        if count.logged >= self.allowance {
            count.suppressed += 1;
            return None;
        }
        count.logged += 1;
        Some(std::mem::take(&mut count.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_beyond_the_allowance_of_an_interval_are_only_counted() {
        let (limit, start) = (LogLimit::new(2, Duration::from_secs(1)), Instant::now());
        let later = |ms| start + Duration::from_millis(ms);
        let counted = [0, 0, 10, 999, 1000, 1001, 1002].map(|ms| limit.count(later(ms)));
        assert_eq!(counted, [Some(0), Some(0), None, None, Some(2), Some(0), None]);
    }
}

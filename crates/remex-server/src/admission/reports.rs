//! How often refusals are logged: strangers cause them, and must not fill the log.

use std::time::{Duration, Instant};

/// How long the counts of a kind last.
const INTERVAL: Duration = Duration::from_secs(60);

/// A kind of refusal that is logged only so often; metrics count each one.
///
/// The audit file has a line for each of [`Refused::Login`] and [`Refused::Tls`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Too many half-open connections.
    HalfOpen,
    /// A wrong credential, or none.
    Login,
    /// A failed TLS handshake, or TLS on a plain port.
    Tls,
    /// An authenticated client with too many connections.
    Crowded,
}

impl Refused {
    /// Returns how many are logged within [`INTERVAL`].
    const fn allowance(self) -> u32 {
        match self {
            Refused::HalfOpen => 1,
            Refused::Login | Refused::Tls | Refused::Crowded => 10,
        }
    }
}

/// The refusals of the current interval.
#[derive(Debug, Default)]
pub(super) struct Reports {
    kinds: [Count; 4],
}

#[derive(Debug, Default)]
struct Count {
    began: Option<Instant>,
    logged: u32,
    suppressed: u64,
}

impl Reports {
    /// Counts a refusal. If it is to be logged, returns how many of its kind were not logged before it.
    pub(super) fn count(&mut self, kind: Refused, now: Instant) -> Option<u64> {
        let count = &mut self.kinds[kind as usize];
        if count.began.is_none_or(|began| now.duration_since(began) >= INTERVAL) {
            (count.began, count.logged) = (Some(now), 0);
        }
        if count.logged >= kind.allowance() {
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
    fn ten_refusals_of_a_kind_are_logged_a_minute_and_the_rest_is_counted() {
        let (mut reports, start) = (Reports::default(), Instant::now());
        for _ in 0..10 {
            assert_eq!(reports.count(Refused::Login, start), Some(0));
        }
        for _ in 0..3 {
            assert_eq!(reports.count(Refused::Login, start + INTERVAL / 2), None);
        }
        assert_eq!(reports.count(Refused::Tls, start), Some(0), "kinds do not silence each other");
        assert_eq!(reports.count(Refused::Login, start + INTERVAL), Some(3));
        assert_eq!(reports.count(Refused::Login, start + INTERVAL), Some(0));
        assert_eq!(reports.count(Refused::HalfOpen, start), Some(0));
        assert_eq!(reports.count(Refused::HalfOpen, start), None);
    }
}

//! Limits how often refusals are logged: unauthenticated peers cause them and must not be able to fill the log.

use std::time::{Duration, Instant};

use remex_base::log_limit::LogLimit;

/// How long the counts of a kind last.
const INTERVAL: Duration = Duration::from_secs(60);

/// A kind of refusal whose log lines are rate-limited; metrics count each one.
///
/// The audit file has a line for each of [`Refused::Login`] and [`Refused::Tls`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Too many half-open connections.
    HalfOpen,
    /// A wrong credential, or none.
    Login,
    /// A failed TLS handshake, or TLS on a plain port.
    Tls,
    /// An authenticated client with too many connections.
    LimitReached,
    /// A connection that cannot be accepted, because no descriptor is free.
    Unaccepted,
}

impl Refused {
    /// Returns how many are logged within [`INTERVAL`].
    const fn allowance(self) -> u32 {
        match self {
            Refused::HalfOpen => 1,
            Refused::Login | Refused::Tls | Refused::LimitReached | Refused::Unaccepted => 10,
        }
    }
}

/// The refusals of the current interval.
#[derive(Debug)]
pub(super) struct Reports {
    kinds: [LogLimit; 5],
}

impl Default for Reports {
    fn default() -> Self {
        let kinds =
            [Refused::HalfOpen, Refused::Login, Refused::Tls, Refused::LimitReached, Refused::Unaccepted];
        Reports { kinds: kinds.map(|kind| LogLimit::new(kind.allowance(), INTERVAL)) }
    }
}

impl Reports {
    /// Counts a refusal. If it is to be logged, returns how many of its kind were not logged before it.
    pub(super) fn count(&self, kind: Refused, now: Instant) -> Option<u64> {
        self.kinds[kind as usize].count(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_refusals_of_a_kind_are_logged_per_minute_and_the_rest_is_counted() {
        let (reports, start) = (Reports::default(), Instant::now());
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

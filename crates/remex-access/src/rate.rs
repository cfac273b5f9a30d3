//! How many requests per second an identity may send.
//!
//! A token bucket: after a pause, as many requests as belong to one second may come at once. Start at [`Rates`].

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use remex_base::lock;

use crate::identity::Identity;

/// How many identities are remembered before those without a connection that have been silent for a second are
/// forgotten.
const REMEMBERED: usize = 1024;

/// The rates of all identities.
#[derive(Debug, Default)]
pub struct Rates {
    /// Shared by all connections; held briefly.
    by_identity: Mutex<HashMap<Identity, Arc<Rate>>>,
}

/// The rate of one identity, which its connections share.
#[derive(Debug, Default)]
pub struct Rate {
    /// When the next request would be due if all requests were spaced evenly.
    next: Mutex<Option<Instant>>,
}

impl Rates {
    /// Returns the rate of an identity.
    pub fn of(&self, identity: &Identity) -> Arc<Rate> {
        let mut rates = lock(&self.by_identity);
        if rates.len() >= REMEMBERED {
            // From then on, a new bucket is as full as theirs.
            let full = Instant::now().checked_sub(Duration::from_secs(1));
            rates.retain(|_, rate| Arc::strong_count(rate) > 1 || *rate.next() > full);
        }
        Arc::clone(rates.entry(identity.clone()).or_default())
    }
}

impl Rate {
    /// Takes the turn of one request; returns how long it has to wait for it.
    pub fn take(&self, per_second: usize, now: Instant) -> Duration {
        let spacing = Duration::from_secs(1) / u32::try_from(per_second).unwrap_or(u32::MAX).max(1);
        let burst = Duration::from_secs(1).saturating_sub(spacing);
        let earliest = now.checked_sub(burst).unwrap_or(now);
        let mut next = self.next();
        let due = next.map_or(earliest, |next| next.max(earliest));
        *next = Some(due + spacing);
        due.saturating_duration_since(now)
    }

    fn next(&self) -> MutexGuard<'_, Option<Instant>> {
        lock(&self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_beyond_the_rate_wait_and_a_pause_allows_a_burst_of_one_second() {
        let (rate, start) = (Rate::default(), Instant::now() + Duration::from_secs(100));
        assert_eq!(rate.take(4, start), Duration::ZERO);
        // After a pause, all of a second's requests may come at once.
        let later = start + Duration::from_secs(10);
        let waits: Vec<_> = (0..6).map(|_| rate.take(4, later).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 0, 250, 500]);
        let afterwards = later + Duration::from_millis(750);
        assert_eq!(rate.take(4, afterwards), Duration::ZERO, "the debt is paid");
        assert_eq!(rate.take(4, afterwards).as_millis(), 250);
    }

    #[test]
    fn identities_have_rates_of_their_own() {
        let rates = Rates::default();
        let (owner, other) = (rates.of(&Identity::Owner), rates.of(&Identity::Own(1)));
        let now = Instant::now();
        assert_eq!(owner.take(1, now), Duration::ZERO);
        assert!(rates.of(&Identity::Owner).take(1, now) > Duration::ZERO);
        assert_eq!(other.take(1, now), Duration::ZERO);
    }
}

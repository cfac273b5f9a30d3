//! How often a server has broken the protocol.
//!
//! Pure: time is an argument. Start at [`Breaches`].

use std::time::Duration;

use tokio::time::Instant;

/// So many breaches within [`WITHIN`] are no accident any more.
const MOST: u32 = 8;
const WITHIN: Duration = Duration::from_secs(60);

/// Counts the breaches of the protocol, to tell an accident from a server that speaks another language.
#[derive(Debug, Default)]
pub(super) struct Breaches {
    /// The first of those that count together.
    first: Option<Instant>,
    count: u32,
}

impl Breaches {
    /// Counts one, and tells whether it is one too many.
    pub(super) fn add(&mut self, now: Instant) -> bool {
        if self.first.is_none_or(|first| now.duration_since(first) > WITHIN) {
            *self = Self { first: Some(now), count: 0 };
        }
        self.count += 1;
        self.count >= MOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accidents_that_lie_far_apart_are_forgiven() {
        let mut breaches = Breaches::default();
        let mut now = Instant::now();
        for _ in 0..3 * MOST {
            assert!(!breaches.add(now));
            now += WITHIN / (MOST - 2);
        }
        for _ in 0..MOST {
            now += Duration::from_millis(1);
            if breaches.add(now) {
                return;
            }
        }
        panic!("{MOST} breaches in a row are too many");
    }
}

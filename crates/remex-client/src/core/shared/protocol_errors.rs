//! Counts protocol errors of a server.
//!
//! Pure: time is an argument. Start at [`ProtocolErrors`].

use std::time::Duration;

use tokio::time::Instant;

/// This many protocol errors within [`WITHIN`] end the session.
const MOST: u32 = 8;
const WITHIN: Duration = Duration::from_secs(60);

/// Counts protocol errors, to distinguish an isolated error from a server that speaks another protocol.
#[derive(Debug, Default)]
pub(super) struct ProtocolErrors {
    /// When the first error of the current window occurred.
    first: Option<Instant>,
    count: u32,
}

impl ProtocolErrors {
    /// Counts one error; returns whether the limit is reached.
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
    fn infrequent_protocol_errors_are_tolerated() {
        let mut protocol_errors = ProtocolErrors::default();
        let mut now = Instant::now();
        for _ in 0..3 * MOST {
            assert!(!protocol_errors.add(now));
            now += WITHIN / (MOST - 2);
        }
        for _ in 0..MOST {
            now += Duration::from_millis(1);
            if protocol_errors.add(now) {
                return;
            }
        }
        panic!("{MOST} protocol_errors in a row are too many");
    }
}

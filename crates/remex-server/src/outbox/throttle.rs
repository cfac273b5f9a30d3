//! Throttles floods on all connections while one of them sends short output.
//!
//! Start at [`BulkThrottle`].

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use super::ConnectionId;

/// Throttles the floods of other connections while one sends short output.
///
/// Connections share the processors, if not a socket: a flood that always has data in flight keeps busy the
/// cores that the short output needs.
#[derive(Debug, Default)]
pub(super) struct BulkThrottle(Mutex<Option<ThrottleRequest>>);

#[derive(Clone, Copy, Debug)]
struct ThrottleRequest {
    connection: ConnectionId,
    until: Instant,
}

impl BulkThrottle {
    /// Throttles all connections except this one until then.
    pub(super) fn ask(&self, connection: ConnectionId, until: Instant) {
        *self.speaker() = Some(ThrottleRequest { connection, until });
    }

    /// Returns whether another connection has asked for throttling.
    pub(super) fn is_due(&self, connection: ConnectionId) -> bool {
        let mut speaker = self.speaker();
        let Some(known) = *speaker else { return false };
        if known.until <= Instant::now() {
            *speaker = None;
        }
        speaker.is_some_and(|speaker| speaker.connection != connection)
    }

    fn speaker(&self) -> MutexGuard<'_, Option<ThrottleRequest>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn short_output_throttles_floods_on_all_other_connections() {
        let throttle = BulkThrottle::default();
        assert!(!throttle.is_due(1));
        throttle.ask(2, Instant::now() + Duration::from_secs(60));
        assert!(throttle.is_due(1) && !throttle.is_due(2));
        throttle.ask(2, Instant::now());
        assert!(!throttle.is_due(1));
    }
}

//! Throttles bulk output on all connections while one of them sends fresh output.
//!
//! Start at [`BulkThrottle`].

use std::{
    sync::{Mutex, MutexGuard},
    time::Instant,
};

use remex_base::lock;

use super::ConnectionId;

/// Throttles the bulk output of other connections while one sends fresh output.
///
/// Connections share the processors, if not a socket: bulk output that always has data in flight keeps
/// busy the cores that the fresh output needs.
#[derive(Debug, Default)]
pub(super) struct BulkThrottle(Mutex<Option<ThrottleRequest>>);

#[derive(Clone, Copy, Debug)]
struct ThrottleRequest {
    connection: ConnectionId,
    until: Instant,
}

impl BulkThrottle {
    /// Throttles all connections except this one until then.
    pub(super) fn throttle_others(&self, connection: ConnectionId, until: Instant) {
        *self.request() = Some(ThrottleRequest { connection, until });
    }

    /// Returns whether another connection has asked for throttling.
    pub(super) fn is_throttled(&self, connection: ConnectionId) -> bool {
        let mut request = self.request();
        let Some(known) = *request else { return false };
        if known.until <= Instant::now() {
            *request = None;
        }
        request.is_some_and(|request| request.connection != connection)
    }

    fn request(&self) -> MutexGuard<'_, Option<ThrottleRequest>> {
        lock(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn fresh_output_throttles_bulk_output_on_all_other_connections() {
        let throttle = BulkThrottle::default();
        assert!(!throttle.is_throttled(1));
        throttle.throttle_others(2, Instant::now() + Duration::from_secs(60));
        assert!(throttle.is_throttled(1) && !throttle.is_throttled(2));
        throttle.throttle_others(2, Instant::now());
        assert!(!throttle.is_throttled(1));
    }
}

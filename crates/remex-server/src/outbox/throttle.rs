//! What the floods of all connections know of each other's short answers.
//!
//! Start at [`BulkThrottle`].

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use super::ConnectionId;

/// Tells the floods of every connection that something short is being said on another.
///
/// They share the machine's processors, if not a socket: a flood that always has something on its way keeps
/// those busy who would carry the short output.
#[derive(Debug, Default)]
pub(super) struct BulkThrottle(Mutex<Option<Speaker>>);

#[derive(Clone, Copy, Debug)]
struct Speaker {
    connection: ConnectionId,
    until: Instant,
}

impl BulkThrottle {
    /// Asks all connections but this one to keep out of the way until then.
    pub(super) fn ask(&self, connection: ConnectionId, until: Instant) {
        *self.speaker() = Some(Speaker { connection, until });
    }

    /// Tells whether a connection other than this one has asked for it.
    pub(super) fn is_due(&self, connection: ConnectionId) -> bool {
        let mut speaker = self.speaker();
        let Some(known) = *speaker else { return false };
        if known.until <= Instant::now() {
            *speaker = None;
        }
        speaker.is_some_and(|speaker| speaker.connection != connection)
    }

    fn speaker(&self) -> MutexGuard<'_, Option<Speaker>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn all_connections_but_the_speaking_one_keep_out_of_the_way_for_a_while() {
        let throttle = BulkThrottle::default();
        assert!(!throttle.is_due(1));
        throttle.ask(2, Instant::now() + Duration::from_secs(60));
        assert!(throttle.is_due(1) && !throttle.is_due(2));
        throttle.ask(2, Instant::now());
        assert!(!throttle.is_due(1));
    }
}

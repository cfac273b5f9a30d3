//! Output that is dropped to make room; the log says so at most once a minute for each process. Start at [`Evictions`].

use std::time::{Duration, Instant};

use super::{Audience, Engine, Holding, Kind, ProcessState, ServerAudience, ServerProcess};
use crate::process::LOG_TARGET;

/// How often the log says it of one process.
const INTERVAL: Duration = Duration::from_secs(60);

/// What was dropped since the log last said so.
#[derive(Debug, Default)]
pub(super) struct Evictions {
    said_at: Option<Instant>,
    bytes: u64,
}

impl Evictions {
    /// Counts dropped bytes. If the log is to say it now, returns how many there are to tell of.
    fn count(&mut self, bytes: u64, now: Instant) -> Option<u64> {
        self.bytes += bytes;
        let is_due = self.said_at.is_none_or(|said_at| now.saturating_duration_since(said_at) >= INTERVAL);
        if self.bytes == 0 || !is_due {
            return None;
        }
        self.said_at = Some(now);
        Some(std::mem::take(&mut self.bytes))
    }
}

impl<A: ServerAudience> ServerProcess<A> {
    /// Evicts output that is not held, to make room for other processes.
    pub fn reclaim(&self) {
        let mut state = self.state();
        let hold = state.hold(&self.spec().rules, &self.host().limits(), Holding::Least, Instant::now());
        let log = state.kind.log_mut();
        log.give_up(hold);
        if log.first_seq() < log.next_seq() {
            state.audience.on_full();
        }
        self.charge(&mut state);
    }
}

impl<A: Audience, K: Kind<A>> Engine<A, K> {
    /// Counts output that was evicted to make room.
    pub(super) fn count_evicted(&self, state: &mut ProcessState<A, K::State>, bytes: u64, now: Instant) {
        if bytes == 0 {
            return;
        }
        self.host.metrics().evicted_bytes.add(bytes);
        if let Some(bytes) = state.evictions.count(bytes, now) {
            let cap = self.kind.rules().retain_bytes;
            tracing::info!(target: LOG_TARGET, process = %self.id, bytes, cap, "the cap on retained output dropped the oldest output");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_eviction_is_logged_at_once_and_later_ones_once_a_minute() {
        let (mut evictions, start) = (Evictions::default(), Instant::now());
        let counted = [(0, 0), (1, 7), (2, 5), (59, 5), (61, 1), (62, 0), (200, 3)]
            .map(|(second, bytes)| evictions.count(bytes, start + Duration::from_secs(second)));
        assert_eq!(counted, [None, Some(7), None, None, Some(11), None, Some(3)]);
    }
}

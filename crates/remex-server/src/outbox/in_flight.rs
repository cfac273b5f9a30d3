//! Output that was sent but not acknowledged.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use remex_proto::state::output_log::Seq;

use crate::process::Process;

/// What one connection has been sent since the last acknowledgement.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    last_mark: u64,
    /// Sent since the last mark.
    open: Stretch,
    /// Marks that were not acknowledged, oldest first.
    marks: VecDeque<Mark>,
    bytes: usize,
    window: Window,
    /// Until then somebody short is being answered, and floods keep out of the way.
    considerate_until: Option<Instant>,
}

#[derive(Debug)]
struct Mark {
    number: u64,
    set_at: Instant,
    /// The window was used up when it was set.
    window_full: bool,
    before: Stretch,
}

#[derive(Debug, Default)]
struct Stretch {
    bytes: usize,
    /// The newest event of each process in it.
    processes: Vec<(Arc<Process>, Seq)>,
    /// Parts of streams are in it.
    has_parts: bool,
}

impl InFlight {
    pub(super) fn add(&mut self, process: Arc<Process>, seq: Seq, bytes: usize) {
        self.bytes += bytes;
        self.open.bytes += bytes;
        match self.open.processes.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &process)) {
            Some((_, last)) => *last = seq.max(*last),
            None => self.open.processes.push((process, seq)),
        }
    }

    /// Adds a part of a stream, of which nothing is kept.
    pub(super) fn add_part(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.open.bytes += bytes;
        self.open.has_parts = true;
    }

    /// Tells whether more may be sent before something is acknowledged.
    pub(super) fn has_room(&self) -> bool {
        let considerate = self.considerate_until.is_some_and(|until| Instant::now() < until);
        self.bytes < if considerate { CONSIDERATE_WINDOW } else { self.window.bytes }
    }

    /// Notes that `process` has something short to say while others flood; it likely is not the last of its kind.
    pub(super) fn be_considerate(&mut self, process: &Arc<Process>) {
        let floods = |stretch: &Stretch| {
            stretch.has_parts || stretch.processes.iter().any(|(known, _)| !Arc::ptr_eq(known, process))
        };
        if floods(&self.open) || self.marks.iter().any(|mark| floods(&mark.before)) {
            self.considerate_until = Some(Instant::now() + CONSIDERATE);
        }
    }

    /// Returns what was sent since the last mark.
    pub(super) fn open_bytes(&self) -> usize {
        self.open.bytes
    }

    /// Sets a mark behind everything sent so far.
    pub(super) fn mark(&mut self) -> u64 {
        self.last_mark += 1;
        self.marks.push_back(Mark {
            number: self.last_mark,
            set_at: Instant::now(),
            window_full: !self.has_room(),
            before: std::mem::take(&mut self.open),
        });
        self.last_mark
    }

    /// Returns what the client has got now that it acknowledged `mark`.
    ///
    /// A mark that was never set acknowledges nothing.
    pub(super) fn acknowledge(&mut self, mark: u64) -> Vec<(Arc<Process>, Seq)> {
        let mut acknowledged = Vec::new();
        if mark > self.last_mark {
            return acknowledged;
        }
        while self.marks.front().is_some_and(|oldest| oldest.number <= mark) {
            let Some(oldest) = self.marks.pop_front() else { break };
            self.bytes -= oldest.before.bytes;
            acknowledged.extend(oldest.before.processes);
            if oldest.number == mark {
                self.window.learn(oldest.set_at.elapsed(), oldest.window_full);
            }
        }
        acknowledged
    }
}

/// How much may be on its way: little where acknowledgements come fast, so that a flood does not
/// delay what comes after it; more where the way is long.
#[derive(Debug)]
struct Window {
    bytes: usize,
    /// The time that an acknowledgement takes when nothing is in its way.
    round_trip: Duration,
}

/// For how long after something short a flood leaves room for the next.
const CONSIDERATE: Duration = Duration::from_millis(50);

/// What a flood may have on its way meanwhile.
const CONSIDERATE_WINDOW: usize = 64 << 10;

/// Enough for a client on the same machine at full speed, and read by it in a fraction of a millisecond.
const SMALLEST_WINDOW: usize = 256 << 10;

/// Enough for 80 MiB/s over 50 ms. Each process is bounded by its own log before that.
const LARGEST_WINDOW: usize = 4 << 20;

impl Default for Window {
    fn default() -> Self {
        Window { bytes: SMALLEST_WINDOW, round_trip: Duration::MAX }
    }
}

impl Window {
    /// Learns from an acknowledgement that took `elapsed`.
    fn learn(&mut self, elapsed: Duration, window_full: bool) {
        self.round_trip = self.round_trip.min(elapsed);
        if elapsed > self.round_trip * 4 {
            // What is on its way waits for itself.
            self.bytes = (self.bytes - self.bytes / 8).max(SMALLEST_WINDOW);
        } else if window_full && elapsed < self.round_trip * 2 {
            self.bytes = (self.bytes + self.bytes / 4).min(LARGEST_WINDOW);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_opens_over_a_long_way_and_closes_when_the_client_is_slow() {
        let mut window = Window::default();
        for _ in 0..50 {
            window.learn(Duration::from_millis(50), true);
        }
        assert_eq!(window.bytes, LARGEST_WINDOW);
        for _ in 0..200 {
            window.learn(Duration::from_secs(1), true);
        }
        assert_eq!(window.bytes, SMALLEST_WINDOW);
    }

    #[test]
    fn a_client_that_needs_little_keeps_the_small_window() {
        let mut window = Window::default();
        for _ in 0..50 {
            window.learn(Duration::from_millis(50), false);
        }
        assert_eq!(window.bytes, SMALLEST_WINDOW);
    }
}

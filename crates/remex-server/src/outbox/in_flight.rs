//! Output that was sent but not acknowledged.
//!
//! Bounded: if a client never acknowledges, nothing more is sent. Start at [`InFlight`].

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use remex_proto::state::output_log::Seq;

use super::SourceKey;

/// Marks that may be outstanding; beyond that, output counts towards the next mark.
const MARKS: usize = 1024;

/// Entries for sources, one for each mark that follows some of their output.
const DELIVERIES: usize = 16 << 10;

/// What one connection was sent since the last acknowledgement.
#[derive(Debug)]
pub(super) struct InFlight<S: ?Sized> {
    last_mark: u64,
    /// Sent since the last mark.
    open: SentRange<S>,
    /// Unacknowledged marks, oldest first.
    marks: VecDeque<Mark<S>>,
    /// A mark could not be set because too many are outstanding.
    mark_due: bool,
    bytes: usize,
    /// Number of ranges between two marks that contain a source.
    ranges: HashMap<SourceKey, usize>,
    /// The sum of `ranges`.
    deliveries: usize,
    /// Stretches that contain parts of streams.
    with_parts: usize,
    window: SendWindow,
    /// Until then, bulk output is throttled in favour of fresh output.
    throttled_until: Option<Instant>,
}

#[derive(Debug)]
struct Mark<S: ?Sized> {
    number: u64,
    set_at: Instant,
    /// Everything before it is written once this many bytes are.
    ends_at: u64,
    /// The window was full when the mark was set.
    window_full: bool,
    before: SentRange<S>,
}

#[derive(Debug)]
struct SentRange<S: ?Sized> {
    bytes: usize,
    /// The newest event of each source in it. Does not keep a source alive.
    sources: HashMap<SourceKey, (Weak<S>, Seq)>,
    /// Whether it contains parts of streams.
    has_parts: bool,
}

impl<S: ?Sized> Default for SentRange<S> {
    fn default() -> Self {
        SentRange { bytes: 0, sources: HashMap::new(), has_parts: false }
    }
}

impl<S: ?Sized> Default for InFlight<S> {
    fn default() -> Self {
        InFlight {
            last_mark: 0,
            open: SentRange::default(),
            marks: VecDeque::new(),
            mark_due: false,
            bytes: 0,
            ranges: HashMap::new(),
            deliveries: 0,
            with_parts: 0,
            window: SendWindow::default(),
            throttled_until: None,
        }
    }
}

impl<S: ?Sized> InFlight<S> {
    /// Records output of `source` up to `seq` in this many bytes.
    ///
    /// Beyond [`is_full`](Self::is_full), only the bytes are counted: the output is then retained longer than
    /// necessary.
    pub(super) fn add(&mut self, source: &Arc<S>, seq: Seq, bytes: usize) {
        self.bytes += bytes;
        self.open.bytes += bytes;
        let key = SourceKey::of(source);
        if let Some((_, last)) = self.open.sources.get_mut(&key) {
            *last = seq.max(*last);
        } else if self.deliveries < DELIVERIES {
            self.open.sources.insert(key, (Arc::downgrade(source), seq));
            *self.ranges.entry(key).or_default() += 1;
            self.deliveries += 1;
        }
    }

    /// Records a part of a stream, which is not retained.
    pub(super) fn add_part(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.open.bytes += bytes;
        self.with_parts += usize::from(!self.open.has_parts);
        self.open.has_parts = true;
    }

    /// Returns whether bulk output may continue before the next acknowledgement.
    ///
    /// `is_throttled_by_others` returns whether another connection sends fresh output. Bulk output is throttled for that only
    /// if the round trip is short, where it loses hardly any throughput.
    pub(super) fn has_room(&self, is_throttled_by_others: impl FnOnce() -> bool) -> bool {
        if self.is_full() || self.bytes >= self.window.bytes {
            return false;
        }
        let is_throttled = || {
            self.throttled_until.is_some_and(|until| Instant::now() < until)
                || (self.window.is_round_trip_short() && is_throttled_by_others())
        };
        self.bytes < THROTTLED_WINDOW || !is_throttled()
    }

    /// Returns whether even fresh output must wait for an acknowledgement.
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= MOST_BYTES || self.deliveries >= DELIVERIES
    }

    /// Throttles bulk output because `source` has fresh output, which is likely to be followed by more.
    pub(super) fn throttle_bulk(&mut self, source: &Arc<S>, until: Instant) {
        let own = usize::from(self.ranges.contains_key(&SourceKey::of(source)));
        if self.with_parts > 0 || self.ranges.len() > own {
            self.throttled_until = Some(until);
        }
    }

    /// Returns the bytes sent since the last mark.
    pub(super) fn open_bytes(&self) -> usize {
        self.open.bytes
    }

    /// Returns whether a mark that could not be set can be set now.
    pub(super) fn is_mark_due(&self) -> bool {
        self.mark_due && self.marks.len() < MARKS
    }

    /// Returns the last mark that was set.
    pub(super) fn last_mark(&self) -> u64 {
        self.last_mark
    }

    /// Sets a mark after everything sent so far, that is after `ends_at` bytes; returns `None` if too many are
    /// outstanding, and sets it later.
    pub(super) fn mark(&mut self, ends_at: u64) -> Option<u64> {
        self.mark_due = self.marks.len() >= MARKS;
        if self.mark_due {
            return None;
        }
        self.last_mark += 1;
        self.marks.push_back(Mark {
            number: self.last_mark,
            set_at: Instant::now(),
            ends_at,
            window_full: self.bytes >= self.window.bytes,
            before: std::mem::take(&mut self.open),
        });
        Some(self.last_mark)
    }

    /// Returns the newest outstanding mark among the first `written` bytes.
    pub(super) fn written_mark(&self, written: u64) -> Option<u64> {
        let count = self.marks.partition_point(|mark| mark.ends_at <= written);
        count.checked_sub(1).and_then(|last| self.marks.get(last)).map(|mark| mark.number)
    }

    /// Returns what the client has received, now that it has acknowledged `mark`.
    ///
    /// A mark that was never set acknowledges nothing.
    pub(super) fn acknowledge(&mut self, mark: u64) -> Vec<(Arc<S>, Seq)> {
        let mut acknowledged = Vec::new();
        if mark > self.last_mark {
            return acknowledged;
        }
        let now = Instant::now();
        while self.marks.front().is_some_and(|oldest| oldest.number <= mark) {
            let Some(Mark { number, set_at, window_full, before, .. }) = self.marks.pop_front() else {
                break;
            };
            self.bytes -= before.bytes;
            self.with_parts -= usize::from(before.has_parts);
            self.deliveries -= before.sources.len();
            for (key, (source, seq)) in before.sources {
                if let Some(ranges) = self.ranges.get_mut(&key) {
                    *ranges -= 1;
                    if *ranges == 0 {
                        self.ranges.remove(&key);
                    }
                }
                acknowledged.extend(source.upgrade().map(|source| (source, seq)));
            }
            if number == mark {
                self.window.learn(now.saturating_duration_since(set_at), window_full, now);
            }
        }
        acknowledged
    }
}

/// How much may be in flight: little if acknowledgements are fast, so that bulk output does not delay later output;
/// more if the round trip is long.
#[derive(Debug)]
struct SendWindow {
    bytes: usize,
    /// The round-trip time without queueing, and when it was last observed approximately.
    round_trip: Option<(Duration, Instant)>,
}

/// How long bulk output is throttled after fresh output.
pub(super) const THROTTLE_TIME: Duration = Duration::from_millis(50);

/// How much throttled bulk output may have in flight.
const THROTTLED_WINDOW: usize = 64 << 10;

/// Enough for a local client at full speed, which reads it in a fraction of a millisecond.
///
/// 256 KiB of output, encoded as base64.
const SMALLEST_WINDOW: usize = (256 << 10) / 3 * 4;

/// Enough for 80 MiB/s at a round trip of 50 ms. The log of each source limits it before that.
///
/// 4 MiB of output, encoded as base64.
const LARGEST_WINDOW: usize = (4 << 20) / 3 * 4;

/// The limit for fresh output, which the window does not limit.
const MOST_BYTES: usize = 2 * LARGEST_WINDOW;

/// If no acknowledgement was nearly as fast as the fastest for this long, the round trip has become longer.
const ROUND_TRIP_TTL: Duration = Duration::from_secs(10);

/// At a round trip below this, [`THROTTLED_WINDOW`] still allows 64 MiB/s.
const SHORT_ROUND_TRIP: Duration = Duration::from_millis(1);

impl Default for SendWindow {
    fn default() -> Self {
        SendWindow { bytes: SMALLEST_WINDOW, round_trip: None }
    }
}

impl SendWindow {
    /// Returns whether the round trip is short, as on the same machine or in the same rack.
    fn is_round_trip_short(&self) -> bool {
        self.round_trip.is_some_and(|(round_trip, _)| round_trip < SHORT_ROUND_TRIP)
    }

    /// Adapts the window to an acknowledgement that took `elapsed`.
    fn learn(&mut self, elapsed: Duration, window_full: bool, now: Instant) {
        let (round_trip, seen_at) = match self.round_trip {
            Some((known, seen_at)) if elapsed > known => {
                (known, if elapsed <= known + known / 4 { now } else { seen_at })
            }
            Some(_) | None => (elapsed, now),
        };
        if now.saturating_duration_since(seen_at) >= ROUND_TRIP_TTL {
            // Measured again with little in flight, or a slow client would look like a long round trip.
            *self = SendWindow::default();
            return;
        }
        self.round_trip = Some((round_trip, seen_at));
        if elapsed > round_trip * 4 {
            // The acknowledgement waited behind our own output.
            self.bytes = (self.bytes - self.bytes / 8).max(SMALLEST_WINDOW);
        } else if window_full && elapsed < round_trip * 2 {
            self.bytes = (self.bytes + self.bytes / 4).min(LARGEST_WINDOW);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection whose acknowledgements take the round trip plus the time to read what is in flight.
    struct SimulatedPath {
        window: SendWindow,
        now: Instant,
    }

    impl SimulatedPath {
        fn new() -> Self {
            SimulatedPath { window: SendWindow::default(), now: Instant::now() }
        }

        /// Sends bulk output for `seconds` with this `round_trip`, to a client that reads `rate` bytes per second.
        fn send_bulk(&mut self, seconds: u64, round_trip: Duration, rate: u64) {
            let end = self.now + Duration::from_secs(seconds);
            while self.now < end {
                let queue = Duration::from_micros(self.window.bytes as u64 * 1_000_000 / rate);
                let elapsed = round_trip.max(queue);
                self.now += elapsed;
                self.window.learn(elapsed, true, self.now);
            }
        }
    }

    const FAST: u64 = 1 << 30;

    #[test]
    fn the_window_opens_over_a_long_round_trip_and_closes_for_a_slow_client() {
        let mut path = SimulatedPath::new();
        path.send_bulk(5, Duration::from_millis(50), FAST);
        assert_eq!(path.window.bytes, LARGEST_WINDOW);
        path.send_bulk(120, Duration::from_millis(50), 1 << 20);
        assert!(path.window.bytes <= 3 * SMALLEST_WINDOW, "{} bytes", path.window.bytes);
    }

    #[test]
    fn the_window_opens_when_the_round_trip_becomes_longer() {
        let mut path = SimulatedPath::new();
        path.send_bulk(1, Duration::from_micros(100), FAST);
        path.send_bulk(60, Duration::from_millis(50), FAST);
        assert_eq!(path.window.bytes, LARGEST_WINDOW);
    }

    #[test]
    fn a_slow_client_is_never_mistaken_for_a_long_round_trip() {
        let mut path = SimulatedPath::new();
        path.send_bulk(1, Duration::from_micros(100), FAST);
        for _ in 0..100 {
            path.send_bulk(6, Duration::from_micros(100), 1 << 20);
            assert!(path.window.bytes <= 3 * SMALLEST_WINDOW, "{} bytes", path.window.bytes);
        }
    }

    #[test]
    fn a_client_that_needs_little_keeps_the_small_window() {
        let (mut window, now) = (SendWindow::default(), Instant::now());
        for _ in 0..50 {
            window.learn(Duration::from_millis(50), false, now);
        }
        assert_eq!(window.bytes, SMALLEST_WINDOW);
    }

    #[test]
    fn a_client_that_never_acknowledges_uses_bounded_memory() {
        let mut in_flight = InFlight::default();
        let mut sent = 0;
        while !in_flight.is_full() {
            // A short-lived source, forgotten as soon as it has written its line.
            in_flight.add(&Arc::new(()), 1, 100);
            in_flight.mark(0);
            sent += 100;
        }
        assert!(sent <= MOST_BYTES);
        assert!(!in_flight.has_room(|| false));
        for _ in 0..100_000 {
            // Answers to reads are sent in any case.
            in_flight.add(&Arc::new(()), 1, 100);
            in_flight.mark(0);
        }
        assert!(in_flight.marks.len() <= MARKS);
        assert!(in_flight.deliveries <= DELIVERIES);
        assert_eq!(in_flight.ranges.len(), in_flight.deliveries);
    }

    #[test]
    fn a_late_acknowledgement_covers_everything_that_still_exists() {
        let source = Arc::new("kept");
        let mut in_flight = InFlight::default();
        for seq in 1..=5000 {
            in_flight.add(&source, seq, 1);
            in_flight.mark(0);
        }
        in_flight.add(&Arc::new("forgotten"), 1, 1);
        assert_eq!(in_flight.mark(0), None);
        let acknowledged = in_flight.acknowledge(in_flight.last_mark());
        assert_eq!(acknowledged.last(), Some(&(Arc::clone(&source), MARKS as Seq)));
        assert!(in_flight.is_mark_due(), "what came later needs a mark of its own");
        let last = in_flight.mark(0).expect("there is room for a mark");
        assert_eq!(in_flight.acknowledge(last), [(source, 5000)]);
        assert_eq!((in_flight.bytes, in_flight.deliveries, in_flight.ranges.len()), (0, 0, 0));
        assert!(in_flight.has_room(|| false) && !in_flight.is_mark_due());
    }

    #[test]
    fn floods_yield_only_to_other_sources() {
        let (source, other) = (Arc::new(1), Arc::new(2));
        let mut in_flight = InFlight::default();
        in_flight.add(&source, 1, THROTTLED_WINDOW);
        let until = Instant::now() + Duration::from_secs(60);
        in_flight.throttle_bulk(&source, until);
        assert!(in_flight.has_room(|| false));
        in_flight.throttle_bulk(&other, until);
        assert!(!in_flight.has_room(|| false));
    }

    #[test]
    fn a_flood_yields_to_other_connections_only_over_a_short_round_trip() {
        for (round_trip, makes_way) in [(SHORT_ROUND_TRIP / 2, true), (SHORT_ROUND_TRIP * 2, false)] {
            let mut in_flight = InFlight::default();
            in_flight.window.learn(round_trip, false, Instant::now());
            in_flight.add(&Arc::new(()), 1, THROTTLED_WINDOW);
            assert!(in_flight.has_room(|| false), "over {round_trip:?}");
            assert_eq!(in_flight.has_room(|| true), !makes_way, "over {round_trip:?}");
        }
    }
}

//! Which bytes of output the controlling client has, and which it will never get.
//!
//! Pure: positions are offsets in everything that the process has printed. Start at [`Ledger`].

use remex_engine::ReadExtent;
use std::ops::Range;

/// More separate ranges are not remembered; only a client that reads here and there has so many.
const MAX_RANGES: usize = 64;

/// The account of one process with its controlling client, over all its connections.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    /// What the client had before this connection, was sent on it, or was told to be missing.
    ///
    /// A stream covers everything from its beginning on, so these are few.
    covered: Ranges,
    /// What it was told to be missing, the newest of it; a client that resumes may be told again.
    missing: Ranges,
    missing_bytes: u64,
    /// What a resumed client has not read back yet.
    unread: Range<u64>,
}

impl Ledger {
    /// Records that the client was sent these bytes.
    pub(super) fn on_sent(&mut self, bytes: Range<u64>) {
        // They may be in an answer that was made before they were evicted, and is sent after the stream has passed them.
        self.missing_bytes -= self.missing.take_out(&bytes);
        self.cover(&bytes);
    }

    /// Records that the client was told that these bytes are missing.
    ///
    /// What it was sent on this connection is not missing, and nothing is counted twice.
    pub(super) fn on_missing(&mut self, bytes: Range<u64>) {
        for part in self.covered.holes(&bytes) {
            self.missing_bytes += part.end - part.start;
            self.missing.add(&part);
        }
        self.cover(&bytes);
    }

    /// Records that the client gets the answer to a read.
    pub(super) fn on_answered(&mut self, ReadExtent { missing_from, sent }: ReadExtent) {
        // Where it is not known what the client has, all that it may lack is missing.
        let from = missing_from.unwrap_or(self.unread.start.min(sent.start));
        self.on_seen(from);
        self.on_missing(from..sent.start);
        self.on_sent(sent);
    }

    /// Records that the client has everything up to here that is not missing.
    fn on_seen(&mut self, end: u64) {
        self.unread.start = self.unread.start.max(end.min(self.unread.end));
    }

    /// Records that a client has resumed that surely has everything up to `received`, and is streamed everything after
    /// `newest`.
    pub(super) fn on_resumed(&mut self, received: u64, newest: u64) {
        // A client that has not read back what it missed earlier may still do so.
        let start = if self.unread.is_empty() { received } else { self.unread.start };
        self.unread = start.min(newest)..newest;
        self.covered = self.missing.clone();
        self.covered.add(&(0..start));
    }

    /// Returns how many bytes the client will never get, where everything before `first` is evicted.
    ///
    /// As long as a resumed client has not said what it has, all that was evicted since the last acknowledgement
    /// counts.
    pub(super) fn lost(&self, first: u64) -> u64 {
        let evicted = self.unread.start..self.unread.end.min(first);
        let holes = self.covered.holes(&evicted);
        self.missing_bytes + holes.iter().map(|part| part.end - part.start).sum::<u64>()
    }

    fn cover(&mut self, bytes: &Range<u64>) {
        self.covered.add(bytes);
        if bytes.start <= self.unread.start {
            self.on_seen(bytes.end);
        }
    }
}

/// Disjoint ranges in ascending order.
#[derive(Clone, Debug, Default)]
struct Ranges(Vec<Range<u64>>);

impl Ranges {
    fn add(&mut self, range: &Range<u64>) {
        if range.is_empty() {
            return;
        }
        // Nearly always, the last range grows.
        let from = self.0.partition_point(|known| known.end < range.start);
        let to = self.0.partition_point(|known| known.start <= range.end);
        let mut merged = range.clone();
        if let [first, .., last] | [first @ last] = &self.0[from..to] {
            merged = first.start.min(range.start)..last.end.max(range.end);
        }
        self.0.splice(from..to, [merged]);
        if self.0.len() > MAX_RANGES {
            self.0.remove(0);
        }
    }

    /// Removes `range`, and returns how much of it was there.
    fn take_out(&mut self, range: &Range<u64>) -> u64 {
        if self.0.last().is_none_or(|last| last.end <= range.start) {
            return 0;
        }
        let (mut kept, mut removed) = (Vec::with_capacity(self.0.len() + 1), 0);
        for known in self.0.drain(..) {
            let common = known.start.max(range.start)..known.end.min(range.end);
            if common.is_empty() {
                kept.push(known);
                continue;
            }
            removed += common.end - common.start;
            let parts = [known.start..common.start, common.end..known.end];
            kept.extend(parts.into_iter().filter(|part| !part.is_empty()));
        }
        self.0 = kept;
        removed
    }

    /// Returns the parts of `range` that are in none of the ranges.
    fn holes(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut holes = Vec::new();
        let mut start = range.start;
        let from = self.0.partition_point(|known| known.end <= range.start);
        for known in self.0[from..].iter().take_while(|known| known.start < range.end) {
            if start < known.start {
                holes.push(start..known.start);
            }
            start = start.max(known.end);
        }
        if start < range.end {
            holes.push(start..range.end);
        }
        holes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_merge_and_have_holes() {
        let mut ranges = Ranges::default();
        for range in [10..20, 30..40, 20..25, 0..0, 39..45, 60..70] {
            ranges.add(&range);
        }
        assert_eq!(ranges.0, [10..25, 30..45, 60..70]);
        assert_eq!(ranges.holes(&(0..100)), [0..10, 25..30, 45..60, 70..100]);
        assert_eq!(ranges.holes(&(12..24)), []);
        ranges.add(&(5..65));
        ranges.add(&(80..90));
        assert_eq!(ranges.0, [5..70, 80..90]);
    }

    #[test]
    fn a_gap_that_grows_is_counted_once_and_without_what_was_sent() {
        let mut ledger = Ledger::default();
        ledger.on_sent(0..100);
        ledger.on_missing(100..200);
        assert_eq!(ledger.lost(200), 100);
        ledger.on_sent(200..300);
        // Asked for again, after more was evicted.
        ledger.on_missing(100..250);
        assert_eq!(ledger.lost(250), 100);
    }

    #[test]
    fn output_that_arrives_after_it_was_reported_missing_is_not_lost() {
        let mut ledger = Ledger::default();
        ledger.on_sent(0..100);
        ledger.on_missing(100..200);
        ledger.on_answered(ReadExtent { missing_from: Some(100), sent: 120..180 });
        assert_eq!(ledger.lost(300), 40);
        ledger.on_missing(180..250);
        assert_eq!(ledger.lost(300), 90, "180 to 200 is counted already");
    }

    #[test]
    fn output_evicted_since_a_disconnect_counts_until_the_client_reports_its_position() {
        let mut ledger = Ledger::default();
        ledger.on_sent(0..100);
        ledger.on_resumed(60, 300);
        assert_eq!(ledger.lost(0), 0);
        assert_eq!(ledger.lost(150), 90, "the client may have nothing after the first 60 bytes");
        ledger.on_sent(300..320);
        ledger.on_answered(ReadExtent { missing_from: Some(100), sent: 150..200 });
        assert_eq!(ledger.lost(150), 50);
        ledger.on_answered(ReadExtent { missing_from: Some(200), sent: 200..300 });
        assert_eq!(ledger.lost(320), 50);
    }

    #[test]
    fn a_client_that_reads_back_after_a_second_disconnect_gets_the_same_account() {
        let mut ledger = Ledger::default();
        ledger.on_sent(0..100);
        ledger.on_resumed(60, 300);
        // It is streamed some, reads nothing back, and is cut off again.
        ledger.on_sent(300..400);
        ledger.on_resumed(400, 500);
        assert_eq!(ledger.lost(200), 140);
        ledger.on_answered(ReadExtent { missing_from: Some(100), sent: 350..500 });
        assert_eq!(ledger.lost(500), 250, "the second connection is the one that counts");
    }
}

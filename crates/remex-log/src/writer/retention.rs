//! What a log keeps: the segments before the newest one, and the bytes after a hold. Start at [`SealedSegment`].

use std::collections::VecDeque;

use crate::base::{
    event::{Hold, Point, Seq},
    names::SegmentName,
};

/// A segment that no longer grows.
#[derive(Clone, Copy, Debug)]
pub(super) struct SealedSegment {
    pub(super) name: SegmentName,
    /// Bytes counted for it.
    pub(super) bytes: u64,
    /// Bytes of output that were dropped before it; `None` until its header is read.
    pub(super) dropped_before: Option<u64>,
    pub(super) is_synced: bool,
}

impl SealedSegment {
    /// Returns a segment that existed before this writer.
    pub(super) fn found(name: SegmentName, bytes: u64) -> SealedSegment {
        SealedSegment { name, bytes, dropped_before: None, is_synced: false }
    }
}

/// Returns whether `hold` allows evicting the events before `next_seq`.
pub(super) fn may_evict_before(next_seq: Seq, hold: Hold) -> bool {
    match hold {
        Hold::Nothing => true,
        Hold::After(Point { seq, .. }) => next_seq <= seq.saturating_add(1),
    }
}

/// How many runs of dropped output are remembered; older ones count as held, which only makes a log full earlier.
const MAX_RUNS: usize = 1024;

/// Where output was dropped, which does not count as held.
#[derive(Debug, Default)]
pub(super) struct DroppedRuns {
    /// Start offset and length, oldest first.
    runs: VecDeque<(u64, u64)>,
}

impl DroppedRuns {
    /// Adds `len` bytes dropped at `offset`.
    pub(super) fn push(&mut self, offset: u64, len: u64) {
        match self.runs.back_mut() {
            Some((start, run)) if *start + *run == offset => *run += len,
            _ => {
                if self.runs.len() == MAX_RUNS {
                    self.runs.pop_front();
                }
                self.runs.push_back((offset, len));
            }
        }
    }

    /// Returns the bytes dropped after `offset`, and forgets runs before it.
    pub(super) fn after(&mut self, offset: u64) -> u64 {
        while self.runs.front().is_some_and(|(start, len)| start + len <= offset) {
            self.runs.pop_front();
        }
        self.runs.iter().map(|(start, len)| len - offset.saturating_sub(*start).min(*len)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_output_after_an_offset_is_counted_once() {
        let mut runs = DroppedRuns::default();
        runs.push(10, 5);
        runs.push(15, 5);
        runs.push(100, 1);
        assert_eq!(runs.after(0), 11);
        assert_eq!(runs.after(12), 9);
        assert_eq!(runs.after(50), 1);
        assert_eq!(runs.after(101), 0);
    }
}

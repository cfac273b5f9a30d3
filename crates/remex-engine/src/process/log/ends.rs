//! Where events end in the output of a log on disk, as far as that is in memory. Start at [`Ends`].

use std::collections::VecDeque;

use remex_proto::state::output_log::Seq;

/// How many ends are remembered.
const MAX_ENDS: usize = 2048;

/// Events and the bytes of output up to each: those that were announced or read.
///
/// When there are too many, those of evicted events are forgotten first, and then about half, evenly over the output: what a reader that lags behind has
/// added stays like what is new. So positions get coarser, but a position near any known one stays known.
#[derive(Debug, Default)]
pub(super) struct Ends {
    /// Oldest first.
    known: VecDeque<(Seq, u64)>,
    /// The first event that can be read.
    first: Seq,
}

impl Ends {
    pub(super) fn add(&mut self, seq: Seq, end: u64) {
        let index = self.known.partition_point(|(known, _)| *known < seq);
        if self.known.get(index).is_some_and(|(known, _)| *known == seq) {
            return;
        }
        self.known.insert(index, (seq, end));
        if self.known.len() > MAX_ENDS {
            // The end of the last evicted event is the number of bytes missing before the first retained one.
            let evicted = self.known.partition_point(|(known, _)| *known < self.first);
            self.known.drain(..evicted.saturating_sub(1));
        }
        if self.known.len() > MAX_ENDS {
            self.thin_out(seq);
        }
    }

    /// Forgets about half of the ends, but neither the newest nor that of `added`.
    fn thin_out(&mut self, added: Seq) {
        let (Some((_, first)), Some((newest, last))) =
            (self.known.front().copied(), self.known.back().copied())
        else {
            return;
        };
        let distance = (last.saturating_sub(first) / (MAX_ENDS as u64 / 2)).max(1);
        let mut kept: Option<u64> = None;
        self.known.retain(|(seq, end)| {
            let is_far = kept.is_none_or(|kept| end.saturating_sub(kept) >= distance);
            if is_far {
                kept = Some(*end);
            }
            is_far || *seq == added || *seq == newest
        });
    }

    /// Records which event is the first that can be read.
    pub(super) fn set_first(&mut self, first: Seq) {
        self.first = first;
    }

    /// Returns the newest known event up to `seq`.
    pub(super) fn by_seq(&self, seq: Seq) -> Option<(Seq, u64)> {
        let index = self.known.partition_point(|(known, _)| *known <= seq);
        index.checked_sub(1).and_then(|index| self.known.get(index).copied())
    }

    /// Returns the newest known event that ends at or before `offset`.
    pub(super) fn by_offset(&self, offset: u64) -> Option<(Seq, u64)> {
        let index = self.known.partition_point(|(_, end)| *end <= offset);
        index.checked_sub(1).and_then(|index| self.known.get(index).copied())
    }

    pub(super) fn memory(&self) -> usize {
        self.known.capacity() * size_of::<(Seq, u64)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_added_by_a_slow_reader_are_not_displaced_by_newer_ones() {
        let mut ends = Ends::default();
        for seq in 100_000..110_000 {
            ends.add(seq, 10 * seq);
        }
        for seq in 1..50_000 {
            ends.add(seq, 10 * seq);
            assert_eq!(ends.by_seq(seq), Some((seq, 10 * seq)), "it was added just now");
        }
        assert!(ends.known.len() <= MAX_ENDS);
        // Everything that was announced or read is still known, to a thousandth.
        for seq in (1_000..50_000).chain(100_110..110_000).step_by(500) {
            let (known, end) = ends.by_seq(seq).unwrap();
            assert!(seq - known <= 110 && end == 10 * known, "{known} for {seq}");
            assert_eq!(ends.by_offset(10 * seq + 5), ends.by_seq(seq));
        }
        assert!(ends.known[0].0 < 10, "evicted events are known as long as there is room");
        ends.set_first(40_000);
        (200_000..203_000).for_each(|seq| ends.add(seq, 10 * seq));
        assert!(ends.known[0].0 < 40_000 && ends.known[1].0 >= 40_000);
    }
}

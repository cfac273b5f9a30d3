//! Numbers that look random; the same seed gives the same numbers.

use std::time::Duration;

/// A small generator of numbers.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x5eed)
    }

    /// Returns a generator of its own, so that the use of one does not disturb the other.
    pub(crate) fn fork(&mut self) -> Self {
        Random(self.word())
    }

    pub(crate) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.word() % end as u64) as usize
    }

    /// Returns a number from `first` to `last`, both included.
    pub(crate) fn between(&mut self, first: usize, last: usize) -> usize {
        first + self.below(last - first + 1)
    }

    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn millis(&mut self, first: usize, last: usize) -> Duration {
        Duration::from_millis(self.between(first, last) as u64)
    }

    /// Returns letters from a to p, so that no marker with other characters is among them.
    pub(crate) fn letters(&mut self, len: usize) -> Vec<u8> {
        let mut letters = Vec::with_capacity(len + 16);
        while letters.len() < len {
            let word = self.word();
            letters.extend((0..16).map(|at| b'a' + ((word >> (4 * at)) & 15) as u8));
        }
        letters.truncate(len);
        letters
    }
}

//! Numbers that look random and are the same for the same seed.

use std::time::Duration;

/// A stream of numbers.
#[derive(Debug, Clone)]
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_add(1).wrapping_mul(0xd134_2543_de82_ef95))
    }

    /// Returns another stream, so that what is drawn from one does not change the other.
    pub(crate) fn branch(&mut self) -> Self {
        Self(self.number())
    }

    fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from `first` to `last`.
    pub(crate) fn within(&mut self, first: u64, last: u64) -> u64 {
        first + self.number() % (last - first + 1)
    }

    /// Returns a number from 1 to `last`; those of one digit are as likely as those of five.
    pub(crate) fn magnitude(&mut self, last: u64) -> u64 {
        let most = self.within(0, u64::from(last.ilog2()));
        self.within(1, last.min(2 << most))
    }

    /// Tells whether something with this likelihood happens.
    pub(crate) fn percent(&mut self, likelihood: u64) -> bool {
        self.within(1, 100) <= likelihood
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        let at = self.within(0, from.len() as u64 - 1);
        from[usize::try_from(at).expect("an index")]
    }

    pub(crate) fn millis(&mut self, first: u64, last: u64) -> Duration {
        Duration::from_millis(self.within(first, last))
    }
}

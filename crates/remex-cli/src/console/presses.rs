//! The meaning of a Ctrl-C.

use std::time::{Duration, Instant};

/// A second Ctrl-C within this time kills the process.
pub(super) const DOUBLE_PRESS_TIME: Duration = Duration::from_secs(2);

/// The meaning of a Ctrl-C, given earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Press {
    Interrupt,
    Kill,
    /// A kill was sent before, but the process is still running.
    GiveUp,
}

/// Keeps track of Ctrl-C.
#[derive(Debug, Default)]
pub(super) struct Presses {
    /// The last one that only interrupted.
    last: Option<Instant>,
    /// Whether a kill was sent.
    pub(super) killed: bool,
}

impl Presses {
    pub(super) fn press(&mut self, now: Instant) -> Press {
        if self.killed {
            return Press::GiveUp;
        }
        let is_soon = |at| now.saturating_duration_since(at) <= DOUBLE_PRESS_TIME;
        if self.last.is_some_and(is_soon) {
            self.killed = true;
            return Press::Kill;
        }
        self.last = Some(now);
        Press::Interrupt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_second_ctrl_c_soon_after_the_first_kills() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut presses = Presses::default();
        assert_eq!(presses.press(at(0)), Press::Interrupt);
        assert_eq!(presses.press(at(2_001)), Press::Interrupt);
        assert_eq!(presses.press(at(4_001)), Press::Kill);
        assert_eq!(presses.press(at(60_000)), Press::GiveUp);
    }
}

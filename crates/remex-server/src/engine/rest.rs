//! Read coalescing: delays reads from a process that writes often and little each time.
//!
//! A program that flushes every line would cost two reads and one wake-up per line. Its output is announced
//! once per millisecond anyway, so it can be read that rarely as well. Start at [`ReadCoalescing`].

use std::time::{Duration, Instant};

use super::task::GATHER;

/// A read of at most this size found a few lines, not part of a flood.
const SMALL_READ: usize = 2 << 10;

/// A read of at most this size found single lines: the reader is faster than the child.
const FEW_LINES: usize = 256;

/// The delay for a terminal. A terminal buffers little, so the delay ends with the runtime's next tick, within
/// a millisecond.
const TERMINAL_REST: Duration = Duration::from_micros(100);

/// A terminal that returns this much after a delay was full.
const TERMINAL_FULL: usize = 8 << 10;

/// After this many small reads without a quiet period, a process counts as chatty.
const CHATTY_READS: u32 = 8;

/// What buffers the child's output while it is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Buffer {
    /// Pipes with this capacity in bytes.
    Pipes(usize),
    Terminal,
}

/// Decides whether the sources of one process are read at once or after a delay.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// Consecutive small reads without a quiet period.
    small_reads: u32,
    /// Bytes read since the last wait.
    found: usize,
    /// Bytes of the last read.
    last: usize,
    /// No reads until this time.
    until: Option<Instant>,
}

impl Rest {
    /// Records a read of `len` bytes; `without_pause` if the previous one was recent and no reader waits for an
    /// answer.
    pub(super) fn found(&mut self, len: usize, without_pause: bool) {
        self.found += len;
        self.last = len;
        if self.until.is_some() {
            return;
        }
        self.small_reads =
            if without_pause && len <= SMALL_READ { self.small_reads.saturating_add(1) } else { 0 };
    }

    /// Returns whether to stop after a read of `len` bytes without reading until nothing is left. A chatty
    /// process keeps writing while it is read, and would again be read line by line.
    pub(super) fn is_satisfied_by(&self, len: usize) -> bool {
        self.until.is_some() && len <= FEW_LINES
    }

    /// Decides before a wait whether to delay the next read; `may_rest` must be true for that.
    pub(super) fn begins(&mut self, now: Instant, may_rest: bool, buffer: Buffer) -> bool {
        let held_up = self.may_have_held_up(buffer);
        let found = std::mem::take(&mut self.found);
        if !may_rest || held_up {
            self.end();
        } else if found > 0 {
            let time = if buffer == Buffer::Terminal { TERMINAL_REST } else { GATHER };
            self.until = (self.small_reads >= CHATTY_READS).then(|| now + time);
        } else if self.until.is_some_and(|until| now >= until) {
            // The process is silent, so its next output counts as the first after a quiet period.
            self.end();
        }
        self.until.is_some()
    }

    /// Returns whether the child may have filled its buffer and blocked during a delay.
    fn may_have_held_up(&self, buffer: Buffer) -> bool {
        match buffer {
            Buffer::Pipes(size) => self.found >= size / 2,
            // Any delay fills a terminal. If it is then read down to single lines, the program still writes
            // line by line.
            Buffer::Terminal => self.found >= TERMINAL_FULL && self.last > FEW_LINES,
        }
    }

    /// Returns when the current delay ends.
    pub(super) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Returns when a process with its last output at `last_output` will have been silent for `time`; `None`
    /// during a delay, when its output is not read.
    pub(super) fn silent_at(&self, last_output: Instant, time: Duration) -> Option<Instant> {
        if self.until.is_some() { None } else { last_output.checked_add(time) }
    }

    /// Reads at once from now on, until the process is chatty again.
    pub(super) fn end(&mut self) {
        *self = Rest::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIPES: Buffer = Buffer::Pipes(64 << 10);

    fn chatty(now: Instant) -> Rest {
        let mut rest = Rest::default();
        for _ in 0..CHATTY_READS {
            assert!(!rest.begins(now, true, PIPES));
            rest.found(80, true);
        }
        assert!(rest.begins(now, true, PIPES));
        rest
    }

    #[test]
    fn a_process_rests_for_as_long_as_it_chats() {
        let mut now = Instant::now();
        let mut rest = chatty(now);
        for _ in 0..100 {
            now += GATHER;
            rest.found(5_000, false);
            assert!(!rest.is_satisfied_by(5_000) && rest.is_satisfied_by(80));
            assert!(rest.begins(now, true, PIPES));
            assert_eq!(rest.until(), Some(now + GATHER));
        }
        assert!(rest.begins(now, true, PIPES), "a wake for something else does not end a rest");
        now += GATHER;
        assert!(!rest.begins(now, true, PIPES), "silence does");
        rest.found(80, false);
        assert!(
            !rest.begins(now, true, PIPES),
            "the first bytes after a pause are read at once, and the next as well"
        );
    }

    #[test]
    fn a_flood_and_pauses_and_answers_are_no_chat() {
        for (len, without_pause) in [(4_096, true), (80, false)] {
            let mut rest = Rest::default();
            for _ in 0..100 {
                rest.found(len, without_pause);
                assert!(!rest.begins(Instant::now(), true, PIPES));
            }
        }
    }

    #[test]
    fn who_fills_a_pipe_during_a_rest_is_read_at_once_again() {
        let now = Instant::now();
        let mut rest = chatty(now);
        rest.found(64 << 10, false);
        assert!(!rest.begins(now + GATHER, true, PIPES));
        rest.found(80, true);
        assert!(!rest.begins(now + GATHER, true, PIPES), "it has to show again that it chats");
    }

    #[test]
    fn a_terminal_rests_while_lines_are_written_and_not_while_it_is_flooded() {
        let mut now = Instant::now();
        let mut rest = chatty(now);
        for _ in 0..100 {
            now += GATHER;
            for len in [4_095, 4_095, 4_095, 84] {
                rest.found(len, false);
            }
            assert!(rest.begins(now, true, Buffer::Terminal));
            assert_eq!(rest.until(), Some(now + TERMINAL_REST));
        }
        for len in [512, 4_095, 4_095, 1_538] {
            rest.found(len, false);
            assert!(!rest.is_satisfied_by(len));
        }
        assert!(!rest.begins(now + GATHER, true, Buffer::Terminal));
    }

    #[test]
    fn nobody_is_taken_for_silent_before_a_rest_is_over() {
        let now = Instant::now();
        let (mut rest, time) = (chatty(now), GATHER / 2);
        assert_eq!(rest.silent_at(now, time), None);
        assert!(!rest.begins(now + GATHER, true, PIPES));
        assert_eq!(rest.silent_at(now, time), Some(now + time));
    }

    #[test]
    fn input_ends_a_rest() {
        let now = Instant::now();
        let mut rest = chatty(now);
        assert!(!rest.begins(now, false, PIPES));
        assert_eq!(rest.until(), None);
    }
}

//! Read coalescing: delays reads from a process that writes often and little each time.
//!
//! A program that flushes every line would cost two reads and one wake-up per line. Its output is announced
//! once per millisecond anyway, so it can be read that rarely as well. Start at [`ReadCoalescing`].

use std::time::{Duration, Instant};

use super::task::NOTIFY_INTERVAL;

/// A read of at most this size found a few lines, not part of bulk output.
const SMALL_READ: usize = 2 << 10;

/// A read of at most this size found single lines: the reader is faster than the child.
const FEW_LINES: usize = 256;

/// The delay for a terminal. A terminal buffers little, so the delay ends with the runtime's next tick, within
/// a millisecond.
const TERMINAL_DELAY: Duration = Duration::from_micros(100);

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
pub(super) struct ReadCoalescing {
    /// Consecutive small reads without a quiet period.
    small_reads: u32,
    /// Bytes read since the last wait.
    found: usize,
    /// Bytes of the last read.
    last: usize,
    /// No reads until this time.
    until: Option<Instant>,
}

impl ReadCoalescing {
    /// Records reads of `len` bytes, of which the last found `last`; `without_pause` if the previous ones were recent and
    /// no reader waits for an answer.
    pub(super) fn on_read(&mut self, len: usize, last: usize, without_pause: bool) {
        self.found += len;
        self.last = last;
        if self.until.is_some() {
            return;
        }
        self.small_reads =
            if without_pause && len <= SMALL_READ { self.small_reads.saturating_add(1) } else { 0 };
    }

    /// Returns whether to stop after a read of `len` bytes without reading until nothing is left. A chatty
    /// process keeps writing while it is read, and would again be read line by line.
    pub(super) fn is_enough(&self, len: usize) -> bool {
        self.until.is_some() && len <= FEW_LINES
    }

    /// Decides before a wait whether to delay the next read; `may_delay` must be true for that.
    pub(super) fn starts_delay(&mut self, now: Instant, may_delay: bool, buffer: Buffer) -> bool {
        let has_blocked = self.may_have_blocked(buffer);
        let found = std::mem::take(&mut self.found);
        if !may_delay || has_blocked {
            self.end();
        } else if found > 0 {
            let time = if buffer == Buffer::Terminal { TERMINAL_DELAY } else { NOTIFY_INTERVAL };
            self.until = (self.small_reads >= CHATTY_READS).then(|| now + time);
        } else if self.until.is_some_and(|until| now >= until) {
            // The process is silent, so its next output counts as the first after a quiet period.
            self.end();
        }
        self.until.is_some()
    }

    /// Returns whether the child may have filled its buffer and blocked during a delay.
    fn may_have_blocked(&self, buffer: Buffer) -> bool {
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
    pub(super) fn idle_at(&self, last_output: Instant, time: Duration) -> Option<Instant> {
        if self.until.is_some() { None } else { last_output.checked_add(time) }
    }

    /// Reads at once from now on, until the process is chatty again.
    pub(super) fn end(&mut self) {
        *self = ReadCoalescing::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIPES: Buffer = Buffer::Pipes(64 << 10);

    fn chatty(now: Instant) -> ReadCoalescing {
        let mut coalescing = ReadCoalescing::default();
        for _ in 0..CHATTY_READS {
            assert!(!coalescing.starts_delay(now, true, PIPES));
            coalescing.on_read(80, 80, true);
        }
        assert!(coalescing.starts_delay(now, true, PIPES));
        coalescing
    }

    #[test]
    fn reads_are_delayed_while_a_process_is_chatty() {
        let mut now = Instant::now();
        let mut coalescing = chatty(now);
        for _ in 0..100 {
            now += NOTIFY_INTERVAL;
            coalescing.on_read(5_000, 5_000, false);
            assert!(!coalescing.is_enough(5_000) && coalescing.is_enough(80));
            assert!(coalescing.starts_delay(now, true, PIPES));
            assert_eq!(coalescing.until(), Some(now + NOTIFY_INTERVAL));
        }
        assert!(coalescing.starts_delay(now, true, PIPES), "a wake for something else does not end a delay");
        now += NOTIFY_INTERVAL;
        assert!(!coalescing.starts_delay(now, true, PIPES), "silence does");
        coalescing.on_read(80, 80, false);
        assert!(
            !coalescing.starts_delay(now, true, PIPES),
            "the first bytes after a pause are read at once, and the next as well"
        );
    }

    #[test]
    fn floods_quiet_periods_and_answers_are_not_chatty() {
        for (len, without_pause) in [(4_096, true), (80, false)] {
            let mut coalescing = ReadCoalescing::default();
            for _ in 0..100 {
                coalescing.on_read(len, len, without_pause);
                assert!(!coalescing.starts_delay(Instant::now(), true, PIPES));
            }
        }
    }

    #[test]
    fn a_pipe_that_fills_during_a_delay_is_read_at_once_again() {
        let now = Instant::now();
        let mut coalescing = chatty(now);
        coalescing.on_read(64 << 10, 64 << 10, false);
        assert!(!coalescing.starts_delay(now + NOTIFY_INTERVAL, true, PIPES));
        coalescing.on_read(80, 80, true);
        assert!(
            !coalescing.starts_delay(now + NOTIFY_INTERVAL, true, PIPES),
            "it has to show again that it chats"
        );
    }

    #[test]
    fn a_terminal_is_delayed_while_lines_are_written_but_not_during_a_flood() {
        let mut now = Instant::now();
        let mut coalescing = chatty(now);
        for _ in 0..100 {
            now += NOTIFY_INTERVAL;
            for len in [4_095, 4_095, 4_095, 84] {
                coalescing.on_read(len, len, false);
            }
            assert!(coalescing.starts_delay(now, true, Buffer::Terminal));
            assert_eq!(coalescing.until(), Some(now + TERMINAL_DELAY));
        }
        for len in [512, 4_095, 4_095, 1_538] {
            coalescing.on_read(len, len, false);
            assert!(!coalescing.is_enough(len));
        }
        assert!(!coalescing.starts_delay(now + NOTIFY_INTERVAL, true, Buffer::Terminal));
    }

    #[test]
    fn a_process_is_not_idle_before_a_delay_is_over() {
        let now = Instant::now();
        let (mut coalescing, time) = (chatty(now), NOTIFY_INTERVAL / 2);
        assert_eq!(coalescing.idle_at(now, time), None);
        assert!(!coalescing.starts_delay(now + NOTIFY_INTERVAL, true, PIPES));
        assert_eq!(coalescing.idle_at(now, time), Some(now + time));
    }

    #[test]
    fn input_ends_a_delay() {
        let now = Instant::now();
        let mut coalescing = chatty(now);
        assert!(!coalescing.starts_delay(now, false, PIPES));
        assert_eq!(coalescing.until(), None);
    }
}

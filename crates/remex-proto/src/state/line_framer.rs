//! Splits a byte stream into lines: the framing of stdio and unix sockets.
//!
//! Pure: it does no I/O and never interprets a line. Start at [`LineFramer`].

use std::mem;

use bytes::Bytes;
use memchr::memchr;

/// The memory that an empty framer may keep, in bytes, so that an idle connection costs little.
const KEPT_CAPACITY: usize = 4 * 1024;

/// One line of input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// A whole line without its terminator; never blank.
    Message(Bytes),
    /// A line that exceeds the limit; the rest of it is skipped.
    TooLong,
}

/// Splits bytes into lines, however they were split in transit.
///
/// A line ends with LF or CRLF. Blank lines are skipped. Take all lines after each read: then the framer
/// holds at most one line of maximum length and the bytes read last.
///
/// ```
/// use remex_proto::state::line_framer::{Line, LineFramer};
///
/// let mut framer = LineFramer::new(4);
/// framer.push(b"one\r\n\nfive!\ntw");
/// assert_eq!(framer.next(), Some(Line::Message("one".into())));
/// assert_eq!(framer.next(), Some(Line::TooLong));
/// assert_eq!(framer.next(), None);
/// framer.push(b"o\n");
/// assert_eq!(framer.next(), Some(Line::Message("two".into())));
/// ```
#[derive(Debug)]
pub struct LineFramer {
    /// A `Vec`, so that its capacity is the memory it really uses.
    buffer: Vec<u8>,
    /// The start of the first line not returned yet. start <= searched <= buffer.len()
    start: usize,
    /// There is no line end between `start` and this index.
    searched: usize,
    /// The longest line in bytes, without the terminator.
    max_len: usize,
    mode: Mode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Collecting,
    /// The line at `start` is the rest of a line that was too long.
    Skipping,
}

impl LineFramer {
    /// Returns a framer for lines of up to `max_len` bytes, not counting the terminator.
    pub fn new(max_len: usize) -> Self {
        Self { buffer: Vec::new(), start: 0, searched: 0, max_len, mode: Mode::Collecting }
    }

    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the buffer to read into; only ever append to it.
    pub fn buffer_mut(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// Returns the length of the incomplete line, once all complete lines are taken.
    pub fn unfinished_len(&self) -> usize {
        self.buffer.len() - self.start
    }

    /// Drops the incomplete line because there is no memory for it; the rest of it is skipped.
    pub fn skip_unfinished(&mut self) {
        self.start = self.buffer.len();
        self.mode = Mode::Skipping;
        self.compact();
    }

    /// Returns the remaining lines at the end of the input, including an unterminated last line.
    ///
    /// Call it until it returns `None`.
    pub fn finish(&mut self) -> Option<Line> {
        self.next().or_else(|| {
            let end = self.buffer.len();
            let line = self.take_line(end, end);
            self.compact();
            line
        })
    }

    /// Takes the line from `start` to `end`, or nothing if it is blank or skipped; the next one starts
    /// at `next`.
    fn take_line(&mut self, end: usize, next: usize) -> Option<Line> {
        let start = mem::replace(&mut self.start, next);
        self.searched = next;
        if mem::replace(&mut self.mode, Mode::Collecting) == Mode::Skipping {
            return None;
        }
        let raw = &self.buffer[start..end];
        let line = raw.strip_suffix(b"\r").unwrap_or(raw);
        let len = line.len();
        if len > self.max_len {
            return Some(Line::TooLong);
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            return None;
        }
        // Only a line that fills most of the buffer takes it: so a small message never pins a large buffer,
        // and a large message is never in memory twice.
        if len < self.buffer.capacity() / 2 {
            return Some(Line::Message(Bytes::copy_from_slice(line)));
        }
        let rest = self.buffer[next..].to_vec();
        let whole = Bytes::from(mem::replace(&mut self.buffer, rest));
        self.start = 0;
        self.searched = 0;
        Some(Line::Message(whole.slice(start..start + len)))
    }

    /// Drops the incomplete line at `start` if it is too long already.
    fn check_unfinished(&mut self) -> Option<Line> {
        let unfinished = &self.buffer[self.start..];
        // A carriage return just after the limit may be the first half of the terminator.
        let excess = unfinished.len().saturating_sub(self.max_len);
        if self.mode == Mode::Collecting && (excess == 0 || excess == 1 && unfinished.ends_with(b"\r")) {
            return None;
        }
        self.start = self.buffer.len();
        match mem::replace(&mut self.mode, Mode::Skipping) {
            Mode::Collecting => Some(Line::TooLong),
            Mode::Skipping => None,
        }
    }

    /// Moves the incomplete line to the front and releases memory that it does not need.
    fn compact(&mut self) {
        let unfinished = self.buffer.len() - self.start;
        if self.buffer.capacity() > KEPT_CAPACITY.max(2 * unfinished) {
            self.buffer = self.buffer[self.start..].to_vec();
        } else if self.start > 0 {
            self.buffer.copy_within(self.start.., 0);
            self.buffer.truncate(unfinished);
        }
        self.start = 0;
        self.searched = unfinished;
    }
}

/// Ends after the last complete line, and continues after more bytes are pushed.
impl Iterator for LineFramer {
    type Item = Line;

    fn next(&mut self) -> Option<Line> {
        while let Some(found) = memchr(b'\n', &self.buffer[self.searched..]) {
            let end = self.searched + found;
            let line = self.take_line(end, end + 1);
            if line.is_some() {
                return line;
            }
        }
        let verdict = self.check_unfinished();
        self.compact();
        verdict
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    const MAX_LEN: usize = 8;

    /// The expected lines of the whole input.
    fn lines_of(input: &[u8]) -> Vec<Line> {
        input
            .split(|&byte| byte == b'\n')
            .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
            .filter(|line| line.len() > MAX_LEN || !line.iter().all(u8::is_ascii_whitespace))
            .map(|line| match line.len() {
                0..=MAX_LEN => Line::Message(Bytes::copy_from_slice(line)),
                _ => Line::TooLong,
            })
            .collect()
    }

    fn input() -> impl Strategy<Value = Vec<u8>> {
        vec(prop_oneof![4 => Just(b'a'), 2 => Just(b'\n'), 1 => Just(b'\r'), 1 => Just(b' ')], 0..200)
    }

    proptest! {
        #[test]
        fn any_split_of_the_same_bytes_gives_the_same_lines(
            input in input(),
            piece_lens in vec(1..40usize, 1..20),
        ) {
            let mut framer = LineFramer::new(MAX_LEN);
            let mut lines = Vec::new();
            let mut rest = &input[..];
            for &len in piece_lens.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let piece;
                (piece, rest) = rest.split_at(len.min(rest.len()));
                framer.push(piece);
                lines.extend(framer.by_ref());
                prop_assert!(framer.buffer.len() <= MAX_LEN + 1);
            }
            lines.extend(std::iter::from_fn(|| framer.finish()));
            prop_assert_eq!(lines, lines_of(&input));
            prop_assert_eq!(framer.finish(), None);
        }
    }

    #[test]
    fn a_line_that_is_too_long_fails_before_its_end_and_the_next_one_is_read() {
        let mut framer = LineFramer::new(MAX_LEN);
        framer.push(b"12345678\r");
        assert_eq!(framer.next(), None);
        framer.push(b"9");
        assert_eq!(framer.next(), Some(Line::TooLong));
        framer.push(&[b'x'; 100_000]);
        assert_eq!(framer.next(), None);
        assert!(framer.buffer.is_empty());
        framer.push(b"\nnext\n");
        assert_eq!(framer.next(), Some(Line::Message("next".into())));
    }

    #[test]
    fn an_abandoned_line_is_skipped_and_the_next_one_is_read() {
        let mut framer = LineFramer::new(MAX_LEN);
        framer.push(b"12345");
        assert_eq!((framer.next(), framer.unfinished_len()), (None, 5));
        framer.skip_unfinished();
        framer.push(b"678901234\nnext\n");
        assert_eq!(framer.next(), Some(Line::Message("next".into())));
    }

    #[test]
    fn an_empty_framer_frees_its_memory() {
        let mut framer = LineFramer::new(1 << 20);
        framer.buffer_mut().reserve(64 * 1024);
        framer.push(b"small\n");
        assert_eq!(framer.next(), Some(Line::Message("small".into())));
        assert_eq!(framer.next(), None);
        assert!(framer.buffer.capacity() <= KEPT_CAPACITY);
    }

    #[test]
    fn a_message_pins_no_more_than_twice_its_size() {
        let mut framer = LineFramer::new(1 << 20);
        framer.push(&[&[b'a'; 300_000][..], b"\n", &[b'b'; 100], b"\n", &[b'c'; 200_000]].concat());
        let Some(Line::Message(large)) = framer.next() else { panic!("the large line is complete") };
        let large = large.try_into_mut().expect("a large message owns its memory alone");
        assert!(large.capacity() <= 600_000);
        let Some(Line::Message(small)) = framer.next() else { panic!("the small line is complete") };
        let small = small.try_into_mut().expect("a small message owns its memory alone");
        assert!(small.capacity() <= 200);
    }
}

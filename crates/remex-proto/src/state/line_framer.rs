//! Splits a byte stream into lines: the framing of stdio and unix sockets.
//!
//! Pure: it does no I/O and never interprets a line. Start at [`LineFramer`].

use std::mem;

use bytes::Bytes;
use memchr::memchr;

use crate::envelope::binary::{LINE_HEAD_LEN, LINE_MARK};

/// The memory that an empty framer may keep, in bytes, so that an idle connection costs little.
const KEPT_CAPACITY: usize = 4 * 1024;

/// One line of input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// A whole line without its terminator, never blank; or a binary message without its head.
    Message(Bytes),
    /// A line or binary message that exceeds the limit; the rest of it is skipped.
    TooLong,
}

/// Splits bytes into lines, however they were split in transit.
///
/// A line ends with LF or CRLF. Blank lines are skipped. Take all lines after each read: then the framer
/// holds at most one line of maximum length and the bytes read last. Once [`LineFramer::accept_binary`] was called,
/// there may be binary messages between the lines.
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
    accepts_binary: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Collecting,
    /// The line at `start` is the rest of a line that was too long.
    Skipping,
    /// So many bytes from `start` on are the rest of a binary message that was too long.
    SkippingBytes(usize),
}

impl LineFramer {
    /// Returns a framer for lines of up to `max_len` bytes, not counting the terminator.
    pub fn new(max_len: usize) -> Self {
        Self {
            buffer: Vec::new(),
            start: 0,
            searched: 0,
            max_len,
            mode: Mode::Collecting,
            accepts_binary: false,
        }
    }

    /// From the next message on, one may be binary.
    pub fn accept_binary(&mut self) {
        self.accepts_binary = true;
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

    /// Returns how long the incomplete line may become: as long as a binary message says, or as any line.
    pub fn unfinished_max_len(&self) -> usize {
        self.binary_len().map_or(self.max_len, |len| LINE_HEAD_LEN + len)
    }

    /// Drops the incomplete message because there is no memory for it; the rest of it is skipped.
    pub fn skip_unfinished(&mut self) {
        self.mode = match self.binary_len() {
            Some(len) => Mode::SkippingBytes(LINE_HEAD_LEN + len - self.unfinished_len()),
            None => Mode::Skipping,
        };
        self.start = self.buffer.len();
        self.compact();
    }

    /// Returns the remaining lines at the end of the input, including an unterminated last line.
    ///
    /// Call it until it returns `None`. An incomplete binary message is dropped.
    pub fn finish(&mut self) -> Option<Line> {
        self.next().or_else(|| {
            let end = self.buffer.len();
            if self.begins_binary() {
                self.start = end;
            }
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
        Some(Line::Message(self.take_bytes(start, len, next)))
    }

    /// Takes `len` bytes from `start` on; the next message starts at `next`.
    fn take_bytes(&mut self, start: usize, len: usize, next: usize) -> Bytes {
        // Only a line that fills most of the buffer takes it: so a small message never pins a large buffer,
        // and a large message is never in memory twice.
        if len < self.buffer.capacity() / 2 {
            return Bytes::copy_from_slice(&self.buffer[start..start + len]);
        }
        let rest = self.buffer[next..].to_vec();
        let whole = Bytes::from(mem::replace(&mut self.buffer, rest));
        self.start = 0;
        self.searched = 0;
        whole.slice(start..start + len)
    }

    /// Returns whether a binary message begins at `start`.
    fn begins_binary(&self) -> bool {
        self.accepts_binary
            && self.mode == Mode::Collecting
            && self.buffer.get(self.start) == Some(&LINE_MARK)
    }

    /// Returns the length of the binary message at `start`, if one begins there and its length has arrived.
    fn binary_len(&self) -> Option<usize> {
        if !self.begins_binary() {
            return None;
        }
        let len = self.buffer[self.start..].get(1..LINE_HEAD_LEN)?;
        Some(u32::from_be_bytes(len.try_into().expect("four bytes")) as usize)
    }

    /// Takes the binary message at `start`, or skips what is left of one; `None` if more bytes are needed.
    fn take_binary(&mut self) -> Option<Line> {
        let len = self.binary_len()?;
        if len > self.max_len {
            self.mode = Mode::SkippingBytes(LINE_HEAD_LEN + len);
            return Some(Line::TooLong);
        }
        let start = self.start + LINE_HEAD_LEN;
        let next = start + len;
        if next > self.buffer.len() {
            return None;
        }
        (self.start, self.searched) = (next, next);
        Some(Line::Message(self.take_bytes(start, len, next)))
    }

    /// Drops what has arrived of a binary message that is skipped; returns whether all of it has.
    fn has_skipped(&mut self) -> bool {
        let Mode::SkippingBytes(rest) = self.mode else { return true };
        let skipped = rest.min(self.unfinished_len());
        self.start += skipped;
        self.searched = self.start;
        self.mode = if skipped < rest { Mode::SkippingBytes(rest - skipped) } else { Mode::Collecting };
        self.mode == Mode::Collecting
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
            Mode::Skipping | Mode::SkippingBytes(_) => None,
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
        let verdict = loop {
            if !self.has_skipped() {
                break None;
            }
            if self.begins_binary() {
                match self.take_binary() {
                    None => break None,
                    message => return message,
                }
            }
            let Some(found) = memchr(b'\n', &self.buffer[self.searched..]) else {
                break self.check_unfinished();
            };
            let end = self.searched + found;
            let line = self.take_line(end, end + 1);
            if line.is_some() {
                return line;
            }
        };
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

    /// A binary message of `len` bytes between lines.
    fn binary(len: usize) -> Vec<u8> {
        let head = [&[LINE_MARK][..], &u32::try_from(len).unwrap().to_be_bytes()].concat();
        [head, vec![b'\n'; len]].concat()
    }

    proptest! {
        #[test]
        fn binary_messages_between_lines_are_found_however_they_were_split(
            kinds in vec(0..4u8, 0..20),
            piece_lens in vec(1..40usize, 1..20),
        ) {
            let (mut input, mut expected) = (Vec::new(), Vec::new());
            for kind in kinds {
                let (bytes, line) = match kind {
                    0 => (b"{\0\0}\r\n".to_vec(), Line::Message("{\0\0}".into())),
                    1 => (b"\n123456789\n".to_vec(), Line::TooLong),
                    2 => (binary(MAX_LEN), Line::Message(vec![b'\n'; MAX_LEN].into())),
                    _ => (binary(30), Line::TooLong),
                };
                input.extend(bytes);
                expected.push(line);
            }
            // The end of the input cuts it off.
            input.extend(&binary(5)[..8]);
            let mut framer = LineFramer::new(MAX_LEN);
            framer.accept_binary();
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
                prop_assert!(framer.buffer.len() <= MAX_LEN + LINE_HEAD_LEN);
            }
            lines.extend(std::iter::from_fn(|| framer.finish()));
            prop_assert_eq!(lines, expected);
        }
    }

    #[test]
    fn an_abandoned_binary_message_is_skipped_and_the_next_one_is_read() {
        let mut framer = LineFramer::new(MAX_LEN);
        framer.accept_binary();
        framer.push(&binary(8)[..7]);
        assert_eq!((framer.next(), framer.unfinished_len()), (None, 7));
        framer.skip_unfinished();
        framer.push(&binary(8)[7..]);
        framer.push(b"next\n");
        assert_eq!(framer.next(), Some(Line::Message("next".into())));
    }

    #[test]
    fn binary_messages_are_lines_unless_they_are_accepted() {
        let mut framer = LineFramer::new(MAX_LEN);
        framer.push(b"\0\0\0\0\x01\n");
        assert_eq!(framer.next(), Some(Line::Message(b"\0\0\0\0\x01"[..].into())));
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

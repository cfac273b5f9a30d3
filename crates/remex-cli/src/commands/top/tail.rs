//! The last lines of the output of a process, as plain text.
//!
//! Pure, and of bounded size. Control sequences are dropped, and a carriage return restarts the line. Start at [`Tail`].

use std::collections::VecDeque;

use remex_client::process::Stream;

use crate::render::text::plain;

/// More lines than a screen has.
const LINES: usize = 500;

/// Longer lines are split.
const LINE_BYTES: usize = 4096;

const TAB: usize = 8;

#[derive(Debug)]
pub(super) struct Tail {
    lines: VecDeque<String>,
    /// The incomplete line.
    open: Vec<u8>,
    /// The stream it was written to.
    stream: Stream,
    /// Whether the last byte was a carriage return, so that the next one replaces the line.
    has_returned: bool,
    state: SequenceState,
}

/// The state of the control sequence parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SequenceState {
    Text,
    Escape,
    /// In a CSI sequence, which a letter ends.
    Parameters,
    /// In an OSC or similar string, such as a window title.
    Hidden,
    /// After an escape in such a string, which a backslash ends.
    HiddenEscape,
}

impl Tail {
    pub(super) fn new() -> Self {
        Self {
            lines: VecDeque::new(),
            open: Vec::new(),
            stream: Stream::Stdout,
            has_returned: false,
            state: SequenceState::Text,
        }
    }

    /// Adds output.
    pub(super) fn take(&mut self, stream: Stream, bytes: &[u8]) {
        if stream != self.stream && !self.open.is_empty() {
            self.end_line();
        }
        self.stream = stream;
        for byte in bytes {
            self.state = self.next(*byte);
        }
    }

    /// Marks missing output.
    pub(super) fn skip(&mut self) {
        if !self.open.is_empty() {
            self.end_line();
        }
        self.state = SequenceState::Text;
        self.push("…".to_owned());
    }

    /// Returns at most `count` of the last lines, oldest first.
    pub(super) fn last(&self, count: usize) -> Vec<String> {
        let open = (!self.open.is_empty()).then(|| text(&self.open));
        let whole = count.saturating_sub(usize::from(open.is_some()));
        let from = self.lines.len().saturating_sub(whole);
        self.lines.iter().skip(from).cloned().chain(open).take(count).collect()
    }

    fn next(&mut self, byte: u8) -> SequenceState {
        const ESCAPE: u8 = 0x1b;
        match (self.state, byte) {
            // Cancels any sequence.
            (_, 0x18 | 0x1a) => SequenceState::Text,
            (SequenceState::Text, _) if byte != ESCAPE => {
                self.print(byte);
                SequenceState::Text
            }
            (SequenceState::Hidden, ESCAPE) => SequenceState::HiddenEscape,
            (SequenceState::Hidden, 0x07) | (SequenceState::HiddenEscape, b'\\') => SequenceState::Text,
            (SequenceState::Hidden | SequenceState::HiddenEscape, _) => SequenceState::Hidden,
            (_, ESCAPE) => SequenceState::Escape,
            (SequenceState::Escape, b'[') => SequenceState::Parameters,
            (SequenceState::Escape, b']' | b'P' | b'X' | b'^' | b'_') => SequenceState::Hidden,
            // `ESC ( B` and similar: one more byte follows.
            (SequenceState::Escape, 0x20..=0x2f) => SequenceState::Escape,
            (SequenceState::Parameters, 0..=0x3f) => SequenceState::Parameters,
            (..) => SequenceState::Text,
        }
    }

    fn print(&mut self, byte: u8) {
        match byte {
            b'\r' => self.has_returned = true,
            b'\n' => self.end_line(),
            b'\t' => {
                let width = text(&self.open).chars().count();
                self.open.extend(std::iter::repeat_n(b' ', TAB - width % TAB));
            }
            0x08 => while self.open.pop().is_some_and(|byte| byte & 0xc0 == 0x80) {},
            0..=0x1f | 0x7f => {}
            _ => {
                if std::mem::take(&mut self.has_returned) {
                    self.open.clear();
                }
                if self.open.len() >= LINE_BYTES {
                    self.end_line();
                }
                self.open.push(byte);
            }
        }
    }

    fn end_line(&mut self) {
        self.has_returned = false;
        let line = text(&std::mem::take(&mut self.open));
        self.push(line);
    }

    fn push(&mut self, line: String) {
        if self.lines.len() == LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }
}

fn text(bytes: &[u8]) -> String {
    plain(&String::from_utf8_lossy(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Vec<String> {
        let mut tail = Tail::new();
        tail.take(Stream::Pty, text.as_bytes());
        tail.last(10)
    }

    #[test]
    fn no_control_sequence_reaches_the_screen_even_if_split() {
        let text = "\u{1b}[1;31mred\u{1b}[0m\r\n\u{1b}]0;a title\u{7}a\u{1b}]8;;x\u{1b}\\b\u{1b}(B\u{1b}7c\u{1b}[?25l\nü\u{9b}d";
        assert_eq!(shown(text), ["red", "abc", "ü\u{fffd}d"]);
        for cut in 0..text.len() {
            let mut tail = Tail::new();
            tail.take(Stream::Pty, &text.as_bytes()[..cut]);
            tail.take(Stream::Pty, &text.as_bytes()[cut..]);
            assert_eq!(tail.last(10), shown(text), "{cut}");
        }
        for first in 0..=255 {
            for second in 0..=255 {
                let mut tail = Tail::new();
                tail.take(Stream::Pty, &[0x1b, first, second, b'm', first, second]);
                assert!(!tail.last(9).concat().contains(char::is_control), "{first} {second}");
            }
        }
    }

    #[test]
    fn a_carriage_return_restarts_the_line() {
        assert_eq!(shown("10%\r20%\r\u{1b}[K100%\ndone\r\n"), ["100%", "done"]);
        assert_eq!(shown("a\tb\nxy\u{8}z"), ["a       b", "xz"]);
    }

    #[test]
    fn only_the_last_lines_are_kept() {
        let mut tail = Tail::new();
        for number in 0..2 * LINES {
            tail.take(Stream::Stdout, format!("{number}\n").as_bytes());
        }
        tail.take(Stream::Stdout, b"open");
        assert_eq!(tail.last(3), ["998", "999", "open"]);
        assert_eq!(tail.last(usize::MAX).len(), LINES + 1);
        tail.skip();
        tail.take(Stream::Stderr, b"new");
        assert_eq!(tail.last(3), ["open", "…", "new"]);
        assert_eq!(tail.last(0), Vec::<String>::new());
    }
}

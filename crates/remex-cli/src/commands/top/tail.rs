//! The last lines of what a process has said, as plain text.
//!
//! Pure, and of bounded size. Nothing that a terminal takes for an order comes out: sequences are dropped, a carriage
//! return begins the line anew. Start at [`Tail`].

use std::collections::VecDeque;

use remex_client::process::Stream;

use crate::render::text::plain;

/// More lines than a screen has.
const LINES: usize = 500;

/// A line that is longer goes on in the next.
const LINE_BYTES: usize = 4096;

const TAB: usize = 8;

#[derive(Debug)]
pub(super) struct Tail {
    lines: VecDeque<String>,
    /// The line that has not ended yet.
    open: Vec<u8>,
    /// Who wrote it.
    stream: Stream,
    /// Whether a carriage return came, so that what follows replaces the line.
    has_returned: bool,
    state: State,
}

/// Where in a control sequence the output is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Text,
    Escape,
    /// In a sequence of parameters, which a letter ends.
    Parameters,
    /// In a title or another text that is not for the screen.
    Hidden,
    /// Behind an escape in it, which a backslash ends.
    HiddenEscape,
}

impl Tail {
    pub(super) fn new() -> Self {
        Self {
            lines: VecDeque::new(),
            open: Vec::new(),
            stream: Stream::Stdout,
            has_returned: false,
            state: State::Text,
        }
    }

    /// Takes what follows.
    pub(super) fn take(&mut self, stream: Stream, bytes: &[u8]) {
        if stream != self.stream && !self.open.is_empty() {
            self.end_line();
        }
        self.stream = stream;
        for byte in bytes {
            self.state = self.next(*byte);
        }
    }

    /// Notes that something is missing here.
    pub(super) fn skip(&mut self) {
        if !self.open.is_empty() {
            self.end_line();
        }
        self.state = State::Text;
        self.push("…".to_owned());
    }

    /// Returns at most this many of the last lines, the oldest first.
    pub(super) fn last(&self, count: usize) -> Vec<String> {
        let open = (!self.open.is_empty()).then(|| text(&self.open));
        let whole = count.saturating_sub(usize::from(open.is_some()));
        let from = self.lines.len().saturating_sub(whole);
        self.lines.iter().skip(from).cloned().chain(open).take(count).collect()
    }

    fn next(&mut self, byte: u8) -> State {
        const ESCAPE: u8 = 0x1b;
        match (self.state, byte) {
            // Whatever it was in, it is cancelled.
            (_, 0x18 | 0x1a) => State::Text,
            (State::Text, _) if byte != ESCAPE => {
                self.print(byte);
                State::Text
            }
            (State::Hidden, ESCAPE) => State::HiddenEscape,
            (State::Hidden, 0x07) | (State::HiddenEscape, b'\\') => State::Text,
            (State::Hidden | State::HiddenEscape, _) => State::Hidden,
            (_, ESCAPE) => State::Escape,
            (State::Escape, b'[') => State::Parameters,
            (State::Escape, b']' | b'P' | b'X' | b'^' | b'_') => State::Hidden,
            // `ESC ( B` and its like: one more comes.
            (State::Escape, 0x20..=0x2f) => State::Escape,
            (State::Parameters, 0..=0x3f) => State::Parameters,
            (..) => State::Text,
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
    fn no_sequence_reaches_the_screen_however_it_is_cut() {
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
    fn a_carriage_return_begins_the_line_anew() {
        assert_eq!(shown("10%\r20%\r\u{1b}[K100%\ndone\r\n"), ["100%", "done"]);
        assert_eq!(shown("a\tb\nxy\u{8}z"), ["a       b", "xz"]);
    }

    #[test]
    fn the_last_lines_are_kept_and_no_more() {
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

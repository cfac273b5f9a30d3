//! Removes control sequences from output that arrives in pieces.
//!
//! Pure: no I/O, no clock. [`SequenceFilter`] finds the sequences, [`CurrentLine`] applies those that overwrite a line.

use anstyle_parse::state::{Action, State, state_change};

use super::Truncator;

/// What happens to the control sequences in output, such as colours, cursor movements and window titles.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use remex_client::{Command, agent::{Agent, ControlSequences, Limits, Window}};
///
/// let agent = Agent::new(Limits::default().control_sequences(ControlSequences::Remove));
/// let command = Command::new("printf").arg(r"10%%\r100%%\n\033[1;31merror:\033[0m no space\n");
/// let step = agent.exec_command(&client, &command, Window::default()).await?;
/// assert_eq!(step.output.text, "100%\nerror: no space\n");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ControlSequences {
    /// They stay: output is as the process wrote it.
    Keep,
    /// They are removed, as are control characters other than line feeds and tabs.
    ///
    /// A line that a carriage return, a backspace or an erasure overwrites, such as a progress bar, appears as it was
    /// last; a line end is `\n`. Other movements of the cursor have no effect, so the screen of a full-screen program
    /// becomes a sequence of its pieces. Numbers of bytes are of the text that remains.
    ///
    /// The raw output is still there: see [`Agent::process`](super::Agent::process).
    #[default]
    Remove,
}

/// The longest string in a sequence, such as a title or an image, in bytes; beyond it, output is shown again.
const MAX_STRING: usize = 1 << 20;

/// The longest line that can still be overwritten, in bytes.
const MAX_LINE: usize = 16 << 10;

/// What one stream of output consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// Text, with line feeds and tabs.
    Text(&'a [u8]),
    /// The cursor goes to the beginning of the line.
    Return,
    /// The cursor goes back by one character.
    Backspace,
    EraseLine,
    EraseToStart,
    EraseToEnd,
}

/// Splits one stream of output into text and the sequences that matter to a line; drops all others.
#[derive(Debug, Clone, Default)]
pub(super) struct SequenceFilter {
    state: State,
    parameter: Parameter,
    string_len: usize,
}

/// The parameters of a sequence, as far as they matter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Parameter {
    #[default]
    Absent,
    Number(u16),
    Other,
}

impl SequenceFilter {
    /// Splits the next bytes, which may begin and end within a sequence.
    pub(super) fn push<'a>(&mut self, bytes: &'a [u8], mut on_piece: impl FnMut(Piece<'a>)) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let is_control = |byte: &u8| byte.is_ascii_control() && !matches!(*byte, b'\n' | b'\t');
            let text_len = match self.state {
                State::Ground => rest.iter().position(is_control).unwrap_or(rest.len()),
                _ => 0,
            };
            if text_len > 0 {
                on_piece(Piece::Text(&rest[..text_len]));
                rest = &rest[text_len..];
                continue;
            }
            let (first, after) = rest.split_at(1);
            if let Some(piece) = self.on_byte(first) {
                on_piece(piece);
            }
            rest = after;
        }
    }

    /// Handles the next byte, which is a control character or within a sequence.
    fn on_byte<'a>(&mut self, one: &'a [u8]) -> Option<Piece<'a>> {
        let byte = one[0];
        if is_string(self.state) {
            self.string_len += 1;
            // Titles have no line end: this is no title, but output after a stray escape character.
            let is_stray = self.state == State::OscString && byte == b'\n';
            if is_stray || self.string_len > MAX_STRING {
                self.state = State::Ground;
                return Some(Piece::Text(one));
            }
            if !byte.is_ascii() {
                return None;
            }
        } else if !byte.is_ascii() {
            // Only strings have other characters than ASCII, so this was no sequence.
            self.state = State::Ground;
            return Some(Piece::Text(one));
        }
        let (next, action) = state_change(self.state, byte);
        if next != State::Anywhere {
            if is_string(next) && !is_string(self.state) {
                self.string_len = 0;
            }
            if next == State::CsiEntry {
                self.parameter = Parameter::Absent;
            }
            self.state = next;
        }
        match action {
            Action::Execute => match byte {
                b'\r' => Some(Piece::Return),
                0x08 => Some(Piece::Backspace),
                b'\n' | b'\t' => Some(Piece::Text(one)),
                _ => None,
            },
            Action::Param | Action::Collect => {
                self.parameter = self.parameter.and(byte);
                None
            }
            Action::CsiDispatch => self.line_sequence(byte),
            _ => None,
        }
    }

    fn line_sequence(&self, last: u8) -> Option<Piece<'static>> {
        match (last, self.parameter) {
            (b'G', Parameter::Absent | Parameter::Number(0 | 1)) => Some(Piece::Return),
            (b'K', Parameter::Absent | Parameter::Number(0)) => Some(Piece::EraseToEnd),
            (b'K', Parameter::Number(1)) => Some(Piece::EraseToStart),
            (b'K', Parameter::Number(2)) => Some(Piece::EraseLine),
            _ => None,
        }
    }
}

impl Parameter {
    fn and(self, byte: u8) -> Self {
        let before = match self {
            Parameter::Absent => 0,
            Parameter::Number(number) => number,
            Parameter::Other => return Parameter::Other,
        };
        match byte {
            b'0'..=b'9' => {
                Parameter::Number(before.saturating_mul(10).saturating_add(u16::from(byte - b'0')))
            }
            _ => Parameter::Other,
        }
    }
}

/// The line that may still be overwritten; the lines before it are in a [`Truncator`].
#[derive(Debug, Clone, Default)]
pub(super) struct CurrentLine {
    text: Vec<u8>,
    cursor: LineCursor,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum LineCursor {
    #[default]
    AtEnd,
    /// What is written next replaces the line, unless it is the end of the line.
    AtStart,
}

impl CurrentLine {
    pub(super) fn apply(&mut self, piece: Piece<'_>, truncator: &mut Truncator) {
        match (piece, self.cursor) {
            (Piece::Text(text), _) => text.split_inclusive(|byte| *byte == b'\n').for_each(|part| {
                if self.cursor == LineCursor::AtStart && part != b"\n" {
                    self.text.clear();
                }
                self.cursor = LineCursor::AtEnd;
                self.text.extend_from_slice(part);
                if part.ends_with(b"\n") || self.text.len() > MAX_LINE {
                    self.flush(truncator);
                }
            }),
            (Piece::Return, _) => self.cursor = LineCursor::AtStart,
            (Piece::Backspace, LineCursor::AtEnd) => self.remove_last(),
            (Piece::EraseLine, _)
            | (Piece::EraseToStart, LineCursor::AtEnd)
            | (Piece::EraseToEnd, LineCursor::AtStart) => self.text.clear(),
            (Piece::Backspace | Piece::EraseToStart, LineCursor::AtStart)
            | (Piece::EraseToEnd, LineCursor::AtEnd) => {}
        }
    }

    /// Moves the line into the truncator as it is now; it can no longer be overwritten.
    pub(super) fn flush(&mut self, truncator: &mut Truncator) {
        truncator.push(&self.text);
        self.text.clear();
        self.cursor = LineCursor::AtEnd;
    }

    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    /// Removes the last character.
    fn remove_last(&mut self) {
        let is_first_byte = |byte: &u8| *byte & 0b1100_0000 != 0b1000_0000;
        let start = self.text.iter().rposition(is_first_byte).unwrap_or(0);
        self.text.truncate(start);
    }
}

fn is_string(state: State) -> bool {
    matches!(state, State::OscString | State::DcsPassthrough | State::DcsIgnore | State::SosPmApcString)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Filters output that arrives in these pieces.
    fn plain<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> String {
        let (mut filter, mut line) = (SequenceFilter::default(), CurrentLine::default());
        let mut truncator = Truncator::new(1 << 22);
        for bytes in pieces {
            filter.push(bytes, |piece| line.apply(piece, &mut truncator));
        }
        line.flush(&mut truncator);
        truncator.finish().text
    }

    #[test]
    fn control_sequences_are_removed_and_text_is_kept() {
        for (output, expected) in [
            ("plain\n\ttext: grüße 🦀\n", "plain\n\ttext: grüße 🦀\n"),
            ("\x1b[1;31mred\x1b[0m \x1b[38;2;1;2;3mtrue\x1b[m", "red true"),
            ("\x1b]0;a title: grüße\x07after", "after"),
            ("\x1b]8;;https://example.com\x1b\\link\x1b]8;;\x1b\\", "link"),
            ("\x1bP1$r0m\x1b\\after \x1b_app\x1b\\\x1b^pm\x1b\\\x1bXsos\x1b\\them", "after them"),
            ("\x1b(B\x1b=\x1b7saved\x1b8\x1bc", "saved"),
            ("\x1b[?25lhidden\x1b[?25h\x1b[2J\x1b[H", "hidden"),
            ("bell\x07 null\0 delete\x7f", "bell null delete"),
            ("stray \x1b]title\nnext line", "stray \nnext line"),
            ("stray \x1b[ä", "stray ä"),
        ] {
            assert_eq!(plain([output.as_bytes()]), expected, "{output:?}");
        }
    }

    #[test]
    fn an_overwritten_line_shows_its_last_content() {
        for (output, expected) in [
            ("one\r\ntwo\r\r\n", "one\ntwo\n"),
            ("10%\r20%\r100%\ndone\n", "100%\ndone\n"),
            ("10%\r\x1b[Kdone\n", "done\n"),
            ("10%\r\x1b[K", ""),
            ("10%\x1b[2K\x1b[1Gdone\n", "done\n"),
            ("10%\x1b[1K\rdone", "done"),
            ("kept\x1b[K\n", "kept\n"),
            ("kept\r", "kept"),
            ("|\x08/\x08-\x08done ä\x08a", "done a"),
            ("first\n10%\r\n", "first\n10%\n"),
        ] {
            assert_eq!(plain([output.as_bytes()]), expected, "{output:?}");
        }
    }

    #[test]
    fn an_unterminated_string_does_not_hide_output_forever() {
        let output = format!("\x1bP{}visible", "x".repeat(2 * MAX_STRING));
        let shown = plain([output.as_bytes()]);
        assert!(shown.len() < MAX_STRING + 10 && shown.ends_with("visible"));
    }

    #[test]
    fn an_unterminated_line_is_bounded() {
        let (mut line, mut truncator) = (CurrentLine::default(), Truncator::new(100));
        for _ in 0..100 {
            line.apply(Piece::Text(&[b'x'; 1000]), &mut truncator);
            assert!(line.len() <= MAX_LINE + 1000);
        }
        assert_eq!(truncator.total_bytes() + line.len() as u64, 100_000);
    }

    proptest! {
        #[test]
        fn split_sequences_do_not_matter(
            output in "(\x1b\\[[0-9;]{0,4}[A-Km]|\x1b\\]0;[a-zä]{0,4}(\x07|\x1b\\\\)|\x1bP[a-z]{0,3}\x1b\\\\|[a-zäß🦀\r\n\x08\x1b]){0,60}",
            at in any::<prop::sample::Index>(),
        ) {
            let (first, second) = output.as_bytes().split_at(at.index(output.len() + 1));
            prop_assert_eq!(plain([first, second]), plain([output.as_bytes()]));
            let single: Vec<_> = output.as_bytes().chunks(1).collect();
            prop_assert_eq!(plain(single), plain([output.as_bytes()]));
        }

        #[test]
        fn no_control_character_remains(output in prop::collection::vec(any::<u8>(), 0..200)) {
            let is_allowed = |character: char| !character.is_ascii_control() || "\n\t".contains(character);
            prop_assert!(plain([&output[..]]).chars().all(is_allowed));
        }
    }
}

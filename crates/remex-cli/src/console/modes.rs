//! The modes that a shown program has set on the terminal: the alternate screen, mouse reports, bracketed paste.
//!
//! Pure: bytes of output in, sequences that undo and redo the modes out. Start at [`Modes`].

use std::{collections::BTreeSet, fmt::Write as _};

/// The private modes that enter the alternate screen, by age.
const ALTERNATE_SCREENS: [u16; 3] = [47, 1047, 1049];

/// The other private modes that are tracked: application cursor keys, mouse reports, focus reports, bracketed paste.
const TRACKED: [u16; 10] = [1, 9, 1000, 1002, 1003, 1004, 1005, 1006, 1015, 2004];

/// Shows the cursor; the only mode that is on before a program changes it.
const CURSOR: u16 = 25;

/// A longer list of modes is not one.
const MAX_PARAMETERS: usize = 64;

/// Which screen of the terminal is active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Screen {
    First,
    Other,
}

/// The modes that a program has changed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Modes {
    on: BTreeSet<u16>,
    cursor: Cursor,
    keypad: Keypad,
    parser: Parser,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Cursor {
    #[default]
    Visible,
    Hidden,
}

/// The mode of the keypad.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Keypad {
    #[default]
    Numeric,
    Application,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Parser {
    #[default]
    Ground,
    /// After ESC.
    Escape,
    /// After ESC and intermediate bytes.
    Intermediate,
    /// After `ESC [`, with the parameters so far.
    Control(Vec<u8>),
    /// In a string such as a title, until BEL or ESC `\`.
    Text,
}

impl Modes {
    /// Follows output, which may be split anywhere.
    pub(crate) fn follow(&mut self, output: &[u8]) {
        let mut rest = output;
        while !rest.is_empty() {
            if self.parser == Parser::Ground {
                let Some(at) = memchr::memchr(0x1b, rest) else { return };
                rest = &rest[at + 1..];
                self.parser = Parser::Escape;
                continue;
            }
            self.parser = self.step(rest[0]);
            rest = &rest[1..];
        }
    }

    /// Handles one byte of a sequence.
    fn step(&mut self, byte: u8) -> Parser {
        match (std::mem::take(&mut self.parser), byte) {
            (Parser::Text, 0x07) => Parser::Ground,
            // Every other sequence is cut off by the beginning of a new one.
            (_, 0x1b) => Parser::Escape,
            (Parser::Text, _) => Parser::Text,
            (Parser::Escape, b'[') => Parser::Control(Vec::new()),
            (Parser::Escape, b']' | b'P' | b'X' | b'^' | b'_') => Parser::Text,
            (Parser::Escape | Parser::Intermediate, 0x20..=0x2f) => Parser::Intermediate,
            (Parser::Escape, b'=') => {
                self.keypad = Keypad::Application;
                Parser::Ground
            }
            (Parser::Escape, b'>') => {
                self.keypad = Keypad::Numeric;
                Parser::Ground
            }
            // A full reset.
            (Parser::Escape, b'c') => {
                *self = Self::default();
                Parser::Ground
            }
            (Parser::Control(mut parameters), 0x20..=0x3f) if parameters.len() < MAX_PARAMETERS => {
                parameters.push(byte);
                Parser::Control(parameters)
            }
            (Parser::Control(parameters), b'h' | b'l') => {
                self.change(&parameters, byte == b'h');
                Parser::Ground
            }
            _ => Parser::Ground,
        }
    }

    fn change(&mut self, parameters: &[u8], is_on: bool) {
        let Some(modes) = parameters.strip_prefix(b"?") else { return };
        for mode in modes.split(|byte| *byte == b';') {
            let Some(mode) = std::str::from_utf8(mode).ok().and_then(|mode| mode.parse().ok()) else {
                continue;
            };
            match mode {
                CURSOR => self.cursor = if is_on { Cursor::Visible } else { Cursor::Hidden },
                _ if !TRACKED.contains(&mode) && !ALTERNATE_SCREENS.contains(&mode) => {}
                _ if is_on => {
                    self.on.insert(mode);
                }
                // Any of them leaves the one alternate screen that there is.
                _ if ALTERNATE_SCREENS.contains(&mode) => {
                    self.on.retain(|mode| !ALTERNATE_SCREENS.contains(mode));
                }
                _ => {
                    self.on.remove(&mode);
                }
            }
        }
    }

    /// Returns the active screen.
    pub(crate) fn screen(&self) -> Screen {
        let is_other = ALTERNATE_SCREENS.iter().any(|mode| self.on.contains(mode));
        if is_other { Screen::Other } else { Screen::First }
    }

    /// Returns whether the output ended within a control sequence, which anything else would break.
    pub(crate) fn is_within_sequence(&self) -> bool {
        self.parser != Parser::Ground
    }

    /// Returns the sequence that undoes the modes.
    pub(crate) fn undo(&self) -> String {
        let mut sequence = String::new();
        // The alternate screen goes first, so that its cursor stays with it.
        for mode in self.on.iter().rev() {
            let _ = write!(sequence, "\u{1b}[?{mode}l");
        }
        if self.cursor == Cursor::Hidden {
            sequence.push_str("\u{1b}[?25h");
        }
        if self.keypad == Keypad::Application {
            sequence.push_str("\u{1b}>");
        }
        sequence + "\u{1b}[0m"
    }

    /// Returns the sequence that sets the modes again.
    pub(crate) fn redo(&self) -> String {
        let mut sequence = String::new();
        for mode in &self.on {
            let _ = write!(sequence, "\u{1b}[?{mode}h");
        }
        if self.cursor == Cursor::Hidden {
            sequence.push_str("\u{1b}[?25l");
        }
        if self.keypad == Keypad::Application {
            sequence.push_str("\u{1b}=");
        }
        sequence
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(output: &str) -> Modes {
        let mut modes = Modes::default();
        modes.follow(output.as_bytes());
        modes
    }

    #[test]
    fn the_alternate_screen_is_found_wherever_its_sequence_is_split() {
        let output = "text\u{1b}]0;a title with [?1049l\u{7}\u{1b}[1;31mred\u{1b}[?25;1049htext\u{1b}(B";
        for at in 0..output.len() {
            let mut modes = Modes::default();
            modes.follow(&output.as_bytes()[..at]);
            modes.follow(&output.as_bytes()[at..]);
            assert_eq!(modes.screen(), Screen::Other, "split at {at}");
            assert!(!modes.is_within_sequence());
        }
        assert_eq!(after("\u{1b}[?1049h\u{1b}[?1049l").screen(), Screen::First);
        assert_eq!(after("\u{1b}[?47h\u{1b}[?1047l").screen(), Screen::First);
        assert_eq!(after("\u{1b}[?1049h\u{1b}c").screen(), Screen::First);
        assert_eq!(after("\u{1b}[1049h").screen(), Screen::First, "not a private mode");
    }

    #[test]
    fn reset_terminal_modes_are_restored() {
        let modes =
            after("\u{1b}[?1049h\u{1b}[?1;2004h\u{1b}=\u{1b}[?25l\u{1b}[?1000h\u{1b}[?1000l\u{1b}[?7l");
        assert_eq!(modes.undo(), "\u{1b}[?2004l\u{1b}[?1049l\u{1b}[?1l\u{1b}[?25h\u{1b}>\u{1b}[0m");
        assert_eq!(modes.redo(), "\u{1b}[?1h\u{1b}[?1049h\u{1b}[?2004h\u{1b}[?25l\u{1b}=");
        assert_eq!((after("plain").undo().as_str(), after("plain").redo().as_str()), ("\u{1b}[0m", ""));
    }

    #[test]
    fn an_incomplete_sequence_is_detected() {
        for (output, is_open) in [
            ("\u{1b}", true),
            ("\u{1b}[3", true),
            ("\u{1b}[3m", false),
            ("\u{1b}]0;title", true),
            ("a", false),
        ] {
            assert_eq!(after(output).is_within_sequence(), is_open, "{output:?}");
        }
        let endless = format!("\u{1b}[{}", "1;".repeat(MAX_PARAMETERS));
        assert!(!after(&endless).is_within_sequence());
    }
}

//! Escape sequences among the keys for a process: the escape character at the start of a line, then a letter.
//!
//! Pure: bytes in, bytes for the process and commands out. Start at [`Escape`].

use crate::render::failure::InvalidArg;

/// The escape character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Character {
    /// An ASCII byte.
    Byte(u8),
    /// No escape character: all keys are for the process.
    None,
}

/// The keys that erase an escape character; the terminal does not do it, see [`super::terminal::EscapeKeys`].
const ERASE: u8 = 0x7f;
const BACKSPACE: u8 = 0x08;

/// Finds escape sequences in the input.
#[derive(Debug)]
pub(crate) struct Escape {
    character: Character,
    input_mode: InputMode,
    state: LineState,
}

/// How the terminal delivers input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputMode {
    /// Key by key, in raw mode.
    Keys,
    /// Line by line: the line end after an escape sequence is part of it.
    Lines,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineState {
    LineStart,
    /// After the escape character at the start of a line, which is held back.
    Escaped,
    /// After an escape sequence.
    Ordered,
    Within,
}

/// A part of the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    /// Input for the process.
    Bytes(Vec<u8>),
    /// `~.`: detach.
    Detach,
    /// `~k`: end the process and everything it started.
    Kill,
    /// `~?`: show help.
    Help,
    /// Ctrl-C while the connection is lost.
    Interrupt,
    /// The terminal was closed.
    HangUp,
}

impl Character {
    /// Returns the help text of `~?`.
    pub(crate) fn help(self) -> String {
        let key = self.to_string();
        format!("{key}. detaches, {key}k ends the process and everything it started, {key}{key} sends {key}")
    }
}

impl std::fmt::Display for Character {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::Byte(byte) if byte.is_ascii_control() => write!(f, "^{}", char::from(byte ^ 0x40)),
            Self::Byte(byte) => write!(f, "{}", char::from(byte)),
            Self::None => f.write_str("none"),
        }
    }
}

/// Parses `%`, `^]` or `none`.
pub(crate) fn character(text: &str) -> Result<Character, InvalidArg> {
    let byte = match text.as_bytes() {
        b"none" => return Ok(Character::None),
        [byte @ 0..128] => *byte,
        [b'^', key @ b'@'..=b'_'] => key ^ 0x40,
        [b'^', key @ b'a'..=b'z'] => key ^ 0x60,
        _ => {
            return Err(InvalidArg::new(
                "it is not one ASCII character",
                "use one such as `%` or `^]`, or `none`",
            ));
        }
    };
    if matches!(byte, b'.' | b'k' | b'?' | b'\r' | b'\n') {
        return Err(InvalidArg::new("that key is part of an escape sequence", "use another one"));
    }
    Ok(Character::Byte(byte))
}

impl Escape {
    pub(crate) fn new(character: Character, input_mode: InputMode) -> Self {
        Self { character, input_mode, state: LineState::LineStart }
    }

    /// Handles input, which may be split anywhere.
    pub(crate) fn take(&mut self, typed: &[u8]) -> Vec<Key> {
        let Character::Byte(character) = self.character else {
            return vec![Key::Bytes(typed.to_vec())];
        };
        let mut keys = Vec::new();
        let mut bytes = Vec::with_capacity(typed.len() + 1);
        for &byte in typed {
            let order = match (self.state, byte) {
                (LineState::Ordered, b'\r' | b'\n') if self.input_mode == InputMode::Lines => {
                    self.state = LineState::LineStart;
                    continue;
                }
                (LineState::LineStart | LineState::Ordered, byte) if byte == character => {
                    self.state = LineState::Escaped;
                    continue;
                }
                (LineState::Escaped, ERASE | BACKSPACE) if self.input_mode == InputMode::Lines => {
                    self.state = LineState::LineStart;
                    continue;
                }
                (LineState::Escaped, b'.') => Some(Key::Detach),
                (LineState::Escaped, b'k') => Some(Key::Kill),
                (LineState::Escaped, b'?') => Some(Key::Help),
                (LineState::Escaped, byte) if byte == character => None,
                (LineState::Escaped, _) => {
                    bytes.push(character);
                    None
                }
                _ => None,
            };
            match order {
                Some(order) => {
                    flush(&mut bytes, &mut keys);
                    keys.push(order);
                    self.state = LineState::Ordered;
                }
                None => {
                    bytes.push(byte);
                    self.state =
                        if matches!(byte, b'\r' | b'\n') { LineState::LineStart } else { LineState::Within };
                }
            }
        }
        flush(&mut bytes, &mut keys);
        keys
    }

    /// Returns whether the next key determines the meaning of the escape character.
    pub(crate) fn is_pending(&self) -> bool {
        self.state == LineState::Escaped
    }

    /// Returns a held-back escape character at the end of the input.
    pub(crate) fn end(&mut self) -> Option<Key> {
        let held = self.state == LineState::Escaped;
        self.state = LineState::LineStart;
        match self.character {
            Character::Byte(character) if held => Some(Key::Bytes(vec![character])),
            _ => None,
        }
    }
}

fn flush(bytes: &mut Vec<u8>, keys: &mut Vec<Key>) {
    if !bytes.is_empty() {
        keys.push(Key::Bytes(std::mem::take(bytes)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TILDE: Character = Character::Byte(b'~');

    fn typed(pieces: &[&str]) -> Vec<Key> {
        let mut escape = Escape::new(TILDE, InputMode::Keys);
        let mut keys: Vec<_> = pieces.iter().flat_map(|piece| escape.take(piece.as_bytes())).collect();
        keys.extend(escape.end());
        keys
    }

    fn bytes(text: &str) -> Key {
        Key::Bytes(text.as_bytes().to_vec())
    }

    #[test]
    fn escape_commands_are_recognized_only_at_the_beginning_of_a_line() {
        assert_eq!(typed(&["~."]), [Key::Detach]);
        assert_eq!(typed(&["ls\r", "~", "."]), [bytes("ls\r"), Key::Detach]);
        assert_eq!(typed(&["ls ~."]), [bytes("ls ~.")]);
        assert_eq!(typed(&["~?~k"]), [Key::Help, Key::Kill]);
    }

    #[test]
    fn the_newline_after_an_escape_command_belongs_to_it() {
        let mut escape = Escape::new(TILDE, InputMode::Lines);
        assert_eq!(escape.take(b"~?\n~.\nmore\n"), [Key::Help, Key::Detach, bytes("more\n")]);
        assert_eq!(typed(&["~?\r"]), [Key::Help, bytes("\r")]);
        assert_eq!(escape.take(b"~"), []);
        assert!(escape.is_pending());
        assert_eq!((escape.take(b"\x7fa\n"), escape.is_pending()), (vec![bytes("a\n")], false));
    }

    #[test]
    fn everything_else_reaches_the_process() {
        assert_eq!(typed(&["~~."]), [bytes("~.")]);
        assert_eq!(typed(&["~/bin\n"]), [bytes("~/bin\n")]);
        assert_eq!(typed(&["~", "\r~", "~"]), [bytes("~\r"), bytes("~")]);
        assert_eq!(typed(&["~"]), [bytes("~")]);
    }

    #[test]
    fn any_split_of_the_same_keys_means_the_same() {
        let keys = "a\r~~x\n~/~\r\n~?b~.\r~.";
        let joined = |pieces: &[&str]| {
            let mut all = (Vec::new(), Vec::new());
            for key in typed(pieces) {
                match key {
                    Key::Bytes(bytes) => all.0.extend(bytes),
                    order => all.1.push((all.0.len(), order)),
                }
            }
            all
        };
        let whole = joined(&[keys]);
        for at in 1..keys.len() {
            assert_eq!(joined(&[&keys[..at], &keys[at..]]), whole, "split at {at}");
        }
    }
    #[test]
    fn the_escape_character_is_configurable() {
        for (text, byte) in [("~", b'~'), ("%", b'%'), ("^]", 0x1d), ("^a", 1), ("^A", 1), ("^", b'^')] {
            assert_eq!(character(text), Ok(Character::Byte(byte)), "{text}");
        }
        for wrong in ["", "ab", "é", ".", "k", "?", "^M", "^J", "^1"] {
            assert!(character(wrong).is_err(), "{wrong}");
        }
        let mut escape = Escape::new(Character::Byte(0x1d), InputMode::Keys);
        assert_eq!(escape.take(b"~.\r\x1d."), [bytes("~.\r"), Key::Detach]);
        assert_eq!(escape.take(b"\x1d\x1d"), [bytes("\x1d")]);
        let mut escape = Escape::new(Character::None, InputMode::Keys);
        assert_eq!((escape.take(b"~.\r~k"), escape.end()), (vec![bytes("~.\r~k")], None));
        assert_eq!(Character::Byte(0x1d).to_string(), "^]");
    }
}

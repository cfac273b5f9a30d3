//! Orders to remex among the keystrokes for a process: the escape character at the beginning of a line, then a letter.
//!
//! Pure: bytes in, bytes for the process and orders out. Start at [`Escape`].

use crate::render::failure::InvalidArg;

/// The escape character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Character {
    /// A byte of ASCII.
    Byte(u8),
    /// There is none: all keys are for the process.
    None,
}

/// Finds orders among keystrokes.
#[derive(Debug)]
pub(crate) struct Escape {
    character: Character,
    typing: Typing,
    state: State,
}

/// How input comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Typing {
    /// Key by key.
    Keys,
    /// Line by line: the end of a line with an order belongs to the order.
    Lines,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    LineStart,
    /// After the escape character at the beginning of a line, which the process has not got yet.
    Escaped,
    /// After an order.
    Ordered,
    Within,
}

/// What a piece of input means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    /// For the process.
    Bytes(Vec<u8>),
    /// `~.`: leave it running and go.
    Detach,
    /// `~k`: end it with everything it has started.
    Kill,
    /// `~?`: say which orders there are.
    Help,
    /// No key: the terminal is gone.
    HangUp,
}

impl Character {
    /// Says which orders there are; what `~?` prints.
    pub(crate) fn help(self) -> String {
        let key = self.to_string();
        format!("{key}. leaves it running, {key}k ends it with everything it started, {key}{key} sends {key}")
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

/// Reads `%`, `^]` or `none`.
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
    pub(crate) fn new(character: Character, typing: Typing) -> Self {
        Self { character, typing, state: State::LineStart }
    }

    /// Takes what was typed; what follows the escape character may come later.
    pub(crate) fn take(&mut self, typed: &[u8]) -> Vec<Key> {
        let Character::Byte(character) = self.character else {
            return vec![Key::Bytes(typed.to_vec())];
        };
        let mut keys = Vec::new();
        let mut bytes = Vec::with_capacity(typed.len() + 1);
        for &byte in typed {
            let order = match (self.state, byte) {
                (State::Ordered, b'\r' | b'\n') if self.typing == Typing::Lines => {
                    self.state = State::LineStart;
                    continue;
                }
                (State::LineStart | State::Ordered, byte) if byte == character => {
                    self.state = State::Escaped;
                    continue;
                }
                (State::Escaped, b'.') => Some(Key::Detach),
                (State::Escaped, b'k') => Some(Key::Kill),
                (State::Escaped, b'?') => Some(Key::Help),
                (State::Escaped, byte) if byte == character => None,
                (State::Escaped, _) => {
                    bytes.push(character);
                    None
                }
                _ => None,
            };
            match order {
                Some(order) => {
                    flush(&mut bytes, &mut keys);
                    keys.push(order);
                    self.state = State::Ordered;
                }
                None => {
                    bytes.push(byte);
                    self.state = if matches!(byte, b'\r' | b'\n') { State::LineStart } else { State::Within };
                }
            }
        }
        flush(&mut bytes, &mut keys);
        keys
    }

    /// Returns what was held back when the input ends.
    pub(crate) fn end(&mut self) -> Option<Key> {
        let held = self.state == State::Escaped;
        self.state = State::LineStart;
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
        let mut escape = Escape::new(TILDE, Typing::Keys);
        let mut keys: Vec<_> = pieces.iter().flat_map(|piece| escape.take(piece.as_bytes())).collect();
        keys.extend(escape.end());
        keys
    }

    fn bytes(text: &str) -> Key {
        Key::Bytes(text.as_bytes().to_vec())
    }

    #[test]
    fn orders_are_found_at_the_beginning_of_a_line_only() {
        assert_eq!(typed(&["~."]), [Key::Detach]);
        assert_eq!(typed(&["ls\r", "~", "."]), [bytes("ls\r"), Key::Detach]);
        assert_eq!(typed(&["ls ~."]), [bytes("ls ~.")]);
        assert_eq!(typed(&["~?~k"]), [Key::Help, Key::Kill]);
    }

    #[test]
    fn the_end_of_a_line_with_an_order_is_part_of_it() {
        let mut escape = Escape::new(TILDE, Typing::Lines);
        assert_eq!(escape.take(b"~?\n~.\nmore\n"), [Key::Help, Key::Detach, bytes("more\n")]);
        assert_eq!(typed(&["~?\r"]), [Key::Help, bytes("\r")]);
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
    fn the_escape_character_is_chosen() {
        for (text, byte) in [("~", b'~'), ("%", b'%'), ("^]", 0x1d), ("^a", 1), ("^A", 1), ("^", b'^')] {
            assert_eq!(character(text), Ok(Character::Byte(byte)), "{text}");
        }
        for wrong in ["", "ab", "é", ".", "k", "?", "^M", "^J", "^1"] {
            assert!(character(wrong).is_err(), "{wrong}");
        }
        let mut escape = Escape::new(Character::Byte(0x1d), Typing::Keys);
        assert_eq!(escape.take(b"~.\r\x1d."), [bytes("~.\r"), Key::Detach]);
        assert_eq!(escape.take(b"\x1d\x1d"), [bytes("\x1d")]);
        let mut escape = Escape::new(Character::None, Typing::Keys);
        assert_eq!((escape.take(b"~.\r~k"), escape.end()), (vec![bytes("~.\r~k")], None));
        assert_eq!(Character::Byte(0x1d).to_string(), "^]");
    }
}

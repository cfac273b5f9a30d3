//! Orders to remex among the keystrokes for a process: `~` at the beginning of a line, then a letter.
//!
//! Pure: bytes in, bytes for the process and orders out. Start at [`Escape`].

/// Finds orders among keystrokes.
#[derive(Debug)]
pub(crate) struct Escape {
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
    /// After `~` at the beginning of a line, which the process has not got yet.
    Tilde,
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

/// What `~?` prints.
pub(crate) const HELP: &str = "~. leaves it running, ~k ends it with everything it started, ~~ sends ~";

impl Escape {
    pub(crate) fn new(typing: Typing) -> Self {
        Self { typing, state: State::LineStart }
    }

    /// Takes what was typed; what follows a `~` may come later.
    pub(crate) fn take(&mut self, typed: &[u8]) -> Vec<Key> {
        let mut keys = Vec::new();
        let mut bytes = Vec::with_capacity(typed.len() + 1);
        for &byte in typed {
            let order = match (self.state, byte) {
                (State::Ordered, b'\r' | b'\n') if self.typing == Typing::Lines => {
                    self.state = State::LineStart;
                    continue;
                }
                (State::LineStart | State::Ordered, b'~') => {
                    self.state = State::Tilde;
                    continue;
                }
                (State::Tilde, b'.') => Some(Key::Detach),
                (State::Tilde, b'k') => Some(Key::Kill),
                (State::Tilde, b'?') => Some(Key::Help),
                (State::Tilde, b'~') => None,
                (State::Tilde, _) => {
                    bytes.push(b'~');
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
        let held = self.state == State::Tilde;
        self.state = State::LineStart;
        held.then(|| Key::Bytes(vec![b'~']))
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

    fn typed(pieces: &[&str]) -> Vec<Key> {
        let mut escape = Escape::new(Typing::Keys);
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
        let mut escape = Escape::new(Typing::Lines);
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
}

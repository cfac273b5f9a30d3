//! JSON in which every character is visible: characters that reorder, hide or end lines are escaped.

use std::io;

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

/// Encodes a value on one line; readers of the JSON get the original texts.
pub(super) fn to_json(value: &impl Serialize) -> Vec<u8> {
    let mut json = Vec::new();
    // Nothing in a line fails to serialize, and writing to memory does not fail.
    let _ = value.serialize(&mut Serializer::with_formatter(&mut json, Visible));
    json
}

struct Visible;

impl Formatter for Visible {
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut shown = 0;
        for (at, letter) in fragment.char_indices().filter(|(_, letter)| is_hidden(*letter)) {
            writer.write_all(&fragment.as_bytes()[shown..at])?;
            for unit in letter.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
            shown = at + letter.len_utf8();
        }
        writer.write_all(&fragment.as_bytes()[shown..])
    }
}

/// Returns whether a character is invisible: controls, format and bidi characters, separators, unassigned code points.
fn is_hidden(letter: char) -> bool {
    letter == '\u{7f}' || (!letter.is_ascii() && letter.escape_debug().len() > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invisible_characters_are_escaped_and_decode_to_the_same_text() {
        let text =
            "é漢\"\\\n\u{7f}\u{9b}\u{ad}\u{200b}\u{200f}\u{2028}\u{2029}\u{202e}\u{2066}\u{feff}\u{e0041}🦀";
        let json = String::from_utf8(to_json(&text)).unwrap();
        assert_eq!(
            json,
            "\"é漢\\\"\\\\\\n\\u007f\\u009b\\u00ad\\u200b\\u200f\\u2028\\u2029\\u202e\\u2066\\ufeff\\udb40\\udc41🦀\""
        );
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
    }
}

//! Quotes what people read or copy: words for a shell, and words of theirs in error messages.

use std::borrow::Cow;

/// The longest text of the user that an error message repeats, in characters.
const MAX_QUOTED: usize = 80;

/// Quotes a word, if necessary, so that a shell reads it as one word.
pub fn shell_word(word: &str) -> Cow<'_, str> {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "%+,-./:=@_".contains(character);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', r"'\''")).into()
    }
}

/// Quotes a text of the user for an error message, shortened to one line.
pub fn quoted(text: &str) -> String {
    let mut shown: String =
        text.chars().take(MAX_QUOTED).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(MAX_QUOTED).is_some() {
        shown.push('…');
    }
    format!("`{shown}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_that_a_shell_would_change_are_quoted() {
        for (word, quoted) in [
            ("/usr/bin/a-b_c", "/usr/bin/a-b_c"),
            ("a=b,c@d:%+", "a=b,c@d:%+"),
            ("", "''"),
            ("two words", "'two words'"),
            ("it's", r"'it'\''s'"),
            ("~", "'~'"),
            ("grüße", "'grüße'"),
        ] {
            assert_eq!(shell_word(word), quoted);
        }
    }

    #[test]
    fn a_text_in_an_error_message_is_one_short_line() {
        assert_eq!(quoted("a\nb"), "`a\u{fffd}b`");
        assert_eq!(quoted(&"x".repeat(80)), format!("`{}`", "x".repeat(80)));
        assert_eq!(quoted(&"x".repeat(81)), format!("`{}…`", "x".repeat(80)));
    }
}

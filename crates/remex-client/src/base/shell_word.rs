//! Quoting for a shell.

use std::borrow::Cow;

/// Quotes a word, if necessary, so that a shell reads it as one word.
pub(crate) fn quoted(word: &str) -> Cow<'_, str> {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "%+,-./:=@_".contains(character);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', r"'\''")).into()
    }
}

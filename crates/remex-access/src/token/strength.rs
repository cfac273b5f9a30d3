//! An estimate of how hard a token is to guess. It cannot recognise every bad token, but refuses typed ones.

use std::collections::BTreeSet;

/// The least entropy of a token, in bits.
pub const MIN_BITS: u32 = 128;

/// The least number of different characters; a random token practically always has more.
const MIN_DISTINCT: usize = 8;

/// Bits of a UUID that are fixed.
const UUID_FIXED_BITS: f64 = 6.0;

/// Why a token can be guessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Weakness {
    /// It contains characters that a header cannot carry.
    #[error("it contains characters other than visible ASCII")]
    NotVisible,
    /// Too few characters for the alphabet they are from.
    #[error("{len} characters of this kind have at most {bits} bits of entropy, and {MIN_BITS} are required")]
    TooShort {
        /// Its length.
        len: usize,
        /// The most entropy that it can have.
        bits: u32,
    },
    /// Too few different characters.
    #[error("it has too few distinct characters ({distinct})")]
    FewCharacters {
        /// How many it has.
        distinct: usize,
    },
    /// It repeats a shorter text.
    #[error("it repeats a shorter text")]
    Repeats,
}

/// Refuses a token that has less than [`MIN_BITS`] of entropy, as far as that shows.
///
/// # Errors
///
/// The first weakness found.
pub fn check_strength(token: &str) -> Result<(), Weakness> {
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Weakness::NotVisible);
    }
    // Padding of base64 is known.
    let secret = token.trim_end_matches('=');
    let bits = max_bits(secret);
    if bits < f64::from(MIN_BITS) {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Between 0 and 128.
        let bits = bits as u32;
        return Err(Weakness::TooShort { len: token.len(), bits });
    }
    let distinct = secret.bytes().collect::<BTreeSet<_>>().len();
    if distinct < MIN_DISTINCT {
        return Err(Weakness::FewCharacters { distinct });
    }
    let bytes = secret.as_bytes();
    if (1..=bytes.len() / 2).any(|period| bytes[period..] == bytes[..bytes.len() - period]) {
        return Err(Weakness::Repeats);
    }
    Ok(())
}

/// Returns the entropy of a random text of this length and alphabet.
fn max_bits(text: &str) -> f64 {
    let digits = text.replace('-', "");
    if digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let alphabet: f64 = if digits.bytes().all(|byte| byte.is_ascii_digit()) { 10.0 } else { 16.0 };
        let fixed = if is_uuid(text) { UUID_FIXED_BITS } else { 0.0 };
        return bits(digits.len(), alphabet) - fixed;
    }
    let has = |is_in: fn(&u8) -> bool| text.bytes().any(|byte| is_in(&byte));
    let mut alphabet = 0.0;
    for (is_there, size) in [
        (has(u8::is_ascii_lowercase), 26.0),
        (has(u8::is_ascii_uppercase), 26.0),
        (has(u8::is_ascii_digit), 10.0),
        (has(|byte| matches!(byte, b'-' | b'_' | b'+' | b'/' | b'.')), 2.0),
        (has(|byte| byte.is_ascii_punctuation() && !matches!(byte, b'-' | b'_' | b'+' | b'/' | b'.')), 27.0),
    ] {
        if is_there {
            alphabet += size;
        }
    }
    bits(text.len(), alphabet)
}

fn bits(len: usize, alphabet: f64) -> f64 {
    #[allow(clippy::cast_precision_loss)] // Tokens are short.
    let len = len as f64;
    if alphabet > 1.0 { len * alphabet.log2() } else { 0.0 }
}

fn is_uuid(text: &str) -> bool {
    text.split('-').map(str::len).eq([8, 4, 4, 4, 12])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn typed_and_short_tokens_are_weak() {
        for weak in [
            "",
            "=",
            "secret",
            "correct-horse-battery",
            "0123456789012345678901234567890123456789",
            "00000000000000000000000000000000",
            "passwordpasswordpasswordpassword",
            "abcdefgh12abcdefgh12abcdefgh12abcdefgh12",
            "9f86d081884c7d659a2feaa0c55ad01",
            // 122 random bits.
            "5f0c7a52-7d0c-4b7e-9f0e-0c1d2e3f4a5b",
            "t\u{f6}ken-with-letters-that-headers-do-not-carry",
        ] {
            assert!(check_strength(weak).is_err(), "{weak}");
        }
        let error = check_strength("secret").unwrap_err();
        assert_eq!(
            error.to_string(),
            "6 characters of this kind have at most 28 bits of entropy, and 128 are required"
        );
    }

    proptest! {
        #[test]
        fn random_tokens_of_16_bytes_are_strong_in_every_usual_form(bytes in prop::array::uniform16(any::<u8>())) {
            use base64::{Engine as _, prelude::*};
            // Tokens that are weak by chance do not occur in practice, but property tests like such bytes.
            prop_assume!(bytes.iter().collect::<BTreeSet<_>>().len() > 12);
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            for token in [hex, BASE64_STANDARD.encode(bytes), BASE64_URL_SAFE_NO_PAD.encode(bytes)] {
                // One in a million has only characters of a smaller alphabet.
                if let Err(error) = check_strength(&token) {
                    prop_assert!(!matches!(error, Weakness::NotVisible | Weakness::Repeats), "{} {}", token, error);
                }
            }
        }
    }
}

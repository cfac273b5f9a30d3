//! The hash of content, as a text that says how it was made.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A SHA-256 digest, written as `sha256:` and 64 hexadecimal digits.
///
/// ```
/// use remex_proto::fs::ContentHash;
///
/// let hash = ContentHash([0xab; 32]);
/// assert_eq!(hash.to_string().parse(), Ok(hash));
/// assert!("md5:00".parse::<ContentHash>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ContentHash(pub [u8; 32]);

/// What a writer believes is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfMatch {
    /// `"absent"`: no file.
    Absent,
    /// A file with this content.
    Content(ContentHash),
}

/// A text that is no hash.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a content hash; expected `sha256:` and 64 hexadecimal digits")]
pub struct InvalidHash {
    text: String,
}

const PREFIX: &str = "sha256:";
const ABSENT: &str = "absent";

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContentHash({self})")
    }
}

impl FromStr for ContentHash {
    type Err = InvalidHash;

    fn from_str(text: &str) -> Result<Self, InvalidHash> {
        let invalid = || InvalidHash { text: text.to_owned() };
        let digits = text.strip_prefix(PREFIX).map(str::as_bytes).ok_or_else(invalid)?;
        let mut digest = [0; 32];
        if digits.len() != 2 * digest.len() {
            return Err(invalid());
        }
        for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |digit: u8| char::from(digit).to_digit(16).ok_or_else(invalid);
            let (high, low) = (digit(pair[0])?, digit(pair[1])?);
            *byte = u8::try_from(high << 4 | low).map_err(|_| invalid())?;
        }
        Ok(Self(digest))
    }
}

impl Serialize for ContentHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ContentHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl Serialize for IfMatch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Absent => serializer.serialize_str(ABSENT),
            Self::Content(hash) => hash.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for IfMatch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == ABSENT {
            return Ok(Self::Absent);
        }
        text.parse().map(Self::Content).map_err(|error| {
            de::Error::custom(format_args!("{error}, or `{ABSENT}` for a file that must not exist"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_round_trips() {
        let hash = ContentHash(std::array::from_fn(|index| u8::try_from(index * 8).unwrap_or(255)));
        let text = serde_json::to_string(&hash).unwrap();
        assert!(text.starts_with("\"sha256:0008101820"), "{text}");
        assert_eq!(serde_json::from_str::<ContentHash>(&text).unwrap(), hash);
        assert_eq!(serde_json::from_str::<IfMatch>(&text).unwrap(), IfMatch::Content(hash));
        assert_eq!(serde_json::from_str::<IfMatch>("\"absent\"").unwrap(), IfMatch::Absent);
    }

    #[test]
    fn an_invalid_hash_is_refused_with_a_hint() {
        for text in ["", "sha256:", "sha256:00", "sha1:aa", &format!("sha256:{}é", "0".repeat(62))] {
            let error = text.parse::<ContentHash>().unwrap_err().to_string();
            assert!(error.contains("64 hexadecimal digits"), "{error}");
        }
        let error = serde_json::from_str::<IfMatch>("\"none\"").unwrap_err().to_string();
        assert!(error.contains("`absent`"), "{error}");
    }
}

//! Serializes strings of the operating system as bytes, so that every path survives.
//!
//! serde itself refuses paths that are not UTF-8. A field has `#[serde(with = "os_bytes")]`, or
//! `#[serde(with = "os_bytes::option")]` if it is optional. Start at [`OsBytes`] for collections.

use std::{
    borrow::Cow,
    ffi::{OsStr, OsString},
    fmt,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{SeqAccess, Visitor},
};

/// The most memory that a length in the input may claim before the bytes are there.
const MAX_RESERVED_LEN: usize = 64 << 10;

/// A string of the operating system that is serialized as its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OsBytes<'a>(Cow<'a, OsStr>);

impl OsBytes<'_> {
    /// Returns the string.
    #[must_use]
    pub fn into_os_string(self) -> OsString {
        self.0.into_owned()
    }

    /// Returns the string as a path.
    #[must_use]
    pub fn into_path(self) -> PathBuf {
        self.into_os_string().into()
    }
}

impl<'a> From<&'a OsStr> for OsBytes<'a> {
    fn from(text: &'a OsStr) -> Self {
        Self(Cow::Borrowed(text))
    }
}

impl<'a> From<&'a Path> for OsBytes<'a> {
    fn from(path: &'a Path) -> Self {
        path.as_os_str().into()
    }
}

impl From<OsString> for OsBytes<'_> {
    fn from(text: OsString) -> Self {
        Self(Cow::Owned(text))
    }
}

impl From<PathBuf> for OsBytes<'_> {
    fn from(path: PathBuf) -> Self {
        path.into_os_string().into()
    }
}

impl Serialize for OsBytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0.as_bytes())
    }
}

impl<'de> Deserialize<'de> for OsBytes<'_> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_byte_buf(BytesVisitor).map(|bytes| OsString::from_vec(bytes).into())
    }
}

struct BytesVisitor;

impl<'de> Visitor<'de> for BytesVisitor {
    type Value = Vec<u8>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes")
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
        Ok(bytes.to_vec())
    }

    fn visit_byte_buf<E>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
        Ok(bytes)
    }

    /// Formats without bytes, such as JSON, have a list of numbers.
    fn visit_seq<A: SeqAccess<'de>>(self, mut numbers: A) -> Result<Vec<u8>, A::Error> {
        let mut bytes = Vec::with_capacity(numbers.size_hint().unwrap_or(0).min(MAX_RESERVED_LEN));
        while let Some(byte) = numbers.next_element()? {
            bytes.push(byte);
        }
        Ok(bytes)
    }
}

/// Serializes a string or a path as its bytes.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(text: &impl AsRef<OsStr>, serializer: S) -> Result<S::Ok, S::Error> {
    OsBytes::from(text.as_ref()).serialize(serializer)
}

/// Deserializes a string or a path from its bytes.
///
/// # Errors
/// Those of the deserializer.
pub fn deserialize<'de, D: Deserializer<'de>, T: From<OsString>>(deserializer: D) -> Result<T, D::Error> {
    OsBytes::deserialize(deserializer).map(|bytes| bytes.into_os_string().into())
}

pub mod option;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_round_trip_in_every_kind_of_format() {
        let text = OsStr::from_bytes(b"/caf\xe9/\xff\0x");
        let binary = postcard::to_stdvec(&OsBytes::from(text)).unwrap();
        assert_eq!(binary.len(), 1 + text.len());
        let json = serde_json::to_string(&OsBytes::from(text)).unwrap();
        assert_eq!(postcard::from_bytes::<OsBytes<'_>>(&binary).unwrap().into_os_string(), text);
        assert_eq!(serde_json::from_str::<OsBytes<'_>>(&json).unwrap().into_os_string(), text);
    }

    #[test]
    fn truncated_bytes_are_an_error() {
        let binary = postcard::to_stdvec(&OsBytes::from(OsStr::new("/home/user"))).unwrap();
        for len in 0..binary.len() {
            assert!(postcard::from_bytes::<OsBytes<'_>>(&binary[..len]).is_err(), "{len}");
        }
    }
}

//! Bytes on the wire: standard base64 with padding, decoded strictly.
//!
//! Start at [`Blob`]; [`encode_into`] encodes large output straight into a send buffer.

use std::{borrow::Cow, fmt, sync::LazyLock};

use base64::{Engine as _, decoded_len_estimate, engine::general_purpose::PAD};
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::attachment;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
type Engine = base64::engine::Simd;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
type Engine = base64::engine::GeneralPurpose;

static ENGINE: LazyLock<Engine> = LazyLock::new(engine);

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn engine() -> Engine {
    Engine::standard(PAD)
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn engine() -> Engine {
    Engine::new(&base64::alphabet::STANDARD, PAD)
}

/// Raw bytes that travel as a base64 string.
///
/// ```
/// use remex_proto::Blob;
///
/// let blob: Blob = serde_json::from_str("\"aGkK\"").unwrap();
/// assert_eq!(&blob[..], b"hi\n");
/// assert!(serde_json::from_str::<Blob>("\"aGk\"").is_err());
/// ```
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Blob(pub Bytes);

impl std::ops::Deref for Blob {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl<T: Into<Bytes>> From<T> for Blob {
    fn from(bytes: T) -> Self {
        Self(bytes.into())
    }
}

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !self.is_empty()
            && let Some(offset) = attachment::attach(&self.0)
        {
            return (offset, self.len()).serialize(serializer);
        }
        serializer.serialize_str(&ENGINE.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize(deserializer, BlobVisitor)
    }
}

/// Decodes base64, or a reference to bytes beside the message if there are any.
fn deserialize<'de, D: Deserializer<'de>, V: de::Visitor<'de>>(
    deserializer: D,
    visitor: V,
) -> Result<V::Value, D::Error> {
    if attachment::is_present() {
        deserializer.deserialize_any(visitor)
    } else {
        deserializer.deserialize_str(visitor)
    }
}

/// Returns the bytes that `[offset, length]` names.
fn attached<'de, A: de::SeqAccess<'de>>(mut seq: A) -> Result<Blob, A::Error> {
    let expected = "the offset and the length of attached bytes";
    let offset = seq.next_element()?.ok_or_else(|| de::Error::invalid_length(0, &expected))?;
    let len = seq.next_element()?.ok_or_else(|| de::Error::invalid_length(1, &expected))?;
    if seq.next_element::<de::IgnoredAny>()?.is_some() {
        return Err(de::Error::invalid_length(3, &expected));
    }
    attachment::take(offset, len).map(Blob).map_err(de::Error::custom)
}

struct BlobVisitor;

impl<'de> de::Visitor<'de> for BlobVisitor {
    type Value = Blob;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a base64 string")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Blob, E> {
        decode(text).map_err(E::custom)
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, seq: A) -> Result<Blob, A::Error> {
        attached(seq)
    }
}

/// Why base64 could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Not valid base64.
    #[error("invalid base64: {0}")]
    Invalid(base64::DecodeError),
    /// There is not enough memory for the decoded bytes.
    #[error("there is no memory for {len} bytes of base64; send less at once, or try again later")]
    NoMemory {
        /// The length of the base64 text in bytes.
        len: usize,
    },
}

/// Base64 that is decoded only when used, for methods that report invalid base64 as their own error, not as invalid
/// params.
///
/// A value created from bytes stays bytes until it is written, so nothing is encoded within one process.
#[derive(Clone)]
pub struct Encoded(Content);

#[derive(Clone)]
enum Content {
    /// The text as received.
    Text(String),
    Bytes(Blob),
}

impl Encoded {
    /// Returns the decoded bytes.
    pub fn decode(&self) -> Result<Blob, DecodeError> {
        match &self.0 {
            Content::Text(text) => decode(text),
            Content::Bytes(bytes) => Ok(bytes.clone()),
        }
    }

    /// Returns the approximate number of bytes.
    pub fn size(&self) -> usize {
        match &self.0 {
            Content::Text(text) => text.len(),
            Content::Bytes(bytes) => bytes.len(),
        }
    }

    fn text(&self) -> Cow<'_, str> {
        match &self.0 {
            Content::Text(text) => Cow::Borrowed(text),
            Content::Bytes(bytes) => Cow::Owned(ENGINE.encode(&**bytes)),
        }
    }
}

impl<T: Into<Bytes>> From<T> for Encoded {
    fn from(bytes: T) -> Self {
        Self(Content::Bytes(bytes.into().into()))
    }
}

/// Values are equal if they are equal on the wire.
impl PartialEq for Encoded {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Content::Bytes(own), Content::Bytes(other)) => own == other,
            _ => self.text() == other.text(),
        }
    }
}

impl Eq for Encoded {}

impl Serialize for Encoded {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Content::Bytes(bytes) = &self.0 {
            return bytes.serialize(serializer);
        }
        serializer.serialize_str(&self.text())
    }
}

impl<'de> Deserialize<'de> for Encoded {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize(deserializer, EncodedVisitor)
    }
}

struct EncodedVisitor;

impl<'de> de::Visitor<'de> for EncodedVisitor {
    type Value = Encoded;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Encoded, E> {
        let mut copy = String::new();
        let no_memory = |_| E::custom(DecodeError::NoMemory { len: text.len() });
        copy.try_reserve_exact(text.len()).map_err(no_memory)?;
        copy.push_str(text);
        Ok(Encoded(Content::Text(copy)))
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, seq: A) -> Result<Encoded, A::Error> {
        attached(seq).map(|blob| Encoded(Content::Bytes(blob)))
    }
}

/// Shows only the size: content does not belong in logs.
impl fmt::Debug for Encoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Encoded({} bytes)", self.size())
    }
}

/// Decodes standard base64; missing padding and other characters are errors.
pub fn decode(text: impl AsRef<[u8]>) -> Result<Blob, DecodeError> {
    let text = text.as_ref();
    let mut bytes = Vec::new();
    let no_memory = |_| DecodeError::NoMemory { len: text.len() };
    bytes.try_reserve_exact(decoded_len_estimate(text.len())).map_err(no_memory)?;
    ENGINE.decode_vec(text, &mut bytes).map_err(DecodeError::Invalid)?;
    Ok(Blob(Bytes::from(bytes)))
}

/// Returns the length of `len` bytes in base64.
pub const fn encoded_len(len: usize) -> usize {
    len.div_ceil(3) * 4
}

/// Appends the base64 of `bytes` to `out`, without an intermediate string.
pub fn encode_into(bytes: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + encoded_len(bytes.len()), 0);
    ENGINE
        .encode_slice(bytes, &mut out[start..])
        .expect("the buffer has the exact length of the encoded bytes");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn decoding_is_strict() {
        for wrong in ["aGk", "aGk==", "aGkK\n", "aG_K", "aG-K", "====", "aGkK=", "aGl="] {
            assert!(decode(wrong).is_err(), "{wrong} was accepted");
        }
        assert_eq!(decode("").unwrap(), Blob::default());
    }

    #[test]
    fn a_blob_is_a_string_and_nothing_else() {
        assert!(serde_json::from_str::<Blob>("null").is_err());
        assert!(serde_json::from_str::<Blob>("[1]").is_err());
        assert_eq!(serde_json::from_str::<Blob>(r#""\u0061GkK""#).unwrap(), Blob::from(&b"hi\n"[..]));
    }

    #[test]
    fn attached_bytes_are_named_by_offset_and_length() {
        let value = (Blob::from(&b"abc"[..]), Encoded::from(&b"de"[..]), Blob::default());
        let (json, attached) = attachment::collect(|| serde_json::to_string(&value).unwrap());
        assert_eq!(json, r#"[[0,3],[3,2],""]"#);
        assert_eq!(attached, attachment::Attached { pieces: vec!["abc".into(), "de".into()], len: 5 });
        let parse = |json: &str| {
            attachment::with("abcde".into(), || serde_json::from_str::<(Blob, Encoded, Blob)>(json))
        };
        assert_eq!(parse(&json).unwrap(), value);
        assert_eq!(parse(r#"["YWJj",[3,2],""]"#).unwrap(), value);
        assert!(serde_json::from_str::<Blob>("[0,3]").is_err(), "nothing is attached");
        assert_eq!(serde_json::to_string(&value.0).unwrap(), "\"YWJj\"");
    }

    #[test]
    fn a_reference_to_bytes_that_are_not_attached_or_taken_is_refused() {
        let error = |json: &str| {
            let parsed = attachment::with("abcde".into(), || serde_json::from_str::<(Blob, Blob)>(json));
            parsed.unwrap_err().to_string()
        };
        assert!(error("[[0,3],[3,3]]").contains("3 bytes at 3 exceed the 5 bytes attached"));
        assert!(error("[[0,3],[2,1]]").contains("belong to an earlier member"));
        assert!(error(&format!("[[0,3],[3,{}]]", u64::MAX)).contains("exceed"));
        for wrong in ["[[0,3],[3]]", "[[0,3],[3,1,1]]", "[[0,3],[-1,1]]", "[[0,3],3]", "[[0,3],null]"] {
            error(wrong);
        }
    }

    #[test]
    fn encoded_bytes_are_equal_before_and_after_the_wire() {
        let bytes = Encoded::from(&b"hi\n"[..]);
        let text: Encoded = serde_json::from_str("\"aGkK\"").unwrap();
        assert_eq!(bytes, text);
        assert_eq!(serde_json::to_string(&bytes).unwrap(), "\"aGkK\"");
        assert_eq!(bytes.decode(), text.decode());
    }

    proptest! {
        #[test]
        fn any_bytes_round_trip(bytes: Vec<u8>) {
            let mut out = b"before".to_vec();
            encode_into(&bytes, &mut out);
            prop_assert_eq!(out.len(), 6 + encoded_len(bytes.len()));
            let text = std::str::from_utf8(&out[6..]).unwrap();
            prop_assert_eq!(decode(text).unwrap(), Blob::from(bytes.clone()));
            prop_assert_eq!(serde_json::to_string(&Blob::from(bytes)).unwrap(), format!("\"{text}\""));
        }
    }
}

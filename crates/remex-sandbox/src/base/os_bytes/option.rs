//! Serializes optional strings and paths as bytes, for `#[serde(with = "os_bytes::option")]`.

use std::ffi::{OsStr, OsString};

use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

use super::OsBytes;

/// Serializes an optional string or path as its bytes.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(text: &Option<impl AsRef<OsStr>>, serializer: S) -> Result<S::Ok, S::Error> {
    text.as_ref().map(|text| OsBytes::from(text.as_ref())).serialize(serializer)
}

/// Deserializes an optional string or path from its bytes.
///
/// # Errors
/// Those of the deserializer.
pub fn deserialize<'de, D: Deserializer<'de>, T: From<OsString>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let bytes = Option::<OsBytes<'_>>::deserialize(deserializer)?;
    Ok(bytes.map(|bytes| bytes.into_os_string().into()))
}

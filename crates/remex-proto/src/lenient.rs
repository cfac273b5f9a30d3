//! Lenient decoding of optional members: `null` means the same as an absent member.

use serde::{Deserialize, Deserializer};

/// Decodes `null` as the default.
pub(crate) fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

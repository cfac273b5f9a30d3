//! How optional members decode: `null` means what absence means.

use serde::{Deserialize, Deserializer};

/// Decodes `null` as the default, for members whose absence has a meaning of its own.
pub(crate) fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

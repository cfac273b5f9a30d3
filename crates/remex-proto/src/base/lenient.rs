//! Lenient decoding of members that the receiver can do without.

use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::value::RawValue;

/// Decodes `null` as the default: it means the same as an absent member.
pub(crate) fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Decodes `null`, and any JSON that does not fit the type, as the default.
///
/// For what a server says about itself: a client can work without it, and a newer server may say it in another way.
pub(crate) fn default_unless_decodable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + DeserializeOwned,
{
    let json = Box::<RawValue>::deserialize(deserializer)?;
    Ok(serde_json::from_str::<Option<T>>(json.get()).ok().flatten().unwrap_or_default())
}

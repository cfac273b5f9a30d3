//! Whole files.

use serde::{Deserialize, Serialize};

use super::{ContentHash, IfMatch};
use crate::{
    Blob, HostPath,
    areas::sandbox::Sandbox,
    base::{blob::Encoded, lenient::null_as_default},
};

/// `fs/readFile`: a whole regular file in one message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReadFile {
    /// The file.
    pub path: HostPath,
    /// False refuses symbolic links anywhere in the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// The confinement asked for.
    #[serde(default, skip_serializing_if = "Sandbox::is_disabled")]
    pub sandbox: Sandbox,
}

/// The answer to [`ReadFile`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReadFileReply {
    /// What is in it.
    pub data_base64: Blob,
}

impl ReadFileReply {
    /// What its JSON has before the base64 of the content, and after it.
    pub const AROUND: [&str; 2] = ["{\"dataBase64\":\"", "\"}"];
}

/// `fs/writeFile`: replaces the content of a file, or creates it.
///
/// Without `atomic` the file keeps its inode, mode and hard links and is written in place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WriteFile {
    /// The file.
    pub path: HostPath,
    /// What is to be in it.
    pub data_base64: Encoded,
    /// False refuses symbolic links anywhere in the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// Writes a new file beside the old one and replaces it in one step; mode and owner are kept.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "std::ops::Not::not")]
    pub atomic: bool,
    /// The expected current content; if it differs, the write fails and changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_match: Option<IfMatch>,
    /// With which permissions a file is created that is not there: 0 to octal 777, less the umask; absent: 0666.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create_mode: Option<u32>,
    /// The confinement asked for.
    #[serde(default, skip_serializing_if = "Sandbox::is_disabled")]
    pub sandbox: Sandbox,
}

/// The answer to [`WriteFile`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WriteFileReply {
    /// With `ifMatch`: the hash of the new content, for the next write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<ContentHash>,
}

/// `fs/hash`: the hash of a regular file, or of a part of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HashFile {
    /// The file.
    pub path: HostPath,
    /// Where the part begins; absent: at the beginning.
    #[serde(default, deserialize_with = "null_as_default")]
    pub offset: u64,
    /// How long the part is; absent: up to the end of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub len: Option<u64>,
    /// False refuses symbolic links anywhere in the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// The confinement asked for.
    #[serde(default, skip_serializing_if = "Sandbox::is_disabled")]
    pub sandbox: Sandbox,
}

/// The answer to [`HashFile`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct FileHash {
    /// The hash of those bytes.
    pub hash: ContentHash,
    /// The number of bytes hashed; less than requested if the file ends earlier.
    pub bytes: u64,
    /// The size of the whole file.
    pub size: u64,
}

impl FileHash {
    /// Creates the hash of `bytes` bytes of a file of `size` bytes.
    #[must_use]
    pub fn new(hash: ContentHash, bytes: u64, size: u64) -> Self {
        Self { hash, bytes, size }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::blob;

    #[test]
    fn the_fast_encoder_agrees_with_the_type() {
        for content in [&b""[..], b"hi\n", &[0xff; 1000]] {
            let reply = ReadFileReply { data_base64: Blob::from(content.to_vec()) };
            let mut out = ReadFileReply::AROUND[0].as_bytes().to_vec();
            blob::encode_into(content, &mut out);
            out.extend_from_slice(ReadFileReply::AROUND[1].as_bytes());
            assert_eq!(out, serde_json::to_vec(&reply).unwrap());
        }
    }
}

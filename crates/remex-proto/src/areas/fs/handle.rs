//! Open files, read and written in blocks. Handles belong to the connection and end with it.

use serde::{Deserialize, Serialize};

use crate::{
    Blob, HostPath,
    areas::sandbox::Sandbox,
    base::{blob, lenient::null_as_default},
};

/// `fs/open`: opens a regular file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Open {
    /// The client's name for the handle, at most 32 bytes; unique on the connection.
    pub handle_id: String,
    /// The file.
    pub path: HostPath,
    /// What for.
    #[serde(default, deserialize_with = "null_as_default")]
    pub mode: OpenMode,
    /// With `replace`: the old file stays whole until `fs/close`, which replaces it in one step.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "std::ops::Not::not")]
    pub atomic: bool,
    /// With which permissions a file is created that is not there: 0 to octal 777, less the umask; absent: 0666.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create_mode: Option<u32>,
    /// With `write`: only a file that belongs to the server's user alone (one name, closed to everybody else), and that
    /// nobody else has open like this.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "std::ops::Not::not")]
    pub exclusive: bool,
    /// The confinement asked for.
    #[serde(default, skip_serializing_if = "Sandbox::is_disabled")]
    pub sandbox: Sandbox,
}

/// What a file is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum OpenMode {
    /// Reading.
    #[default]
    Read,
    /// Writing a new file, or one whose content goes.
    Replace,
    /// Writing a new file, or into one whose content stays.
    Write,
}

/// The answer to [`Open`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct OpenReply {
    /// As in the request.
    pub handle_id: String,
}

/// `fs/readBlock`: reads a part of an open file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReadBlock {
    /// The handle.
    pub handle_id: String,
    /// Where the block begins.
    pub offset: u64,
    /// 1 to 1,048,576.
    pub len: u64,
}

/// The answer to [`ReadBlock`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Block {
    /// The bytes read.
    pub chunk: Blob,
    /// The read reached the end of the file.
    pub eof: bool,
}

impl Block {
    /// Appends it as JSON, without an intermediate string.
    pub fn write(&self, out: &mut Vec<u8>) {
        let texts = ["{\"chunk\":\"", if self.eof { "\",\"eof\":true}" } else { "\",\"eof\":false}" }];
        out.reserve(texts[0].len() + blob::encoded_len(self.chunk.len()) + texts[1].len());
        out.extend_from_slice(texts[0].as_bytes());
        blob::encode_into(&self.chunk, out);
        out.extend_from_slice(texts[1].as_bytes());
    }
}

/// `fs/writeBlock`: writes a part of an open file; skipped ranges read as zeros.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WriteBlock {
    /// The handle.
    pub handle_id: String,
    /// Where the block begins.
    pub offset: u64,
    /// 1 to 1,048,576 bytes.
    pub chunk: Blob,
}

/// `fs/close`: ends a handle; an unknown handle is not an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Close {
    /// The handle.
    pub handle_id: String,
    /// With an `atomic` handle: keeps the old file and discards what was written.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "std::ops::Not::not")]
    pub discard: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fast_encoder_agrees_with_the_type() {
        for (content, eof) in [(&b""[..], true), (b"hi\n", false), (&[0xff; 1000], true)] {
            let block = Block { chunk: Blob::from(content.to_vec()), eof };
            let mut out = Vec::new();
            block.write(&mut out);
            assert_eq!(out, serde_json::to_vec(&block).unwrap());
        }
    }
}

//! What a path names, and how that is changed.

use serde::{Deserialize, Serialize};

use crate::{Blob, HostPath, areas::sandbox::Sandbox, base::lenient::null_as_default};

/// `fs/getMetadata`: what a path names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct GetMetadata {
    /// The path.
    pub path: HostPath,
    /// False refuses symbolic links anywhere in the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// The confinement asked for.
    #[serde(default, skip_serializing_if = "Sandbox::is_disabled")]
    pub sandbox: Sandbox,
}

/// The answer to [`GetMetadata`]: of the target where the path is a link.
///
/// The first six members are the base dialect's; a server that is not remex sends only those.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// A directory.
    pub is_directory: bool,
    /// A regular file.
    pub is_file: bool,
    /// The path itself is a symbolic link; the oldest dialect does not say.
    #[serde(default, deserialize_with = "null_as_default")]
    pub is_symlink: bool,
    /// In bytes; 0 in the oldest dialect.
    #[serde(default, deserialize_with = "null_as_default")]
    pub size: u64,
    /// 0 where the file system does not know.
    pub created_at_ms: i64,
    /// When the content changed last.
    pub modified_at_ms: i64,
    /// What it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<MetadataKind>,
    /// Permission bits with set-user-id, set-group-id and sticky: 0 to 4095.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// The owner's number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The group's number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// Where the link points, when the path itself is one; bytes that are not UTF-8 are replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_target: Option<String>,
}

/// What a path names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(transform = crate::base::words::open_words))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub enum MetadataKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link; only where links are not followed.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A device.
    Device,
    /// Something that this version does not know.
    #[serde(other)]
    Unknown,
}

/// `fs/canonicalize`: the path without symbolic links; it must exist.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Canonicalize {
    /// The path.
    pub path: HostPath,
    /// The confinement asked for.
    #[serde(default, skip_serializing_if = "Sandbox::is_disabled")]
    pub sandbox: Sandbox,
}

/// The answer to [`Canonicalize`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CanonicalizeReply {
    /// With all links resolved.
    pub path: HostPath,
}

/// `fs/remove`: a link itself is removed, never what it points to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Remove {
    /// The path.
    pub path: HostPath,
    /// Removes directories with their contents; true unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recursive: Option<bool>,
    /// Ignores a missing path; true unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub force: Option<bool>,
    /// False refuses symbolic links anywhere in the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// The confinement asked for.
    #[serde(default, skip_serializing_if = "Sandbox::is_disabled")]
    pub sandbox: Sandbox,
}

/// `fs/copy`: a file with its mode, a link as a link, or a directory with its contents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Copy {
    /// From here.
    pub source_path: HostPath,
    /// To here.
    pub destination_path: HostPath,
    /// Needed for directories.
    pub recursive: bool,
    /// The confinement asked for.
    #[serde(default, skip_serializing_if = "Sandbox::is_disabled")]
    pub sandbox: Sandbox,
}

/// `fs/rename`: moves within one file system, in one step. A link itself is moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Rename {
    /// From here.
    pub source_path: HostPath,
    /// To here.
    pub destination_path: HostPath,
    /// False fails if the destination exists; true unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overwrite: Option<bool>,
    /// The confinement asked for.
    #[serde(default, skip_serializing_if = "Sandbox::is_disabled")]
    pub sandbox: Sandbox,
}

/// `fs/setPermissions`: changes the permission bits of a file or directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SetPermissions {
    /// The path.
    pub path: HostPath,
    /// 0 to 4095, which is octal 7777.
    pub mode: u32,
    /// False refuses symbolic links anywhere in the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// The confinement asked for.
    #[serde(default, skip_serializing_if = "Sandbox::is_disabled")]
    pub sandbox: Sandbox,
}

/// What has become of the permission bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SetPermissionsReply {
    /// The bits of `mode` that were left out, because the credential has not the scope `files:setid`; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<u32>,
}

/// `fs/setTimes`: changes the times of a file or directory; at least one is needed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SetTimes {
    /// The path.
    pub path: HostPath,
    /// The modification time; absent: unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_at_ms: Option<i64>,
    /// The access time; absent: unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accessed_at_ms: Option<i64>,
    /// False refuses symbolic links anywhere in the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// The confinement asked for.
    #[serde(default, skip_serializing_if = "Sandbox::is_disabled")]
    pub sandbox: Sandbox,
}

/// `fs/symlink`: makes a symbolic link; exactly one of the two targets is needed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Symlink {
    /// The path of the link, which must not exist yet.
    pub path: HostPath,
    /// Where it points: a native path, relative ones start from the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The same as bytes, for names that are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_base64: Option<Blob>,
    /// The confinement asked for.
    #[serde(default, skip_serializing_if = "Sandbox::is_disabled")]
    pub sandbox: Sandbox,
}

/// `fs/readLink`: where a symbolic link points, whether that exists or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReadLink {
    /// The link.
    pub path: HostPath,
    /// The confinement asked for.
    #[serde(default, skip_serializing_if = "Sandbox::is_disabled")]
    pub sandbox: Sandbox,
}

/// The answer to [`ReadLink`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub struct LinkTarget {
    /// For people: bytes that are not UTF-8 are replaced.
    pub target: String,
    /// Exactly what the link says.
    #[serde(default, deserialize_with = "null_as_default")]
    pub target_base64: Blob,
}

impl LinkTarget {
    /// Creates the target of a link from its bytes.
    #[must_use]
    pub fn new(target: Vec<u8>) -> Self {
        Self { target: String::from_utf8_lossy(&target).into_owned(), target_base64: Blob::from(target) }
    }
}

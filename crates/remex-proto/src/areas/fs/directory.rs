//! Directories: making, listing and walking them.

use serde::{Deserialize, Serialize};

use super::Metadata;
use crate::{HostPath, areas::sandbox::Sandbox, base::lenient::null_as_default};

/// `fs/createDirectory`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CreateDirectory {
    /// The directory.
    pub path: HostPath,
    /// Creates missing parents, and accepts an existing directory; true unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recursive: Option<bool>,
    /// False refuses symbolic links anywhere in the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// The confinement asked for.
    #[serde(default, skip_serializing_if = "Sandbox::is_disabled")]
    pub sandbox: Sandbox,
}

/// `fs/readDirectory`: what is in a directory.
///
/// Without `limit` everything in one answer, in no particular order, up to the server's cap. With
/// it, page after page in byte order of the names: whatever is there all the time is listed once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReadDirectory {
    /// The directory.
    pub path: HostPath,
    /// The most entries of one page, from 1 to the server's cap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// `nextCursor` of the page before; absent: the first page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// With `limit`: adds the metadata of each entry.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "std::ops::Not::not")]
    pub details: bool,
    /// The confinement asked for.
    #[serde(default, skip_serializing_if = "Sandbox::is_disabled")]
    pub sandbox: Sandbox,
}

/// The answer to [`ReadDirectory`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DirectoryListing {
    /// What is in it, without `.` and `..`.
    pub entries: Vec<DirectoryEntry>,
    /// The cursor of the next page; absent after the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// One entry of a [`DirectoryListing`].
///
/// A link is classified by its target. Broken links are omitted, except with `limit`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub struct DirectoryEntry {
    /// For people: bytes that are not UTF-8 are replaced.
    pub file_name: String,
    /// A directory, or a link to one.
    pub is_directory: bool,
    /// A regular file, or a link to one.
    pub is_file: bool,
    /// With `limit`: the entry itself is a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_symlink: Option<bool>,
    /// With `limit`: its exact path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<HostPath>,
    /// With `details`: of the entry itself, links not followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Box<Metadata>>,
}

impl DirectoryEntry {
    /// Creates an entry that is neither a directory nor a regular file.
    pub fn new(file_name: impl Into<String>) -> Self {
        Self {
            file_name: file_name.into(),
            is_directory: false,
            is_file: false,
            is_symlink: None,
            path: None,
            metadata: None,
        }
    }
}

/// `fs/walk`: what is below a directory, breadth first, each directory sorted by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Walk {
    /// The directory; it is not listed itself.
    pub path: HostPath,
    /// How far to go.
    pub options: WalkOptions,
    /// The confinement asked for.
    #[serde(default, skip_serializing_if = "Sandbox::is_disabled")]
    pub sandbox: Sandbox,
}

/// How far a [`Walk`] goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub struct WalkOptions {
    /// 0 lists the children of the root only; at most 64.
    pub max_depth: u64,
    /// Directories read, the root included; 1 to 10,000.
    pub max_directories: u64,
    /// Entries looked at; 1 to 50,000.
    pub max_entries: u64,
    /// Lists and enters links to directories, each real directory once.
    pub follow_directory_symlinks: bool,
    /// Does not enter directories whose name begins with a dot.
    #[serde(default)]
    pub prune_hidden_directories: bool,
}

/// As far as a server goes in one walk: 64 levels, 10,000 directories and 50,000 entries, without links to directories
/// and with hidden directories.
impl Default for WalkOptions {
    fn default() -> Self {
        Self {
            max_depth: 64,
            max_directories: 10_000,
            max_entries: 50_000,
            follow_directory_symlinks: false,
            prune_hidden_directories: false,
        }
    }
}

impl WalkOptions {
    /// Sets how deep to go: 0 lists the children of the root only; at most 64.
    #[must_use]
    pub fn max_depth(self, max_depth: u64) -> Self {
        Self { max_depth, ..self }
    }

    /// Sets how many directories to read, the root included; 1 to 10,000.
    #[must_use]
    pub fn max_directories(self, max_directories: u64) -> Self {
        Self { max_directories, ..self }
    }

    /// Sets how many entries to look at; 1 to 50,000.
    #[must_use]
    pub fn max_entries(self, max_entries: u64) -> Self {
        Self { max_entries, ..self }
    }

    /// Lists and enters links to directories, each real directory once.
    #[must_use]
    pub fn follow_directory_symlinks(self) -> Self {
        Self { follow_directory_symlinks: true, ..self }
    }

    /// Does not enter directories whose name begins with a dot.
    #[must_use]
    pub fn prune_hidden_directories(self) -> Self {
        Self { prune_hidden_directories: true, ..self }
    }
}

/// The answer to [`Walk`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct WalkReply {
    /// Directories and regular files.
    pub entries: Vec<WalkEntry>,
    /// Entries that could not be read or named.
    pub errors: Vec<WalkError>,
    /// A limit was reached, so there is more.
    pub truncated: bool,
}

/// An entry found by a [`Walk`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct WalkEntry {
    /// Where it is.
    pub path: HostPath,
    /// What it is.
    pub kind: WalkKind,
}

impl WalkEntry {
    /// Creates an entry.
    #[must_use]
    pub fn new(path: HostPath, kind: WalkKind) -> Self {
        Self { path, kind }
    }
}

/// What a [`WalkEntry`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(transform = crate::base::words::open_words))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub enum WalkKind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// Something that this version does not know.
    #[serde(other)]
    Unknown,
}

/// An entry that a [`Walk`] could not read or name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct WalkError {
    /// Where; bytes that are not UTF-8 are replaced.
    pub path: HostPath,
    /// Why.
    pub message: String,
}

impl WalkError {
    /// Creates an error that says what is wrong with a path.
    pub fn new(path: HostPath, message: impl Into<String>) -> Self {
        Self { path, message: message.into() }
    }
}

//! What changes. Watches belong to the connection and end with it.

use serde::{Deserialize, Serialize};

use crate::{HostPath, areas::sandbox::Sandbox, base::lenient::null_as_default};

/// `fs/watchMissing`: notifies once when one of the paths, or its first missing ancestor, appears.
///
/// A connection has one such watch: a later request replaces the earlier one, whatever its id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WatchMissing {
    /// The client's name for the watch.
    pub watch_id: u64,
    /// Paths that do not exist.
    pub missing: Vec<HostPath>,
    /// A path that exists; changes of the path itself are reported too, but not changes of its contents.
    #[serde(default)]
    pub present: Option<HostPath>,
}

/// The answer to [`WatchMissing`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WatchMissingReply {
    /// False if there is nothing to wait for, or if it cannot be watched; no notification follows.
    pub watching: bool,
}

/// `fs/missingChanged`, from the server: look again; the watch has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct MissingChanged {
    /// The watch.
    pub watch_id: u64,
}

/// `fs/watch`: reports changes of a path and everything below it, until `fs/unwatch`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Watch {
    /// The client's name for the watch; unique among those of the connection.
    pub watch_id: u64,
    /// A file or directory that exists; links are resolved once, at the beginning.
    pub path: HostPath,
    /// With everything below it; true unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recursive: Option<bool>,
    /// The confinement asked for.
    #[serde(default, skip_serializing_if = "Sandbox::is_disabled")]
    pub sandbox: Sandbox,
}

/// `fs/unwatch`: ends a watch; an unknown watch is not an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Unwatch {
    /// The watch.
    pub watch_id: u64,
}

/// `fs/changed`, from the server: the changes since the previous notification, sent once events have settled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Changed {
    /// The watch.
    pub watch_id: u64,
    /// Each path once, however often it changed.
    pub changes: Vec<Change>,
    /// Too many changes to report: rescan everything.
    #[serde(default, deserialize_with = "null_as_default")]
    pub overflow: bool,
}

/// One path in [`Changed`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Change {
    /// Where.
    pub path: HostPath,
    /// What.
    pub kind: ChangeKind,
}

impl Change {
    /// Creates a change of a path.
    #[must_use]
    pub fn new(path: HostPath, kind: ChangeKind) -> Self {
        Self { path, kind }
    }
}

/// What happened at a path; a move is one `removed` and one `created`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(transform = crate::base::words::open_words))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub enum ChangeKind {
    /// The path is new or was replaced; everything below it is reported too.
    Created,
    /// Its content or metadata changed.
    Modified,
    /// The path no longer exists; entries below it are not reported separately.
    Removed,
    /// Something that this version does not know; look at the path.
    #[serde(other)]
    Unknown,
}

//! What changes. Watches belong to the connection and end with it.

use serde::{Deserialize, Serialize};

use crate::{HostPath, lenient::null_as_default, sandbox::Sandbox};

/// `fs/watchMissing`: tells once when one of the paths appears, or the first missing part of the way to it.
///
/// A connection has one such watch: a later request, under whatever id, takes the place of the earlier one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WatchMissing {
    /// The client's name for the watch.
    pub watch_id: u64,
    /// Paths that do not exist.
    pub missing: Vec<HostPath>,
    /// A path that does; any change of it is told too, but not changes of what is in it.
    #[serde(default)]
    pub present: Option<HostPath>,
}

/// The answer to [`WatchMissing`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WatchMissingReply {
    /// False when there is nothing to wait for, or no way to notice it: then nothing will be told.
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

/// `fs/watch`: tells what changes at a path and below it, until `fs/unwatch`.
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

/// `fs/unwatch`: ends a watch; one that does not exist is no error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Unwatch {
    /// The watch.
    pub watch_id: u64,
}

/// `fs/changed`, from the server: what changed since the last one, when it has become quiet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Changed {
    /// The watch.
    pub watch_id: u64,
    /// Each path once, however often it changed.
    pub changes: Vec<Change>,
    /// Too much changed to tell: look at everything again.
    #[serde(default, deserialize_with = "null_as_default")]
    pub overflow: bool,
}

/// One path in [`Changed`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Change {
    /// Where.
    pub path: HostPath,
    /// What.
    pub kind: ChangeKind,
}

/// What happened at a path; a move is one `removed` and one `created`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum ChangeKind {
    /// Something is new there, or in the place of what was there; everything below it is told too.
    Created,
    /// Its content or metadata changed.
    Modified,
    /// Nothing is there any more, nor below it; that is not told apart.
    Removed,
}

//! Deleting the logs of closed processes.

use serde::{Deserialize, Serialize};

use super::Scope;
use crate::base::lenient::null_as_default;

/// `process/collect`: forgets closed durable processes, the one that ended first before the others.
///
/// Without `olderThanMs` and `keepBytes`, all of them; with both, those that either selects.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Collect {
    /// Whose processes; absent: the session's.
    #[serde(default, deserialize_with = "null_as_default")]
    pub scope: Scope,
    /// Only those that ended at least this long ago.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub older_than_ms: Option<u64>,
    /// As many as it takes until the logs of the others need at most this much disk space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_bytes: Option<u64>,
    /// Whether only to say what would be forgotten.
    #[serde(default, deserialize_with = "null_as_default")]
    pub dry_run: bool,
}

/// The answer to [`Collect`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub struct Collected {
    /// What was forgotten, or would be: the ones that ended first, at most 256.
    pub processes: Vec<CollectedProcess>,
    /// How many in all.
    pub count: u64,
    /// The disk space of their logs.
    pub bytes: u64,
    /// How many closed durable processes are left.
    pub kept_count: u64,
    /// The disk space of their logs.
    pub kept_bytes: u64,
}

/// How many processes a [`Collected`] names.
pub const COLLECTED_NAMES: usize = 256;

/// One process in a [`Collected`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub struct CollectedProcess {
    /// The client's handle.
    pub process_id: String,
    /// The session it belongs to.
    pub session_id: String,
    /// Whose session that is; only with the scope `all`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// When it ended, in milliseconds since the Unix epoch.
    pub ended_at_ms: u64,
    /// The disk space of its log.
    pub bytes: u64,
}

impl CollectedProcess {
    /// Creates the entry of a process.
    pub fn new(
        process_id: impl Into<String>,
        session_id: impl Into<String>,
        ended_at_ms: u64,
        bytes: u64,
    ) -> Self {
        Self {
            process_id: process_id.into(),
            session_id: session_id.into(),
            identity: None,
            ended_at_ms,
            bytes,
        }
    }
}

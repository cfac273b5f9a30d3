//! Requests about the sessions of an identity, from any of its connections.
//!
//! A `sessionId` in this family may be the id or the name of a session.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::base::lenient::null_as_default;

/// The close reason for a client whose session was taken over by another.
pub const TAKEN_OVER: &str = "another client took the session over";

/// `session/list`: lists the sessions of the identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "SessionList"))]
pub struct List {
    /// Whose sessions; absent: the identity's.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Scope::is_default")]
    pub scope: Scope,
}

/// Whose sessions are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "SessionScope"))]
#[serde(rename_all = "camelCase")]
pub enum Scope {
    /// Those of the identity.
    #[default]
    Identity,
    /// Those of all identities; needs the scope `admin`.
    All,
}

impl Scope {
    // serde passes a reference.
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde wants")]
    fn is_default(&self) -> bool {
        *self == Scope::default()
    }
}

/// The answer to [`List`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "SessionListing"))]
pub struct Listing {
    /// Every live session that was asked for.
    pub sessions: Vec<Entry>,
}

/// One session in a [`Listing`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "SessionEntry"))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// The id that resumes it.
    pub session_id: String,
    /// The name its client chose.
    pub name: Option<String>,
    /// Whose session it is, such as `owner` or `token:ci`.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub identity: String,
    /// What the client that attached last calls itself.
    pub client_name: String,
    /// Whether a connection controls it now.
    pub attached: bool,
    /// When it lost its connection, in milliseconds since the Unix epoch; null while attached.
    pub detached_at_ms: Option<u64>,
    /// When it expires unless a client resumes it; null while attached, or if it lives as long as the
    /// server.
    pub expires_at_ms: Option<u64>,
    /// How many processes it holds, ended but remembered ones included.
    pub processes: u64,
}

impl Entry {
    /// Creates the entry of an attached session without processes.
    pub fn new(session_id: impl Into<String>, client_name: impl Into<String>) -> Self {
        Self {
            session_id: session_id.into(),
            name: None,
            identity: String::new(),
            client_name: client_name.into(),
            attached: true,
            detached_at_ms: None,
            expires_at_ms: None,
            processes: 0,
        }
    }
}

/// `session/end`: ends the processes of a session, then the session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct End {
    /// A session of the same identity.
    pub session_id: String,
}

/// `session/observe`: from now on this connection gets that session's notifications too, each
/// with its `sessionId`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Observe {
    /// A session of the same identity.
    pub session_id: String,
    /// Per process, the first event wanted; processes that are not named start now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_seq: Option<BTreeMap<String, u64>>,
    /// The first event wanted of processes that `fromSeq` does not name; without it, they start now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others_from_seq: Option<u64>,
}

impl Observe {
    /// Returns the first event wanted of a process; `None` means what comes next.
    pub fn from_seq_of(&self, process_id: &str) -> Option<u64> {
        self.from_seq.as_ref().and_then(|from| from.get(process_id).copied()).or(self.others_from_seq)
    }
}

/// `session/ended`, for observers: the session has ended. The last events of its processes may follow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Ended {
    /// The observed session.
    pub session_id: String,
}

/// `session/unobserve`: ends what [`Observe`] began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Unobserve {
    /// The observed session.
    pub session_id: String,
}

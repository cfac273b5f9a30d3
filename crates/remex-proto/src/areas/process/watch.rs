//! Waiting for a process, looking at it, listing what there is.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ExitCause, Produced};
use crate::{Blob, HostPath, base::lenient::null_as_default};

/// `process/wait`: waits for a condition; returns at once if it already holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Wait {
    /// The process.
    pub process_id: String,
    /// Another session of the same identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The start that is meant, as its answer named it: if the process was restarted since, the request fails and does nothing.
    /// Absent: whichever runs now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<u64>,
    /// How long to wait; absent: without limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    /// What to wait for; absent: the exit.
    #[serde(default, deserialize_with = "null_as_default")]
    pub until: Until,
}

/// What a [`Wait`] waits for.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Until {
    /// The exit of the process itself.
    #[default]
    Exit,
    /// The end of all its output.
    Closed,
    /// Output that matches.
    #[serde(rename_all = "camelCase")]
    Output {
        /// Over bytes; a match may cross chunks.
        regex: String,
        /// Exclusive; absent: from the oldest retained.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after_seq: Option<u64>,
    },
    /// This many milliseconds without output.
    IdleMs(u64),
}

/// The answer to [`Wait`]; what is not known is null.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Waited {
    /// Why the wait is over.
    pub reason: WaitReason,
    /// The event that ended it, or the newest one.
    pub seq: Option<u64>,
    /// The bytes that matched.
    #[serde(rename = "match")]
    pub matched: Option<Blob>,
    /// Null until the process has exited.
    pub exit_code: Option<i32>,
    /// The signal that ended it, such as `SIGKILL`.
    pub signal: Option<String>,
    /// Why it ended.
    pub cause: Option<ExitCause>,
}

/// Why a wait is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(transform = crate::base::words::open_words))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub enum WaitReason {
    /// The process has exited.
    Exit,
    /// The process is closed: no more events will follow.
    Closed,
    /// The output matched.
    Output,
    /// No output for as long as asked.
    Idle,
    /// `waitMs` ran out first.
    Timeout,
    /// A reason that this version does not know.
    #[serde(other)]
    Unknown,
}

/// `process/snapshot`: the retained output in one piece.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// The process.
    pub process_id: String,
    /// Another session of the same identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The start that is meant, as its answer named it: if the process was restarted since, the request fails and does nothing.
    /// Absent: whichever runs now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<u64>,
    /// Over all streams; at most, and by default, 16 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
}

/// The answer to [`Snapshot`]: head and tail are kept, the middle is dropped and counted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub struct SnapshotReply {
    /// Empty for a terminal.
    pub stdout: Blob,
    /// Empty for a terminal.
    pub stderr: Blob,
    /// Empty for pipes.
    pub terminal: Blob,
    /// Whether output is missing.
    pub truncated: bool,
    /// How much is missing.
    pub omitted_bytes: u64,
    /// Null until the process has exited.
    pub exit_code: Option<i32>,
    /// Whether it has not exited.
    pub running: bool,
}

/// `process/list`: lists processes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "ProcessList"))]
#[serde(rename_all = "camelCase")]
pub struct List {
    /// Another session of the same identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// Whose processes; absent: the session's.
    #[serde(default, deserialize_with = "null_as_default")]
    pub scope: Scope,
}

/// Whose processes are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Scope {
    /// Those of one session.
    #[default]
    Session,
    /// Those of all sessions of the identity.
    Identity,
    /// Those of all sessions of all identities; needs the scope `admin`.
    All,
}

/// The answer to [`List`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "ProcessListing"))]
pub struct Listing {
    /// Running processes, and ended ones that are still remembered.
    pub processes: Vec<Entry>,
}

/// One process in a [`Listing`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "ProcessEntry"))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// The client's handle.
    pub process_id: String,
    /// The session it belongs to.
    pub session_id: String,
    /// Tells this start of the process from all others under its id, before and after a restart; absent from servers that
    /// cannot tell, and for a process that one of them has started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<u64>,
    /// Whose session that is; only in a listing with the scope `all`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Where it was started.
    pub cwd: HostPath,
    /// The process id of the operating system; null before it is known.
    pub pid: Option<u32>,
    /// Whether it has a terminal.
    pub tty: bool,
    /// The user as whom it runs, as given at the start; absent: that of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// As given at the start.
    pub labels: BTreeMap<String, String>,
    /// How far it has come.
    pub state: State,
    /// In milliseconds since the Unix epoch.
    pub started_at_ms: u64,
    /// When it exited; null until then.
    pub ended_at_ms: Option<u64>,
    /// Null until it has exited.
    pub exit_code: Option<i32>,
    /// The signal that ended it, such as `SIGKILL`.
    pub signal: Option<String>,
    /// Why it ended.
    pub cause: Option<ExitCause>,
    /// Its output so far.
    pub produced: Produced,
    /// How much the server keeps: what can still be read, and the beginning for snapshots.
    pub retained_bytes: u64,
    /// CPU time of the tree; null when the system does not tell.
    pub cpu_ms: Option<u64>,
    /// Resident memory of the tree; null when the system does not tell.
    pub resident_bytes: Option<u64>,
    /// The living processes of the tree, the smallest numbers first, at most 64.
    #[serde(default, deserialize_with = "null_as_default")]
    pub living_pids: Vec<u32>,
    /// Whether it outlives the server.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "std::ops::Not::not")]
    pub durable: bool,
}

impl Entry {
    /// Creates the entry of a process that is still starting.
    pub fn new(process_id: impl Into<String>, session_id: impl Into<String>, cwd: HostPath) -> Self {
        Self {
            process_id: process_id.into(),
            session_id: session_id.into(),
            incarnation: None,
            identity: None,
            argv: Vec::new(),
            cwd,
            pid: None,
            tty: false,
            user: None,
            labels: BTreeMap::new(),
            state: State::Starting,
            started_at_ms: 0,
            ended_at_ms: None,
            exit_code: None,
            signal: None,
            cause: None,
            produced: Produced::default(),
            retained_bytes: 0,
            cpu_ms: None,
            resident_bytes: None,
            living_pids: Vec::new(),
            durable: false,
        }
    }
}

/// How many living processes of one tree a [`Listing`] names.
pub const LIVING_PIDS: usize = 64;

/// How far a process has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(transform = crate::base::words::open_words, rename = "ProcessState"))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// Not there yet.
    Starting,
    /// Not exited.
    Running,
    /// Exited, but something holds its output open.
    Exited,
    /// The process is closed: no more events will follow.
    Closed,
    /// A state that this version does not know.
    #[serde(other)]
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_for_the_exit_by_default() {
        let until = |text: &str| serde_json::from_str::<Wait>(text).map(|wait| wait.until);
        assert_eq!(until(r#"{"processId":"p"}"#).unwrap(), Until::Exit);
        assert_eq!(until(r#"{"processId":"p","until":null}"#).unwrap(), Until::Exit);
        assert_eq!(until(r#"{"processId":"p","until":"closed"}"#).unwrap(), Until::Closed);
        assert_eq!(until(r#"{"processId":"p","until":{"idleMs":5}}"#).unwrap(), Until::IdleMs(5));
        assert_eq!(
            until(r#"{"processId":"p","until":{"output":{"regex":"a+","afterSeq":3}}}"#).unwrap(),
            Until::Output { regex: "a+".into(), after_seq: Some(3) }
        );
        assert!(until(r#"{"processId":"p","until":"never"}"#).is_err());
    }
}

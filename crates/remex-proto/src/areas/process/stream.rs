//! Output, input and the size of the terminal.

use std::num::NonZeroU16;

use serde::{Deserialize, Deserializer, Serialize, de};

use super::{DeniedHost, ExitCause, GapRange, Produced, Stream, Usage};
use crate::{Blob, base::lenient::null_as_default};

/// `process/read`: output that is retained, or a wait for more. Reading consumes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Read {
    /// The process.
    pub process_id: String,
    /// Another session of the same identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The start that is meant, as its answer named it: if the process was restarted since, the request fails and does nothing.
    /// Absent: whichever runs now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<u64>,
    /// Exclusive; absent: 0, from the oldest.
    #[serde(default)]
    pub after_seq: Option<u64>,
    /// Decoded bytes; at most, and by default, 16 MiB. At least one chunk is returned if there is one.
    #[serde(default)]
    pub max_bytes: Option<u64>,
    /// How long to wait for new events; absent: 0.
    #[serde(default)]
    pub wait_ms: Option<u64>,
}

/// The answer to [`Read`]. `afterSeq = nextSeq - 1` is a lossless cursor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReadReply {
    /// In order, each with a seq beyond `afterSeq`.
    pub chunks: Vec<Chunk>,
    /// One past what this answer covers.
    pub next_seq: u64,
    /// Tells this start of the process from all others under its id, before and after a restart; absent from servers that
    /// cannot tell, and for a process that one of them has started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<u64>,
    /// Whether the process has exited by now, wherever the cursor is.
    pub exited: bool,
    /// Null until it has exited.
    pub exit_code: Option<i32>,
    /// Whether the process is closed: no more events will follow. The oldest dialect does not say.
    #[serde(default, deserialize_with = "null_as_default")]
    pub closed: bool,
    /// Why the server could not follow the process to its end, or why output of a process with `sync` may not
    /// survive a power failure; null otherwise.
    pub failure: Option<String>,
    /// A hint that a failure was caused by the sandbox.
    #[serde(default, deserialize_with = "null_as_default")]
    pub sandbox_denied: bool,
    /// What was evicted between the cursor and the first chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap: Option<GapRange>,
    /// Once it has exited, the signal that ended it, such as `SIGKILL`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// Once it has exited, why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<ExitCause>,
    /// Once it has exited, what it used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// The hosts that the sandbox has refused so far.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub network_denied: Vec<DeniedHost>,
    /// Once it is closed, all output that it produced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub produced: Option<Produced>,
    /// Once it is closed, how much of that was dropped before the session's client got it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evicted_bytes: Option<u64>,
}

/// One piece of output in a [`ReadReply`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Chunk {
    /// The number of the event in its process, from 1.
    pub seq: u64,
    /// Where it came from.
    pub stream: Stream,
    /// Raw bytes; characters and lines may be split.
    pub chunk: Blob,
    /// When it was read, in milliseconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_ms: Option<u64>,
}

/// `process/write`: bytes for stdin, delivered in the order of the requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Write {
    /// The process.
    pub process_id: String,
    /// Another session of the same identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The start that is meant, as its answer named it: if the process was restarted since, the request fails and does nothing.
    /// Absent: whichever runs now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<u64>,
    /// What to write; may be empty.
    pub chunk: Blob,
    /// Makes the write idempotent: an accepted id is never written twice. Never empty; clients of
    /// v0 send none.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "not_empty")]
    pub write_id: Option<String>,
}

fn not_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let write_id = Option::<String>::deserialize(deserializer)?;
    if write_id.as_deref() == Some("") {
        return Err(de::Error::custom("writeId must not be empty"));
    }
    Ok(write_id)
}

/// The answer to [`Write`], in the words of two dialects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WriteReply {
    /// What became of the bytes; in the oldest dialect only `accepted` says it.
    #[serde(default)]
    pub status: WriteStatus,
    /// The same for clients of v0: whether `status` is `accepted`.
    #[serde(default, deserialize_with = "null_as_default")]
    pub accepted: bool,
}

impl From<WriteStatus> for WriteReply {
    fn from(status: WriteStatus) -> Self {
        Self { status, accepted: status == WriteStatus::Accepted }
    }
}

/// What became of the bytes of a [`Write`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(transform = crate::base::words::open_words))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub enum WriteStatus {
    /// Queued for stdin, now or by an earlier request with this `writeId`.
    Accepted,
    /// No such process.
    UnknownProcess,
    /// The process has no stdin, or it is closed.
    StdinClosed,
    /// The process is still starting.
    Starting,
    /// A status that this version does not know; `accepted` says whether the bytes were accepted.
    #[default]
    #[serde(other)]
    Unknown,
}

/// `process/release`: no longer holds output for the controlling client while it is disconnected, until it reconnects.
/// Idempotent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Release {
    /// The process.
    pub process_id: String,
    /// The session it is in; the connection's own if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The start that is meant, as its answer named it: if the process was restarted since, the request fails and does nothing.
    /// Absent: whichever runs now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<u64>,
    /// How long its session lives from now on without a connection, if it has none and would end sooner; at most as long
    /// as the server allows. Absent: as before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detach_ttl_ms: Option<u64>,
}

/// `process/forget`: a process that has closed is forgotten now, with its output; its id is free.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Forget {
    /// The process.
    pub process_id: String,
    /// The session it is in; the connection's own if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The start that is meant, as its answer named it: if the process was restarted since, the request fails and does nothing.
    /// Absent: whichever runs now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<u64>,
}

/// `process/closeStdin`: end of file after everything accepted before. Idempotent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CloseStdin {
    /// The process.
    pub process_id: String,
    /// Another session of the same identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The start that is meant, as its answer named it: if the process was restarted since, the request fails and does nothing.
    /// Absent: whichever runs now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<u64>,
}

/// `process/resize`: the size of the terminal; a pipe process has none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Resize {
    /// The process.
    pub process_id: String,
    /// Another session of the same identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The start that is meant, as its answer named it: if the process was restarted since, the request fails and does nothing.
    /// Absent: whichever runs now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<u64>,
    /// Height in characters.
    pub rows: NonZeroU16,
    /// Width in characters.
    pub cols: NonZeroU16,
}

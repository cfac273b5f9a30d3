//! What the server tells about processes without being asked.

use std::ops::{AddAssign, SubAssign};

use serde::{Deserialize, Serialize};

use crate::{Blob, ErrorKind, base::lenient::null_as_default};

/// Where output comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(transform = crate::base::words::open_words))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub enum Stream {
    /// Standard output of a pipe process.
    Stdout,
    /// Standard error of a pipe process.
    Stderr,
    /// All output of a terminal process.
    Pty,
    /// A stream that this version does not know.
    #[serde(other)]
    Unknown,
}

impl Stream {
    /// Returns the word on the wire; that of an unknown stream is `unknown`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Pty => "pty",
            Self::Unknown => "unknown",
        }
    }
}

// `message::OutputFrame` encodes and decodes it faster.
/// `process/output`: the next output of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// The process.
    pub process_id: String,
    /// The observed session it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The start that it belongs to, if the process may be restarted: what follows a restart belongs to another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<u64>,
    /// From 1 and without gap over output, exit and close.
    pub seq: u64,
    /// Where it came from.
    pub stream: Stream,
    /// Raw bytes; characters and lines may be split.
    pub chunk: Blob,
}

/// `process/exited`: the process itself has ended; its earlier output has been sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Exited {
    /// The process.
    pub process_id: String,
    /// The observed session it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The start that it belongs to, if the process may be restarted: what follows a restart belongs to another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<u64>,
    /// Follows the last output before the exit.
    pub seq: u64,
    /// The exit status, or 128 + signal number.
    pub exit_code: i32,
    /// A hint that a failure was caused by the sandbox.
    #[serde(default, deserialize_with = "null_as_default")]
    pub sandbox_denied: bool,
    /// The signal that ended it, such as `SIGKILL`.
    #[serde(default)]
    pub signal: Option<String>,
    /// Why it ended; absent in the base dialect.
    #[serde(default)]
    pub cause: Option<ExitCause>,
    /// Resources it used; absent in the base dialect.
    #[serde(default)]
    pub usage: Option<Usage>,
    /// The hosts that the sandbox has refused by then.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub network_denied: Vec<DeniedHost>,
}

/// A host that a confined process asked for and did not reach, because its sandbox does not list it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub struct DeniedHost {
    /// The name or address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// How often it was refused.
    pub count: u64,
}

impl DeniedHost {
    /// Creates the record of a host that was refused `count` times.
    pub fn new(host: impl Into<String>, port: u16, count: u64) -> Self {
        Self { host: host.into(), port, count }
    }
}

/// Why a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(transform = crate::base::words::open_words))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub enum ExitCause {
    /// By itself.
    Exit,
    /// Killed by a signal that the server did not send to end it.
    Signal,
    /// `timeoutMs` ran out.
    Timeout,
    /// `idleTimeoutMs` ran out.
    IdleTimeout,
    /// By `process/terminate`, or the end of its session.
    Terminated,
    /// Killed by the kernel: out of memory.
    OutOfMemory,
    /// Unknown: because of a defect, the server lost track of the process and killed it.
    ServerLost,
    /// A cause that this version does not know.
    #[serde(other)]
    Unknown,
}

/// Resources used by a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// CPU time in its own code.
    pub user_ms: u64,
    /// CPU time in the kernel.
    pub system_ms: u64,
    /// Null if the kernel reports the server's own peak instead.
    pub max_rss_bytes: Option<u64>,
    /// From start to exit.
    pub wall_ms: u64,
}

/// `process/closed`: the last event; the process has exited, and all output has been sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Closed {
    /// The process.
    pub process_id: String,
    /// The observed session it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The start that it belongs to, if the process may be restarted: what follows a restart belongs to another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<u64>,
    /// The last number.
    pub seq: u64,
    /// All output that the process produced; absent in the base dialect.
    #[serde(default)]
    pub produced: Option<Produced>,
    /// How much of that was evicted unread; absent in the base dialect.
    #[serde(default)]
    pub evicted_bytes: Option<u64>,
}

/// Bytes per stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Produced {
    /// On standard output.
    pub stdout: u64,
    /// On standard error.
    pub stderr: u64,
    /// On the terminal.
    pub pty: u64,
}

impl Produced {
    /// Returns the bytes of all streams.
    pub fn total(&self) -> u64 {
        self.stdout.saturating_add(self.stderr).saturating_add(self.pty)
    }

    /// Counts bytes of a stream.
    pub fn add(&mut self, stream: Stream, bytes: u64) {
        let count = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
            // A server has only output of streams that it knows.
            Stream::Pty | Stream::Unknown => &mut self.pty,
        };
        *count = count.saturating_add(bytes);
    }
}

impl AddAssign for Produced {
    fn add_assign(&mut self, other: Produced) {
        self.add(Stream::Stdout, other.stdout);
        self.add(Stream::Stderr, other.stderr);
        self.add(Stream::Pty, other.pty);
    }
}

impl SubAssign for Produced {
    fn sub_assign(&mut self, other: Produced) {
        self.stdout -= other.stdout;
        self.stderr -= other.stderr;
        self.pty -= other.pty;
    }
}

impl From<[u64; 3]> for Produced {
    /// Takes the bytes of standard output, standard error and the terminal.
    fn from([stdout, stderr, pty]: [u64; 3]) -> Self {
        Produced { stdout, stderr, pty }
    }
}

/// `process/started`, for clients with the capability `processStarted`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StartedNote {
    /// The process.
    pub process_id: String,
    /// The observed session it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The process id of the operating system.
    pub pid: u32,
}

/// `process/failed`, for clients with the capability `processFailed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Failed {
    /// The process.
    pub process_id: String,
    /// The observed session it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// What kind of failure, as in errors.
    pub kind: ErrorKind,
    /// What failed, why, and what to do.
    pub message: String,
}

/// `process/gap`, for clients with the capability `processGap`: output that was evicted before
/// this reader got it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Gap {
    /// The process.
    pub process_id: String,
    /// The observed session it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The start that it belongs to, if the process may be restarted: what follows a restart belongs to another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<u64>,
    /// What is missing.
    #[serde(flatten)]
    pub range: GapRange,
}

/// A range of events that a reader will never receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct GapRange {
    /// The first event that is missing.
    pub from_seq: u64,
    /// The last event that is missing.
    pub to_seq: u64,
    /// Output bytes in them; null for a reader so far behind that the server no longer knows its offset.
    pub bytes: Option<u64>,
    /// Why they are missing; null means that they were evicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<GapCause>,
}

/// Why a reader will never receive some events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(transform = crate::base::words::open_words))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub enum GapCause {
    /// More was produced than the process retains.
    Evicted,
    /// The disk quota of the process, its session or the server was used up.
    Quota,
    /// The disk of the server was full.
    DiskFull,
    /// The disk of the server failed.
    Io,
    /// What is on disk is damaged or gone.
    Damaged,
    /// A cause that this version does not know.
    #[serde(other)]
    Unknown,
}

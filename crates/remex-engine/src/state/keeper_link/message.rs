//! The messages between a server and its keeper.
//!
//! A message is its length as four bytes, little-endian, then its [`Subject`] and its fields in order (`postcard`). One
//! that cannot be read costs its subject an answer, and never the link. Start at [`ToKeeper`] and [`FromKeeper`].

use std::{
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io,
    os::unix::fs::MetadataExt as _,
    path::Path,
};

use bytes::Bytes;
use remex_base::limits::Limits;
use remex_process::{Signal, Size, StartError, StartSpec};
use remex_proto::{
    ErrorKind, RpcError,
    process::{ExitCause, Produced, Stream, Usage, WriteStatus},
    state::output::{Hold, Point},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// The version of everything but the greeting.
pub(crate) const VERSION: u32 = 7;

/// The longest message: a start with as many arguments and variables as the kernel takes, or a long write.
pub(crate) const MAX_BYTES: usize = 256 << 20;

/// Names a process for server and keeper, and its directory; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key(pub(crate) u64);

impl Key {
    /// Returns the name of the directory of the process.
    pub fn dir_name(self) -> String {
        format!("{:016x}", self.0)
    }

    /// Returns the process that a directory belongs to.
    pub(crate) fn from_dir_name(name: &str) -> Option<Self> {
        (name.len() == 16).then(|| u64::from_str_radix(name, 16).ok().map(Key)).flatten()
    }
}

/// Names a request that is answered.
pub(crate) type RequestNumber = u64;

/// The first message in each direction. Its form never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    pub(crate) purpose: Purpose,
    pub(crate) version: u32,
    /// The number of the tags of its processes.
    pub(crate) tags: u64,
    pub(crate) pid: u32,
    /// Identifies the program file.
    pub(crate) program: ProgramFile,
}

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// It links a server to its keeper.
    Link,
    /// The keeper is to be replaced by the program whose path follows, until the end. The answer is a reason why it is
    /// not, and nothing if it is.
    Replace,
}

impl Purpose {
    const ALL: [Self; 2] = [Purpose::Link, Purpose::Replace];

    const fn magic(self) -> [u8; 8] {
        match self {
            Purpose::Link => *b"REMEXKPR",
            Purpose::Replace => *b"REMEXRPL",
        }
    }
}

/// Tells the file of one program from that of another, or from the same one before it was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProgramFile(u64);

impl ProgramFile {
    /// Returns the file of this program as it was when this program began; `None` if the host does not tell.
    pub(crate) fn own() -> Option<Self> {
        Self::at(Path::new("/proc/self/exe"))
    }

    pub(crate) fn at(path: &Path) -> Option<Self> {
        let file = fs::metadata(path).ok()?;
        let mut hasher = DefaultHasher::new();
        (file.dev(), file.ino(), file.size(), file.mtime(), file.mtime_nsec()).hash(&mut hasher);
        Some(Self(hasher.finish()))
    }
}

impl Greeting {
    /// Bytes on the link: all fields, little-endian.
    pub(crate) const LEN: usize = 32;

    pub(crate) fn new(purpose: Purpose, tags: u64, program: Option<ProgramFile>) -> Self {
        let program = program.unwrap_or(ProgramFile(0));
        Greeting { purpose, version: VERSION, tags, pid: std::process::id(), program }
    }

    pub(crate) fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.purpose.magic());
        bytes[8..12].copy_from_slice(&self.version.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.tags.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.pid.to_le_bytes());
        bytes[24..].copy_from_slice(&self.program.0.to_le_bytes());
        bytes
    }

    /// Returns the greeting in these bytes, of whatever version.
    pub(crate) fn decode(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let number = |at: usize, len: usize| {
            bytes[at..at + len].iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
        };
        let short = |at| u32::try_from(number(at, 4)).unwrap_or_default();
        let purpose = Purpose::ALL.into_iter().find(|purpose| purpose.magic() == bytes[..8])?;
        let program = ProgramFile(number(24, 8));
        Some(Greeting { purpose, version: short(8), tags: number(12, 8), pid: short(20), program })
    }
}

/// What a message is about: whom to answer if the message itself cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Subject {
    /// No answer is expected.
    Nothing,
    Start(Key),
    Request(Key, RequestNumber),
}

impl Subject {
    /// The longest one, in bytes.
    const MAX_LEN: usize = 21;
}

/// A message of a link.
pub(crate) trait Message: Serialize + DeserializeOwned {
    fn subject(&self) -> Subject;
}

/// A message that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub(crate) struct Unreadable {
    pub(crate) subject: Subject,
    error: String,
}

impl From<Unreadable> for io::Error {
    fn from(unreadable: Unreadable) -> Self {
        invalid(unreadable.error)
    }
}

impl Message for ToKeeper {
    fn subject(&self) -> Subject {
        match self {
            ToKeeper::Start(new) => Subject::Start(new.key),
            ToKeeper::Request { key, number, .. } => Subject::Request(*key, *number),
            _ => Subject::Nothing,
        }
    }
}

impl Message for FromKeeper {
    fn subject(&self) -> Subject {
        Subject::Nothing
    }
}

/// A message of the server.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToKeeper {
    /// The first one, and again when limits change.
    Quotas(Quotas),
    Start(Box<NewProcess>),
    Request {
        key: Key,
        number: RequestNumber,
        request: KeeperRequest,
    },
    /// Removes input that the process has not accepted.
    Cancel {
        key: Key,
        numbers: Vec<RequestNumber>,
    },
    /// The output that the log must hold for the client of a process.
    Hold {
        key: Key,
        hold: Hold<Point>,
    },
    /// Aborts a start, or kills the process; nothing is held any more.
    Abandon(Key),
    /// Deletes the log of a process that has closed; answered by `Deleted`.
    Forget(Key),
    /// Asks for a [`KeeperStatus`].
    Status,
    /// The server ends in good order: it has ended what it had started itself.
    Goodbye,
    /// Whether the rest of the output is read even if the log is full, once it has no writer left.
    ReadRest(Key),
    /// Whether there is space for the log of another start of a process; answered by `LogTried`.
    TryLog {
        key: Key,
        number: RequestNumber,
    },
}

/// A message of the keeper.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromKeeper {
    /// The first ones: the processes that it keeps; an empty list is the last one.
    Processes(Vec<ReportedProcess>),
    Started {
        key: Key,
        pid: u32,
        started_at_ms: u64,
    },
    NotStarted {
        key: Key,
        failure: StartFailure,
    },
    Progress {
        key: Key,
        progress: Progress,
    },
    Answer {
        key: Key,
        number: RequestNumber,
        answer: KeeperAnswer,
    },
    /// The answer to `Status`.
    Status(KeeperStatus),
    /// The answer to `Forget`: the log is gone, or cannot be deleted.
    Deleted(Key),
    /// The answer to `TryLog`: why there is no space, if there is none.
    LogTried(RequestNumber, Option<Failure>),
}

/// The status of the keeper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeeperStatus {
    /// The version of its program.
    pub(crate) version: String,
    /// Disk space of all logs.
    pub(crate) used_bytes: u64,
    /// Processes that have not closed.
    pub(crate) running: u64,
    /// Closed processes with a log.
    pub(crate) ended: u64,
}

/// Disk space that logs may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quotas {
    pub(crate) server_bytes: u64,
    pub(crate) session_bytes: u64,
}

impl From<&Limits> for Quotas {
    fn from(limits: &Limits) -> Self {
        Quotas { server_bytes: limits.disk_bytes as u64, session_bytes: limits.session_disk_bytes as u64 }
    }
}

/// A process to start.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NewProcess {
    pub(crate) key: Key,
    /// Processes of one session share a quota.
    pub(crate) session: String,
    /// The description by which the server finds the process again; opaque to the keeper.
    pub(crate) description: Vec<u8>,
    /// The request that starts it again, opaque to the keeper, and in its memory only. Empty if there is none.
    #[serde(with = "serde_bytes")]
    pub(crate) request: Vec<u8>,
    pub(crate) start: StartSpec,
    pub(crate) rules: Rules,
}

/// The settings of a process that the keeper needs besides how to start it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rules {
    /// The id, for logs and errors.
    pub(crate) id: String,
    pub(crate) tty: bool,
    pub(crate) retain_bytes: u64,
    pub(crate) evicts: bool,
    pub(crate) timeout_ms: Option<u64>,
    pub(crate) idle_timeout_ms: Option<u64>,
    // Absent in the state of an older keeper.
    #[serde(default)]
    pub(crate) timeout_grace_ms: Option<u64>,
    pub(crate) linger_ms: Option<u64>,
    pub(crate) write_ids: u64,
    pub(crate) stdin_bytes: u64,
    /// Whether output is announced only when it is on the disk.
    pub(crate) sync: bool,
}

/// A process as the keeper reports it to a new connection.
#[derive(Debug, Serialize, Deserialize)]
pub struct ReportedProcess {
    /// Which process it is.
    pub key: Key,
    /// The description that the server stored with it.
    pub description: Vec<u8>,
    /// The request that starts it again; empty if none was saved.
    #[serde(with = "serde_bytes")]
    pub request: Vec<u8>,
    /// The pid and the time of its start; `None` while it starts.
    pub started: Option<(u32, u64)>,
    pub(crate) progress: Progress,
    /// The events that must stay in its log.
    pub hold: Hold<Point>,
}

/// The position of a log, with its new output if that is short.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// The first event that can be read.
    pub(crate) first_seq: u64,
    /// Bytes of output before it.
    pub(crate) first_offset: u64,
    /// The newest event that can be read.
    pub(crate) newest: u64,
    /// Bytes of output up to it, of each stream.
    pub(crate) produced: Produced,
    /// Bytes that can be read.
    pub(crate) retained: u64,
    /// The number of the exit, once it can be read.
    pub(crate) exited: Option<u64>,
    pub(crate) is_closed: bool,
    /// How the process ended, perhaps before its exit can be read.
    pub(crate) exit: Option<ExitRecord>,
    /// Whether the process waits for room.
    pub(crate) is_full: bool,
    /// Whose disk space is used up, if any; processes that are closed can free some.
    pub(crate) exhausted: Option<ExhaustedQuota>,
    /// Why events that were to be on the disk may not survive a power failure.
    pub(crate) sync_failure: Option<String>,
    /// The events after those that were announced before, if they are few.
    pub(crate) inline: Vec<InlineChunk>,
}

impl Progress {
    /// The position of an empty log.
    pub(crate) fn start() -> Self {
        Progress {
            first_seq: 1,
            first_offset: 0,
            newest: 0,
            produced: Produced::default(),
            retained: 0,
            exited: None,
            is_closed: false,
            exit: None,
            is_full: false,
            exhausted: None,
            sync_failure: None,
            inline: Vec::new(),
        }
    }
}

/// Which disk quota is exhausted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ExhaustedQuota {
    /// The quota of the session.
    Session,
    /// The quota of the server, or the whole disk.
    Server,
}

/// Output that travels with its announcement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InlineChunk {
    pub(crate) seq: u64,
    pub(crate) stream: Stream,
    pub(crate) at_ms: u64,
    #[serde(with = "serde_bytes")]
    pub(crate) bytes: Vec<u8>,
}

/// How the direct child ended; also the payload of the exit in the log, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    pub(crate) code: i32,
    pub(crate) signal: Option<String>,
    pub(crate) cause: ExitCause,
    pub(crate) usage: Usage,
    pub(crate) at_ms: u64,
}

impl ExitRecord {
    /// Returns the exit of a process that was lost with its keeper.
    pub(crate) fn lost(at_ms: u64) -> Self {
        let (code, cause, usage) = (UNKNOWN_CODE, ExitCause::ServerLost, Usage::default());
        ExitRecord { code, signal: None, cause, usage, at_ms }
    }
}

/// The exit code reported if the real one is unknown.
pub(crate) const UNKNOWN_CODE: i32 = 255;

/// A request to a process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum KeeperRequest {
    Write {
        #[serde(with = "chunk")]
        chunk: Bytes,
        write_id: Option<String>,
    },
    CloseStdin,
    Resize(Size),
    Signal(Signal),
    Terminate {
        /// How long it has to end by itself; `None` kills it at once.
        grace_ms: Option<u64>,
        whole_tree: bool,
    },
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum KeeperAnswer {
    Done,
    Written(WriteStatus),
    Terminated {
        running: bool,
    },
    Failed(Failure),
    /// It was not and will not be carried out.
    Cancelled,
}

/// Why a process did not start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum StartFailure {
    /// The host refused.
    Refused(StartError),
    /// The keeper could not prepare it.
    Other(Failure),
}

/// An error for the client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failure {
    code: i64,
    kind: String,
    message: String,
    hint: Option<String>,
}

/// The hint for a full disk.
pub(crate) const FREE_DISK: &str = "free space on the disk of the state directory";

impl Failure {
    /// Returns whether a log could not be created on a full disk.
    pub(crate) fn is_disk_full(&self) -> bool {
        self.hint.as_deref() == Some(FREE_DISK)
    }
}

impl From<&RpcError> for Failure {
    fn from(error: &RpcError) -> Self {
        let RpcError { code, message, kind, hint, .. } = error.clone();
        Failure { code, kind: kind.word().to_owned(), message, hint }
    }
}

impl From<Failure> for RpcError {
    fn from(failure: Failure) -> Self {
        let Failure { code, kind, message, hint } = failure;
        let kind = ErrorKind::ALL.iter().copied().find(|known| known.word() == kind);
        let error = RpcError::new(kind.unwrap_or(ErrorKind::Internal), message).with_code(code);
        hint.into_iter().fold(error, RpcError::with_hint)
    }
}

/// Returns a message with its length.
///
/// # Errors
///
/// If it is too long.
pub(crate) fn encode(message: &impl Message) -> io::Result<Vec<u8>> {
    let bytes = postcard::to_extend(&message.subject(), vec![0; 4]).map_err(invalid)?;
    let mut bytes = postcard::to_extend(message, bytes).map_err(invalid)?;
    let len = bytes.len() - 4;
    match u32::try_from(len) {
        Ok(prefix) if len <= MAX_BYTES => bytes[..4].copy_from_slice(&prefix.to_le_bytes()),
        _ => return Err(invalid(too_long(len))),
    }
    Ok(bytes)
}

/// Returns the first message in `bytes` and its length there, or `None` if it is not complete.
///
/// One that is too long to be read may end after `bytes`.
pub(crate) fn decode<M: Message>(bytes: &[u8]) -> Option<(Result<M, Unreadable>, usize)> {
    let (prefix, rest) = bytes.split_first_chunk::<4>()?;
    let len = u32::from_le_bytes(*prefix) as usize;
    // Its subject is at its beginning.
    let is_too_long = len > MAX_BYTES;
    let message = rest.get(..if is_too_long { Subject::MAX_LEN } else { len })?;
    let (subject, fields) = match postcard::take_from_bytes(message) {
        Ok(taken) => taken,
        Err(error) => return Some((Err(unreadable(Subject::Nothing, &error)), 4 + len)),
    };
    let decoded = if is_too_long {
        Err(unreadable(subject, &too_long(len)))
    } else {
        postcard::from_bytes(fields).map_err(|error| unreadable(subject, &error))
    };
    Some((decoded, 4 + len))
}

fn unreadable(subject: Subject, error: &impl ToString) -> Unreadable {
    Unreadable { subject, error: error.to_string() }
}

fn too_long(len: usize) -> String {
    format!("the message is too long: {len} bytes, and at most {MAX_BYTES} are allowed")
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Bytes that are shared, not copied, until they are sent.
mod chunk {
    use bytes::Bytes;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        serde_bytes::ByteBuf::deserialize(deserializer).map(|bytes| bytes.into_vec().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(key: Key, number: RequestNumber) -> ToKeeper {
        ToKeeper::Request { key, number, request: KeeperRequest::CloseStdin }
    }

    #[test]
    fn an_unreadable_message_names_its_subject() {
        let key = Key(u64::MAX);
        let mut bytes = encode(&request(key, u64::MAX)).unwrap();
        let whole = bytes.len();
        // No request has this number.
        *bytes.last_mut().unwrap() = 0x7f;
        bytes.extend(encode(&ToKeeper::Goodbye).unwrap());
        let (decoded, len) = decode::<ToKeeper>(&bytes).unwrap();
        assert_eq!((decoded.unwrap_err().subject, len), (Subject::Request(key, u64::MAX), whole));
        assert!(matches!(decode(&bytes[whole..]), Some((Ok(ToKeeper::Goodbye), _))), "the next one is read");
    }

    #[test]
    fn a_message_that_is_too_long_names_its_subject_and_is_not_awaited() {
        let mut bytes = encode(&request(Key(7), 9)).unwrap();
        bytes[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(decode::<ToKeeper>(&bytes).is_none(), "its subject may not be complete");
        bytes.resize(100, 0);
        let (decoded, len) = decode::<ToKeeper>(&bytes).unwrap();
        let error = decoded.unwrap_err();
        assert_eq!((error.subject, len), (Subject::Request(Key(7), 9), 4 + u32::MAX as usize));
        assert!(error.to_string().contains("too long"), "{error}");
    }
}

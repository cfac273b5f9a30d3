//! The events of a process, in order.

use bytes::Bytes;
use remex_proto::process::{self as wire, DeniedHost, ExitCause, GapCause, Produced, Stream, Usage};
use serde::Serialize;

/// An event of a process.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use remex_client::{Command, process::{Event, Stream}};
///
/// let process = Command::shell("echo hello; exit 3").start(&client).await?;
/// let mut events = process.events();
/// let Some(Event::Output(chunk)) = events.next().await? else { panic!("it speaks first") };
/// assert_eq!((chunk.stream, &chunk.bytes[..]), (Stream::Stdout, &b"hello\n"[..]));
/// let Some(Event::Exited { exit, .. }) = events.next().await? else { panic!("then it exits") };
/// assert_eq!(exit.code, 3);
/// assert!(matches!(events.next().await?, Some(Event::Closed(_))));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The process wrote output.
    Output(Chunk),
    /// The process exited; all output before the exit has been delivered.
    Exited {
        /// Its sequence number among the events of the process.
        seq: u64,
        /// How it ended.
        exit: Exit,
    },
    /// All output has been delivered; the last event.
    Closed(Closed),
    /// Output is missing here.
    Gap(Gap),
}

/// A piece of output.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use remex_client::{Command, process::{Event, Stream}};
///
/// let process = Command::shell("echo oh >&2").start(&client).await?;
/// let Some(Event::Output(chunk)) = process.events().next().await? else { panic!("it speaks first") };
/// assert_eq!((chunk.seq, chunk.stream, &chunk.bytes[..]), (1, Stream::Stderr, &b"oh\n"[..]));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Chunk {
    /// Its sequence number among the events of the process, from 1.
    pub seq: u64,
    /// The stream it was written to.
    pub stream: Stream,
    /// Raw bytes; characters and lines may be split.
    pub bytes: Bytes,
}

/// How a process ended.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use remex_client::{Command, process::ExitCause};
///
/// let exit = Command::shell("kill -9 $$").output(&client).await?.exit;
/// assert_eq!((exit.code, exit.signal.as_deref()), (137, Some("SIGKILL")));
/// assert_eq!(exit.cause, Some(ExitCause::Signal));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Exit {
    /// The exit status, or 128 + the number of the signal.
    pub code: i32,
    /// The signal that ended it, such as `SIGKILL`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// Why it ended; unknown on servers of the base dialect, and if the exit coincided with a disconnect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<ExitCause>,
    /// The resources it used; unknown in the same cases as the cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// The hosts that its sandbox has refused by then; see [`Sandbox::allow_host`](crate::api::process::Sandbox::allow_host).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub network_denied: Vec<DeniedHost>,
    /// Whether it failed, and probably because of its sandbox: the server judges that by the exit and by what the output
    /// says, so it may be mistaken.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub sandbox_denied: bool,
}

impl Exit {
    /// Returns an exit with this status, and nothing else known about it.
    ///
    /// ```
    /// let exit = remex_client::process::Exit::new(3);
    /// assert_eq!((exit.code, exit.signal.as_deref(), exit.success()), (3, None, false));
    /// # assert!(remex_client::process::Exit::new(0).success());
    /// ```
    pub fn new(code: i32) -> Self {
        Self {
            code,
            signal: None,
            cause: None,
            usage: None,
            network_denied: Vec::new(),
            sandbox_denied: false,
        }
    }

    /// Returns whether the process exited with status 0.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::Command;
    ///
    /// assert!(Command::new("true").output(&client).await?.exit.success());
    /// assert!(!Command::new("false").output(&client).await?.exit.success());
    /// # Ok(()) }
    /// ```
    pub fn success(&self) -> bool {
        self.code == 0 && self.signal.is_none()
    }
}

/// The totals of a process after its last output.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use remex_client::{Command, process::Event};
///
/// let process = Command::shell("echo hello").start(&client).await?;
/// let mut events = process.events();
/// while let Some(event) = events.next().await? {
///     if let Event::Closed(ledger) = event {
///         assert_eq!((ledger.produced.unwrap().stdout, ledger.evicted_bytes), (6, Some(0)));
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Closed {
    /// Its sequence number, the last of the process.
    pub seq: u64,
    /// Bytes written per stream; unknown on servers of the base dialect.
    pub produced: Option<Produced>,
    /// Bytes evicted before this client received them; unknown in the same case.
    pub evicted_bytes: Option<u64>,
}

/// Output that the server had already evicted.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use remex_client::{Command, process::{Event, Overflow, Retain}};
///
/// let retain = Retain::default().bytes(64 << 10).overflow(Overflow::Evict);
/// let process = Command::shell("seq 1000000").retain(retain).start(&client).await?;
/// process.wait().await?;
/// // A late consumer receives the end of the output, and how much is missing before it.
/// let Some(Event::Gap(gap)) = process.events().next().await? else { panic!("the beginning is gone") };
/// assert_eq!(gap.from_seq, 1);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gap {
    /// The first missing event.
    pub from_seq: u64,
    /// The last missing event.
    pub to_seq: u64,
    /// Bytes of output in the gap, if the server knows.
    pub bytes: Option<u64>,
    /// Why they are missing, if they were not evicted.
    pub cause: Option<GapCause>,
}

impl Event {
    /// Returns its sequence number; of a gap, the last one that it covers.
    ///
    /// Pass it to [`Process::events_after`](crate::Process::events_after) to continue after this event.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::Command;
    ///
    /// let process = Command::shell("echo hello").start(&client).await?;
    /// let (mut events, mut seqs) = (process.events(), Vec::new());
    /// while let Some(event) = events.next().await? {
    ///     seqs.push(event.seq());
    /// }
    /// assert_eq!(seqs, [1, 2, 3]);
    /// # Ok(()) }
    /// ```
    pub fn seq(&self) -> u64 {
        match self {
            Event::Output(chunk) => chunk.seq,
            Event::Exited { seq, .. } => *seq,
            Event::Closed(closed) => closed.seq,
            Event::Gap(gap) => gap.to_seq,
        }
    }

    /// Returns how many bytes of output it carries.
    pub(crate) fn len(&self) -> usize {
        match self {
            Event::Output(chunk) => chunk.bytes.len(),
            Event::Exited { .. } | Event::Closed(_) | Event::Gap(_) => 0,
        }
    }
}

impl From<wire::Exited> for Exit {
    fn from(note: wire::Exited) -> Self {
        Exit {
            code: note.exit_code,
            signal: note.signal,
            cause: note.cause,
            usage: note.usage,
            network_denied: note.network_denied,
            sandbox_denied: note.sandbox_denied,
        }
    }
}

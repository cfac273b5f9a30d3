//! What a process says, in order.

use bytes::Bytes;
use remex_proto::process::{self as wire, ExitCause, Produced, Stream, Usage};

/// One thing that happened to a process.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use remex_client::process::{Event, Stream};
///
/// let process = client.shell("echo hello; exit 3").start().await?;
/// let mut events = process.events();
/// let Some(Event::Output(chunk)) = events.next().await? else { panic!("it speaks first") };
/// assert_eq!((chunk.stream, &chunk.bytes[..]), (Stream::Stdout, &b"hello\n"[..]));
/// let Some(Event::Exited(exit)) = events.next().await? else { panic!("then it exits") };
/// assert_eq!(exit.code, 3);
/// assert!(matches!(events.next().await?, Some(Event::Closed(_))));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It said something.
    Output(Chunk),
    /// It has exited; what it said before that has been told.
    Exited(Exit),
    /// Everything has been said; the last event.
    Closed(Closed),
    /// Something is missing here.
    Gap(Gap),
}

/// A piece of output.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use remex_client::process::{Event, Stream};
///
/// let process = client.shell("echo oh >&2").start().await?;
/// let Some(Event::Output(chunk)) = process.events().next().await? else { panic!("it speaks first") };
/// assert_eq!((chunk.seq, chunk.stream, &chunk.bytes[..]), (1, Stream::Stderr, &b"oh\n"[..]));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Its place among the events of the process, from 1.
    pub seq: u64,
    /// Where it came from.
    pub stream: Stream,
    /// Raw bytes; characters and lines may be split.
    pub bytes: Bytes,
}

/// How a process ended.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use remex_client::process::ExitCause;
///
/// let exit = client.shell("kill -9 $$").output().await?.exit;
/// assert_eq!((exit.code, exit.signal.as_deref()), (137, Some("SIGKILL")));
/// assert_eq!(exit.cause, Some(ExitCause::Signal));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// The exit status, or 128 + the number of the signal.
    pub code: i32,
    /// The signal that ended it, such as `SIGKILL`.
    pub signal: Option<String>,
    /// Why it ended; unknown from servers of the base dialect, and after a cut at the wrong moment.
    pub cause: Option<ExitCause>,
    /// What it used; unknown like the cause.
    pub usage: Option<Usage>,
}

impl Exit {
    /// Tells whether it ended by itself with status 0.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// assert!(client.command("true").output().await?.exit.is_success());
    /// assert!(!client.command("false").output().await?.exit.is_success());
    /// # Ok(()) }
    /// ```
    pub fn is_success(&self) -> bool {
        self.code == 0 && self.signal.is_none()
    }
}

/// The ledger of a process: what it said in its life.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use remex_client::process::Event;
///
/// let process = client.shell("echo hello").start().await?;
/// let mut events = process.events();
/// while let Some(event) = events.next().await? {
///     if let Event::Closed(ledger) = event {
///         assert_eq!((ledger.produced.unwrap().stdout, ledger.evicted_bytes), (6, Some(0)));
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Closed {
    /// Bytes per stream; unknown from servers of the base dialect.
    pub produced: Option<Produced>,
    /// How much of that was dropped before this client got it; unknown like the rest.
    pub evicted_bytes: Option<u64>,
}

/// Output that the server no longer had.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use remex_client::process::{Event, Overflow, Retain};
///
/// let retain = Retain { bytes: Some(64 << 10), overflow: Overflow::Evict, ..Retain::default() };
/// let process = client.shell("seq 1000000").retain(retain).start().await?;
/// process.wait().await?;
/// // Who comes late finds the end of the output, and how much is missing before it.
/// let Some(Event::Gap(gap)) = process.events().next().await? else { panic!("the beginning is gone") };
/// assert_eq!(gap.from_seq, 1);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// The first event that is missing.
    pub from_seq: u64,
    /// The last event that is missing.
    pub to_seq: u64,
    /// Bytes of output in them, where the server knows it.
    pub bytes: Option<u64>,
}

impl Event {
    /// Returns how many bytes of output it carries.
    pub(crate) fn len(&self) -> usize {
        match self {
            Event::Output(chunk) => chunk.bytes.len(),
            Event::Exited(_) | Event::Closed(_) | Event::Gap(_) => 0,
        }
    }
}

impl From<wire::Exited> for Exit {
    fn from(note: wire::Exited) -> Self {
        Exit { code: note.exit_code, signal: note.signal, cause: note.cause, usage: note.usage }
    }
}

//! Processes of other sessions: listing, reading and controlling them without taking over their session.
//!
//! Start at [`ProcessRef`].

use std::{num::NonZeroU16, time::Duration};

use bytes::Bytes;
use remex_proto::{process as wire, session};

use super::{Exit, Gap, Process, SignalName, Stream, millis};
use crate::{Client, Error, ErrorKind, core::AFTER_EVERYTHING, error::usage};

/// How much one read returns.
const READ_BYTES: u64 = 1 << 20;

/// How long a read or wait may block on the server before the client repeats it.
const POLL: Duration = Duration::from_secs(20);

/// A process of any session of the same identity.
///
/// It reads the output log of the process with its own cursor and never takes over the session from its client. It does
/// not cause backpressure: output that the server evicts before it is read is reported as a gap.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use remex_client::process::{ReadWait, Stream};
///
/// client.shell("echo hello; exit 3").id("greeting").start().await?;
/// let process = client.process_ref(client.session_id(), "greeting");
/// assert_eq!(process.wait().await?.code, 3);
///
/// let mut cursor = 0;
/// let batch = process.read(&mut cursor, ReadWait::No).await?;
/// assert_eq!((batch.chunks[0].stream, &batch.chunks[0].bytes[..]), (Stream::Stdout, &b"hello\n"[..]));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct ProcessRef {
    client: Client,
    session_id: String,
    process_id: String,
}

/// The result of one [`ProcessRef::read`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputBatch {
    /// Output that the server evicted before it was read; it precedes the chunks.
    pub gap: Option<Gap>,
    /// Output, in order.
    pub chunks: Vec<TimedChunk>,
    /// The exit of the process, once all output before it has been read.
    pub exit: Option<Exit>,
    /// Whether this is the last batch.
    pub is_closed: bool,
}

/// A piece of output with the time at which the server read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedChunk {
    /// The stream it was written to.
    pub stream: Stream,
    /// Milliseconds since 1970; servers of the base dialect do not report it.
    pub at_ms: Option<u64>,
    /// Raw bytes; characters and lines may be split.
    pub bytes: Bytes,
}

/// Whether a read waits for output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadWait {
    /// Returns at once, perhaps with an empty batch.
    No,
    /// Waits for some seconds; the batch may still be empty.
    Yes,
}

/// How a process is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Termination {
    /// SIGKILL to the whole tree.
    Kill,
    /// SIGTERM to the whole tree, then SIGKILL after this time to the processes still alive.
    Graceful(Duration),
}

impl ProcessRef {
    /// Returns the client that it uses.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the id of its session.
    pub fn session_id(&self) -> &str {
        &self.session_id
    }

    /// Returns the id of the process.
    pub fn process_id(&self) -> &str {
        &self.process_id
    }

    /// Returns its entry in `process/list`; `None` if its session no longer has it.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`].
    pub async fn entry(&self) -> Result<Option<wire::Entry>, Error> {
        let list = wire::List { session_id: Some(self.session_id.clone()), scope: wire::Scope::Session };
        let processes = self.client.call(list).await?.processes;
        Ok(processes.into_iter().find(|entry| entry.process_id == self.process_id))
    }

    /// Returns a cursor at most `events` before the newest event.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`].
    pub async fn cursor_before_newest(&self, events: u64) -> Result<u64, Error> {
        let (process_id, session_id) = self.ids();
        let after_seq = Some(AFTER_EVERYTHING);
        let probe = wire::Read { process_id, session_id, after_seq, max_bytes: Some(0), wait_ms: None };
        Ok(self.client.call(probe).await?.next_seq.saturating_sub(1 + events))
    }

    /// Reads events after `cursor`, and advances it; 0 starts at the oldest retained output.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`]; [`ProcessRef::is_forgotten`] recognises a process that no longer exists.
    pub async fn read(&self, cursor: &mut u64, wait: ReadWait) -> Result<OutputBatch, Error> {
        let wait_ms = match wait {
            ReadWait::No => 0,
            ReadWait::Yes => millis(POLL),
        };
        let (process_id, session_id) = self.ids();
        let read = wire::Read {
            process_id,
            session_id,
            after_seq: (*cursor > 0).then_some(*cursor),
            max_bytes: Some(READ_BYTES),
            wait_ms: Some(wait_ms),
        };
        let reply = self.client.call(read).await?;
        *cursor = reply.next_seq.saturating_sub(1).max(*cursor);
        Ok(OutputBatch::from(reply))
    }

    /// Writes to its stdin. The bytes are delivered once, even if the client repeats the call after a disconnect.
    ///
    /// `write_id` must differ from that of every other write to the process.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] when the process has ended or closed its stdin, and those of [`Client::call`].
    pub async fn write(&self, write_id: String, bytes: &[u8]) -> Result<(), Error> {
        let (process_id, session_id) = self.ids();
        let chunk = bytes.to_vec().into();
        let write = wire::Write { process_id, session_id, chunk, write_id: Some(write_id) };
        if self.client.call(write).await?.accepted {
            return Ok(());
        }
        let message =
            format!("cannot write to `{}`: the process has ended or closed its stdin", self.process_id);
        Err(usage(message, "start it again to send more"))
    }

    /// Closes its stdin after all written data.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`].
    pub async fn close_stdin(&self) -> Result<(), Error> {
        let (process_id, session_id) = self.ids();
        self.client.call(wire::CloseStdin { process_id, session_id }).await.map(drop)
    }

    /// Changes the size of its terminal.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`].
    pub async fn resize(&self, rows: NonZeroU16, cols: NonZeroU16) -> Result<(), Error> {
        let (process_id, session_id) = self.ids();
        self.client.call(wire::Resize { process_id, session_id, rows, cols }).await.map(drop)
    }

    /// Sends a signal to its process group.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`].
    pub async fn signal(&self, signal: SignalName) -> Result<(), Error> {
        let (process_id, session_id) = self.ids();
        self.client.call(wire::Signal { process_id, session_id, signal }).await.map(drop)
    }

    /// Stops holding its output for a disconnected client, so that backpressure no longer blocks the process.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`].
    pub async fn release(&self) -> Result<(), Error> {
        let (process_id, session_id) = self.ids();
        self.client.call(wire::Release { process_id, session_id }).await.map(drop)
    }

    /// Removes a closed process from the server before its retention time is over.
    ///
    /// # Errors
    ///
    /// When the process has not closed, and those of [`Client::call`].
    pub async fn forget(&self) -> Result<(), Error> {
        let (process_id, session_id) = self.ids();
        self.client.call(wire::Forget { process_id, session_id }).await.map(drop)
    }

    /// Terminates a running process with all its descendants; of one that has exited, its process group and session.
    ///
    /// Does nothing once the process has closed.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`].
    pub async fn terminate(&self, termination: Termination) -> Result<(), Error> {
        self.end(termination, wire::TerminateScope::Usual).await
    }

    /// Terminates the process, if it still runs, and all its living descendants, even after it has exited or closed.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`].
    pub async fn terminate_tree(&self, termination: Termination) -> Result<(), Error> {
        self.end(termination, wire::TerminateScope::Tree).await
    }

    async fn end(&self, termination: Termination, scope: wire::TerminateScope) -> Result<(), Error> {
        let (process_id, session_id) = self.ids();
        let mode = match termination {
            Termination::Kill => wire::TerminateMode::Force,
            Termination::Graceful(grace) => wire::TerminateMode::Graceful { timeout_ms: millis(grace) },
        };
        self.client.call(wire::Terminate { process_id, session_id, mode, scope }).await.map(drop)
    }

    /// Waits until it has exited. `usage` and `network_denied` of the exit are unknown.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`].
    pub async fn wait(&self) -> Result<Exit, Error> {
        loop {
            let waited = self.wait_until(wire::Until::Exit, POLL).await?;
            if waited.reason != wire::WaitReason::Timeout {
                let code = waited
                    .exit_code
                    .ok_or_else(|| Error::Protocol { what: "an exit without an exit code".to_owned() })?;
                return Ok(Exit {
                    code,
                    signal: waited.signal,
                    cause: waited.cause,
                    usage: None,
                    network_denied: Vec::new(),
                });
            }
        }
    }

    /// Waits at most `limit` until its output is closed; returns whether it is.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`].
    pub async fn closes_within(&self, limit: Duration) -> Result<bool, Error> {
        match self.wait_until(wire::Until::Closed, limit).await {
            Ok(waited) => Ok(waited.reason != wire::WaitReason::Timeout),
            // The server removes only closed processes.
            Err(error) if Self::is_forgotten(&error) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Waits at most `limit` for output after the event `newest`, and then at most as long again until there is no
    /// output for `quiet`.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`].
    pub async fn settle(&self, newest: u64, limit: Duration, quiet: Duration) -> Result<(), Error> {
        let any_byte = wire::Until::Output { regex: "(?s-u:.)".to_owned(), after_seq: Some(newest) };
        for until in [any_byte, wire::Until::IdleMs(millis(quiet))] {
            if self.wait_until(until, limit).await?.reason == wire::WaitReason::Timeout {
                break;
            }
        }
        Ok(())
    }

    /// Returns whether an error says that the process, or its session, no longer exists.
    pub fn is_forgotten(error: &Error) -> bool {
        matches!(error.kind(), Some(ErrorKind::UnknownProcess | ErrorKind::UnknownSession))
    }

    async fn wait_until(&self, until: wire::Until, limit: Duration) -> Result<wire::Waited, Error> {
        let (process_id, session_id) = self.ids();
        let wait = wire::Wait { process_id, session_id, wait_ms: Some(millis(limit)), until };
        self.client.call(wait).await
    }

    fn ids(&self) -> (String, Option<String>) {
        (self.process_id.clone(), Some(self.session_id.clone()))
    }
}

impl From<wire::ReadReply> for OutputBatch {
    fn from(reply: wire::ReadReply) -> Self {
        // The reply describes the log, not this reader: more may follow as long as there are chunks.
        let is_all = reply.chunks.is_empty();
        let chunks = reply.chunks.into_iter().map(|chunk| TimedChunk {
            stream: chunk.stream,
            at_ms: chunk.at_ms,
            bytes: chunk.chunk.0,
        });
        let code = reply.exit_code.filter(|_| reply.exited && is_all);
        OutputBatch {
            gap: reply.gap.map(|gap| Gap { from_seq: gap.from_seq, to_seq: gap.to_seq, bytes: gap.bytes }),
            chunks: chunks.collect(),
            exit: code.map(|code| Exit {
                code,
                signal: reply.signal,
                cause: reply.cause,
                usage: reply.usage,
                network_denied: reply.network_denied,
            }),
            is_closed: reply.closed && is_all,
        }
    }
}

impl Process {
    /// Returns a reference to this process, which reads its log without being one of its consumers.
    pub fn reference(&self) -> ProcessRef {
        self.client().process_ref(self.client().session_id(), self.id())
    }
}

impl Client {
    /// Returns a reference to a process of any session of the same identity, without contacting the server.
    pub fn process_ref(&self, session_id: impl Into<String>, process_id: impl Into<String>) -> ProcessRef {
        ProcessRef { client: self.clone(), session_id: session_id.into(), process_id: process_id.into() }
    }

    /// Lists the processes of all sessions of the same identity, the oldest first.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// client.shell("sleep 1000").id("nap").start().await?;
    /// let processes = client.list_processes().await?;
    /// assert_eq!(processes[0].process_id, "nap");
    /// # Ok(()) }
    /// ```
    pub async fn list_processes(&self) -> Result<Vec<wire::Entry>, Error> {
        let list = wire::List { session_id: None, scope: wire::Scope::Identity };
        let mut processes = self.call(list).await?.processes;
        processes.sort_by(|one, other| {
            (one.started_at_ms, &one.process_id).cmp(&(other.started_at_ms, &other.process_id))
        });
        Ok(processes)
    }

    /// Lists the sessions of the same identity.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`].
    pub async fn list_sessions(&self) -> Result<Vec<session::Entry>, Error> {
        Ok(self.call(session::List::default()).await?.sessions)
    }

    /// Ends a session of the same identity with all its processes.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`].
    pub async fn end_session(&self, session_id: impl Into<String>) -> Result<(), Error> {
        self.call(session::End { session_id: session_id.into() }).await.map(drop)
    }
}

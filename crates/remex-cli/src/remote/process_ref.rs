//! A process of any session of this identity: what it says, and the ways to act on it.
//!
//! It reads with a cursor of its own and never takes the session from its client. Start at [`ProcessRef`].

use std::{num::NonZeroU16, time::Duration};

use bytes::Bytes;
use remex_client::{Client, Error, ErrorKind, Process};
use remex_proto::process::{
    CloseStdin, ExitCause, GapRange, Read, ReadReply, Release, Resize, Signal, SignalName, Stream, Terminate,
    TerminateMode, TerminateScope, Until, Wait, WaitReason, Write,
};

/// How much is read at once.
const READ_BYTES: u64 = 1 << 20;

/// How long a read or a wait stays at the server; then it is asked again.
const PATIENCE: Duration = Duration::from_secs(20);

/// A process of any session, started by any client.
#[derive(Clone, Debug)]
pub(crate) struct ProcessRef {
    pub(crate) client: Client,
    pub(crate) session_id: String,
    pub(crate) process_id: String,
}

/// The output since the last read.
#[derive(Debug)]
pub(crate) struct OutputBatch {
    /// What was dropped before anybody here could read it; it comes first.
    pub(crate) gap: Option<GapRange>,
    pub(crate) pieces: Vec<OutputChunk>,
    /// How it ended; known once everything that it said before is in `pieces` or told earlier.
    pub(crate) end: Option<ProcessExit>,
    /// Whether nothing will follow.
    pub(crate) closed: bool,
}

/// A piece of output.
#[derive(Debug)]
pub(crate) struct OutputChunk {
    pub(crate) stream: Stream,
    /// When it was read from the process, in milliseconds since 1970.
    pub(crate) at_ms: Option<u64>,
    pub(crate) bytes: Bytes,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProcessExit {
    /// The exit status, or 128 + the number of the signal.
    pub(crate) code: i32,
    pub(crate) signal: Option<String>,
    pub(crate) cause: Option<ExitCause>,
}

impl ProcessRef {
    /// Returns the same for a process of our own session.
    pub(crate) fn started(process: &Process) -> Self {
        Self {
            client: process.client().clone(),
            session_id: process.client().session_id().to_owned(),
            process_id: process.id().to_owned(),
        }
    }

    /// Returns a cursor shortly before the newest event: at most `pieces` before it.
    pub(crate) async fn shortly_before(&self, pieces: u64) -> Result<u64, Error> {
        let (process_id, session_id) = self.ids();
        let probe =
            Read { process_id, session_id, after_seq: Some(u64::MAX - 1), max_bytes: Some(0), wait_ms: None };
        Ok(self.client.call(probe).await?.next_seq.saturating_sub(1 + pieces))
    }

    /// Reads what comes after `cursor`, waits for it if `wait`, and moves the cursor; 0 is the oldest retained.
    pub(crate) async fn read(&self, cursor: &mut u64, wait: ReadWait) -> Result<OutputBatch, Error> {
        let wait_ms = match wait {
            ReadWait::Poll => 0,
            ReadWait::ForOutput => millis(PATIENCE),
        };
        let read = Read {
            process_id: self.process_id.clone(),
            session_id: Some(self.session_id.clone()),
            after_seq: (*cursor > 0).then_some(*cursor),
            max_bytes: Some(READ_BYTES),
            wait_ms: Some(wait_ms),
        };
        let reply = self.client.call(read).await?;
        *cursor = reply.next_seq.saturating_sub(1).max(*cursor);
        Ok(batch(reply))
    }

    /// Writes to its input; once, whatever happens to the connection.
    pub(crate) async fn write(&self, write_id: String, bytes: &[u8]) -> Result<(), Error> {
        let write = Write {
            process_id: self.process_id.clone(),
            session_id: Some(self.session_id.clone()),
            chunk: bytes.to_vec().into(),
            write_id: Some(write_id),
        };
        let reply = self.client.call(write).await?;
        if reply.accepted { Ok(()) } else { Err(Error::Usage(refused(&self.process_id))) }
    }

    pub(crate) async fn close_stdin(&self) -> Result<(), Error> {
        let (process_id, session_id) = self.ids();
        self.client.call(CloseStdin { process_id, session_id }).await.map(drop)
    }

    pub(crate) async fn resize(&self, rows: NonZeroU16, cols: NonZeroU16) -> Result<(), Error> {
        let (process_id, session_id) = self.ids();
        self.client.call(Resize { process_id, session_id, rows, cols }).await.map(drop)
    }

    pub(crate) async fn signal(&self, signal: SignalName) -> Result<(), Error> {
        let (process_id, session_id) = self.ids();
        self.client.call(Signal { process_id, session_id, signal }).await.map(drop)
    }

    /// Lets the oldest of its output go where a client that is away would have it wait.
    pub(crate) async fn release(&self) -> Result<(), Error> {
        let (process_id, session_id) = self.ids();
        self.client.call(Release { process_id, session_id }).await.map(drop)
    }

    /// Ends it with everything it has started.
    pub(crate) async fn terminate(&self, mode: TerminateMode) -> Result<(), Error> {
        let (process_id, session_id) = self.ids();
        let scope = TerminateScope::Usual;
        self.client.call(Terminate { process_id, session_id, mode, scope }).await.map(drop)
    }

    /// Ends everything that it has started and that lives, also when it has itself ended.
    pub(crate) async fn terminate_tree(&self, mode: TerminateMode) -> Result<(), Error> {
        let (process_id, session_id) = self.ids();
        let scope = TerminateScope::Tree;
        self.client.call(Terminate { process_id, session_id, mode, scope }).await.map(drop)
    }

    /// Waits until nothing holds its output open, at most for `limit`, and tells whether that is so.
    pub(crate) async fn closes_within(&self, limit: Duration) -> Result<bool, Error> {
        let (process_id, session_id) = self.ids();
        let wait = Wait { process_id, session_id, wait_ms: Some(millis(limit)), until: Until::Closed };
        match self.client.call(wait).await {
            Ok(waited) => Ok(waited.reason != WaitReason::Timeout),
            // What is forgotten was closed.
            Err(error) if is_forgotten(&error) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Waits until it has exited.
    pub(crate) async fn wait(&self) -> Result<ProcessExit, Error> {
        loop {
            let (process_id, session_id) = self.ids();
            let wait = Wait { process_id, session_id, wait_ms: Some(millis(PATIENCE)), until: Until::Exit };
            let waited = self.client.call(wait).await?;
            if waited.reason != WaitReason::Timeout {
                let code = waited.exit_code.unwrap_or_default();
                return Ok(ProcessExit { code, signal: waited.signal, cause: waited.cause });
            }
        }
    }

    /// Waits until it has said something after `newest`, for at most `limit`, and then until it is quiet for a while, for
    /// as long again.
    pub(crate) async fn answered(&self, newest: u64, limit: Duration, quiet: Duration) -> Result<(), Error> {
        // Any byte; the cursor is that of the newest event before.
        let said = Until::Output { regex: "(?s-u:.)".to_owned(), after_seq: Some(newest) };
        for until in [said, Until::IdleMs(millis(quiet))] {
            let (process_id, session_id) = self.ids();
            let wait = Wait { process_id, session_id, wait_ms: Some(millis(limit)), until };
            if self.client.call(wait).await?.reason == WaitReason::Timeout {
                break;
            }
        }
        Ok(())
    }

    fn ids(&self) -> (String, Option<String>) {
        (self.process_id.clone(), Some(self.session_id.clone()))
    }
}

/// Whether a read waits for output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadWait {
    /// Return at once.
    Poll,
    /// Wait for output, for a while.
    ForOutput,
}

fn batch(reply: ReadReply) -> OutputBatch {
    // How far the log is does not tell how far this reader is: more may follow what was read.
    let is_all = reply.chunks.is_empty();
    let pieces = reply.chunks.into_iter();
    let pieces =
        pieces.map(|chunk| OutputChunk { stream: chunk.stream, at_ms: chunk.at_ms, bytes: chunk.chunk.0 });
    let code = reply.exit_code.filter(|_| reply.exited && is_all);
    OutputBatch {
        gap: reply.gap,
        pieces: pieces.collect(),
        end: code.map(|code| ProcessExit { code, signal: reply.signal, cause: reply.cause }),
        closed: reply.closed && is_all,
    }
}

/// Tells whether a refusal means that the process, or its whole session, is no more.
pub(crate) fn is_forgotten(error: &Error) -> bool {
    matches!(error.refusal(), Some(ErrorKind::UnknownProcess | ErrorKind::UnknownSession))
}

fn refused(process: &str) -> String {
    format!("`{process}` takes no more input: it has ended or closed it; see `remex ps`")
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

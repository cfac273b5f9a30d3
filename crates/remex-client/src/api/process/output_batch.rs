//! Output that was read by position.

use bytes::Bytes;
use remex_proto::process as wire;

use super::{Chunk, Closed, Event, Exit, Gap, Stream};

/// The result of one [`Process::read`](super::Process::read) or [`ProcessRef::read`](super::ProcessRef::read).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutputBatch {
    /// Output that the server evicted before it was read; it precedes the chunks.
    pub gap: Option<Gap>,
    /// Output, in order.
    pub chunks: Vec<TimedChunk>,
    /// The last event that it covers: the `after` of the next read.
    pub last_seq: u64,
    /// The exit of the process, once all output before it has been read.
    pub exit: Option<Exit>,
    /// Whether this is the last batch.
    pub is_closed: bool,
}

/// A piece of output with the time at which the server read it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimedChunk {
    /// Its sequence number among the events of the process, from 1.
    pub seq: u64,
    /// The stream it was written to.
    pub stream: Stream,
    /// Milliseconds since 1970; servers of the base dialect do not report it.
    pub at_ms: Option<u64>,
    /// Raw bytes; characters and lines may be split.
    pub bytes: Bytes,
}

impl TimedChunk {
    /// Returns a piece of output without a time.
    ///
    /// ```
    /// use remex_client::process::{Stream, TimedChunk};
    ///
    /// let chunk = TimedChunk::new(1, Stream::Stdout, "hello");
    /// assert_eq!((chunk.seq, &chunk.bytes[..], chunk.at_ms), (1, &b"hello"[..], None));
    /// ```
    pub fn new(seq: u64, stream: Stream, bytes: impl Into<Bytes>) -> Self {
        Self { seq, stream, at_ms: None, bytes: bytes.into() }
    }
}

impl OutputBatch {
    pub(super) fn of(reply: wire::ReadReply, after: u64) -> Self {
        // The reply describes the log, not this reader: more may follow as long as there are chunks.
        let is_all = reply.chunks.is_empty();
        let chunks = reply.chunks.into_iter().map(|chunk| TimedChunk {
            seq: chunk.seq,
            stream: chunk.stream,
            at_ms: chunk.at_ms,
            bytes: chunk.chunk.0,
        });
        let code = reply.exit_code.filter(|_| reply.exited && is_all);
        Self {
            gap: reply.gap.map(|gap| {
                let wire::GapRange { from_seq, to_seq, bytes, cause } = gap;
                Gap { from_seq, to_seq, bytes, cause }
            }),
            chunks: chunks.collect(),
            last_seq: reply.next_seq.saturating_sub(1).max(after),
            exit: code.map(|code| Exit {
                code,
                signal: reply.signal,
                cause: reply.cause,
                usage: reply.usage,
                network_denied: reply.network_denied,
                sandbox_denied: reply.sandbox_denied,
            }),
            is_closed: reply.closed && is_all,
        }
    }

    /// Returns it as events, in order.
    ///
    /// The exit and the close carry the number of the last event that the batch covers: a read does not report their own.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use std::time::Duration;
    /// use remex_client::{Command, process::Event};
    ///
    /// let process = Command::shell("echo hello").start(&client).await?;
    /// let batch = process.read(0, 1 << 20, Duration::from_secs(10)).await?;
    /// assert!(matches!(&batch.into_events()[0], Event::Output(chunk) if chunk.bytes == "hello\n"));
    /// # Ok(()) }
    /// ```
    pub fn into_events(self) -> Vec<Event> {
        let seq = self.last_seq;
        let chunks = self
            .chunks
            .into_iter()
            .map(|TimedChunk { seq, stream, bytes, .. }| Event::Output(Chunk { seq, stream, bytes }));
        let exit = self.exit.map(|exit| Event::Exited { seq, exit });
        let closed = self.is_closed.then(|| Event::Closed(Closed { seq, ..Closed::default() }));
        self.gap.map(Event::Gap).into_iter().chain(chunks).chain(exit).chain(closed).collect()
    }
}

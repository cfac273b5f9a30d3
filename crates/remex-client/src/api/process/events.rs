//! Consumers of the events and output of a process.

use std::{
    collections::VecDeque,
    fmt,
    future::poll_fn,
    io,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes};
use remex_proto::process as wire;
use tokio::io::{AsyncRead, ReadBuf};

use super::{Chunk, Closed, Event, Exit, Gap, Handle, Stream};
use crate::{
    Error,
    base::error::is_unknown_process,
    core::{
        event_queue::{EventQueue, READ_BYTES},
        shared::Core,
    },
};

/// The events of one process, delivered to one consumer in order and exactly once.
///
/// A stalled consumer blocks only its own process; dropping it lifts the backpressure.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use remex_client::{Command, process::Event};
///
/// let process = Command::new("seq").arg("3").start(&client).await?;
/// let (mut events, mut bytes) = (process.events(), 0);
/// while let Some(event) = events.next().await? {
///     match event {
///         Event::Output(chunk) => bytes += chunk.bytes.len(),
///         Event::Gap(gap) => panic!("{:?} bytes are gone", gap.bytes),
///         Event::Exited { exit, .. } => assert!(exit.success()),
///         Event::Closed(_) => assert_eq!(bytes, 6),
///         _ => {}
///     }
/// }
/// # Ok(()) }
/// ```
pub struct Events {
    handle: Arc<Handle>,
    number: u64,
    history: History,
    /// Events up to here are skipped.
    after: u64,
}

/// Earlier events that are no longer buffered here and must be read from the server.
enum History {
    /// Events up to here must be read from the server.
    Wanted {
        after: u64,
        up_to: u64,
    },
    Reading(Pin<Box<dyn Future<Output = Result<HistoryPage, Error>> + Send + Sync>>),
    Read(HistoryPage),
    Over,
}

/// A page of earlier events.
struct HistoryPage {
    events: VecDeque<Event>,
    after: u64,
    up_to: u64,
}

impl Events {
    /// Returns an identity that is unique to its process.
    pub(crate) fn identity(&self) -> Weak<EventQueue> {
        Arc::downgrade(&self.handle.queue)
    }

    /// Creates a consumer of the events after `after`.
    pub(super) fn new(handle: Arc<Handle>, after: u64) -> Self {
        let (number, up_to) = handle.queue.subscribe(after);
        let history = if up_to <= after { History::Over } else { History::Wanted { after, up_to } };
        Self { handle, number, history, after }
    }

    /// Creates a consumer of future events only.
    pub(super) fn at_end(handle: &Arc<Handle>) -> Self {
        let number = handle.queue.subscribe_at_end();
        Self { handle: Arc::clone(handle), number, history: History::Over, after: 0 }
    }

    /// Waits for the next event; `None` after the last. Cancel-safe.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the session is lost.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::{Command, process::Event};
    ///
    /// let process = Command::shell("exit 3").start(&client).await?;
    /// let first = process.events().next().await?;
    /// assert!(matches!(first, Some(Event::Exited { exit, .. }) if exit.code == 3));
    /// # Ok(()) }
    /// ```
    pub async fn next(&mut self) -> Result<Option<Event>, Error> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Polls for the next event, for use in hand-written futures.
    ///
    /// # Errors
    ///
    /// As [`Events::next`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::Command;
    /// use std::future::poll_fn;
    ///
    /// let process = Command::new("true").start(&client).await?;
    /// let mut events = process.events();
    /// assert!(poll_fn(|context| events.poll_next(context)).await?.is_some());
    /// # Ok(()) }
    /// ```
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Event>, Error>> {
        loop {
            match &mut self.history {
                History::Over => {
                    let (event, action) = ready!(self.handle.queue.poll(self.number, context));
                    self.core().perform(&self.handle.queue, action);
                    if matches!(&event, Ok(Some(event)) if event.seq() <= self.after) {
                        continue;
                    }
                    return Poll::Ready(event);
                }
                History::Wanted { after, up_to } => {
                    let core = Arc::clone(self.handle.client.core());
                    let queue = Arc::clone(&self.handle.queue);
                    self.history = History::Reading(Box::pin(read_history(core, queue, *after, *up_to)));
                }
                History::Reading(read) => match ready!(read.as_mut().poll(context)) {
                    Ok(past) => self.history = History::Read(past),
                    Err(error) => {
                        self.history = History::Over;
                        return Poll::Ready(Err(error));
                    }
                },
                History::Read(past) => match past.events.pop_front() {
                    Some(event) => return Poll::Ready(Ok(Some(event))),
                    None if past.after >= past.up_to => self.history = History::Over,
                    None => self.history = History::Wanted { after: past.after, up_to: past.up_to },
                },
            }
        }
    }

    fn core(&self) -> &Arc<Core> {
        self.handle.client.core()
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let action = self.handle.queue.unsubscribe(self.number);
        self.core().perform(&self.handle.queue, action);
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").field("process", &self.handle.queue.id).finish_non_exhaustive()
    }
}

/// Reads the next piece of the history.
async fn read_history(
    core: Arc<Core>,
    queue: Arc<EventQueue>,
    after: u64,
    up_to: u64,
) -> Result<HistoryPage, Error> {
    let request = wire::Read {
        process_id: queue.id.clone(),
        session_id: None,
        incarnation: queue.incarnation(),
        after_seq: Some(after),
        max_bytes: Some(READ_BYTES),
        wait_ms: None,
    };
    let reply: wire::ReadReply = match core.call(request.into()).await {
        Ok(arrived) => arrived.decode("process/read")?,
        Err(error) if is_unknown_process(&error) => {
            let mut past = HistoryPage { events: VecDeque::new(), after, up_to };
            past.pass(&queue, up_to);
            return Ok(past);
        }
        Err(error) => return Err(error),
    };
    let mut past = HistoryPage { events: VecDeque::new(), after, up_to };
    if let Some(gap) = reply.gap {
        let to_seq = gap.to_seq.min(up_to);
        let wire::GapRange { from_seq, bytes, cause, .. } = gap;
        past.events.push_back(Event::Gap(Gap { from_seq, to_seq, bytes, cause }));
        past.after = to_seq;
    }
    for chunk in reply.chunks.into_iter().filter(|chunk| chunk.seq <= up_to) {
        past.pass(&queue, chunk.seq - 1);
        let bytes = chunk.chunk.0;
        past.events.push_back(Event::Output(Chunk { seq: chunk.seq, stream: chunk.stream, bytes }));
        past.after = chunk.seq;
    }
    past.pass(&queue, up_to.min(reply.next_seq.saturating_sub(1)));
    if past.after == after {
        // The server has no events in this range.
        past.pass(&queue, up_to);
    }
    Ok(past)
}

impl HistoryPage {
    /// Advances to `seq`; skipped events are the exit, the close, or a gap.
    fn pass(&mut self, queue: &EventQueue, seq: u64) {
        let known = queue.known();
        let exit: Option<(u64, Exit)> = known.exit;
        let closed: Option<(u64, Closed)> = known.closed;
        while self.after < seq {
            let next = self.after + 1;
            if let Some((_, exit)) = exit.as_ref().filter(|(at, _)| *at == next) {
                self.events.push_back(Event::Exited { seq: next, exit: exit.clone() });
                self.after = next;
            } else if let Some((_, closed)) = closed.as_ref().filter(|(at, _)| *at == next) {
                self.events.push_back(Event::Closed(closed.clone()));
                self.after = next;
            } else {
                let known = [exit.as_ref().map(|(at, _)| *at), closed.as_ref().map(|(at, _)| *at)];
                let to_seq = known
                    .into_iter()
                    .flatten()
                    .filter(|at| *at > next)
                    .min()
                    .map_or(seq, |at| (at - 1).min(seq));
                self.events.push_back(Event::Gap(Gap { from_seq: next, to_seq, bytes: None, cause: None }));
                self.after = to_seq;
            }
        }
    }
}

/// One stream of a process as bytes.
///
/// At a gap, reading fails once with [`Error::Gap`] and then continues after it. A stalled reader blocks only its own
/// process; dropping it lifts the backpressure.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use remex_client::Command;
/// use tokio::io::AsyncReadExt as _;
///
/// let process = Command::new("seq").arg("3").start(&client).await?;
/// let mut text = String::new();
/// process.stdout().read_to_string(&mut text).await?;
/// assert_eq!(text, "1\n2\n3\n");
/// # Ok(()) }
/// ```
pub struct Reader {
    events: Events,
    stream: Stream,
    rest: Bytes,
}

impl Reader {
    pub(super) fn new(events: Events, stream: Stream) -> Self {
        Self { events, stream, rest: Bytes::new() }
    }

    /// Waits for the next chunk, without copying it; `None` at the end. Cancel-safe.
    ///
    /// # Errors
    ///
    /// [`Error::Gap`] and [`Error::Lost`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::Command;
    ///
    /// let process = Command::new("head").args(["-c", "100000", "/dev/zero"]).start(&client).await?;
    /// let (mut stdout, mut bytes) = (process.stdout(), 0);
    /// while let Some(chunk) = stdout.chunk().await? {
    ///     bytes += chunk.len();
    /// }
    /// assert_eq!(bytes, 100_000);
    /// # Ok(()) }
    /// ```
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Error> {
        poll_fn(|context| self.poll_chunk(context)).await
    }

    fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Error>> {
        if !self.rest.is_empty() {
            return Poll::Ready(Ok(Some(std::mem::take(&mut self.rest))));
        }
        loop {
            match ready!(self.events.poll_next(context)) {
                Ok(Some(Event::Output(chunk))) if chunk.stream == self.stream && !chunk.bytes.is_empty() => {
                    return Poll::Ready(Ok(Some(chunk.bytes)));
                }
                Ok(Some(Event::Gap(gap))) => return Poll::Ready(Err(Error::Gap { bytes: gap.bytes })),
                Ok(Some(Event::Closed(_)) | None) => return Poll::Ready(Ok(None)),
                Ok(Some(Event::Output(_) | Event::Exited { .. })) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncRead for Reader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let chunk = ready!(self.poll_chunk(context))?;
        if let Some(mut bytes) = chunk {
            let len = bytes.len().min(buffer.remaining());
            buffer.put_slice(&bytes[..len]);
            bytes.advance(len);
            self.rest = bytes;
        }
        Poll::Ready(Ok(()))
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("process", &self.events.handle.queue.id)
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}

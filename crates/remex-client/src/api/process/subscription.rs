//! The events of a process behind the trait [`ExecProcess`].

use std::{collections::VecDeque, fmt, time::Duration};

use super::{Chunk, Closed, Event, Events, ExecProcess, OutputBatch};
use crate::Error;

/// How much one read asks for, in bytes, and how long it waits for output.
const READ_BYTES: u64 = 64 << 10;
const READ_WAIT: Duration = Duration::from_secs(10);

/// The events of a process, in order, from [`ExecProcess::subscribe`].
///
/// Those of a [`Process`](super::Process) are streamed and exert backpressure, as [`Events`] do. A fake has them polled:
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), remex_client::Error> {
/// # #[cfg(feature = "testing")] {
/// use remex_client::{process::{Event, ExecProcess}, testing::{FakeProcess, Script}};
///
/// let process = FakeProcess::new("p", Script::new().stdout("hello").exit(3));
/// let mut events = process.subscribe(0);
/// assert!(matches!(events.next().await?, Some(Event::Output(chunk)) if chunk.bytes == "hello"));
/// assert!(matches!(events.next().await?, Some(Event::Exited { exit, .. }) if exit.code == 3));
/// assert!(matches!(events.next().await?, Some(Event::Closed(_))));
/// assert_eq!(events.next().await?, None);
/// # }
/// # Ok(()) }
/// ```
pub struct Subscription<'a> {
    source: Source<'a>,
}

enum Source<'a> {
    Streamed(Box<Events>),
    Polled(Polled<'a>),
}

struct Polled<'a> {
    process: &'a dyn ExecProcess,
    after: u64,
    ready: VecDeque<Event>,
    has_exited: bool,
    is_closed: bool,
}

impl<'a> Subscription<'a> {
    /// Returns the events after a sequence number of a process that can only be read.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::{Command, process::{Event, Subscription}};
    ///
    /// let process = Command::shell("echo hello").start(&client).await?;
    /// let mut events = Subscription::polling(&process, 0);
    /// assert!(matches!(events.next().await?, Some(Event::Output(chunk)) if chunk.bytes == "hello\n"));
    /// # Ok(()) }
    /// ```
    pub fn polling(process: &'a dyn ExecProcess, after: u64) -> Self {
        let ready = VecDeque::new();
        let polled = Polled { process, after, ready, has_exited: false, is_closed: false };
        Self { source: Source::Polled(polled) }
    }

    /// Waits for the next event; `None` after the last. Cancel-safe.
    ///
    /// # Errors
    ///
    /// Those of [`Events::next`], or of the process that is polled.
    ///
    /// See [`Subscription`] for an example.
    pub async fn next(&mut self) -> Result<Option<Event>, Error> {
        match &mut self.source {
            Source::Streamed(events) => events.next().await,
            Source::Polled(polled) => polled.next().await,
        }
    }
}

impl From<Events> for Subscription<'_> {
    fn from(events: Events) -> Self {
        Self { source: Source::Streamed(Box::new(events)) }
    }
}

impl Polled<'_> {
    async fn next(&mut self) -> Result<Option<Event>, Error> {
        while self.ready.is_empty() && !self.is_closed {
            let batch = self.process.read(self.after, READ_BYTES, READ_WAIT).await?;
            self.take(batch);
        }
        Ok(self.ready.pop_front())
    }

    fn take(&mut self, batch: OutputBatch) {
        self.after = batch.last_seq;
        self.ready.extend(batch.gap.map(Event::Gap));
        let chunks = batch.chunks.into_iter();
        self.ready.extend(
            chunks.map(|chunk| {
                Event::Output(Chunk { seq: chunk.seq, stream: chunk.stream, bytes: chunk.bytes })
            }),
        );
        // A batch states that the process has exited and is closed, but not with which numbers.
        let closed_seq = batch.last_seq;
        let exit_seq = closed_seq - u64::from(batch.is_closed && closed_seq > 0);
        if let Some(exit) = batch.exit.filter(|_| !self.has_exited) {
            self.has_exited = true;
            self.ready.push_back(Event::Exited { seq: exit_seq, exit });
        }
        if batch.is_closed {
            self.is_closed = true;
            self.ready.push_back(Event::Closed(Closed {
                seq: closed_seq,
                produced: None,
                evicted_bytes: None,
            }));
        }
    }
}

impl fmt::Debug for Subscription<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").finish_non_exhaustive()
    }
}

//! Hosts and their processes behind traits, for programs that choose the host by value, or inject a fake.
//!
//! Start at [`Executor`].

use std::{fmt, pin::Pin, time::Duration};

use super::{Command, Exit, OutputBatch, Process, SignalName, Subscription, TerminalSize};
use crate::{Client, Error};

/// The future of a call of [`ExecProcess`].
pub type ProcessFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// Something that starts processes: a [`Client`], whose server is in this process or elsewhere, or a fake in a unit test.
///
/// Keep an `Arc<dyn Executor>` where the program decides at run time where its processes run:
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use remex_client::{Client, Command, Error, Target, process::{Event, Executor}};
///
/// async fn first_bytes(host: &dyn Executor, command: &Command) -> Result<Option<Vec<u8>>, Error> {
///     let process = host.start(command).await?;
///     let mut events = process.subscribe(0);
///     while let Some(event) = events.next().await? {
///         if let Event::Output(chunk) = event {
///             return Ok(Some(chunk.bytes.to_vec()));
///         }
///     }
///     Ok(None)
/// }
///
/// let remote: Option<&str> = None;
/// let target = match remote {
///     Some(url) => Target::parse(url)?,
///     None => remex::Local::here()?.target(),
/// };
/// let host: Arc<dyn Executor> = Arc::new(Client::connect(target).await?);
/// assert_eq!(first_bytes(&*host, &Command::shell("echo hello")).await?, Some(b"hello\n".to_vec()));
/// # Ok(()) }
/// ```
pub trait Executor: fmt::Debug + Send + Sync {
    /// Starts a process; see [`Command::start`].
    fn start<'a>(&'a self, command: &'a Command) -> ProcessFuture<'a, Box<dyn ExecProcess>>;
}

impl Executor for Client {
    fn start<'a>(&'a self, command: &'a Command) -> ProcessFuture<'a, Box<dyn ExecProcess>> {
        Box::pin(async move { Ok(Box::new(command.start(self).await?) as Box<dyn ExecProcess>) })
    }
}

/// A process that can be followed, polled, written to and ended: a [`Process`], or a fake in a unit test.
///
/// Write code against `&dyn ExecProcess` where a test shall replace the process itself. To replace the host instead, and
/// keep the whole [`Process`] with its streams, use `testing::FakeServer` of the feature `testing`.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use std::time::Duration;
/// use remex_client::{Command, Error, process::ExecProcess};
///
/// async fn bytes_of_output(process: &dyn ExecProcess) -> Result<usize, Error> {
///     let (mut after, mut bytes) = (0, 0);
///     loop {
///         let batch = process.read(after, 64 << 10, Duration::from_secs(10)).await?;
///         bytes += batch.chunks.iter().map(|chunk| chunk.bytes.len()).sum::<usize>();
///         if batch.is_closed {
///             return Ok(bytes);
///         }
///         after = batch.last_seq;
///     }
/// }
///
/// let process = Command::shell("echo hello").start(&client).await?;
/// assert_eq!(bytes_of_output(&process).await?, 6);
/// # Ok(()) }
/// ```
pub trait ExecProcess: fmt::Debug + Send + Sync {
    /// Returns its id; see [`Process::id`].
    fn id(&self) -> &str;
    /// Returns the events after a sequence number, 0 for all; see [`Process::events_after`].
    ///
    /// A fake returns [`Subscription::polling`].
    fn subscribe(&self, after: u64) -> Subscription<'_>;
    /// Reads and consumes output; see [`Process::read`].
    fn read(&self, after: u64, max_bytes: u64, wait: Duration) -> ProcessFuture<'_, OutputBatch>;
    /// Writes to its standard input; see [`Process::write`].
    fn write<'a>(&'a self, bytes: &'a [u8]) -> ProcessFuture<'a, ()>;
    /// Closes its standard input; see [`Process::close_stdin`].
    fn close_stdin(&self) -> ProcessFuture<'_, ()>;
    /// Sets the size of its terminal; see [`Process::resize`].
    fn resize(&self, size: TerminalSize) -> ProcessFuture<'_, ()>;
    /// Sends a signal; see [`Process::signal`].
    fn signal(&self, signal: SignalName) -> ProcessFuture<'_, ()>;
    /// Sends SIGTERM, then SIGKILL after `grace`; see [`Process::terminate`].
    fn terminate(&self, grace: Duration) -> ProcessFuture<'_, ()>;
    /// Waits until it has exited; see [`Process::wait`].
    fn wait(&self) -> ProcessFuture<'_, Exit>;
}

impl ExecProcess for Process {
    fn id(&self) -> &str {
        Process::id(self)
    }

    fn subscribe(&self, after: u64) -> Subscription<'_> {
        Subscription::from(self.events_after(after))
    }

    fn read(&self, after: u64, max_bytes: u64, wait: Duration) -> ProcessFuture<'_, OutputBatch> {
        Box::pin(Process::read(self, after, max_bytes, wait))
    }

    fn write<'a>(&'a self, bytes: &'a [u8]) -> ProcessFuture<'a, ()> {
        Box::pin(Process::write(self, bytes))
    }

    fn close_stdin(&self) -> ProcessFuture<'_, ()> {
        Box::pin(Process::close_stdin(self))
    }

    fn resize(&self, size: TerminalSize) -> ProcessFuture<'_, ()> {
        Box::pin(Process::resize(self, size))
    }

    fn signal(&self, signal: SignalName) -> ProcessFuture<'_, ()> {
        Box::pin(Process::signal(self, signal))
    }

    fn terminate(&self, grace: Duration) -> ProcessFuture<'_, ()> {
        Box::pin(Process::terminate(self, grace))
    }

    fn wait(&self) -> ProcessFuture<'_, Exit> {
        Box::pin(Process::wait(self))
    }
}

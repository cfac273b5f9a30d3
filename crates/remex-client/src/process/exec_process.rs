//! A process behind a trait, for programs that inject a fake.

use std::{fmt, pin::Pin, time::Duration};

use super::{Exit, OutputBatch, Process, SignalName, TerminalSize};
use crate::Error;

/// The future of a call of [`ExecProcess`].
pub type ProcessFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// A process that can be polled, written to and ended: a [`Process`], or a fake in a unit test.
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

//! Waiting for a process.

use std::time::Duration;

use bytes::Bytes;
use remex_proto::state::matcher::Search;
use tokio::time::{Instant, sleep_until};

use super::{Event, Events, Exit, Process};
use crate::Error;

/// The condition of a [`Process::wait_for`].
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use std::time::Duration;
/// use remex_client::{Command, process::{Until, WaitOutcome}};
///
/// let process = Command::shell("echo ready; sleep 1000").start(&client).await?;
/// assert_eq!(process.wait_for(&Until::Idle(Duration::from_millis(50))).await?, WaitOutcome::Idle);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Until {
    /// Output, retained or new, that matches this regular expression: over bytes, in the syntax of the `regex` crate,
    /// in each stream separately.
    Output(String),
    /// The same, but only in output after an event, so that a prompt is not matched twice.
    OutputAfter {
        /// The number of that event, such as the `seq` of the last match.
        seq: u64,
        /// The expression.
        pattern: String,
    },
    /// This much time without output.
    Idle(Duration),
    /// The exit of the process.
    Exit,
}

/// Why a wait ended.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use remex_client::{Command, process::{Until, WaitOutcome}};
///
/// let process = Command::shell("echo port 4000; exit 3").start(&client).await?;
/// let WaitOutcome::Matched { bytes, .. } = process.wait_for(&Until::Output("port [0-9]+".to_owned())).await? else {
///     panic!("it has ended without telling its port");
/// };
/// assert_eq!(bytes, "port 4000");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitOutcome {
    /// Output matched.
    Matched {
        /// The chunk that completed the match.
        seq: u64,
        /// The bytes that matched.
        bytes: Bytes,
    },
    /// There was no output for the requested time.
    Idle,
    /// The process exited; with [`Until::Output`], none of its output matched.
    Exited(Exit),
}

impl Process {
    /// Waits until it has exited.
    ///
    /// Unread output does not block the process from here on; it stays readable as far as it is retained. An existing
    /// consumer that is stalled still blocks the process, and so delays its exit.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the session is lost.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::Command;
    ///
    /// let process = Command::shell("exit 3").start(&client).await?;
    /// assert_eq!(process.wait().await?.code, 3);
    /// # Ok(()) }
    /// ```
    pub async fn wait(&self) -> Result<Exit, Error> {
        let action = self.handle.queue.release();
        self.client().core().perform(&self.handle.queue, action);
        let mut events = Events::at_end(&self.handle);
        loop {
            if let Some((_, exit)) = self.handle.queue.known().exit {
                return Ok(exit);
            }
            if events.next().await?.is_none() {
                let what = format!("process `{}` is closed but has not exited", self.id());
                return Err(Error::Protocol { what });
            }
        }
    }

    /// Waits for a condition; wrap it in a timeout if it may never hold. Cancel-safe.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] for an invalid expression, and [`Error::Lost`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use std::time::Duration;
    /// use remex_client::{Command, process::Until};
    /// use tokio::time::timeout;
    ///
    /// let server = Command::shell("echo listening; exec sleep 1000").start(&client).await?;
    /// let ready = Until::Output("listening".to_owned());
    /// timeout(Duration::from_secs(10), server.wait_for(&ready)).await??;
    /// # Ok(()) }
    /// ```
    pub async fn wait_for(&self, until: &Until) -> Result<WaitOutcome, Error> {
        match until {
            Until::Exit => self.wait().await.map(WaitOutcome::Exited),
            Until::Output(pattern) => self.wait_for_output(pattern, 0).await,
            Until::OutputAfter { seq, pattern } => self.wait_for_output(pattern, *seq).await,
            Until::Idle(silence) => self.wait_for_silence(*silence).await,
        }
    }

    async fn wait_for_output(&self, pattern: &str, after_seq: u64) -> Result<WaitOutcome, Error> {
        let mut search = Search::new(pattern)?;
        let mut events = self.events_after(after_seq);
        let mut exit = None;
        loop {
            match events.next().await? {
                Some(Event::Output(chunk)) => {
                    if let Some(found) = search.look_at(chunk.stream, &chunk.bytes) {
                        return Ok(WaitOutcome::Matched { seq: chunk.seq, bytes: found.into() });
                    }
                }
                Some(Event::Gap(_)) => search.restart(),
                Some(Event::Exited { exit: how, .. }) => exit = Some(how),
                Some(Event::Closed(_)) | None => match exit {
                    Some(exit) => return Ok(WaitOutcome::Exited(exit)),
                    None => return self.wait().await.map(WaitOutcome::Exited),
                },
            }
        }
    }

    async fn wait_for_silence(&self, silence: Duration) -> Result<WaitOutcome, Error> {
        let action = self.handle.queue.release();
        self.client().core().perform(&self.handle.queue, action);
        let mut events = Events::at_end(&self.handle);
        loop {
            let known = self.handle.queue.known();
            if let Some((_, exit)) = known.exit {
                return Ok(WaitOutcome::Exited(exit));
            }
            let due = known.last_output + silence;
            if due <= Instant::now() {
                return Ok(WaitOutcome::Idle);
            }
            tokio::select! {
                event = events.next() => drop(event?),
                () = sleep_until(due) => {}
            }
        }
    }
}

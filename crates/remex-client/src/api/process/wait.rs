//! Waiting for a process.

use std::time::Duration;

use bytes::Bytes;
use remex_proto::state::matcher::{Found, Search};
use tokio::time::{Instant, sleep_until};

use super::{Event, Events, Exit, Process, Stream};
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
    /// The same, but only in output after an earlier match, so that a prompt is not matched twice, and nothing that
    /// arrived together with it is missed.
    OutputAfter {
        /// That match.
        after: Match,
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
/// let WaitOutcome::Matched(found) = process.wait_for(&Until::Output("port [0-9]+".to_owned())).await? else {
///     panic!("it has ended without telling its port");
/// };
/// assert_eq!(found.bytes, "port 4000");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitOutcome {
    /// Output matched.
    Matched(Match),
    /// There was no output for the requested time.
    Idle,
    /// The process exited; with [`Until::Output`], none of its output matched.
    Exited(Exit),
}

/// Output that a [`Process::wait_for`] has found.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use remex_client::{Command, process::{Until, WaitOutcome}};
///
/// let process = Command::shell(r"printf 'user: \npassword: '").start(&client).await?;
/// let prompt = Until::Output("[a-z]+: ".to_owned());
/// let WaitOutcome::Matched(user) = process.wait_for(&prompt).await? else { panic!("it asks for a user") };
/// assert_eq!(user.bytes, "user: ");
/// let next = Until::OutputAfter { after: user, pattern: "[a-z]+: ".to_owned() };
/// let WaitOutcome::Matched(password) = process.wait_for(&next).await? else { panic!("it asks for a password") };
/// assert_eq!((&password.before[..], &password.bytes[..]), (&b"\n"[..], &b"password: "[..]));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Match {
    /// The event whose output completed it.
    pub seq: u64,
    /// The stream that it was found in.
    pub stream: Stream,
    /// The bytes that matched.
    pub bytes: Bytes,
    /// The output of the stream before it, from where the search began; at most the last 256 KiB.
    pub before: Bytes,
    /// The output of the stream after it, up to the event `seq`.
    rest: Bytes,
}

impl Match {
    fn new(seq: u64, stream: Stream, found: &Found) -> Self {
        let copy = Bytes::copy_from_slice;
        let (before, bytes, rest) = (copy(found.before()), copy(found.bytes()), copy(found.rest()));
        Self { seq, stream, bytes, before, rest }
    }
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
            Until::Output(pattern) => self.wait_for_output(pattern, None).await,
            Until::OutputAfter { after, pattern } => self.wait_for_output(pattern, Some(after)).await,
            Until::Idle(silence) => self.wait_for_silence(*silence).await,
        }
    }

    async fn wait_for_output(&self, pattern: &str, after: Option<&Match>) -> Result<WaitOutcome, Error> {
        let mut search = Search::new(pattern)?;
        // Nothing may have followed the match, and then even an expression that matches nothing has to wait.
        if let Some(Match { seq, stream, rest, .. }) = after.filter(|after| !after.rest.is_empty())
            && let Some(found) = search.look_at(*stream, rest)
        {
            return Ok(WaitOutcome::Matched(Match::new(*seq, *stream, &found)));
        }
        let mut events = self.events_after(after.map_or(0, |after| after.seq));
        let mut exit = None;
        loop {
            match events.next().await? {
                Some(Event::Output(chunk)) => {
                    if let Some(found) = search.look_at(chunk.stream, &chunk.bytes) {
                        return Ok(WaitOutcome::Matched(Match::new(chunk.seq, chunk.stream, &found)));
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

//! Steps that can be watched while they wait.
//!
//! Start at [`LiveStep`].

use std::{fmt, pin::Pin, sync::Arc};

use serde::Serialize;

use super::{
    Agent, Count, FinishedWait, Handle, Step, StepGuard, Window, Write, collector::Viewed, open::OpenProcess,
};
use crate::{Client, Command, Error, api::process::Stream};

/// A step whose output can be watched while it waits, from [`Agent::exec_command_live`] or
/// [`Agent::write_stdin_live`].
///
/// It waits only while [`LiveStep::next`] is polled. Dropping it before [`StepEvent::End`] consumes no output: the next
/// step reports all of it, and the next live step shows it again. A viewer that is slow never blocks the process: it
/// misses the oldest of what it has not seen ([`Delta::omitted_bytes`]).
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use remex_client::{Command, agent::{Agent, Limits, StepEvent, Window}};
///
/// let agent = Agent::new(Limits::default());
/// let command = Command::shell("echo compiling; echo linking; exit 2");
/// let mut live = agent.exec_command_live(&client, &command, Window::default()).await?;
/// let (mut screen, mut exit_code) = (String::new(), None);
/// while let Some(event) = live.next().await? {
///     match event {
///         StepEvent::Begin { command, .. } => screen += &format!("$ {command}\n"),
///         StepEvent::Delta(delta) => screen += &delta.text,
///         StepEvent::End(step) => exit_code = step.progress.exit().map(|exit| exit.code),
///         _ => {}
///     }
/// }
/// assert!(screen.ends_with("'\ncompiling\nlinking\n"));
/// assert_eq!(exit_code, Some(2));
/// # Ok(()) }
/// ```
pub struct LiveStep {
    agent: Agent,
    handle: Handle,
    open: Arc<OpenProcess>,
    window: Window,
    /// The live text up to this position was returned.
    position: u64,
    /// There is no text between `position` and here, only output that is missing; the next delta counts it.
    passed: u64,
    phase: Phase,
    /// The input of the step, until it is reported.
    input: Option<String>,
    guard: Option<StepGuard>,
}

type Wait = Pin<Box<dyn Future<Output = Result<FinishedWait, Error>> + Send>>;

enum Phase {
    Begin(Wait),
    Waiting(Wait),
    /// The step is over; the live text up to `end` comes before its result.
    Ending {
        waited: FinishedWait,
        end: u64,
    },
    Over,
}

/// What happens during a step.
///
/// As JSON, `type` is `begin`, `terminalInteraction`, `delta` or `end`, beside the members of [`Delta`] and [`Step`]:
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # use remex_client::agent::*;
/// # let agent = Agent::new(Limits::default());
/// use remex_client::Command;
///
/// let command = Command::new("echo").arg("hello");
/// let mut live = agent.exec_command_live(&client, &command, Window::default()).await?;
/// let begin = live.next().await?.expect("a step begins");
/// assert_eq!(serde_json::to_string(&begin)?, r#"{"type":"begin","handle":1,"command":"echo hello"}"#);
/// let delta = live.next().await?.expect("it prints a line");
/// assert_eq!(
///     serde_json::to_string(&delta)?,
///     r#"{"type":"delta","stream":"stdout","text":"hello\n","omittedBytes":0,"count":"exact"}"#
/// );
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "camelCase")]
#[non_exhaustive]
pub enum StepEvent {
    /// The step begins; always the first event.
    #[non_exhaustive]
    Begin {
        /// The process.
        handle: Handle,
        /// Its command line.
        command: String,
    },
    /// The step writes input; it follows [`StepEvent::Begin`]. [`Step::accepted_bytes`] says how much was accepted.
    #[non_exhaustive]
    TerminalInteraction {
        /// The process.
        handle: Handle,
        /// The input; invalid UTF-8 is replaced with `U+FFFD`.
        input: String,
    },
    /// The process has printed something.
    Delta(Delta),
    /// The step has ended with this result; always the last event.
    End(Step),
}

/// Output of a process while a step waits.
///
/// The deltas of a step begin with the output since the previous step. They may end before the output of
/// [`StepEvent::End`] does; the next live step continues where they ended.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # use remex_client::agent::*;
/// # let agent = Agent::new(Limits::default());
/// use remex_client::{Command, process::Stream};
///
/// let mut live = agent.exec_command_live(&client, &Command::shell("echo oh >&2"), Window::default()).await?;
/// live.next().await?;
/// let Some(StepEvent::Delta(delta)) = live.next().await? else { panic!("it prints a line") };
/// assert_eq!((delta.stream, delta.text.as_str()), (Stream::Stderr, "oh\n"));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Delta {
    /// The stream it was written to.
    pub stream: Stream,
    /// Whole characters; invalid UTF-8 is replaced with `U+FFFD`.
    ///
    /// With [`ControlSequences::Remove`](super::ControlSequences::Remove) it has no control sequences, but carriage
    /// returns and backspaces, so that a viewer can replace the line that they overwrite.
    pub text: String,
    /// How many bytes are missing before `text`: the viewer was too slow ([`Limits::live_bytes`](super::Limits::live_bytes)),
    /// or the server has evicted them.
    pub omitted_bytes: u64,
    /// Whether that number is exact.
    pub count: Count,
}

impl LiveStep {
    /// Waits for the next event; `None` after the last. Cancel-safe.
    ///
    /// # Errors
    ///
    /// Those of [`Agent::write_stdin`]; the step is over then, and no output is lost.
    ///
    /// See [`LiveStep`] for an example.
    pub async fn next(&mut self) -> Result<Option<StepEvent>, Error> {
        loop {
            match &mut self.phase {
                Phase::Begin(_) => return Ok(Some(self.begin())),
                Phase::Waiting(_) if self.input.is_some() => {
                    let input = self.input.take().unwrap_or_default();
                    return Ok(Some(StepEvent::TerminalInteraction { handle: self.handle, input }));
                }
                Phase::Waiting(wait) => tokio::select! {
                    // Even if there is always more output, the step ends in time.
                    biased;
                    waited = wait => self.on_waited(waited)?,
                    () = self.open.collector.wait_for_live(self.passed) => {
                        if let Some(delta) = self.delta() {
                            return Ok(Some(delta));
                        }
                    }
                },
                Phase::Ending { waited, end } => {
                    let (waited, end) = (*waited, *end);
                    if self.position < end
                        && let Some(delta) = self.delta()
                    {
                        return Ok(Some(delta));
                    }
                    self.phase = Phase::Over;
                    let viewed = Viewed::UpTo(self.position);
                    let guard = self.guard.take();
                    let step = self.agent.finish(self.handle, &self.open, self.window, waited, viewed, guard);
                    return Ok(Some(StepEvent::End(step)));
                }
                Phase::Over => return Ok(None),
            }
        }
    }

    /// Returns the process of the step.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # use remex_client::agent::*;
    /// # let agent = Agent::new(Limits::default());
    /// use remex_client::Command;
    ///
    /// let command = Command::new("sleep").arg("1000");
    /// let live = agent.exec_command_live(&client, &command, Window::default()).await?;
    /// agent.kill(live.handle()).await?;
    /// # Ok(()) }
    /// ```
    pub fn handle(&self) -> Handle {
        self.handle
    }

    fn begin(&mut self) -> StepEvent {
        if let Phase::Begin(wait) = std::mem::replace(&mut self.phase, Phase::Over) {
            self.phase = Phase::Waiting(wait);
        }
        StepEvent::Begin { handle: self.handle, command: self.open.command.clone() }
    }

    fn on_waited(&mut self, waited: Result<FinishedWait, Error>) -> Result<(), Error> {
        self.phase = Phase::Over;
        let (waited, end) = (waited?, self.open.collector.live_end());
        self.phase = Phase::Ending { waited, end };
        Ok(())
    }

    /// Returns the next live text.
    fn delta(&mut self) -> Option<StepEvent> {
        match self.open.collector.live_after(self.position) {
            Ok((delta, position)) => {
                (self.position, self.passed) = (position, position);
                Some(StepEvent::Delta(delta))
            }
            Err(end) => {
                self.passed = end;
                None
            }
        }
    }
}

impl fmt::Debug for LiveStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveStep").field("handle", &self.handle).finish_non_exhaustive()
    }
}

impl Agent {
    /// Starts a command like [`Agent::exec_command`], and returns its step to be watched when the process has started.
    ///
    /// # Errors
    ///
    /// Those of [`Agent::exec_command`].
    ///
    /// See [`LiveStep`] for an example.
    pub async fn exec_command_live(
        &self,
        client: &Client,
        command: &Command,
        window: Window,
    ) -> Result<LiveStep, Error> {
        let (handle, open, guard) = self.start(client, command).await?;
        Ok(self.live(handle, open, Write::Nothing, window, guard))
    }

    /// Writes input, or nothing, like [`Agent::write_stdin`], and returns the step to be watched.
    ///
    /// # Errors
    ///
    /// [`Refusal`](super::Refusal) when there is no such process or it has ended; [`LiveStep::next`] returns the others.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # use remex_client::agent::*;
    /// # use remex_client::process::Stdio;
    /// # let agent = Agent::new(Limits::default());
    /// # let briefly = Window::default().yield_after(std::time::Duration::ZERO);
    /// use remex_client::Command;
    ///
    /// let handle = agent.exec_command(&client, &Command::new("cat").stdin(Stdio::Piped), briefly).await?.handle;
    /// let mut live = agent.write_stdin_live(handle, Write::BytesAndEnd(b"hello"), Window::default())?;
    /// let mut text = String::new();
    /// while let Some(event) = live.next().await? {
    ///     if let StepEvent::Delta(delta) = event {
    ///         text += &delta.text;
    ///     }
    /// }
    /// assert_eq!(text, "hello");
    /// # Ok(()) }
    /// ```
    pub fn write_stdin_live(
        &self,
        handle: Handle,
        write: Write<'_>,
        window: Window,
    ) -> Result<LiveStep, Error> {
        let open = self.open_for(handle, write)?;
        let guard = open.step();
        Ok(self.live(handle, open, write, window, guard))
    }

    fn live(
        &self,
        handle: Handle,
        open: Arc<OpenProcess>,
        write: Write<'_>,
        window: Window,
        guard: Option<StepGuard>,
    ) -> LiveStep {
        let timer = self.timer(window);
        let input = Some(write.bytes())
            .filter(|bytes| !bytes.is_empty())
            .map(|bytes| String::from_utf8_lossy(bytes).into());
        // A copy, so that the step can be moved to a task of its own.
        let write = OwnedWrite::from(write);
        let (agent, waits_for) = (self.clone(), Arc::clone(&open));
        let wait = async move { agent.wait(handle, &waits_for, write.as_write(), timer).await };
        let position = open.collector.shown();
        let phase = Phase::Begin(Box::pin(wait));
        let (agent, passed) = (self.clone(), position);
        LiveStep { agent, handle, open, window, position, passed, phase, input, guard }
    }
}

/// A [`Write`] with its own bytes.
enum OwnedWrite {
    Nothing,
    Bytes(Vec<u8>),
    BytesAndEnd(Vec<u8>),
}

impl From<Write<'_>> for OwnedWrite {
    fn from(write: Write<'_>) -> Self {
        match write {
            Write::Nothing => Self::Nothing,
            Write::Bytes(bytes) => Self::Bytes(bytes.to_vec()),
            Write::BytesAndEnd(bytes) => Self::BytesAndEnd(bytes.to_vec()),
        }
    }
}

impl OwnedWrite {
    fn as_write(&self) -> Write<'_> {
        match self {
            Self::Nothing => Write::Nothing,
            Self::Bytes(bytes) => Write::Bytes(bytes),
            Self::BytesAndEnd(bytes) => Write::BytesAndEnd(bytes),
        }
    }
}

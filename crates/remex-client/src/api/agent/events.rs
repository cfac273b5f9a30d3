//! What happens to the processes of an agent, also between two steps.
//!
//! Start at [`AgentEvents`].

use std::sync::{Arc, Mutex, MutexGuard};

use remex_base::lock;
use serde::Serialize;
use tokio::sync::broadcast;

use super::{Agent, Handle, Progress, collector::Collector};

/// How many events may wait for a subscriber; a slower one misses the oldest, and learns how many.
const MAX_WAITING: usize = 1024;

/// Something that happened to a process of an agent.
///
/// As JSON, `type` is `terminalInteraction`, `execCommandEnd` or `missed`.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # use remex_client::agent::*;
/// # let agent = Agent::new(Limits::default());
/// # let briefly = Window::default().yield_after(std::time::Duration::ZERO);
/// use remex_client::{Command, process::Stdio};
///
/// let mut events = agent.events();
/// let command = Command::new("cat").stdin(Stdio::Piped);
/// let handle = agent.exec_command(&client, &command, briefly).await?.handle;
/// agent.write_stdin(handle, Write::Bytes(b"hello"), briefly).await?;
/// let event = events.next().await.expect("the agent exists");
/// assert_eq!(
///     serde_json::to_string(&event)?,
///     r#"{"type":"terminalInteraction","handle":1,"input":"hello"}"#
/// );
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "camelCase")]
#[non_exhaustive]
pub enum AgentEvent {
    /// A process has got input.
    #[non_exhaustive]
    TerminalInteraction {
        /// The process.
        handle: Handle,
        /// What it has accepted; invalid UTF-8 is replaced with `U+FFFD`.
        input: String,
    },
    /// A process has ended while no step waited for it; the next step returns the rest of its output.
    #[non_exhaustive]
    ExecCommandEnd {
        /// The process.
        handle: Handle,
        /// Its command line.
        command: String,
        /// How it ended: [`Progress::Ended`] or [`Progress::Lost`].
        progress: Progress,
    },
    /// The subscriber was too slow, and misses this many events.
    #[non_exhaustive]
    Missed {
        /// How many.
        events: u64,
    },
}

/// A subscription to the events of an agent, from [`Agent::events`].
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # use remex_client::agent::*;
/// # let agent = Agent::new(Limits::default());
/// # let briefly = Window::default().yield_after(std::time::Duration::ZERO);
/// use remex_client::Command;
///
/// let mut events = agent.events();
/// let command = Command::shell("sleep 1; exit 3");
/// agent.exec_command(&client, &command, briefly).await?;
/// // The model does something else meanwhile.
/// let Some(AgentEvent::ExecCommandEnd { progress, .. }) = events.next().await else { panic!("it ends") };
/// assert_eq!(progress.exit().map(|exit| exit.code), Some(3));
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct AgentEvents(broadcast::Receiver<AgentEvent>);

impl AgentEvents {
    /// Waits for the next event; `None` when the agent is dropped. Cancel-safe.
    ///
    /// See [`AgentEvents`] for an example.
    pub async fn next(&mut self) -> Option<AgentEvent> {
        match self.0.recv().await {
            Ok(event) => Some(event),
            Err(broadcast::error::RecvError::Lagged(events)) => Some(AgentEvent::Missed { events }),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

impl Agent {
    /// Returns what happens to the processes from now on: input, and ends that no step waits for.
    ///
    /// Any number of subscribers get the same events, and none blocks a process.
    ///
    /// See [`AgentEvents`] for an example.
    pub fn events(&self) -> AgentEvents {
        AgentEvents(self.shared.events.0.subscribe())
    }
}

/// Sends events to all subscribers.
#[derive(Debug, Clone)]
pub(super) struct EventSender(broadcast::Sender<AgentEvent>);

impl EventSender {
    pub(super) fn new() -> Self {
        Self(broadcast::Sender::new(MAX_WAITING))
    }

    pub(super) fn input(&self, handle: Handle, bytes: &[u8]) {
        if !bytes.is_empty() {
            let input = String::from_utf8_lossy(bytes).into_owned();
            self.send(AgentEvent::TerminalInteraction { handle, input });
        }
    }

    fn send(&self, event: AgentEvent) {
        // Fails only without subscribers.
        let _ = self.0.send(event);
    }
}

/// Reports the end of one process, unless a step does.
#[derive(Debug)]
pub(super) struct EndReporter {
    handle: Handle,
    command: String,
    collector: Arc<Collector>,
    events: EventSender,
    /// Steps and the task that waits for the end share it; locked only briefly.
    state: Mutex<EndState>,
}

#[derive(Debug, Default)]
struct EndState {
    /// How many steps wait for the process.
    steps: usize,
    has_ended: bool,
    /// Whether a step or an event has told the end.
    is_told: bool,
}

impl EndReporter {
    pub(super) fn new(
        handle: Handle,
        command: String,
        collector: Arc<Collector>,
        events: EventSender,
    ) -> Arc<Self> {
        Arc::new(Self { handle, command, collector, events, state: Mutex::default() })
    }

    /// Records that a step waits for the process, until the guard is dropped.
    pub(super) fn step(self: &Arc<Self>) -> StepGuard {
        self.lock().steps += 1;
        StepGuard(Arc::clone(self))
    }

    /// Waits for the end of the process, and reports it if no step will.
    pub(super) async fn run(self: Arc<Self>) {
        self.collector.ended().await;
        let mut state = self.lock();
        state.has_ended = true;
        self.notify_end(&mut state);
    }

    fn notify_end(&self, state: &mut EndState) {
        if state.has_ended && state.steps == 0 && !state.is_told {
            state.is_told = true;
            let (handle, command) = (self.handle, self.command.clone());
            let progress = self.collector.progress();
            self.events.send(AgentEvent::ExecCommandEnd { handle, command, progress });
        }
    }

    fn lock(&self) -> MutexGuard<'_, EndState> {
        lock(&self.state)
    }
}

/// A step that waits for a process; one that is dropped without a result has told nothing.
#[derive(Debug)]
pub(super) struct StepGuard(Arc<EndReporter>);

impl StepGuard {
    /// Ends the step with a result for its caller.
    pub(super) fn finish(self, progress: &Progress) {
        if progress.is_final() {
            self.0.lock().is_told = true;
        }
    }
}

impl Drop for StepGuard {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.steps -= 1;
        self.0.notify_end(&mut state);
    }
}

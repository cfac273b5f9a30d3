//! Limits of an agent, and of one step.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ControlSequences, json};
use crate::api::process::{Overflow, Retain};

/// The limits of one agent.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # use remex_client::agent::*;
/// # use remex_client::process::Stdio;
/// # let agent = Agent::new(Limits::default());
/// use remex_client::Command;
///
/// let agent = Agent::new(Limits::default().open(2).output_bytes(4096));
/// for _ in 0..3 {
///     agent.exec_command(&client, &Command::new("true"), Window::default()).await?;
/// }
/// // The first process was evicted to make room.
/// assert_eq!(agent.list().len(), 2);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// How many processes may be open, including finished ones that can still be queried; 64 by default.
    pub open: usize,
    /// How long a step waits unless its window says otherwise; 10 s by default.
    pub yield_after: Duration,
    /// The minimum time of a step, shorter times are raised to it; 250 ms by default.
    pub yield_min: Duration,
    /// The maximum time of a step, longer times are lowered to it; 30 s by default.
    pub yield_max: Duration,
    /// How much output a step returns unless its window says otherwise, in bytes; 40 KiB by default.
    pub output_bytes: usize,
    /// The maximum output of a step, in bytes; 512 KiB by default.
    ///
    /// Up to twice as much is held for each process between the steps: its beginning and its end.
    pub collect_bytes: usize,
    /// What the server retains of commands that do not set it; 8 MiB, for 10 min after the end, by default.
    pub retain: Retain,
    /// How long after the exit of a command a background process may hold its output open, for commands that do not set
    /// [`Command::linger`](crate::Command::linger); 5 s by default, and `None` waits until it closes the output.
    ///
    /// Then the process has ended, and what the background process prints later is lost: it finds its output closed. A
    /// service is better started as a command of its own, or with its output redirected to a file.
    pub linger: Option<Duration>,
    /// What happens to control sequences in the output of steps; they are removed by default.
    pub control_sequences: ControlSequences,
    /// How much output of each process is held for [live steps](super::LiveStep), in bytes; 64 KiB by default.
    ///
    /// A viewer that falls behind by more misses the oldest output.
    pub live_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            open: 64,
            yield_after: Duration::from_secs(10),
            yield_min: Duration::from_millis(250),
            yield_max: Duration::from_secs(30),
            output_bytes: 40 << 10,
            collect_bytes: 512 << 10,
            retain: Retain {
                bytes: Some(8 << 20),
                after_close: Some(Duration::from_secs(600)),
                overflow: Overflow::default(),
            },
            linger: Some(Duration::from_secs(5)),
            control_sequences: ControlSequences::Remove,
            live_bytes: 64 << 10,
        }
    }
}

/// The time and output limits of one step; as JSON, part of the tool calls of a model.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # use remex_client::agent::*;
/// # use remex_client::process::Stdio;
/// # let agent = Agent::new(Limits::default());
/// use remex_client::Command;
/// use std::time::Duration;
///
/// let window = Window::default().yield_after(Duration::from_millis(250)).max_output_bytes(1024);
/// let step = agent.exec_command(&client, &Command::shell("seq 1000; exec sleep 1000"), window).await?;
/// assert_eq!(step.progress, Progress::Running);
/// assert!(step.output.text.len() <= 1024);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[non_exhaustive]
pub struct Window {
    /// The maximum time of the step; [`Limits::yield_after`] by default. `yieldAfterMs` in JSON.
    #[serde(
        rename = "yieldAfterMs",
        with = "json::optional_millis",
        skip_serializing_if = "Option::is_none"
    )]
    pub yield_after: Option<Duration>,
    /// The maximum length of the output text; [`Limits::output_bytes`] by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output_bytes: Option<usize>,
}

impl Limits {
    /// Sets how many processes may be open.
    ///
    /// ```
    /// assert_eq!(remex_client::agent::Limits::default().open(8).open, 8);
    /// ```
    pub fn open(mut self, processes: usize) -> Self {
        self.open = processes;
        self
    }

    /// Sets how long a step waits unless its window says otherwise.
    ///
    /// ```
    /// use std::time::Duration;
    /// use remex_client::agent::Limits;
    ///
    /// let limits = Limits::default()
    ///     .yield_after(Duration::from_secs(60))
    ///     .yield_min(Duration::from_secs(1))
    ///     .yield_max(Duration::from_secs(600));
    /// assert_eq!(limits.yield_after, Duration::from_secs(60));
    /// # assert_eq!((limits.yield_min, limits.yield_max), (Duration::from_secs(1), Duration::from_secs(600)));
    /// ```
    pub fn yield_after(mut self, time: Duration) -> Self {
        self.yield_after = time;
        self
    }

    /// Sets the minimum time of a step.
    ///
    /// See [`Limits::yield_after`] for an example.
    pub fn yield_min(mut self, time: Duration) -> Self {
        self.yield_min = time;
        self
    }

    /// Sets the maximum time of a step.
    ///
    /// See [`Limits::yield_after`] for an example.
    pub fn yield_max(mut self, time: Duration) -> Self {
        self.yield_max = time;
        self
    }

    /// Sets how much output a step returns unless its window says otherwise.
    ///
    /// ```
    /// use remex_client::agent::Limits;
    ///
    /// let limits = Limits::default().output_bytes(16 << 10).collect_bytes(64 << 10);
    /// assert_eq!((limits.output_bytes, limits.collect_bytes), (16 << 10, 64 << 10));
    /// ```
    pub fn output_bytes(mut self, bytes: usize) -> Self {
        self.output_bytes = bytes;
        self
    }

    /// Sets the maximum output of a step.
    ///
    /// See [`Limits::output_bytes`] for an example.
    pub fn collect_bytes(mut self, bytes: usize) -> Self {
        self.collect_bytes = bytes;
        self
    }

    /// Sets what the server retains of commands that do not set it.
    ///
    /// ```
    /// use remex_client::{agent::Limits, process::Retain};
    ///
    /// let limits = Limits::default().retain(Retain::default());
    /// assert_eq!(limits.retain, Retain::default());
    /// ```
    pub fn retain(mut self, retain: Retain) -> Self {
        self.retain = retain;
        self
    }

    /// Sets how long after the exit of a command a background process may hold its output open.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use std::time::Duration;
    /// use remex_client::{Command, agent::{Agent, Limits, Progress, Window}};
    ///
    /// let agent = Agent::new(Limits::default().linger(Duration::from_millis(50)));
    /// let step = agent.exec_command(&client, &Command::shell("sleep 1000 & echo started"), Window::default()).await?;
    /// assert!(matches!(step.progress, Progress::Ended(exit) if exit.success()));
    /// # Ok(()) }
    /// ```
    pub fn linger(mut self, time: Duration) -> Self {
        self.linger = Some(time);
        self
    }

    /// Lets background processes hold the output of a command open for as long as they like.
    ///
    /// ```
    /// assert_eq!(remex_client::agent::Limits::default().unlimited_linger().linger, None);
    /// ```
    pub fn unlimited_linger(mut self) -> Self {
        self.linger = None;
        self
    }

    /// Sets what happens to control sequences in the output of steps.
    ///
    /// See [`ControlSequences`] for an example.
    pub fn control_sequences(mut self, control_sequences: ControlSequences) -> Self {
        self.control_sequences = control_sequences;
        self
    }

    /// Sets how much output of each process is held for live steps.
    ///
    /// ```
    /// assert_eq!(remex_client::agent::Limits::default().live_bytes(1 << 20).live_bytes, 1 << 20);
    /// ```
    pub fn live_bytes(mut self, bytes: usize) -> Self {
        self.live_bytes = bytes;
        self
    }

    /// Returns how long a step waits.
    pub(super) fn patience(&self, window: Window) -> Duration {
        window.yield_after.unwrap_or(self.yield_after).max(self.yield_min).min(self.yield_max)
    }

    /// Returns the output budget of a step, in bytes.
    pub(super) fn budget(&self, window: Window) -> usize {
        window.max_output_bytes.unwrap_or(self.output_bytes)
    }
}

impl Window {
    /// Sets the maximum time of the step.
    ///
    /// ```
    /// use std::time::Duration;
    /// use remex_client::agent::Window;
    ///
    /// let window = Window::default().yield_after(Duration::from_secs(5)).max_output_bytes(4096);
    /// assert_eq!((window.yield_after, window.max_output_bytes), (Some(Duration::from_secs(5)), Some(4096)));
    /// ```
    pub fn yield_after(mut self, time: Duration) -> Self {
        self.yield_after = Some(time);
        self
    }

    /// Sets the maximum length of the output text.
    ///
    /// See [`Window::yield_after`] for an example.
    pub fn max_output_bytes(mut self, bytes: usize) -> Self {
        self.max_output_bytes = Some(bytes);
        self
    }
}

//! Limits of an agent, and of one step.

use std::time::Duration;

use crate::process::{Overflow, Retain};

/// The limits of one agent.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # use remex_client::agent::*;
/// # use remex_client::process::Input;
/// # let agent = Agent::new(Limits::default());
/// let agent = Agent::new(Limits { open: 2, output_bytes: 4096, ..Limits::default() });
/// for _ in 0..3 {
///     agent.exec_command(client.command("true"), Window::default()).await?;
/// }
/// // The first process was evicted to make room.
/// assert_eq!(agent.list().len(), 2);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
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
        }
    }
}

/// The time and output limits of one step.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # use remex_client::agent::*;
/// # use remex_client::process::Input;
/// # let agent = Agent::new(Limits::default());
/// use std::time::Duration;
///
/// let window = Window { yield_after: Some(Duration::from_millis(250)), max_output_bytes: Some(1024) };
/// let step = agent.exec_command(client.shell("seq 1000; exec sleep 1000"), window).await?;
/// assert_eq!(step.progress, Progress::Running);
/// assert!(step.output.text.len() <= 1024);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Window {
    /// The maximum time of the step; [`Limits::yield_after`] by default.
    pub yield_after: Option<Duration>,
    /// The maximum length of the output text; [`Limits::output_bytes`] by default.
    pub max_output_bytes: Option<usize>,
}

impl Limits {
    /// Returns how long a step waits.
    pub(super) fn patience(&self, window: Window) -> Duration {
        window.yield_after.unwrap_or(self.yield_after).max(self.yield_min).min(self.yield_max)
    }

    /// Returns the output budget of a step, in bytes.
    pub(super) fn budget(&self, window: Window) -> usize {
        window.max_output_bytes.unwrap_or(self.output_bytes)
    }
}

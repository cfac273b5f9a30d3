//! How much an agent may have open, and how long and how much its steps are.

use std::time::Duration;

use crate::process::{Overflow, Retain};

/// What one agent may have and do.
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
/// // The first one has made room.
/// assert_eq!(agent.list().len(), 2);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// How many processes may be open, finished ones included as long as they can be asked for; 64 unless given.
    pub open: usize,
    /// How long a step waits that does not say it; 10 s unless given.
    pub yield_after: Duration,
    /// The shortest time that a step may ask for, less is raised to it; 250 ms unless given.
    pub yield_min: Duration,
    /// The longest time that a step may ask for, more is lowered to it; 30 s unless given.
    pub yield_max: Duration,
    /// How much output a step shows that does not say it, in bytes; 40 KiB unless given.
    pub output_bytes: usize,
    /// How much output a step can show at most, in bytes; 512 KiB unless given.
    ///
    /// Up to twice as much is held for each process between the steps: its beginning and its end.
    pub collect_bytes: usize,
    /// What the server keeps of commands that do not say it; 8 MiB and 10 min after the end unless given.
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

/// How long one step waits, and how much it shows.
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
    /// The step returns after so much time at the latest; [`Limits::yield_after`] unless given.
    pub yield_after: Option<Duration>,
    /// The text of the step is no longer than this; [`Limits::output_bytes`] unless given.
    pub max_output_bytes: Option<usize>,
}

impl Limits {
    /// Returns how long a step waits.
    pub(super) fn patience(&self, window: Window) -> Duration {
        window.yield_after.unwrap_or(self.yield_after).max(self.yield_min).min(self.yield_max)
    }

    /// Returns how much a step shows.
    pub(super) fn budget(&self, window: Window) -> usize {
        window.max_output_bytes.unwrap_or(self.output_bytes)
    }
}

//! How much output to retain.

use std::time::Duration;

use super::Overflow;

/// How much output of a process the server retains.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use std::time::Duration;
/// use remex_client::{Command, process::{Overflow, Retain}};
///
/// // Keeps the last MiB for ten minutes after the exit, and never blocks the process.
/// let retain =
///     Retain::default().bytes(1 << 20).after_close(Duration::from_secs(600)).overflow(Overflow::Evict);
/// let process = Command::shell("seq 1000000").retain(retain).start(&client).await?;
/// assert!(process.wait().await?.success());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Retain {
    /// How many bytes; 1 MiB by default, limited by the server.
    pub bytes: Option<u64>,
    /// How long after the end of the process; 80 s by default.
    pub after_close: Option<Duration>,
    /// What happens when the buffer is full; by default backpressure blocks the process.
    pub overflow: Overflow,
}

impl Retain {
    /// Sets how many bytes to retain: [`Retain::bytes`](Retain#structfield.bytes).
    ///
    /// See [`Retain`] for an example.
    #[must_use]
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = Some(bytes);
        self
    }

    /// Sets how long to retain output after the end of the process:
    /// [`Retain::after_close`](Retain#structfield.after_close).
    ///
    /// See [`Retain`] for an example.
    #[must_use]
    pub fn after_close(mut self, time: Duration) -> Self {
        self.after_close = Some(time);
        self
    }

    /// Sets what happens when the buffer is full: [`Retain::overflow`](Retain#structfield.overflow).
    ///
    /// See [`Retain`] for an example.
    #[must_use]
    pub fn overflow(mut self, overflow: Overflow) -> Self {
        self.overflow = overflow;
        self
    }
}

//! The clock of an agent.

use std::{fmt, pin::Pin, time::Duration};

use tokio::time::{Instant, sleep};

/// The time source of an agent; tests can supply a simulated one.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::{pin::Pin, sync::Arc, time::Duration};
/// use remex_client::agent::{Agent, Clock, Limits, RealTime};
/// use tokio::time::Instant;
///
/// /// A clock that runs a thousand times faster.
/// #[derive(Debug)]
/// struct Hasty;
///
/// impl Clock for Hasty {
///     fn now(&self) -> Instant {
///         RealTime.now()
///     }
///
///     fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
///         RealTime.sleep(duration / 1000)
///     }
/// }
///
/// let agent = Agent::with_clock(Limits::default(), Arc::new(Hasty));
/// assert_eq!(agent.list(), []);
/// # Ok(()) }
/// ```
pub trait Clock: fmt::Debug + Send + Sync {
    /// Returns the current time.
    fn now(&self) -> Instant;

    /// Waits for this long.
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// The clock of the tokio runtime.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use remex_client::agent::{Clock as _, RealTime};
///
/// let before = RealTime.now();
/// RealTime.sleep(Duration::from_millis(1)).await;
/// assert!(RealTime.now() > before);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct RealTime;

impl Clock for RealTime {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(sleep(duration))
    }
}

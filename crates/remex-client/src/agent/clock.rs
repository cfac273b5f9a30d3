//! Time, as an agent sees it.

use std::{fmt, pin::Pin, time::Duration};

use tokio::time::{Instant, sleep};

/// Tells an agent what time it is, and wakes it; a test has one that it moves by hand.
pub trait Clock: fmt::Debug + Send + Sync {
    /// Returns the time.
    fn now(&self) -> Instant;

    /// Returns when so much time has passed.
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// The clock of the runtime.
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

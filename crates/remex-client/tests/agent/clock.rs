//! A clock that a test moves by hand.

use std::{pin::Pin, sync::Arc, time::Duration};

use remex_client::agent::Clock;
use tokio::{sync::watch, time::Instant};

/// A clock that a test moves by hand.
#[derive(Debug, Clone)]
pub(crate) struct Manual {
    now: Arc<watch::Sender<Instant>>,
    sleeping: Arc<watch::Sender<usize>>,
}

impl Manual {
    pub(crate) fn new() -> Self {
        Self { now: Arc::new(watch::Sender::new(Instant::now())), sleeping: Arc::new(watch::Sender::new(0)) }
    }

    /// Moves on.
    pub(crate) fn advance(&self, by: Duration) {
        self.now.send_modify(|now| *now += by);
    }

    /// Waits until a task sleeps.
    pub(crate) async fn asleep(&self) {
        self.sleeping.subscribe().wait_for(|sleeping| *sleeping > 0).await.unwrap();
    }
}

impl Clock for Manual {
    fn now(&self) -> Instant {
        *self.now.borrow()
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let due = self.now() + duration;
        let mut now = self.now.subscribe();
        let sleeper = Sleeper::new(&self.sleeping);
        Box::pin(async move {
            let _sleeper = sleeper;
            now.wait_for(|now| *now >= due).await.unwrap();
        })
    }
}

struct Sleeper(Arc<watch::Sender<usize>>);

impl Sleeper {
    fn new(sleeping: &Arc<watch::Sender<usize>>) -> Self {
        sleeping.send_modify(|sleeping| *sleeping += 1);
        Self(Arc::clone(sleeping))
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.send_modify(|sleeping| *sleeping -= 1);
    }
}

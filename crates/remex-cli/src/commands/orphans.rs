//! What the processes of a server or a keeper leave behind becomes a child of this program, which finds it and reaps it.

use std::{convert::Infallible, io, time::Duration};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The shortest time between two scans for orphans: each takes a fraction of a millisecond.
const PAUSE: Duration = Duration::from_millis(100);

/// The next step if there are no orphans to check.
pub(super) const UNFOUND: &str =
    "cannot adopt orphans: a kill may miss processes that hide which process they come from";

/// Reaps orphans.
#[derive(Debug)]
pub(super) struct OrphanReaper {
    /// Some child has ended.
    ended: Signal,
}

impl OrphanReaper {
    /// Makes this program the parent of all orphans. Call it in a runtime, before anything is started.
    pub(super) fn new() -> io::Result<Self> {
        let ended = signal(SignalKind::child())?;
        remex_process::adopt_orphans()?;
        Ok(Self { ended })
    }

    /// Reaps orphans as long as it is polled.
    pub(super) async fn run(mut self) -> Infallible {
        loop {
            while remex_process::reap_orphans() {
                tokio::time::sleep(PAUSE).await;
            }
            tokio::time::sleep(PAUSE).await;
            if self.ended.recv().await.is_none() {
                std::future::pending::<()>().await;
            }
        }
    }
}

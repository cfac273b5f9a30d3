//! When there is nothing to do: freed memory goes back to the host, and the end that nobody asks for.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::Server;
use crate::host::Phase;

/// How long nothing comes or goes before freed memory is given back: what comes next may want it again.
const QUIET: Duration = Duration::from_secs(2);
/// How long it waits for quiet at most.
const LONGEST_UNREST: Duration = Duration::from_secs(60);

impl Server {
    /// Gives freed memory back to the host, a moment after something came or went, until the server ends.
    ///
    /// For programs that are a server: it concerns the memory of the whole program.
    pub async fn give_memory_back(&self) {
        let (mut activity, mut phase) = (self.host.activity(), self.host.phase().subscribe());
        let give_back = async {
            // The sender lives as long as the server.
            while activity.changed().await.is_ok() {
                let latest = Instant::now() + LONGEST_UNREST;
                while timeout_at(latest.min(Instant::now() + QUIET), activity.changed()).await.is_ok() {}
                self.host.compute().run(remex_process::trim_heap).await;
            }
        };
        tokio::select! {
            () = give_back => {}
            _ = phase.wait_for(|phase| *phase > Phase::Serving) => {}
        }
    }

    /// Waits until there was nobody and nothing for `time`; from then on nobody gets a session any more, and
    /// [`Server::shut_down`] does the rest.
    ///
    /// Connections count, processes until they are forgotten, and sessions that wait for their client for a time. A
    /// session without processes that waits until the server ends does not.
    pub async fn idle(&self, time: Duration) {
        let mut activity = self.host.activity();
        loop {
            activity.borrow_and_update();
            if self.is_busy() {
                // The sender lives as long as the server.
                let _ = activity.changed().await;
                continue;
            }
            tokio::select! {
                _ = activity.changed() => {}
                () = tokio::time::sleep(time) => {
                    if self.close_if_idle() {
                        return;
                    }
                }
            }
        }
    }

    /// Sessions are made and resumed under the same lock, so that nobody gets one from a server that has closed.
    fn close_if_idle(&self) -> bool {
        let is_idle =
            self.sessions.close_if(|has_busy_sessions| !has_busy_sessions && !self.has_connections());
        if is_idle {
            tracing::info!("nothing to do");
        }
        is_idle
    }

    fn is_busy(&self) -> bool {
        self.has_connections() || self.sessions.is_busy()
    }

    fn has_connections(&self) -> bool {
        self.connection_permits.available_permits() < self.host.limits().connections
            || !self.sessions.connections().is_empty()
    }
}

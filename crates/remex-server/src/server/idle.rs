//! When there is nothing to do: freed memory goes back to the host, and the end that nobody asks for.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::{Phase, Server, sessions::Sessions};

/// How long nothing comes or goes before freed memory is given back: what comes next may want it again.
const QUIET: Duration = Duration::from_secs(2);
/// How long it waits for quiet at most.
const LONGEST_UNREST: Duration = Duration::from_secs(60);

impl Server {
    /// Gives freed memory back to the host, a moment after something came or went, until the server ends.
    ///
    /// For programs that are a server: it concerns the memory of the whole program.
    pub async fn give_memory_back(&self) {
        let (mut stirs, mut phase) = (self.stirs.subscribe(), self.phase.subscribe());
        let give_back = async {
            // The sender lives as long as the server.
            while stirs.changed().await.is_ok() {
                let latest = Instant::now() + LONGEST_UNREST;
                while timeout_at(latest.min(Instant::now() + QUIET), stirs.changed()).await.is_ok() {}
                self.compute.run(remex_process::give_memory_back).await;
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
        let mut stirs = self.stirs.subscribe();
        loop {
            stirs.borrow_and_update();
            if self.is_busy(&self.sessions()) {
                // The sender lives as long as the server.
                let _ = stirs.changed().await;
                continue;
            }
            tokio::select! {
                _ = stirs.changed() => {}
                () = tokio::time::sleep(time) => {
                    if self.close_if_idle() {
                        return;
                    }
                }
            }
        }
    }

    /// Tells [`Server::idle`] to look again: something came or went.
    pub(crate) fn stir(&self) {
        self.stirs.send_replace(());
    }

    /// Sessions are made and resumed under the same lock, so that nobody gets one from a server that has closed.
    fn close_if_idle(&self) -> bool {
        let sessions = self.sessions();
        let is_idle = !self.is_busy(&sessions);
        if is_idle {
            tracing::info!("nothing to do");
            self.phase.send_replace(Phase::Ending);
        }
        is_idle
    }

    fn is_busy(&self, sessions: &Sessions) -> bool {
        self.doors.available_permits() < self.limits().connections
            || !self.connections().is_empty()
            || sessions.expects_somebody()
            || sessions.by_id.values().any(|session| session.process_count() > 0)
    }
}

//! When there is nothing to do: the end that nobody asks for.

use std::time::Duration;

use super::{Phase, Server, sessions::Sessions};

impl Server {
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

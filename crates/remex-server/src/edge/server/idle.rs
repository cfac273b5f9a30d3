//! The idle server: returns freed memory to the host, and shuts down after a while.

use std::time::Duration;

use remex_engine::Phase;

use super::Server;

impl Server {
    /// Returns freed memory to the host shortly after activity, until the server shuts down.
    ///
    /// For dedicated server programs: it affects the memory of the whole program.
    pub async fn return_freed_memory(&self) {
        let mut phase = self.host.phase().subscribe();
        tokio::select! {
            () = self.host.return_freed_memory() => {}
            _ = phase.wait_for(|phase| *phase > Phase::Serving) => {}
        }
    }

    /// Waits until the server has been idle for `time`. From then on, it refuses new sessions, and
    /// [`Server::shut_down`] does the rest.
    ///
    /// A server is busy while it has connections, processes that are not forgotten, or detached sessions with
    /// an expiry. A session without processes that is kept until the server ends does not count.
    pub async fn wait_until_idle(&self, time: Duration) {
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

    /// Closes the server if it is idle. Sessions are created and resumed under the same lock, so a closed
    /// server never hands one out.
    fn close_if_idle(&self) -> bool {
        let is_idle =
            self.sessions.close_if(|has_busy_sessions| !has_busy_sessions && !self.has_connections());
        if is_idle {
            tracing::info!("server is idle");
        }
        is_idle
    }

    fn is_busy(&self) -> bool {
        self.has_connections() || self.sessions.is_busy()
    }

    fn has_connections(&self) -> bool {
        self.admission.has_connections() || !self.sessions.connections().is_empty()
    }
}

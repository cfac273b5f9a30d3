//! `/metrics`: what the server counts, and what its state is now.

use std::{net::SocketAddr, sync::Arc};

use remex_rpc::{Accepted, ListenAddress, Listener, Received, Refusal, receive};
use tokio::net::TcpStream;

use super::{ACCEPT_PAUSE, Server};
use crate::{
    admission::{HalfOpenPermit, Origin},
    auth::SocketOwner,
    budget::Budget,
    host::Phase,
    socket_owner,
};

impl Server {
    /// Serves `/metrics` and the health checks, and nothing else.
    pub async fn serve_metrics(self: Arc<Self>, listener: Listener) {
        if let ListenAddress::WebSocket(address) | ListenAddress::SecureWebSocket(address) =
            listener.address()
        {
            self.host.proxy().own_ports().add(address.port());
        }
        let mut phase = self.host.phase().subscribe();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = phase.wait_for(|phase| *phase > Phase::Serving) => return,
            };
            match accepted {
                Ok(Accepted::Tcp { stream, peer, local }) => {
                    let owner = socket_owner::find(local, peer);
                    let origin = Origin::new(peer.ip(), owner, rustix::process::geteuid().as_raw());
                    let Ok(permit) = self.admission.begin(origin, &self.host.limits()) else {
                        self.host.metrics().connections_refused.add(1);
                        continue;
                    };
                    let server = Arc::clone(&self);
                    self.host.spawn(async move {
                        tokio::select! {
                            () = server.on_request(stream, peer, owner, &permit) => {}
                            () = permit.evicted() => {}
                        }
                        drop(permit);
                    });
                }
                Ok(Accepted::Unix { .. }) => {}
                Err(error) => {
                    tracing::warn!(error = %error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn on_request(
        self: &Arc<Self>,
        stream: TcpStream,
        peer: SocketAddr,
        owner: SocketOwner,
        permit: &HalfOpenPermit,
    ) {
        match receive(stream, &self.handshake_config(None)).await {
            Ok(Received::Page(page)) => drop(self.answer_page(page, peer, None, owner, permit).await),
            Ok(Received::Upgrade(upgrade)) => drop(upgrade.refuse(Refusal::Forbidden).await),
            Err(_) => {}
        }
    }

    /// Returns the counters and the state of the server in the text format of Prometheus.
    pub(super) fn metrics_text(&self) -> String {
        let (host, limits) = (&self.host, self.host.limits());
        let sessions = self.sessions.all();
        let processes: usize = sessions.iter().map(|session| session.process_count()).sum();
        let connections = self.sessions.connections().all();
        let unanswered: usize = connections.iter().map(|outbox| outbox.unanswered()).sum();
        let retained = limits.server_retain_bytes.saturating_sub(host.retention().left());
        let used = |budget: &Budget| budget.total().saturating_sub(budget.free());
        host.metrics().render(|gauges| {
            gauges.gauge("remex_connections", "Connections that are open.", connections.len() as u64);
            gauges.gauge("remex_sessions", "Sessions that exist.", sessions.len() as u64);
            gauges.gauge("remex_processes", "Processes that are not closed.", processes as u64);
            gauges.gauge(
                "remex_unanswered_requests",
                "Requests that wait for their answer.",
                unanswered as u64,
            );
            let help = "Memory in use, by the cap that limits it.";
            gauges.gauge_by(
                "remex_memory_bytes",
                help,
                "cap",
                &[
                    ("retained_output", retained as u64),
                    ("answers", used(host.answers())),
                    ("incoming", used(host.incoming())),
                ],
            );
            let help = "The caps on memory.";
            gauges.gauge_by(
                "remex_memory_limit_bytes",
                help,
                "cap",
                &[
                    ("retained_output", limits.server_retain_bytes as u64),
                    ("answers", host.answers().total()),
                    ("incoming", host.incoming().total()),
                ],
            );
            let help = "Lines of the audit file that were discarded because the disk was too slow or full.";
            gauges.counter("remex_audit_dropped_total", help, host.audit().dropped());
        })
    }
}

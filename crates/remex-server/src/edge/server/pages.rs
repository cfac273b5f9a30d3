//! `/metrics`: the counters and the current state of the server.

use std::sync::Arc;

use remex_access::{
    account::Kind,
    admission::{HalfOpenPermit, Origin},
    auth::SocketOwner,
};
use remex_engine::Phase;
use remex_rpc::{Accepted, ListenAddress, Listener, Received, Refusal, receive};
use tokio::net::TcpStream;

use super::{ACCEPT_PAUSE, Server, admit::TcpEnds};
use crate::peers::socket_owner;

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
                            () = server.on_request(stream, TcpEnds { peer, local }, owner, &permit) => {}
                            () = permit.evicted() => {}
                        }
                        drop(permit);
                    });
                }
                Ok(Accepted::Unix { .. }) => {}
                Err(error) => {
                    self.warn_unaccepted(&error);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn on_request(
        self: &Arc<Self>,
        stream: TcpStream,
        ends: TcpEnds,
        owner: SocketOwner,
        permit: &HalfOpenPermit,
    ) {
        match receive(stream, &self.handshake_config(None)).await {
            Ok(Received::Page(page)) => drop(self.answer_page(page, ends, None, owner, permit).await),
            Ok(Received::Upgrade(upgrade)) => drop(upgrade.refuse(Refusal::Forbidden).await),
            Err(_) => {}
        }
    }

    /// Returns the counters and the state of the server in the text format of Prometheus.
    pub(crate) fn metrics_text(&self) -> String {
        let host = &self.host;
        let sessions = self.sessions.all();
        let processes: usize = sessions.iter().map(|session| session.process_count()).sum();
        let connections = self.sessions.connections().all();
        let unanswered: usize = connections.iter().map(|outbox| outbox.unanswered()).sum();
        host.metrics().render(|gauges| {
            gauges.gauge("remex_connections", "Connections that are open.", connections.len() as u64);
            gauges.gauge("remex_sessions", "Sessions that exist.", sessions.len() as u64);
            gauges.gauge("remex_processes", "Processes that are not closed.", processes as u64);
            gauges.gauge(
                "remex_unanswered_requests",
                "Requests that wait for their answer.",
                unanswered as u64,
            );
            let accounts = host.accounts();
            let used = Kind::ALL.map(|kind| (kind.label(), accounts.server().used_for(kind) as u64));
            let help = "Memory that clients make the server keep, by what it is for.";
            gauges.gauge_by("remex_memory_bytes", help, "cap", &used);
            let help = "The caps on some of that, for all clients.";
            gauges.gauge_by(
                "remex_memory_limit_bytes",
                help,
                "cap",
                &[
                    (Kind::Output.label(), accounts.server().cap(Kind::Output) as u64),
                    (Kind::Answers.label(), host.answers().total()),
                    (Kind::Incoming.label(), host.incoming().total()),
                ],
            );
            let help = "The cap on all memory that clients make the server keep.";
            gauges.gauge("remex_memory_budget_bytes", help, accounts.server().limit() as u64);
            let help = "The cap on the memory of one identity.";
            gauges.gauge("remex_memory_identity_budget_bytes", help, accounts.identity_limit() as u64);
            let help = "Memory of the identity that uses the most.";
            gauges.gauge("remex_memory_identity_max_bytes", help, accounts.largest() as u64);
            let help = "Lines of the audit file that were discarded because the disk was too slow or full.";
            gauges.counter("remex_audit_dropped_total", help, host.audit().dropped());
        })
    }
}

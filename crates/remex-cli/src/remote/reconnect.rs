//! What a command that goes on for long does about a lost connection: it comes back, and says so in one line.

use std::time::{Duration, Instant};

use remex_client::{Client, ConnectionState, Options};

use crate::{
    remote::endpoint::{Endpoint, EndpointKind},
    render::{failure::Failure, print, text::span},
};

/// What is said then.
const LOST: &str = "connection lost; reconnecting";

/// How long the end of a session is waited for.
const END: Duration = Duration::from_secs(3);

/// How long the session of somebody who looks on may be without a connection: longer than one is tried for.
const AWAY: Duration = Duration::from_secs(120);

/// Lets the session wait for as long as a new connection is tried for.
pub(crate) fn keep_session(options: &mut Options) {
    options.detach_ttl = Some(AWAY);
}

/// Ends a session with everything in it, if its server can be told; otherwise it ends by itself.
pub(crate) async fn end(client: Client) {
    if client.connection_state() == ConnectionState::Connected {
        let _ = tokio::time::timeout(END, client.end()).await;
    }
}

/// Does some work, and tells on stderr when it has to wait for the connection; fails when its server is gone.
pub(crate) async fn with_notices<T>(
    kind: EndpointKind,
    client: &Client,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let mut conditions = client.connection_states();
    let mut notices = Notices::of(client);
    let mut work = std::pin::pin!(work);
    let mut gone = std::pin::pin!(Endpoint::server_gone(kind, client));
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done.map_err(|failure| Endpoint::explain(kind, failure)),
            failure = &mut gone => return Err(failure),
            changed = conditions.changed() => {
                if changed.is_err() {
                    return work.await;
                }
                notices.next(client).iter().for_each(print::note);
            }
        }
    }
}

/// What there is to say about a connection: that it is lost, and that it is back.
#[derive(Debug)]
pub(crate) struct Notices {
    disconnects: u64,
    /// Since when there is none, as far as it was said.
    lost_at: Option<Instant>,
}

impl Notices {
    pub(crate) fn of(client: &Client) -> Self {
        Self { disconnects: client.disconnects(), lost_at: None }
    }

    /// Returns what is new; called whenever the condition of the client has changed.
    pub(crate) fn next(&mut self, client: &Client) -> Vec<String> {
        let mut notices = Vec::new();
        let condition = client.connection_state();
        // It may be back before anybody looked.
        if client.disconnects() > self.disconnects {
            self.disconnects = client.disconnects();
            if self.lost_at.is_none() {
                notices.push(LOST.to_owned());
                self.lost_at = Some(match condition {
                    ConnectionState::Reconnecting { since } => since.into(),
                    _ => Instant::now(),
                });
            }
        }
        if condition == ConnectionState::Connected
            && let Some(lost_at) = self.lost_at.take()
        {
            notices.push(format!("reconnected after {}", span(lost_at.elapsed())));
        }
        notices
    }
}

//! Reports disconnects and reconnects of long-running commands, in one line each.

use std::time::{Duration, Instant};

use remex_client::{Client, ConnectionState, Options, SessionLost};

use crate::{
    remote::endpoint::{Endpoint, EndpointKind},
    render::{failure::Failure, print, text::span},
};

/// The notice of a disconnect.
const LOST: &str = "connection lost; reconnecting";

/// How long ending a session may take.
const END_TIMEOUT: Duration = Duration::from_secs(3);

/// How long the session of an observer survives without a connection: longer than reconnecting is tried.
pub(crate) const DETACH_TTL: Duration = Duration::from_secs(120);

/// Keeps the session alive as long as reconnecting is tried.
pub(crate) fn keep_session(options: &mut Options) {
    options.detach_ttl = Some(DETACH_TTL);
}

/// Ends a session and its processes; if the server is unreachable, the session expires.
pub(crate) async fn end(client: Client) {
    if client.connection_state() == ConnectionState::Connected {
        let _ = tokio::time::timeout(END_TIMEOUT, client.end()).await;
    }
}

/// Adds to the failure of a foreground command what becomes of it when its client gives up reconnecting.
pub(crate) fn explain_end(failure: Failure) -> Failure {
    match failure.loss() {
        Some(SessionLost::ReconnectTimedOut { .. }) => failure
            .with_clause("the server ends the command now")
            .with_hint("use `remex run --detach` for a command that must survive longer disconnects"),
        _ => failure,
    }
}

/// Adds how to return to a process that keeps running when its client gives up reconnecting.
pub(crate) fn explain_left(failure: Failure, name: &str, reattach: &str) -> Failure {
    match failure.loss() {
        Some(SessionLost::ReconnectTimedOut { .. }) => failure
            .with_clause(&format!("`{name}` keeps running as long as its server does"))
            .with_hint(format!("when the server can be reached again, reattach with `{reattach}`")),
        _ => failure,
    }
}

/// Runs a command, and reports disconnects on stderr; fails when the user's server has exited.
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

/// Creates notices about lost and re-established connections.
#[derive(Debug)]
pub(crate) struct Notices {
    disconnects: u64,
    /// When the connection was lost, if that was reported.
    lost_at: Option<Instant>,
}

impl Notices {
    pub(crate) fn of(client: &Client) -> Self {
        Self { disconnects: client.disconnects(), lost_at: None }
    }

    /// Returns new notices; call it after every change of the connection state.
    pub(crate) fn next(&mut self, client: &Client) -> Vec<String> {
        let mut notices = Vec::new();
        let condition = client.connection_state();
        // The client may have reconnected already.
        if client.disconnects() > self.disconnects {
            self.disconnects = client.disconnects();
            if self.lost_at.is_none() {
                notices.push(LOST.to_owned());
                self.lost_at = Some(match condition {
                    ConnectionState::Reconnecting { since, .. } => since.into(),
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

#[cfg(test)]
mod tests {
    use remex_client::Error;

    use super::*;

    fn given_up() -> Failure {
        let refused = Error::unreachable("ws://far:1", "refused");
        let lost =
            SessionLost::ReconnectTimedOut { after: Duration::from_secs(300), last: Box::new(refused) };
        Error::Lost(lost).into()
    }

    #[test]
    fn a_shell_can_be_reattached_after_its_client_gave_up() {
        let failure = explain_left(given_up(), "shell", "remex attach --on far shell");
        assert!(failure.message().contains("; `shell` keeps running"), "{}", failure.message());
        assert!(failure.hint().unwrap().ends_with("`remex attach --on far shell`"), "{:?}", failure.hint());
    }

    #[test]
    fn a_foreground_command_ends_when_its_client_gives_up() {
        let failure = explain_end(given_up());
        assert!(failure.message().contains("within 300s"), "{}", failure.message());
        assert!(failure.message().ends_with("; the server ends the command now"), "{}", failure.message());
        assert!(failure.hint().unwrap().contains("`remex run --detach`"), "{:?}", failure.hint());

        let other = explain_end(Error::Lost(SessionLost::TakenOver).into());
        assert_eq!(other.message(), "another client took over the session");
    }
}

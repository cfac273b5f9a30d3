//! Reports disconnects and reconnects of long-running commands, in one line each.

use std::time::{Duration, Instant};

use remex_client::{Client, ConnectionState, Error, Options, SessionLost};

use crate::{
    remote::endpoint::{Endpoint, EndpointKind},
    render::{
        failure::{Failure, InvalidArg},
        print,
        text::{self, span},
    },
};

/// How long `run`, `shell` and `attach` try to reconnect unless the user says otherwise.
pub(crate) const DEFAULT_WINDOW: Duration = Duration::from_secs(3600);

/// Stands for no end of reconnecting, and for a session that never expires.
pub(crate) const FOREVER: Duration = Duration::MAX;

/// The notice of a disconnect.
const LOST: &str = "connection lost; reconnecting";

/// How long ending a session may take.
const END_TIMEOUT: Duration = Duration::from_secs(3);

/// How long the session of an observer survives without a connection: longer than reconnecting is tried.
pub(crate) const DETACH_TTL: Duration = Duration::from_secs(120);

/// The longest time that the session of an observer survives a disconnect, even if reconnecting is tried for longer.
const MAX_OBSERVER_TTL: Duration = Duration::from_secs(30 * 24 * 3600);

/// Keeps the session alive as long as reconnecting is tried.
pub(crate) fn keep_session(options: &mut Options) {
    options.detach_ttl = Some(DETACH_TTL);
}

/// Keeps the session of an observer alive as long as reconnecting is tried, which is `window`.
pub(crate) fn keep_session_for(window: Duration) -> impl FnOnce(&mut Options) {
    move |options| {
        options.reconnect_timeout = window;
        options.detach_ttl = Some(window.clamp(DETACH_TTL, MAX_OBSERVER_TTL));
    }
}

/// Parses the value of `--reconnect`: a time, or `forever`.
pub(crate) fn window(text: &str) -> Result<Duration, InvalidArg> {
    match text {
        "forever" => Ok(FOREVER),
        _ => remex::units::parse_duration(text).ok_or_else(|| {
            InvalidArg::new(
                "it is neither a number with a unit nor `forever`",
                "write a time such as `30m`, `24h` or `7d`, or `forever`",
            )
        }),
    }
}

/// The texts for the time while a client is disconnected from a process.
#[derive(Clone, Debug)]
pub(crate) struct Absence {
    /// The name of the process.
    pub(crate) name: String,
    /// The command that reattaches to it.
    pub(crate) reattach: String,
    /// How long the client tries to reconnect.
    pub(crate) window: Duration,
    /// How long the server keeps the process without a connection; `None` until the server ends.
    pub(crate) kept: Option<Duration>,
}

impl Absence {
    /// Describes the disconnect for a status line; `away` is how long it has lasted.
    pub(crate) fn status(&self, away: Duration, cause: &Error) -> String {
        let left = |limit: Duration| span(limit.saturating_sub(away));
        let rest = match self.kept {
            Some(kept) if kept < self.window => {
                format!("reconnecting, its server keeps it for another {}", left(kept))
            }
            _ if self.window == FOREVER => "reconnecting without end".to_owned(),
            _ => format!("reconnecting for another {}", left(self.window)),
        };
        format!("connection lost {} ago; {rest}: {}", span(away), reason(cause))
    }

    /// Describes the disconnect in a line that is printed once.
    pub(crate) fn notice(&self, cause: &Error) -> String {
        let rest = match self.kept {
            Some(kept) if kept < self.window => {
                format!("reconnecting, its server keeps `{}` for {}", self.name, span(kept))
            }
            _ if self.window == FOREVER => "reconnecting without end".to_owned(),
            _ => format!("reconnecting for {}", span(self.window)),
        };
        format!("connection lost; {rest}: {}", reason(cause))
    }

    /// The notice after the first Ctrl-C: what another one does.
    pub(crate) fn interrupted(&self, away: Duration) -> String {
        let Self { name, reattach, .. } = self;
        let retention_clause = self.retention_clause(away);
        format!("not connected; Ctrl-C again leaves `{name}`, `{reattach}` comes back; {retention_clause}")
    }

    /// The notice about a process that was detached from during a disconnect.
    pub(crate) fn left(&self, away: Duration) -> String {
        let Self { name, reattach, .. } = self;
        let retention_clause = self.retention_clause(away);
        format!("left `{name}` without a connection; {retention_clause}; come back with `{reattach}`")
    }

    fn retention_clause(&self, away: Duration) -> String {
        match self.kept {
            Some(kept) => format!("its server keeps it for another {}", span(kept.saturating_sub(away))),
            None => "it keeps running as long as its server does".to_owned(),
        }
    }
}

/// Warns a user who requested a longer time than the server grants.
pub(crate) fn warn_if_shorter(endpoint: &Endpoint, client: &Client, wanted: Duration) {
    let granted = client.welcome().detach_ttl_ms.map(Duration::from_millis);
    if let Some(granted) = granted.filter(|granted| *granted < wanted) {
        print::note(format!(
            "{} keeps processes for at most {} without a connection, not {} (`--max-detach-ttl` of its server)",
            text::plain(&endpoint.name),
            span(granted),
            if wanted == FOREVER { "forever".to_owned() } else { format!("for {}", span(wanted)) },
        ));
    }
}

/// Returns why there is no connection, in one line.
pub(crate) fn reason(cause: &Error) -> String {
    match cause {
        Error::ProgramEnded { status, stderr, .. } => {
            let last = stderr.lines().map(str::trim).rfind(|line| !line.is_empty());
            text::plain(last.unwrap_or(status))
        }
        Error::PromptRefused { .. } => "the login prompts".to_owned(),
        _ => text::plain(&cause.why().map_or_else(|| cause.what(), Into::into)),
    }
}

/// Returns a hint if reconnecting cannot succeed without the user.
pub(crate) fn remedy(cause: &Error) -> Option<String> {
    let needs_user = matches!(cause, Error::ProgramEnded { .. } | Error::PromptRefused { .. });
    cause.hint().filter(|_| needs_user).map(text::plain)
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
        Some(SessionLost::ReconnectTimedOut { last, .. }) => {
            let longer = "use `--reconnect forever` or `remex run --detach` for a command that must survive longer \
                          disconnects";
            let hint = remedy(last).map_or_else(|| longer.to_owned(), |remedy| format!("{remedy}; {longer}"));
            failure.with_clause("the server ends the command now").with_hint(hint)
        }
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

//! Why a session ended for good.

use std::{borrow::Cow, fmt, time::Duration};

use super::Error;

/// Why a session is lost.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use remex_client::{Command, Error, SessionLost};
///
/// let process = Command::new("sleep").arg("1000").start(&client).await?;
/// client.close().await;
/// assert_eq!(process.wait().await, Err(Error::Lost(SessionLost::Closed)));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionLost {
    /// The client was disconnected by its owner.
    Closed,
    /// The session no longer exists on the server: it expired, was ended, or the server restarted.
    Forgotten {
        /// The message of the server.
        message: String,
    },
    /// The client could not reconnect within [`Options::reconnect_timeout`](crate::Options::reconnect_timeout).
    ReconnectTimedOut {
        /// How long the client tried.
        after: Duration,
        /// The error of the last attempt.
        last: Box<Error>,
    },
    /// The connection was lost, and a server of the oldest dialect has no sessions to resume.
    NotResumable {
        /// Why the connection ended.
        reason: String,
    },
    /// Another client took the session over.
    TakenOver,
    /// The connection task stopped: its runtime was shut down, or it panicked.
    Stopped,
    /// The server violated the protocol repeatedly.
    Protocol {
        /// The last violation.
        what: String,
    },
    /// The server rejected the client when it reconnected.
    Rejected(Box<Error>),
}

impl std::error::Error for SessionLost {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SessionLost::ReconnectTimedOut { last: cause, .. } | SessionLost::Rejected(cause) => {
                Some(&**cause)
            }
            _ => None,
        }
    }
}

impl SessionLost {
    pub(super) fn what(&self) -> String {
        match self {
            SessionLost::Closed => "the client is closed".to_owned(),
            SessionLost::Forgotten { message } => {
                format!("the session no longer exists on the server ({message})")
            }
            SessionLost::ReconnectTimedOut { after, .. } => {
                format!("the connection was lost and could not be re-established within {after:?}")
            }
            SessionLost::NotResumable { .. } => {
                "the connection was lost, and its processes have ended with it".to_owned()
            }
            SessionLost::TakenOver => "another client took over the session".to_owned(),
            SessionLost::Stopped => {
                "the connection task stopped because its runtime shut down or it panicked".to_owned()
            }
            SessionLost::Protocol { .. } => "repeated protocol errors".to_owned(),
            SessionLost::Rejected(_) => "the server rejected the client when it reconnected".to_owned(),
        }
    }

    pub(super) fn why(&self) -> Option<Cow<'_, str>> {
        match self {
            SessionLost::Forgotten { .. } => Some(
                "it expired, was ended, or the server restarted without a state directory, and its processes have ended"
                    .into(),
            ),
            SessionLost::ReconnectTimedOut { last: cause, .. } | SessionLost::Rejected(cause) => {
                Some(cause.message().into())
            }
            SessionLost::Protocol { what } => Some(what.into()),
            SessionLost::NotResumable { reason } => {
                Some(format!("{reason}, and a server of the oldest dialect has no sessions").into())
            }
            SessionLost::Closed | SessionLost::TakenOver | SessionLost::Stopped => None,
        }
    }

    pub(super) fn hint(&self) -> &str {
        match self {
            SessionLost::ReconnectTimedOut { last: cause, .. } | SessionLost::Rejected(cause) => {
                cause.hint().unwrap_or("connect again")
            }
            SessionLost::Closed | SessionLost::Stopped => "connect again",
            SessionLost::Forgotten { .. } => {
                "connect again and start them again; with `remex serve --state DIR` they survive a restart of the server"
            }
            SessionLost::NotResumable { .. } => "connect again; `remex serve` there keeps processes running",
            SessionLost::TakenOver => "it continues there",
            SessionLost::Protocol { .. } => "check that this is a remex server, and its version",
        }
    }
}

impl fmt::Display for SessionLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what())?;
        if let Some(why) = self.why() {
            write!(f, ": {why}")?;
        }
        write!(f, "; {}", self.hint())
    }
}

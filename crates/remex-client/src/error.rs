//! The errors of the client, as one comparable enum.
//!
//! Start at [`Error`].

use std::{io, time::Duration};

use remex_proto::{ErrorKind, RpcError};

use crate::refusal::Refusal;

/// Why a call, a connection or a transfer failed.
///
/// It can be cloned, because one cause fails every call that waits for the same connection.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use remex_client::{Error, ErrorKind};
///
/// let error = client.fs().read("/no/such/file").await.unwrap_err();
/// assert!(matches!(&error, Error::Refused(refusal) if refusal.kind == ErrorKind::NotFound));
/// assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::NotFound);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The address is invalid; no connection was attempted.
    #[error("cannot use `{address}` as a server: {reason}")]
    Address {
        /// As given.
        address: String,
        /// What is wrong, and what is valid.
        reason: String,
    },
    /// The server cannot be reached, or is not a remex server.
    #[error("cannot connect to {target}: {reason}")]
    Unreachable {
        /// The address of the server.
        target: String,
        /// Why the connection failed, and what to do.
        reason: String,
    },
    /// The server requires a token, or rejected the one presented.
    #[error("{target} {} (status {status}); {}",
        if *presented { "refused the token" } else { "requires a token" },
        if *presented { "check the bearer token" } else { "present a bearer token" })]
    Unauthorized {
        /// The address of the server.
        target: String,
        /// 401 or 403.
        status: u16,
        /// Whether a token was presented.
        presented: bool,
    },
    /// The program of the connection exited before the handshake was complete.
    #[error("{program} exited before it responded ({status}){}", said(stderr))]
    ProgramEnded {
        /// The command line of the program.
        program: String,
        /// Its exit status or signal.
        status: String,
        /// The end of its standard error.
        stderr: String,
    },
    /// A timeout expired.
    #[error("{what} timed out after {after:?}; raise the timeout, or check what is blocking it")]
    TimedOut {
        /// `connecting`, `the handshake`, or the method of a call.
        what: &'static str,
        /// The limit.
        after: Duration,
    },
    /// The server refused the call.
    #[error("{0}")]
    Refused(RpcError),
    /// The call exceeds the server's limit for one message; it was not sent.
    #[error(
        "`{method}` needs a message of {bytes} bytes, but the server accepts at most {limit}; send it in parts, or use `upload` for a file"
    )]
    TooLong {
        /// The method.
        method: &'static str,
        /// The length of the message.
        bytes: u64,
        /// The server's limit.
        limit: u64,
    },
    /// The connection was lost during the call, so it is unknown whether the call took effect.
    ///
    /// Only calls that cannot be repeated safely fail like this; the others are sent again.
    #[error(
        "the connection was lost during `{method}`, so it is unknown whether it took effect; check, then try again"
    )]
    Interrupted {
        /// The method.
        method: &'static str,
    },
    /// The session is lost, and everything in it.
    #[error("{0}")]
    Lost(SessionLost),
    /// The server violated the protocol.
    #[error("protocol error: {what}; check that this is a remex server, and its version")]
    Protocol {
        /// The violation.
        what: String,
    },
    /// The server evicted output before it was read.
    #[error("{} of output were dropped before they were read; retain more output, or read it sooner", amount(*bytes))]
    Gap {
        /// How much; unknown for a very late reader, or on a server of the base dialect.
        bytes: Option<u64>,
    },
    /// Too much of a body was buffered unread, on a server without backpressure.
    #[error(
        "{bytes} bytes of a body were not read in time, and this server does not support backpressure; read the body sooner"
    )]
    Overrun {
        /// How many bytes were buffered.
        bytes: u64,
    },
    /// A file changed while it was being transferred.
    #[error("`{path}` changed during the transfer; try again when nothing writes to it")]
    Changed {
        /// The file.
        path: String,
    },
    /// A local read or write failed.
    #[error("cannot {action}: {message}")]
    Local {
        /// The operation, with the name of the file.
        action: String,
        /// The kind of failure, for programs.
        kind: io::ErrorKind,
        /// The failure, for people.
        message: String,
    },
    /// An agent refused a call.
    #[error("{0}")]
    Agent(Refusal),
    /// The arguments of the call are invalid.
    #[error("{0}")]
    Usage(String),
}

/// Why a session is lost.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use remex_client::{Error, SessionLost};
///
/// let process = client.command("sleep").arg("1000").start().await?;
/// client.disconnect().await;
/// assert_eq!(process.wait().await, Err(Error::Lost(SessionLost::Closed)));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionLost {
    /// The client was disconnected by its owner.
    #[error("the client is closed; connect again")]
    Closed,
    /// The session no longer exists on the server: it expired, was ended, or the server restarted.
    #[error(
        "the session no longer exists on the server ({message}): it expired, was ended, or the server restarted; connect again"
    )]
    Forgotten {
        /// The message of the server.
        message: String,
    },
    /// The client could not reconnect within [`Options::reconnect_timeout`](crate::Options::reconnect_timeout).
    #[error(
        "the connection was lost and could not be re-established within {after:?}: {last}; connect again"
    )]
    ReconnectTimedOut {
        /// How long the client tried.
        after: Duration,
        /// The error of the last attempt.
        last: Box<Error>,
    },
    /// Another client took the session over.
    #[error("another client took over the session; it continues there")]
    TakenOver,
    /// The connection task stopped: its runtime was shut down, or it panicked.
    #[error("the connection task stopped because its runtime shut down or it panicked; connect again")]
    Stopped,
    /// The server violated the protocol repeatedly.
    #[error("repeated protocol errors: {what}; check that this is a remex server, and its version")]
    Protocol {
        /// The last violation.
        what: String,
    },
    /// The server rejected the client when it reconnected.
    #[error("the server rejected the client when it reconnected: {0}; connect again")]
    Rejected(Box<Error>),
}

impl Error {
    /// Returns the error kind of a refusal by the server; `None` for other errors.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::ErrorKind;
    ///
    /// let error = client.command("no-such-program").start().await.unwrap_err();
    /// assert_eq!(error.refusal(), Some(ErrorKind::ProgramNotFound));
    /// # Ok(()) }
    /// ```
    pub fn refusal(&self) -> Option<ErrorKind> {
        match self {
            Error::Refused(error) => Some(error.kind),
            _ => None,
        }
    }

    /// Returns the hint of a refusal by the server, if it sent one.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// let error = client.command("no-such-program").start().await.unwrap_err();
    /// println!("{error}; {}", error.hint().unwrap_or("no hint"));
    /// # Ok(()) }
    /// ```
    pub fn hint(&self) -> Option<&str> {
        match self {
            Error::Refused(error) => error.hint.as_deref(),
            _ => None,
        }
    }

    /// Creates an error from a local failure.
    pub(crate) fn local(action: impl Into<String>, error: &io::Error) -> Self {
        Error::Local { action: action.into(), kind: error.kind(), message: error.to_string() }
    }
}

impl From<RpcError> for Error {
    fn from(error: RpcError) -> Self {
        Error::Refused(error)
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Error::Agent(refusal)
    }
}

impl From<SessionLost> for Error {
    fn from(loss: SessionLost) -> Self {
        Error::Lost(loss)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Refused(refusal) => match refusal.kind {
                ErrorKind::NotFound => io::ErrorKind::NotFound,
                ErrorKind::PermissionDenied => io::ErrorKind::PermissionDenied,
                ErrorKind::AlreadyExists => io::ErrorKind::AlreadyExists,
                ErrorKind::StdinClosed => io::ErrorKind::BrokenPipe,
                _ => io::ErrorKind::Other,
            },
            Error::TimedOut { .. } => io::ErrorKind::TimedOut,
            Error::Interrupted { .. } | Error::Lost(_) => io::ErrorKind::ConnectionAborted,
            Error::Gap { .. } => io::ErrorKind::InvalidData,
            Error::Local { kind, .. } => *kind,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

/// Creates an error for a server that cannot be reached.
pub(crate) fn unreachable(target: &str, reason: impl Into<String>) -> Error {
    Error::Unreachable { target: target.to_owned(), reason: reason.into() }
}

/// Returns the standard error of a program as an addition to a message.
pub(crate) fn said(stderr: &str) -> String {
    if stderr.trim().is_empty() { String::new() } else { format!("; it printed: {}", stderr.trim_end()) }
}

fn amount(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "an unknown amount".to_owned(), |bytes| format!("{bytes} bytes"))
}

/// Returns whether the server does not know a process, in any dialect.
pub(crate) fn is_unknown_process(error: &Error) -> bool {
    matches!(error, Error::Refused(refusal) if refusal.kind == ErrorKind::UnknownProcess
        || refusal.message.starts_with("unknown process id"))
}

/// Returns whether a process is still starting, in any dialect.
pub(crate) fn is_starting(error: &Error) -> bool {
    matches!(error, Error::Refused(refusal) if refusal.kind == ErrorKind::ProcessStarting
        || refusal.message.starts_with("process id") && refusal.message.ends_with("is starting"))
}

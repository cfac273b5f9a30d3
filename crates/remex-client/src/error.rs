//! What can go wrong, as one comparable enum: what happened, and what to do.
//!
//! Start at [`Error`].

use std::{io, time::Duration};

use remex_proto::{ErrorKind, RpcError};

use crate::refusal::Refusal;

/// What became of a call, a connection or a transfer that failed.
///
/// It can be cloned, because one cause ends every call that waits for the same connection.
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
    /// An address that cannot be used; no connection was tried.
    #[error("cannot use `{address}` as a server: {reason}")]
    Address {
        /// As given.
        address: String,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// There is no server at the address, or it is not one of ours.
    #[error("cannot connect to {target}: {reason}")]
    Unreachable {
        /// Where the connection was to lead.
        target: String,
        /// What the way there answered, and what to do.
        reason: String,
    },
    /// The server wants a token, or another one.
    #[error("{target} {} (status {status}); {}",
        if *presented { "refused the token" } else { "wants a token" },
        if *presented { "check the bearer token" } else { "present a bearer token" })]
    Unauthorized {
        /// Where the connection was to lead.
        target: String,
        /// 401 or 403.
        status: u16,
        /// Whether a token was presented.
        presented: bool,
    },
    /// The program that was to speak the protocol on its standard streams ended instead.
    #[error("{program} ended before it answered ({status}){}", said(stderr))]
    ProgramEnded {
        /// The program as it was called.
        program: String,
        /// How it ended.
        status: String,
        /// The last of what it said on standard error.
        stderr: String,
    },
    /// Something took longer than it may.
    #[error("{what} took longer than {after:?}; raise the limit, or look at what holds it up")]
    TimedOut {
        /// `connecting`, `the handshake`, or the method of a call.
        what: &'static str,
        /// The limit.
        after: Duration,
    },
    /// The server refused the call.
    #[error("{0}")]
    Refused(RpcError),
    /// A call that is longer than the server takes; it was not sent.
    #[error(
        "`{method}` would be a message of {bytes} bytes, and the server takes {limit}; send it in parts, a file with `upload`"
    )]
    TooLong {
        /// The method.
        method: &'static str,
        /// The length of the message.
        bytes: u64,
        /// The server's limit.
        limit: u64,
    },
    /// The connection was cut while the call was under way, and nobody can know whether it took effect.
    ///
    /// Only calls that cannot be repeated safely end like this; the others are sent again.
    #[error(
        "the connection was cut during `{method}`, and whether it took effect is not known; look, then try again"
    )]
    Interrupted {
        /// The method.
        method: &'static str,
    },
    /// The session is lost, and everything in it.
    #[error("{0}")]
    Lost(SessionLost),
    /// The server said something that makes no sense.
    #[error("the server broke the protocol: {what}; check that it is one, and its version")]
    Protocol {
        /// What it said.
        what: String,
    },
    /// Output that the server no longer had when it was wanted.
    #[error("{} of output are gone, because nobody read them in time; retain more, or read sooner", amount(*bytes))]
    Gap {
        /// How much; unknown for a reader that comes very late, or on a foreign server.
        bytes: Option<u64>,
    },
    /// More of a body arrived than may wait for its reader, from a server that cannot be told to wait.
    #[error(
        "{bytes} bytes of a body arrived before they were read, and the server cannot be told to wait; read sooner"
    )]
    Overrun {
        /// How much waited.
        bytes: u64,
    },
    /// A file changed while it was being transferred.
    #[error("`{path}` changed while it was transferred; try again when nobody writes to it")]
    Changed {
        /// The file.
        path: String,
    },
    /// Reading or writing on this side failed.
    #[error("cannot {action}: {message}")]
    Local {
        /// What was tried, with the name of the file.
        action: String,
        /// The kind of failure, for programs.
        kind: io::ErrorKind,
        /// The failure, for people.
        message: String,
    },
    /// An agent asked for something that its processes do not allow.
    #[error("{0}")]
    Agent(Refusal),
    /// The caller asked for something that cannot be.
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
    /// The client was closed by its owner.
    #[error("the client is closed; connect again")]
    Closed,
    /// The server does not know the session any more: it was away too long, was ended, or the server was restarted.
    #[error(
        "the server no longer knows the session ({message}); it was away too long or was ended, or the server was restarted: connect again"
    )]
    Forgotten {
        /// The server's words.
        message: String,
    },
    /// No connection could be made in the time that recovery may take.
    #[error("the connection was lost and did not come back within {after:?}: {last}; connect again")]
    ReconnectTimedOut {
        /// How long it was tried.
        after: Duration,
        /// What the last try ended with.
        last: Box<Error>,
    },
    /// Another client took the session over.
    #[error("another client took the session over; it goes on there")]
    TakenOver,
    /// The task that has the connection is gone: its runtime was shut down, or it met a defect.
    #[error("the runtime that the client ran on has ended, or the client met a defect; connect again")]
    Stopped,
    /// The server goes on breaking the protocol, after everything that it broke was ended or tried again.
    #[error(
        "the server keeps breaking the protocol: {what}; check that it is a remex server, and its version"
    )]
    Protocol {
        /// What it said last.
        what: String,
    },
    /// The server refuses this client, and would do so again.
    #[error("the server does not take the client back: {0}; connect again")]
    Rejected(Box<Error>),
}

impl Error {
    /// Returns the stable word of a refusal by the server, `None` for failures of other kinds.
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

    /// Returns what to do about a refusal, where the server says it apart from the message.
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

    /// Makes an error of a failure on this side.
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

/// Makes an error of a way that leads nowhere.
pub(crate) fn unreachable(target: &str, reason: impl Into<String>) -> Error {
    Error::Unreachable { target: target.to_owned(), reason: reason.into() }
}

/// Returns what to add to a message about a program that has said `stderr`.
pub(crate) fn said(stderr: &str) -> String {
    if stderr.trim().is_empty() { String::new() } else { format!("; it said: {}", stderr.trim_end()) }
}

fn amount(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "an unknown amount".to_owned(), |bytes| format!("{bytes} bytes"))
}

/// Tells whether a server has forgotten a process, whatever its dialect.
pub(crate) fn is_unknown_process(error: &Error) -> bool {
    matches!(error, Error::Refused(refusal) if refusal.kind == ErrorKind::UnknownProcess
        || refusal.message.starts_with("unknown process id"))
}

/// Tells whether a process is about to be there, whatever the dialect of the server.
pub(crate) fn is_starting(error: &Error) -> bool {
    matches!(error, Error::Refused(refusal) if refusal.kind == ErrorKind::ProcessStarting
        || refusal.message.starts_with("process id") && refusal.message.ends_with("is starting"))
}

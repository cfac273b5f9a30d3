//! The errors of the client, as one comparable enum.
//!
//! Start at [`Error`].

use std::{borrow::Cow, fmt, io, time::Duration};

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
    Address {
        /// As given.
        address: String,
        /// What is wrong with it.
        reason: String,
        /// What is valid.
        hint: String,
    },
    /// The server cannot be reached, or is not a remex server.
    Unreachable {
        /// The address of the server.
        target: String,
        /// Why the connection failed.
        reason: String,
        /// What to do about it.
        hint: Option<String>,
    },
    /// The server requires a token, or rejected the one presented.
    Unauthorized {
        /// The address of the server.
        target: String,
        /// 401 or 403.
        status: u16,
        /// Whether a token was presented.
        presented: bool,
    },
    /// The program of the connection exited before the handshake was complete.
    ProgramEnded {
        /// The command line of the program.
        program: String,
        /// Its exit status or signal.
        status: String,
        /// The end of its standard error.
        stderr: String,
    },
    /// A timeout expired.
    TimedOut {
        /// `connecting`, `the handshake`, or the method of a call.
        what: &'static str,
        /// The limit.
        after: Duration,
    },
    /// The server refused the call.
    Refused(RpcError),
    /// The call exceeds the server's limit for one message; it was not sent.
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
    Interrupted {
        /// The method.
        method: &'static str,
    },
    /// The session is lost, and everything in it.
    Lost(SessionLost),
    /// The server violated the protocol.
    Protocol {
        /// The violation.
        what: String,
    },
    /// The server evicted output before it was read.
    Gap {
        /// How much; unknown for a very late reader, or on a server that does not count it, such as Codex's own.
        bytes: Option<u64>,
    },
    /// Too much of a body was buffered unread, on a server without backpressure.
    Overrun {
        /// How many bytes were buffered.
        bytes: u64,
    },
    /// A file changed while it was being transferred.
    Changed {
        /// The file.
        path: String,
    },
    /// A local read or write failed.
    Local {
        /// The operation, with the name of the file.
        action: String,
        /// The kind of failure, for programs.
        kind: io::ErrorKind,
        /// The failure, for people.
        message: String,
    },
    /// An [`Agent`](crate::agent::Agent) refused a call, such as one about a process that has ended.
    Agent(Refusal),
    /// The arguments of the call are invalid.
    Usage {
        /// What is wrong.
        message: String,
        /// What to do about it.
        hint: String,
    },
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

impl Error {
    /// Returns the error kind of a refusal by the server; `None` for other errors.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::ErrorKind;
    ///
    /// let error = client.command("no-such-program").start().await.unwrap_err();
    /// assert_eq!(error.kind(), Some(ErrorKind::ProgramNotFound));
    /// # Ok(()) }
    /// ```
    pub fn kind(&self) -> Option<ErrorKind> {
        match self {
            Error::Refused(error) => Some(error.kind),
            _ => None,
        }
    }

    /// Returns what failed and why, without what to do about it: [`Error::what`] and [`Error::why`] in one sentence.
    ///
    /// ```
    /// use remex_client::Error;
    ///
    /// let error = Error::Interrupted { method: "http/request" };
    /// assert!(error.message().starts_with("the connection was lost during `http/request`"));
    /// assert_eq!(error.hint(), Some("check whether it took effect, then repeat it if not"));
    /// ```
    pub fn message(&self) -> String {
        match self.why() {
            Some(why) => format!("{}: {why}", self.what()),
            None => self.what(),
        }
    }

    /// Returns what failed; for errors without a separate cause, also why.
    ///
    /// ```
    /// let error = remex_client::Target::parse("ws://host:0").unwrap_err();
    /// assert_eq!(error.what(), "cannot use `ws://host:0` as a server");
    /// assert_eq!(error.why().as_deref(), Some("the port is not a number from 1 to 65535"));
    /// assert_eq!(error.hint(), Some("write `ws://host:port` or `wss://host:port`"));
    /// ```
    pub fn what(&self) -> String {
        match self {
            Error::Address { address, .. } => format!("cannot use `{address}` as a server"),
            Error::Unreachable { target, .. } => format!("cannot connect to {target}"),
            Error::Unauthorized { target, status, presented } => {
                let what = if *presented { "refused the token" } else { "requires a token" };
                format!("{target} {what} (status {status})")
            }
            Error::ProgramEnded { program, status, stderr } => {
                format!("{program} exited before it responded ({status}){}", said(stderr))
            }
            Error::TimedOut { what, after } => format!("{what} timed out after {after:?}"),
            Error::Refused(error) => error.message.clone(),
            Error::TooLong { method, bytes, limit } => {
                format!("`{method}` needs a message of {bytes} bytes, but the server accepts at most {limit}")
            }
            Error::Interrupted { method } => {
                format!("the connection was lost during `{method}`, so it is unknown whether it took effect")
            }
            Error::Lost(loss) => loss.what(),
            Error::Protocol { .. } => "protocol error".to_owned(),
            Error::Gap { bytes } => {
                format!("{} of output were dropped before they were read", amount(*bytes))
            }
            Error::Overrun { bytes } => format!(
                "{bytes} bytes of a body were not read in time, and this server does not support backpressure"
            ),
            Error::Changed { path } => format!("`{path}` changed during the transfer"),
            Error::Local { action, .. } => format!("cannot {action}"),
            Error::Agent(refusal) => refusal.message(),
            Error::Usage { message, .. } => message.clone(),
        }
    }

    /// Returns why it failed, if that is known apart from what failed.
    ///
    /// See [`Error::what`] for an example.
    pub fn why(&self) -> Option<Cow<'_, str>> {
        match self {
            Error::Address { reason, .. } | Error::Unreachable { reason, .. } => Some(reason.into()),
            Error::Local { message, .. } => Some(message.into()),
            Error::Protocol { what } => Some(what.into()),
            Error::Lost(loss) => loss.why(),
            _ => None,
        }
    }

    /// Returns what to do about it, if that is known.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// let error = client.command("no-such-program").start().await.unwrap_err();
    /// println!("{}; {}", error.message(), error.hint().unwrap_or("no hint"));
    /// # Ok(()) }
    /// ```
    pub fn hint(&self) -> Option<&str> {
        match self {
            Error::Refused(error) => error.hint.as_deref(),
            Error::Agent(refusal) => refusal.hint(),
            Error::Address { hint, .. } | Error::Usage { hint, .. } => Some(hint),
            Error::Unreachable { hint, .. } => hint.as_deref(),
            Error::Unauthorized { presented: true, .. } => Some("check the bearer token"),
            Error::Unauthorized { presented: false, .. } => Some("present a bearer token"),
            Error::TimedOut { .. } => Some("raise the timeout, or check what is blocking it"),
            Error::TooLong { .. } => Some("send it in parts, or use `upload` for a file"),
            Error::Interrupted { .. } => Some("check whether it took effect, then repeat it if not"),
            Error::Lost(loss) => Some(loss.hint()),
            Error::Protocol { .. } => Some("check that this is a remex server, and its version"),
            Error::Gap { .. } => Some("retain more output, or read it sooner"),
            Error::Overrun { .. } => Some("read the body sooner"),
            Error::Changed { .. } => Some("try again when nothing writes to it"),
            Error::ProgramEnded { .. } | Error::Local { .. } => None,
        }
    }

    /// Creates an error from a local failure.
    pub(crate) fn local(action: impl Into<String>, error: &io::Error) -> Self {
        Error::Local { action: action.into(), kind: error.kind(), message: error.to_string() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message())?;
        self.hint().map_or(Ok(()), |hint| write!(f, "; {hint}"))
    }
}

impl SessionLost {
    fn what(&self) -> String {
        match self {
            SessionLost::Closed => "the client is closed".to_owned(),
            SessionLost::Forgotten { message } => {
                format!("the session no longer exists on the server ({message})")
            }
            SessionLost::ReconnectTimedOut { after, .. } => {
                format!("the connection was lost and could not be re-established within {after:?}")
            }
            SessionLost::TakenOver => "another client took over the session".to_owned(),
            SessionLost::Stopped => {
                "the connection task stopped because its runtime shut down or it panicked".to_owned()
            }
            SessionLost::Protocol { .. } => "repeated protocol errors".to_owned(),
            SessionLost::Rejected(_) => "the server rejected the client when it reconnected".to_owned(),
        }
    }

    fn why(&self) -> Option<Cow<'_, str>> {
        match self {
            SessionLost::Forgotten { .. } => Some("it expired, was ended, or the server restarted".into()),
            SessionLost::ReconnectTimedOut { last: cause, .. } | SessionLost::Rejected(cause) => {
                Some(cause.message().into())
            }
            SessionLost::Protocol { what } => Some(what.into()),
            SessionLost::Closed | SessionLost::TakenOver | SessionLost::Stopped => None,
        }
    }

    fn hint(&self) -> &str {
        match self {
            SessionLost::ReconnectTimedOut { last: cause, .. } | SessionLost::Rejected(cause) => {
                cause.hint().unwrap_or("connect again")
            }
            SessionLost::Closed | SessionLost::Forgotten { .. } | SessionLost::Stopped => "connect again",
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
pub(crate) fn unreachable(target: &str, reason: impl Into<String>, hint: impl Into<String>) -> Error {
    Error::Unreachable { target: target.to_owned(), reason: reason.into(), hint: Some(hint.into()) }
}

/// Creates an error for invalid arguments of a call.
pub(crate) fn usage(message: impl Into<String>, hint: impl Into<String>) -> Error {
    Error::Usage { message: message.into(), hint: hint.into() }
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

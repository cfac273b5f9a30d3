//! The errors of the client, as one comparable enum.
//!
//! Start at [`Error`].

mod cause;
mod session_lost;

use std::{borrow::Cow, fmt, io, time::Duration};

use remex_proto::{ErrorKind, RpcError};

use crate::base::refusal::Refusal;
pub use cause::Cause;
pub use session_lost::SessionLost;

/// The `what` of timeouts before there is a session.
pub(crate) const CONNECTING: &str = "connecting";
pub(crate) const HANDSHAKE: &str = "the handshake";

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
/// assert!(!error.is_retryable() && !error.may_have_happened());
///
/// // It becomes an `io::Error` and back.
/// let io = std::io::Error::from(error.clone());
/// assert_eq!(io.kind(), std::io::ErrorKind::NotFound);
/// assert_eq!(Error::from(io), error);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The address is invalid; no connection was attempted.
    #[non_exhaustive]
    Address {
        /// As given.
        address: String,
        /// What is wrong with it.
        reason: String,
        /// What is valid.
        hint: String,
    },
    /// The server cannot be reached, or is not a remex server.
    #[non_exhaustive]
    Unreachable {
        /// The address of the server.
        target: String,
        /// Why the connection failed.
        reason: String,
        /// What to do about it.
        hint: Option<String>,
        /// The failure of the operating system or of TLS, if that was the reason.
        cause: Option<Cause>,
    },
    /// The server requires a token, or rejected the one presented.
    #[non_exhaustive]
    Unauthorized {
        /// The address of the server.
        target: String,
        /// 401 or 403.
        status: u16,
        /// Whether a token was presented.
        presented: bool,
        /// Why, as the server puts it, if it says more than that a valid token is required.
        reason: Option<String>,
        /// What to do about it, as the server puts it.
        advice: Option<String>,
    },
    /// The program of the connection exited before the handshake was complete.
    #[non_exhaustive]
    ProgramEnded {
        /// The command line of the program.
        program: String,
        /// Its exit status or signal.
        status: String,
        /// The end of its standard error.
        stderr: String,
        /// What to do about it.
        hint: Option<String>,
    },
    /// The program of the connection prompts the user, which it must not; see [`Prompts`](crate::Prompts).
    #[non_exhaustive]
    PromptRefused {
        /// The command line of the program.
        program: String,
        /// Why it must not.
        reason: String,
        /// What to do about it.
        hint: String,
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
    #[non_exhaustive]
    Local {
        /// The operation, with the name of the file.
        action: String,
        /// The failure.
        cause: Cause,
    },
    /// An [`Agent`](crate::api::agent::Agent) refused a call, such as one about a process that has ended.
    Agent(Refusal),
    /// The arguments of the call are invalid.
    #[non_exhaustive]
    Usage {
        /// What is wrong.
        message: String,
        /// What to do about it.
        hint: String,
    },
}

impl Error {
    /// Returns the error kind of a refusal by the server; `None` for other errors.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::{Command, ErrorKind};
    ///
    /// let error = Command::new("no-such-program").start(&client).await.unwrap_err();
    /// assert_eq!(error.kind(), Some(ErrorKind::ProgramNotFound));
    /// # Ok(()) }
    /// ```
    pub fn kind(&self) -> Option<ErrorKind> {
        match self {
            Error::Refused(error) => Some(error.kind),
            _ => None,
        }
    }

    /// Returns whether the same may succeed later without anything being changed: the server was not reachable, busy or
    /// full, or a timeout expired.
    ///
    /// Check [`Error::may_have_happened`] before repeating something that must not happen twice. After [`Error::Lost`]
    /// only a new client can try again; a session that the server no longer has ([`SessionLost::Forgotten`]) cannot be
    /// retried, because everything in it is gone.
    ///
    /// ```
    /// use remex_client::{Error, Target};
    ///
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let nowhere = remex_client::Client::connect(Target::parse("ws://127.0.0.1:1")?).await.unwrap_err();
    /// assert!(nowhere.is_retryable() && !nowhere.may_have_happened());
    /// assert!(!Target::parse("http://host").unwrap_err().is_retryable());
    /// # Ok(()) }
    /// ```
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::Unreachable { .. }
            | Error::PromptRefused { .. }
            | Error::TimedOut { .. }
            | Error::Interrupted { .. }
            | Error::Changed { .. }
            | Error::Overrun { .. } => true,
            Error::Lost(loss) => match loss {
                SessionLost::ReconnectTimedOut { .. } => true,
                SessionLost::Rejected(error) => error.is_retryable(),
                _ => false,
            },
            Error::Refused(error) => matches!(
                error.kind,
                ErrorKind::SessionAttached
                    | ErrorKind::ProcessStarting
                    | ErrorKind::TooManyProcesses
                    | ErrorKind::LimitExceeded
                    | ErrorKind::ContentChanged
                    | ErrorKind::NoSpace
                    | ErrorKind::ShuttingDown
            ),
            Error::Local { cause, .. } => matches!(
                cause.kind(),
                io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
            ),
            _ => false,
        }
    }

    /// Returns whether the process was restarted since it was started or attached to: the request was not carried out, and
    /// a new handle is needed for the process that runs now.
    ///
    /// ```
    /// let error = remex_client::Error::Interrupted { method: "process/signal" };
    /// assert!(!error.is_restarted());
    /// ```
    pub fn is_restarted(&self) -> bool {
        is_restarted(self)
    }

    /// Returns whether the call may have taken effect on the remote host all the same.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::Command;
    ///
    /// let refused = Command::new("no-such-program").start(&client).await.unwrap_err();
    /// assert!(!refused.may_have_happened());
    /// client.clone().close().await;
    /// let lost = Command::new("true").start(&client).await.unwrap_err();
    /// assert!(lost.may_have_happened(), "the client cannot tell");
    /// # Ok(()) }
    /// ```
    pub fn may_have_happened(&self) -> bool {
        match self {
            Error::TimedOut { what, .. } => !matches!(*what, CONNECTING | HANDSHAKE),
            Error::Interrupted { .. } | Error::Lost(_) | Error::Protocol { .. } => true,
            // The server failed in the middle of it, or was told to stop.
            Error::Refused(error) => {
                matches!(error.kind, ErrorKind::Cancelled | ErrorKind::Internal | ErrorKind::Io)
            }
            _ => false,
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
            Error::Unreachable { target, .. } | Error::PromptRefused { program: target, .. } => {
                format!("cannot connect to {target}")
            }
            Error::Unauthorized { target, status, presented, reason, .. } => {
                let what = match (presented, status, reason) {
                    (_, _, Some(_)) => "refuses this client",
                    (true, _, None) => "refused the token",
                    (false, 403, None) => "refuses this user or process",
                    (false, _, None) => "requires a token",
                };
                format!("{target} {what} (status {status})")
            }
            Error::ProgramEnded { program, status, stderr, .. } => {
                format!("{program} exited before it responded ({status}){}", stderr_suffix(stderr))
            }
            Error::TimedOut { what, after } => format!("{what} timed out after {after:?}"),
            Error::Refused(error) => error.text(),
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
            Error::Address { reason, .. }
            | Error::Unreachable { reason, .. }
            | Error::PromptRefused { reason, .. } => Some(reason.into()),
            Error::Unauthorized { reason: Some(reason), .. } => Some(reason.into()),
            Error::Local { cause, .. } => Some(cause.to_string().into()),
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
    /// use remex_client::Command;
    ///
    /// let error = Command::new("no-such-program").start(&client).await.unwrap_err();
    /// println!("{}; {}", error.message(), error.hint().unwrap_or("no hint"));
    /// # Ok(()) }
    /// ```
    pub fn hint(&self) -> Option<&str> {
        match self {
            Error::Refused(error) => error.hint.as_deref(),
            Error::Agent(refusal) => refusal.hint(),
            Error::Address { hint, .. } | Error::PromptRefused { hint, .. } | Error::Usage { hint, .. } => {
                Some(hint)
            }
            Error::Unreachable { hint, .. } | Error::ProgramEnded { hint, .. } => hint.as_deref(),
            Error::Unauthorized { advice: Some(advice), .. } => Some(advice),
            Error::Unauthorized { presented: true, .. } => Some("check the bearer token"),
            Error::Unauthorized { presented: false, status: 403, .. } => Some(
                "present a bearer token; from a process in a remex sandbox, no server of the same host can be used",
            ),
            Error::Unauthorized { presented: false, .. } => Some("present a bearer token"),
            Error::TimedOut { .. } => Some("raise the timeout, or check what is blocking it"),
            Error::TooLong { .. } => Some("send it in parts, or use `upload` for a file"),
            Error::Interrupted { .. } => Some("check whether it took effect, then repeat it if not"),
            Error::Lost(loss) => Some(loss.hint()),
            Error::Protocol { .. } => Some("check that this is a remex server, and its version"),
            Error::Gap { .. } => Some("retain more output, or read it sooner"),
            Error::Overrun { .. } => Some("read the body sooner"),
            Error::Changed { .. } => Some("try again when nothing writes to it"),
            Error::Local { .. } => None,
        }
    }

    /// Creates an error for a server that cannot be reached, for example in a [`Dial`](crate::Dial).
    ///
    /// ```
    /// let error = remex_client::Error::unreachable("the tunnel", "it is closed").with_hint("open it");
    /// assert_eq!(error.to_string(), "cannot connect to the tunnel: it is closed; open it");
    /// ```
    pub fn unreachable(target: impl Into<String>, reason: impl Into<String>) -> Self {
        Error::Unreachable { target: target.into(), reason: reason.into(), hint: None, cause: None }
    }

    /// Creates an error for a failure on this host; `action` completes the sentence "cannot …".
    ///
    /// ```
    /// let error = std::fs::read("/no/such/file").unwrap_err();
    /// let error = remex_client::Error::local("read the list", error);
    /// assert!(error.to_string().starts_with("cannot read the list: No such file"));
    /// ```
    pub fn local(action: impl Into<String>, cause: impl Into<Cause>) -> Self {
        Error::Local { action: action.into(), cause: cause.into() }
    }

    /// Sets what to do about it, for errors of connecting.
    ///
    /// See [`Error::unreachable`] for an example.
    pub fn with_hint(mut self, text: impl Into<String>) -> Self {
        if let Error::Unreachable { hint, .. } | Error::ProgramEnded { hint, .. } = &mut self {
            *hint = Some(text.into());
        }
        self
    }

    /// Sets the failure behind an error of connecting.
    pub(crate) fn with_cause(mut self, error: impl Into<Cause>) -> Self {
        if let Error::Unreachable { cause, .. } = &mut self {
            *cause = Some(error.into());
        }
        self
    }
}

/// The text of an error ends with that of its source; the source is for programs that look for its type.
impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Lost(loss) => loss.source(),
            Error::Local { cause, .. } | Error::Unreachable { cause: Some(cause), .. } => Some(&*cause.0),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message())?;
        self.hint().map_or(Ok(()), |hint| write!(f, "; {hint}"))
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

/// An error that was converted into an `io::Error` becomes itself again; any other one is a failure on this host.
impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        match error.downcast::<Error>() {
            Ok(error) => error,
            Err(error) => Error::local("read or write on this host", error),
        }
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
                ErrorKind::IsADirectory => io::ErrorKind::IsADirectory,
                ErrorKind::NotADirectory => io::ErrorKind::NotADirectory,
                ErrorKind::NotEmpty => io::ErrorKind::DirectoryNotEmpty,
                ErrorKind::NoSpace => io::ErrorKind::StorageFull,
                ErrorKind::CrossDevice => io::ErrorKind::CrossesDevices,
                ErrorKind::InvalidInput | ErrorKind::InvalidParams => io::ErrorKind::InvalidInput,
                ErrorKind::NotSupported => io::ErrorKind::Unsupported,
                ErrorKind::Cancelled => io::ErrorKind::Interrupted,
                _ => io::ErrorKind::Other,
            },
            Error::TimedOut { .. } => io::ErrorKind::TimedOut,
            Error::Interrupted { .. } | Error::Lost(_) => io::ErrorKind::ConnectionAborted,
            Error::Gap { .. } => io::ErrorKind::InvalidData,
            Error::Local { cause, .. } => cause.kind(),
            Error::Unreachable { cause: Some(cause), .. } => cause.kind(),
            Error::Unreachable { .. } | Error::PromptRefused { .. } => io::ErrorKind::NotConnected,
            Error::Unauthorized { .. } => io::ErrorKind::PermissionDenied,
            Error::Usage { .. } | Error::Address { .. } => io::ErrorKind::InvalidInput,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

/// Creates an error for a server that cannot be reached.
pub(crate) fn unreachable(target: &str, reason: impl Into<String>, hint: impl Into<String>) -> Error {
    Error::unreachable(target, reason).with_hint(hint)
}

/// Creates an error for invalid arguments of a call.
pub(crate) fn usage(message: impl Into<String>, hint: impl Into<String>) -> Error {
    Error::Usage { message: message.into(), hint: hint.into() }
}

/// Returns the standard error of a program as an addition to a message.
pub(crate) fn stderr_suffix(stderr: &str) -> String {
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

/// Returns whether a process was restarted since, so that the request was for the one before.
pub(crate) fn is_restarted(error: &Error) -> bool {
    matches!(error, Error::Refused(refusal) if refusal.restarted)
}

/// Returns the error that ends the events of a process that was restarted during a disconnect.
pub(crate) fn restarted(process_id: &str) -> Error {
    let message = format!(
        "process `{process_id}` was restarted while this client was disconnected; how the one before ended, and the rest of \
         its output, are unknown"
    );
    let error = RpcError::new(ErrorKind::UnknownProcess, message);
    Error::Refused(error.with_hint("make a new handle for the process that runs now").with_restarted())
}

/// Returns whether the server has no such session, in any dialect.
pub(crate) fn is_unknown_session(error: &Error) -> bool {
    matches!(error, Error::Refused(refusal) if refusal.kind == ErrorKind::UnknownSession
        || refusal.message.starts_with("unknown session id"))
}

/// Returns whether a process is still starting, in any dialect.
pub(crate) fn is_starting(error: &Error) -> bool {
    matches!(error, Error::Refused(refusal) if refusal.kind == ErrorKind::ProcessStarting
        || refusal.message.starts_with("process id") && refusal.message.ends_with("is starting"))
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn a_session_that_the_server_no_longer_has_is_not_retried() {
        let message = "unknown session id s".to_owned();
        let error = Error::Lost(SessionLost::Forgotten { message });
        assert!(!error.is_retryable() && error.may_have_happened());
        assert_eq!(
            error.to_string(),
            "the session no longer exists on the server (unknown session id s): it expired, was ended, or the server \
             restarted without a state directory, and its processes have ended; connect again and start them again; \
             with `remex serve --state DIR` they survive a restart of the server"
        );
    }

    #[test]
    fn system_errors_are_sources_and_server_errors_are_messages() {
        let refused = Error::Refused(RpcError::new(ErrorKind::Internal, "no"));
        assert!(refused.source().is_none());
        let local = Error::from(io::Error::from(io::ErrorKind::NotFound));
        assert!(local.source().unwrap().is::<io::Error>(), "{local:?}");
    }
}

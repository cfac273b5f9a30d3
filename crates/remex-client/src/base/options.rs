//! Options of a client: timeouts, keep-alive, and which session to use.
//!
//! Start at [`Options`].

use std::time::Duration;

use remex_proto::TraceContext;

/// Options of a [`Client`](crate::Client).
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use remex_client::{Client, Command, Options, Session};
///
/// let options = Options::default()
///     .session(Session::Named("nightly".to_owned()))
///     .detach_ttl(Duration::from_secs(3600))
///     .connect_retry(Duration::from_secs(60))
///     .request_timeout(Duration::from_secs(30));
/// let client = Client::connect_with(remex::Local::here()?.target(), options).await?;
/// assert!(Command::new("true").output(&client).await?.exit.success());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// The name that the client sends to the server; `remex` by default.
    pub name: String,
    /// Which session to use; a new one by default.
    pub session: Session,
    /// How long the session survives without a connection; the server's default (80 s) unless set.
    pub detach_ttl: Option<Duration>,
    /// Timeout for establishing one connection; 10 s by default.
    pub connect_timeout: Duration,
    /// How long to try again when the first connection fails in a way that may pass ([`Error::is_retryable`]): a server
    /// that is not up yet, a name that does not resolve yet; not at all by default.
    ///
    /// [`Error::is_retryable`]: crate::Error::is_retryable
    pub connect_retry: Duration,
    /// Timeout for the handshake on a new connection; 10 s by default.
    ///
    /// It is suspended while a program prompts the user, see [`Prompts`].
    pub handshake_timeout: Duration,
    /// Whether the program of a connection may prompt the user; refused by default.
    pub prompts: Prompts,
    /// Timeout for a call, including the time spent reconnecting; none by default.
    ///
    /// It does not apply to waiting for processes, to streams, or to transfers.
    pub request_timeout: Option<Duration>,
    /// How long to try to reconnect after a disconnect; 60 s by default.
    pub reconnect_timeout: Duration,
    /// The interval of keep-alive pings; 15 s by default.
    pub keep_alive_interval: Duration,
    /// How long to wait for the response to a ping before the connection counts as lost; 10 s by default.
    pub keep_alive_timeout: Duration,
    /// The trace that calls belong to, unless [`with_trace`](crate::with_trace) says otherwise; none by default.
    pub trace: Option<TraceContext>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: "remex".to_owned(),
            session: Session::New,
            detach_ttl: None,
            connect_timeout: Duration::from_secs(10),
            connect_retry: Duration::ZERO,
            handshake_timeout: Duration::from_secs(10),
            prompts: Prompts::Refuse,
            request_timeout: None,
            reconnect_timeout: Duration::from_secs(60),
            keep_alive_interval: Duration::from_secs(15),
            keep_alive_timeout: Duration::from_secs(10),
            trace: None,
        }
    }
}

impl Options {
    /// Sets the name that the client sends to the server: [`Options::name`](Options#structfield.name).
    ///
    /// See [`Options`] for an example.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets which session to use: [`Options::session`](Options#structfield.session).
    ///
    /// See [`Options`] for an example.
    pub fn session(mut self, session: Session) -> Self {
        self.session = session;
        self
    }

    /// Sets how long the session survives without a connection: [`Options::detach_ttl`](Options#structfield.detach_ttl).
    ///
    /// See [`Options`] for an example.
    pub fn detach_ttl(mut self, ttl: impl Into<Option<Duration>>) -> Self {
        self.detach_ttl = ttl.into();
        self
    }

    /// Sets the timeout for establishing one connection: [`Options::connect_timeout`](Options#structfield.connect_timeout).
    ///
    /// See [`Options`] for an example.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets how long to try again when the first connection fails: [`Options::connect_retry`](Options#structfield.connect_retry).
    ///
    /// See [`Options`] for an example.
    pub fn connect_retry(mut self, time: Duration) -> Self {
        self.connect_retry = time;
        self
    }

    /// Sets the timeout for the handshake: [`Options::handshake_timeout`](Options#structfield.handshake_timeout).
    ///
    /// See [`Options`] for an example.
    pub fn handshake_timeout(mut self, timeout: Duration) -> Self {
        self.handshake_timeout = timeout;
        self
    }

    /// Sets whether the program of a connection may prompt the user: [`Options::prompts`](Options#structfield.prompts).
    ///
    /// See [`Options`] for an example.
    pub fn prompts(mut self, prompts: Prompts) -> Self {
        self.prompts = prompts;
        self
    }

    /// Sets the timeout for a call: [`Options::request_timeout`](Options#structfield.request_timeout).
    ///
    /// See [`Options`] for an example.
    pub fn request_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.request_timeout = timeout.into();
        self
    }

    /// Sets how long to try to reconnect after a disconnect: [`Options::reconnect_timeout`](Options#structfield.reconnect_timeout).
    ///
    /// See [`Options`] for an example.
    pub fn reconnect_timeout(mut self, timeout: Duration) -> Self {
        self.reconnect_timeout = timeout;
        self
    }

    /// Sets the interval of keep-alive pings: [`Options::keep_alive_interval`](Options#structfield.keep_alive_interval).
    ///
    /// See [`Options`] for an example.
    pub fn keep_alive_interval(mut self, interval: Duration) -> Self {
        self.keep_alive_interval = interval;
        self
    }

    /// Sets how long to wait for the response to a ping: [`Options::keep_alive_timeout`](Options#structfield.keep_alive_timeout).
    ///
    /// See [`Options`] for an example.
    pub fn keep_alive_timeout(mut self, timeout: Duration) -> Self {
        self.keep_alive_timeout = timeout;
        self
    }

    /// Sets the trace that calls belong to: [`Options::trace`](Options#structfield.trace).
    ///
    /// See [`Options`] for an example.
    pub fn trace(mut self, trace: impl Into<Option<TraceContext>>) -> Self {
        self.trace = trace.into();
        self
    }
}

/// Whether the program of a [`Target::Program`](crate::Target::Program) may use the terminal while it connects, as ssh
/// does to ask for a passphrase.
///
/// ```
/// use remex_client::{Options, Prompts};
///
/// // For an interactive program that does not read from the terminal while it connects.
/// let options = Options::default().prompts(Prompts::Allow);
/// assert_ne!(options, Options::default());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Prompts {
    /// The program must not prompt; connecting fails as soon as it tries.
    #[default]
    Refuse,
    /// When the program first tries to use the terminal, it is put in the foreground until the handshake is done; if
    /// this process is itself in the background, connecting fails at once.
    ///
    /// Meanwhile this process is in the background: it must not read from the terminal, and Ctrl-C reaches the program,
    /// and if it ends the program, the process group of this process is interrupted too. Only the first connection may
    /// prompt; a reconnect may not, because by then the terminal has other uses, unless
    /// [`Client::permit_prompt`](crate::Client::permit_prompt) is called.
    Allow,
}

/// Which session a client uses.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use remex_client::{Client, ErrorKind, Options, Session};
///
/// let options = Options::default().session(Session::Resume { id: "nightly".to_owned(), takeover: false });
/// let nobody = Client::connect_with(remex::Local::here()?.target(), options).await;
/// assert_eq!(nobody.unwrap_err().kind(), Some(ErrorKind::UnknownSession));
///
/// // The same program, started again, goes on where it was.
/// let local = remex::Local::here()?;
/// let nightly = || {
///     let session = Session::Named("nightly".to_owned());
///     Options::default().session(session).detach_ttl(Duration::from_secs(3600))
/// };
/// let first = Client::connect_with(local.target(), nightly()).await?;
/// let id = first.session_id().to_owned();
/// first.close().await;
/// let again = Client::connect_with(local.target(), nightly()).await?;
/// assert_eq!(again.session_id(), id);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Session {
    /// A new session.
    #[default]
    New,
    /// A new session with this name; fails if one has it already.
    Create(String),
    /// The session with this name, or a new one with this name if there is none; fails while another client is attached
    /// to it.
    Named(String),
    /// An existing session.
    Resume {
        /// Its id or name.
        id: String,
        /// Whether to detach another client that is attached to it; otherwise it fails meanwhile.
        takeover: bool,
    },
}

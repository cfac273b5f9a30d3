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
/// use remex_client::{Client, Options};
///
/// let options = Options { request_timeout: Some(Duration::from_secs(30)), ..Options::default() };
/// let client = Client::connect_with(remex::Local::here()?.target(), options).await?;
/// assert!(client.command("true").output().await?.exit.is_success());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The name that the client sends to the server; `remex` by default.
    pub name: String,
    /// Which session to use; a new one by default.
    pub session: Session,
    /// A name that can be used instead of the session id; none by default.
    pub session_name: Option<String>,
    /// How long the session survives without a connection; the server's default (30 s) unless set.
    pub detach_ttl: Option<Duration>,
    /// Timeout for establishing one connection; 10 s by default.
    pub connect_timeout: Duration,
    /// Timeout for the handshake on a new connection; 10 s by default.
    ///
    /// It is suspended while a program prompts the user, see [`Prompts`].
    pub initialize_timeout: Duration,
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
            session_name: None,
            detach_ttl: None,
            connect_timeout: Duration::from_secs(10),
            initialize_timeout: Duration::from_secs(10),
            prompts: Prompts::Refuse,
            request_timeout: None,
            reconnect_timeout: Duration::from_secs(60),
            keep_alive_interval: Duration::from_secs(15),
            keep_alive_timeout: Duration::from_secs(10),
            trace: None,
        }
    }
}

/// Whether the program of a [`Target::Program`](crate::Target::Program) may use the terminal while it connects, as ssh
/// does to ask for a passphrase.
///
/// ```
/// use remex_client::{Options, Prompts};
///
/// // For an interactive program that does not read from the terminal while it connects.
/// let options = Options { prompts: Prompts::Allow, ..Options::default() };
/// assert_ne!(options, Options::default());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Prompts {
    /// The program must not prompt; connecting fails as soon as it tries.
    #[default]
    Refuse,
    /// When the program first tries to use the terminal, it is put in the foreground until the handshake is done; if
    /// this process is itself in the background, connecting fails at once.
    ///
    /// Meanwhile this process is in the background: it must not read from the terminal, and Ctrl-C reaches the program,
    /// and if it ends the program, the process group of this process is interrupted too. Only the first connection may
    /// prompt; a reconnect may not, because by then the terminal has other uses.
    Allow,
}

/// Which session a client uses.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use remex_client::{Client, ErrorKind, Options, Session};
///
/// let options = Options { session: Session::Resume("nightly".to_owned()), ..Options::default() };
/// let nobody = Client::connect_with(remex::Local::here()?.target(), options).await;
/// assert_eq!(nobody.unwrap_err().kind(), Some(ErrorKind::UnknownSession));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Session {
    /// A new session.
    #[default]
    New,
    /// The session with this id or name; fails while another client is attached to it.
    Resume(String),
    /// The session with this id or name; detaches another client that is attached to it.
    TakeOver(String),
}

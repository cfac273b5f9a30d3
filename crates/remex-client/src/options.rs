//! How a client behaves, and which session it wants.
//!
//! Start at [`Options`].

use std::time::Duration;

/// How a client behaves.
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
    /// What the client calls itself; `remex` unless given.
    pub name: String,
    /// Which session; a new one unless given.
    pub session: Session,
    /// A name for the session that people can use instead of its id; none unless given.
    pub session_name: Option<String>,
    /// How long the session may live without a connection; the server's own 30 s unless given.
    pub detach_ttl: Option<Duration>,
    /// How long one connection may take to come about; 10 s unless given.
    pub connect_timeout: Duration,
    /// How long the handshake on it may take; 10 s unless given.
    ///
    /// It does not run while a program asks the user something, see [`Prompts`].
    pub initialize_timeout: Duration,
    /// Whether a program that connects may ask the user something; refused unless given.
    pub prompts: Prompts,
    /// How long a call may take, pauses for recovery included; no limit unless given.
    ///
    /// It does not concern waits for processes, streams and transfers.
    pub request_timeout: Option<Duration>,
    /// How long after a cut a new connection is tried; 60 s unless given.
    pub reconnect_timeout: Duration,
    /// After this much silence the server is asked for a sign of life; 15 s unless given.
    pub keep_alive_interval: Duration,
    /// After this much more silence the connection counts as cut; 10 s unless given.
    pub keep_alive_timeout: Duration,
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
        }
    }
}

/// Whether the program of a [`Target::Program`] may use the terminal while it connects, as ssh does to ask for a
/// passphrase.
///
/// ```
/// use remex_client::{Options, Prompts};
///
/// // For a program that people run at a terminal, and that does not read from it while it connects.
/// let options = Options { prompts: Prompts::Allow, ..Options::default() };
/// assert_ne!(options, Options::default());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Prompts {
    /// The program may not ask; connecting fails as soon as it tries.
    #[default]
    Refuse,
    /// The program is put in the foreground of the terminal when it first tries to use it, until the handshake is done;
    /// where this process is itself in the background, connecting fails at once.
    ///
    /// Meanwhile this process is in the background: it must not read from the terminal, and Ctrl-C reaches the program,
    /// whose end by it is passed on to the process group of this process. Only the first connection may ask; one that
    /// replaces a lost connection may not, because by then the terminal has other uses.
    Allow,
}

/// Which session a client wants.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use remex_client::{Client, ErrorKind, Options, Session};
///
/// let options = Options { session: Session::Resume("nightly".to_owned()), ..Options::default() };
/// let nobody = Client::connect_with(remex::Local::here()?.target(), options).await;
/// assert_eq!(nobody.unwrap_err().refusal(), Some(ErrorKind::UnknownSession));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Session {
    /// A new one.
    #[default]
    New,
    /// The one with this id or name; it fails while another client has it.
    Resume(String),
    /// The one with this id or name; another client that has it loses it.
    TakeOver(String),
}

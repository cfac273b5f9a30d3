//! The address of a server.
//!
//! Start at [`Target`].

use std::{fmt, path::PathBuf, pin::Pin, sync::Arc};

#[cfg(feature = "program")]
use crate::Program;
#[cfg(feature = "tls")]
use crate::transport::tls::TlsOptions;
use crate::{
    Error,
    base::url::{Url, without_user},
    transport::link::Link,
};

/// The address of a server, and how to connect to it.
///
/// ```
/// use remex_client::Target;
///
/// assert_eq!(Target::parse("ws://127.0.0.1:4000").unwrap().to_string(), "ws://127.0.0.1:4000");
/// assert_eq!(Target::parse("unix:///run/remex.sock").unwrap(), Target::unix("/run/remex.sock"));
/// assert!(Target::parse("ftp://host").is_err());
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Target {
    /// A WebSocket.
    WebSocket(WebSocket),
    /// A unix socket.
    Unix(PathBuf),
    /// A program that speaks the protocol on its standard input and output, such as ssh.
    #[cfg(feature = "program")]
    Program(Program),
    /// A custom connection, for example to a server in this process.
    Custom(Custom),
}

/// A server that listens on a WebSocket.
///
/// ```
/// use remex_client::{Target, WebSocket, tls::TlsOptions};
///
/// let tls = TlsOptions::new().ca("certs/ca.pem").identity("certs/me.pem", "certs/me.key");
/// let socket = WebSocket::new("wss://build.example:4000").bearer("s3cret").header("X-Team", "build").tls(tls);
/// assert_eq!(Target::from(socket).to_string(), "wss://build.example:4000");
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WebSocket {
    /// `ws://host:port/path`, or `wss://` with TLS.
    pub url: String,
    /// The bearer token to present.
    pub bearer: Option<String>,
    /// Further header fields of the WebSocket handshake.
    pub headers: Vec<(String, String)>,
    /// How to recognize the server, and which certificate to present; for `wss://` only.
    #[cfg(feature = "tls")]
    pub tls: TlsOptions,
}

/// A connection that the caller provides.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use remex_client::Target;
///
/// let Target::Custom(custom) = remex::Local::here()?.target() else { unreachable!() };
/// assert_eq!(custom.name, "this machine");
/// let link = custom.dial.dial().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct Custom {
    /// The name used in error messages.
    pub name: String,
    /// Opens a connection; called again after every disconnect.
    pub dial: Arc<dyn Dial>,
}

/// Opens connections to one server.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::pin::Pin;
/// use remex_client::{Client, Command, Dial, Error, Link, Target};
///
/// struct Here(remex::Local);
///
/// impl Dial for Here {
///     fn dial(&self) -> Pin<Box<dyn Future<Output = Result<Link, Error>> + Send + '_>> {
///         Box::pin(async { Ok(Link::memory(self.0.connect())) })
///     }
/// }
///
/// let client = Client::connect(Target::custom("here", Here(remex::Local::here()?))).await?;
/// assert!(Command::new("true").output(&client).await?.exit.success());
/// # Ok(()) }
/// ```
pub trait Dial: Send + Sync {
    /// Opens a connection.
    fn dial(&self) -> Pin<Box<dyn Future<Output = Result<Link, Error>> + Send + '_>>;
}

impl<F, C> Dial for F
where
    F: Fn() -> C + Send + Sync,
    C: Future<Output = Result<Link, Error>> + Send + 'static,
{
    fn dial(&self) -> Pin<Box<dyn Future<Output = Result<Link, Error>> + Send + '_>> {
        Box::pin(self())
    }
}

impl Target {
    /// Parses an address: `ws://host:port[/path]`, `wss://host:port[/path]`, `ssh://[user@]host[:port]`, `unix:///path`,
    /// `unix:path` or an absolute path of a unix socket.
    ///
    /// # Errors
    ///
    /// [`Error::Address`] says what is wrong and what is valid.
    ///
    /// ```
    /// use remex_client::{Error, Target};
    ///
    /// assert_eq!(Target::parse("/run/remex.sock"), Ok(Target::unix("/run/remex.sock")));
    /// assert!(matches!(Target::parse("http://host"), Err(Error::Address { .. })));
    /// ```
    pub fn parse(address: &str) -> Result<Self, Error> {
        let invalid = |reason: &str, hint: &str| {
            let (reason, hint) = (reason.to_owned(), hint.to_owned());
            Err(Error::Address { address: without_user(address), reason, hint })
        };
        if let Some(path) = address.strip_prefix("unix://").or_else(|| address.strip_prefix("unix:")) {
            return if path.is_empty() {
                invalid("the path of the socket is missing", "write `unix:///path`")
            } else {
                Ok(Self::unix(path))
            };
        }
        if address.starts_with('/') {
            return Ok(Self::unix(address));
        }
        #[cfg(feature = "program")]
        if let Some(host) = address.strip_prefix("ssh://") {
            return Self::ssh(host);
        }
        if !address.starts_with("ws://") && !address.starts_with("wss://") {
            return invalid(
                "not a server address",
                "use `ws://host:port`, `wss://host:port`, `ssh://host`, `unix:///path` or `/path`",
            );
        }
        if let Err(error) = Url::parse(address) {
            return invalid(error.reason, error.hint);
        }
        Ok(WebSocket::new(address).into())
    }

    /// Returns the address of a unix socket.
    ///
    /// ```
    /// use remex_client::Target;
    ///
    /// assert_eq!(Target::unix("/run/remex.sock").to_string(), "unix:///run/remex.sock");
    /// ```
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self::Unix(path.into())
    }

    /// Returns a target that starts a program with these arguments.
    ///
    /// ```
    /// use remex_client::Target;
    ///
    /// let target = Target::program("ssh", ["build.example", "remex", "serve", "--listen", "stdio"]);
    /// assert_eq!(target.to_string(), "`ssh build.example remex serve --listen stdio`");
    /// ```
    #[cfg(feature = "program")]
    pub fn program<A: Into<String>>(program: impl Into<String>, args: impl IntoIterator<Item = A>) -> Self {
        Self::Program(Program::new(program).args(args))
    }

    /// Returns the user's own server on a host that is reached with `ssh`: `host`, `user@host` or `user@host:port`.
    ///
    /// It runs `ssh HOST remex proxy`, so `remex` must be installed there; the host may be one of `~/.ssh/config`. Without
    /// [`Prompts::Allow`](crate::Prompts::Allow) the login must work without a prompt.
    ///
    /// # Errors
    ///
    /// [`Error::Address`] says what is wrong with the host.
    ///
    /// ```
    /// use remex_client::Target;
    ///
    /// let target = Target::ssh("build.example")?;
    /// assert_eq!(target.to_string(), "`ssh build.example remex proxy`");
    /// assert_eq!(Target::parse("ssh://build.example")?, target);
    /// # Ok::<(), remex_client::Error>(())
    /// ```
    #[cfg(feature = "program")]
    pub fn ssh(host: &str) -> Result<Self, Error> {
        Program::ssh_proxy(host).map(Self::Program).map_err(|reason| {
            // It may contain a password.
            let shown = host.rsplit_once('@').map_or(host.to_owned(), |(_, host)| format!("…@{host}"));
            Error::Address {
                address: format!("ssh://{shown}"),
                reason: reason.to_owned(),
                hint: "use `ssh://user@host:port`; user and port are optional".to_owned(),
            }
        })
    }

    /// Returns a target that connects with a function.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use remex_client::{Client, Link, Target};
    ///
    /// let local = remex::Local::here()?;
    /// let target = Target::custom("here", move || {
    ///     let link = Link::memory(local.connect());
    ///     async { Ok(link) }
    /// });
    /// assert!(Client::connect(target).await.is_ok());
    /// # Ok(()) }
    /// ```
    pub fn custom(name: impl Into<String>, dial: impl Dial + 'static) -> Self {
        Self::Custom(Custom { name: name.into(), dial: Arc::new(dial) })
    }
}

impl WebSocket {
    /// Returns a server at this URL, without a token.
    ///
    /// ```
    /// use remex_client::{Target, WebSocket};
    ///
    /// let target = Target::from(WebSocket::new("ws://127.0.0.1:4000"));
    /// assert_eq!(Ok(target), Target::parse("ws://127.0.0.1:4000"));
    /// ```
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            bearer: None,
            headers: Vec::new(),
            #[cfg(feature = "tls")]
            tls: TlsOptions::default(),
        }
    }

    /// Presents a bearer token.
    ///
    /// ```
    /// let socket = remex_client::WebSocket::new("wss://build.example").bearer("s3cret");
    /// assert!(!format!("{socket:?}").contains("s3cret"));
    /// ```
    pub fn bearer(mut self, token: impl Into<String>) -> Self {
        self.bearer = Some(token.into());
        self
    }

    /// Adds a header field to the WebSocket handshake, for example for a proxy in front of the server.
    ///
    /// ```
    /// let socket = remex_client::WebSocket::new("wss://build.example").header("X-Team", "build");
    /// assert_eq!(socket.headers, [("X-Team".to_owned(), "build".to_owned())]);
    /// ```
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Says how to recognize the server, and which certificate to present.
    ///
    /// ```
    /// use remex_client::{WebSocket, tls::TlsOptions};
    ///
    /// let socket = WebSocket::new("wss://build.example").tls(TlsOptions::new().ca("ca.pem"));
    /// assert!(socket.tls.ca.is_some());
    /// ```
    #[cfg(feature = "tls")]
    pub fn tls(mut self, options: TlsOptions) -> Self {
        self.tls = options;
        self
    }
}

impl From<WebSocket> for Target {
    fn from(socket: WebSocket) -> Self {
        Self::WebSocket(socket)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WebSocket(WebSocket { url, .. }) => f.write_str(&without_user(url)),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            #[cfg(feature = "program")]
            Self::Program(program) => write!(f, "{program}"),
            Self::Custom(custom) => f.write_str(&custom.name),
        }
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({self})")
    }
}

impl fmt::Debug for WebSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bearer = self.bearer.as_ref().map(|_| "…");
        // Header fields may be as secret as the token.
        let headers: Vec<_> = self.headers.iter().map(|(name, _)| name).collect();
        let mut shown = f.debug_struct("WebSocket");
        shown.field("url", &without_user(&self.url)).field("bearer", &bearer).field("headers", &headers);
        #[cfg(feature = "tls")]
        shown.field("tls", &self.tls);
        shown.finish()
    }
}

impl fmt::Debug for Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Custom").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Two are equal if they are clones of the same target.
impl PartialEq for Custom {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.dial, &other.dial)
    }
}

impl Eq for Custom {}

#[cfg(all(test, feature = "program"))]
mod tests {
    use super::*;

    #[test]
    fn a_host_becomes_a_command_line() {
        for (host, expected) in [
            ("far", "`ssh far remex proxy`"),
            ("you@far.example/", "`ssh you@far.example remex proxy`"),
            ("you@far:2222", "`ssh -p 2222 you@far remex proxy`"),
            ("[fe80::1%eth0]:22", "`ssh -p 22 fe80::1%eth0 remex proxy`"),
        ] {
            assert_eq!(Target::ssh(host).unwrap().to_string(), expected);
        }
        for wrong in [
            "",
            "far/path",
            "ann:secret@far",
            "@far",
            "far:0",
            "far:ssh",
            "-oProxyCommand=x",
            "you@-far",
            "[::1]22",
            "a b",
        ] {
            let error = Target::ssh(wrong).unwrap_err();
            assert!(matches!(error, Error::Address { .. }), "{wrong}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}

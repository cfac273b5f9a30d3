//! Opens connections.
//!
//! Nothing here has a timeout: the caller adds one. Dropping a future leaves nothing behind. Start at [`dial`].

#[cfg(feature = "tls")]
mod encrypted;
#[cfg(not(feature = "tls"))]
mod plain;
#[cfg(test)]
mod tests;

use std::{io, path::Path};

use remex_rpc::{ConnectError, Stream};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, lookup_host},
};

use crate::{
    Error, Prompts, Target, WebSocket,
    base::{
        error::unreachable,
        platform,
        url::{Scheme, Url, without_user},
    },
    transport::link::{Link, MAX_MESSAGE_LEN},
};

/// Opens one connection to a server, without the handshake of the protocol.
#[cfg_attr(not(feature = "program"), expect(unused_variables, reason = "only programs prompt"))]
pub(crate) async fn dial(target: &Target, prompts: Prompts) -> Result<Link, Error> {
    match target {
        Target::WebSocket(websocket) => dial_websocket(websocket).await,
        Target::Unix(path) => {
            let connected = platform::connect_unix(path).await;
            let (reader, writer) = connected.map_err(|error| unix_error(target, path, error))?;
            Ok(Link::lines(reader, writer))
        }
        #[cfg(feature = "program")]
        Target::Program(program) => {
            let (reader, writer, child) = crate::transport::program::start(program, prompts).await?;
            Ok(Link::lines(reader, writer).with_child(child))
        }
        Target::Custom(custom) => custom.dial.dial().await,
    }
}

async fn dial_websocket(websocket: &WebSocket) -> Result<Link, Error> {
    let address = &websocket.url;
    let url = websocket.parts()?;
    let addresses: Vec<_> = lookup_host((url.host, url.port))
        .await
        .map_err(|error| {
            let reason = format!("cannot resolve host `{}` ({error})", url.host);
            unreachable(address, reason, "check the name and the network").with_cause(error)
        })?
        .collect();
    let stream = TcpStream::connect(&*addresses).await.map_err(|error| tcp_error(address, error))?;
    // Small messages must not wait for more.
    stream.set_nodelay(true).map_err(|error| tcp_error(address, error))?;
    websocket.upgrade(stream.into(), &url).await
}

impl Link {
    /// Connects to a WebSocket server over a stream of the caller, such as a tunnel or a connection through a proxy.
    ///
    /// With a `wss://` URL, the stream is encrypted first. The URL also gives the path and the `Host` of the request,
    /// and the name that the certificate must have; nothing is resolved.
    ///
    /// # Errors
    ///
    /// As for a connection to the same [`Target::WebSocket`].
    ///
    /// ```no_run
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use remex_client::{Client, Error, Link, Target, WebSocket};
    /// use tokio::net::TcpStream;
    ///
    /// // Called again after every disconnect.
    /// let target = Target::custom("build, through the tunnel", || async {
    ///     let tunnel = TcpStream::connect("127.0.0.1:9000").await;
    ///     let tunnel = tunnel.map_err(|error| Error::unreachable("the tunnel", error.to_string()))?;
    ///     Link::websocket(tunnel, &WebSocket::new("wss://build.example:4000")).await
    /// });
    /// let client = Client::connect(target).await?;
    /// # Ok(()) }
    /// ```
    pub async fn websocket(
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        websocket: &WebSocket,
    ) -> Result<Self, Error> {
        websocket.upgrade(Stream::new(stream), &websocket.parts()?).await
    }
}

impl WebSocket {
    fn invalid(&self, reason: impl Into<String>, hint: &str) -> Error {
        Error::Address { address: without_user(&self.url), reason: reason.into(), hint: hint.to_owned() }
    }

    fn parts(&self) -> Result<Url<'_>, Error> {
        let url = Url::parse(&self.url).map_err(|error| self.invalid(error.reason, error.hint))?;
        self.check_encryption(url.scheme)?;
        Ok(url)
    }

    /// Upgrades a new connection to a WebSocket, encrypted if the URL says so.
    async fn upgrade(&self, stream: Stream, url: &Url<'_>) -> Result<Link, Error> {
        let address = &self.url;
        let stream = match url.scheme {
            Scheme::Plain => stream,
            Scheme::Tls => self.encrypt(stream, url.host).await?,
        };
        let target = remex_rpc::Target {
            host: url.authority,
            path: &url.path,
            bearer: self.bearer.as_deref(),
            headers: &self.headers,
            max_message_len: MAX_MESSAGE_LEN,
        };
        match remex_rpc::connect(stream, &target).await {
            Ok((reader, writer)) => Ok(Link::upgraded(reader, writer)),
            Err(ConnectError::Refused { status: status @ (401 | 403), reason }) => {
                let reason = reason.as_ref();
                let advice = reason.and_then(|reason| reason.advice()).map(str::to_owned);
                // Where a token is all that is missing, this says no more than the status.
                let text = reason.map(remex_rpc::Reason::text).filter(|_| status == 403);
                let reason = reason.and_then(|reason| reason.why()).or(text).map(str::to_owned);
                let presented = self.bearer.is_some();
                Err(Error::Unauthorized { target: address.clone(), status, presented, reason, advice })
            }
            Err(error @ ConnectError::InvalidTarget { .. }) => {
                Err(self.invalid(error.message(), error.hint()))
            }
            #[cfg(feature = "tls")]
            Err(ConnectError::Tls(failure)) => Err(self.tls_error(&failure)),
            Err(error) => Err(unreachable(address, error.message(), error.hint())),
        }
    }
}

fn tcp_error(address: &str, error: io::Error) -> Error {
    let (reason, hint) = match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            ("connection refused".to_owned(), "start `remex serve` or check the port")
        }
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            ("no route to host".to_owned(), "check the address and the network")
        }
        io::ErrorKind::TimedOut => {
            ("connection timed out".to_owned(), "check the address, the network and firewalls")
        }
        _ => (error.to_string(), "check the address and the network"),
    };
    unreachable(address, reason, hint).with_cause(error)
}

fn unix_error(target: &Target, path: &Path, error: io::Error) -> Error {
    if let Some(untrusted) = error.get_ref().and_then(|cause| cause.downcast_ref::<platform::Untrusted>()) {
        return unreachable(&target.to_string(), untrusted.to_string(), untrusted.hint());
    }
    let (reason, hint) = match error.kind() {
        io::ErrorKind::NotFound => {
            let hint = format!("start `remex serve --listen unix://{}` or check the path", path.display());
            return unreachable(&target.to_string(), "no such socket", hint).with_cause(error);
        }
        io::ErrorKind::ConnectionRefused => (
            "connection refused: nothing listens there, or it is not a socket".to_owned(),
            "start `remex serve` or check the path",
        ),
        io::ErrorKind::PermissionDenied => ("permission denied".to_owned(), "run as the user of the server"),
        // The only check before the system call.
        io::ErrorKind::InvalidInput => ("the path is too long for a socket".to_owned(), "use a shorter path"),
        io::ErrorKind::Unsupported => (error.to_string(), "use a `ws://` or `wss://` address"),
        io::ErrorKind::WouldBlock => ("too many connections are waiting".to_owned(), "try again"),
        _ => (error.to_string(), "check the path"),
    };
    unreachable(&target.to_string(), reason, hint).with_cause(error)
}

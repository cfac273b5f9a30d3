//! The client side of the WebSocket handshake.

use std::io;

use base64::{Engine, prelude::BASE64_STANDARD};
use tokio::io::AsyncWriteExt;

use crate::{
    FrameReader, Framing, Role, Stream, WriteHalf,
    http::{HeadError, Headers, MAX_HEADERS, Parsed, accept_for, read_head},
};

/// The longest response head to accept.
const MAX_HEAD_LEN: usize = 16 * 1024;

/// The WebSocket endpoint to connect to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target<'a> {
    /// The host and port from the URL, for example `127.0.0.1:4000`.
    pub host: &'a str,
    /// The path with its query, `/` for a remex server.
    pub path: &'a str,
    /// The token to present, if any.
    pub bearer: Option<&'a str>,
    /// Additional header fields of the request.
    pub headers: &'a [(String, String)],
    /// The longest message to accept from the server, in bytes.
    pub max_message_len: usize,
}

/// Why a connection did not become a WebSocket.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}; {}", self.message(), self.hint())]
pub enum ConnectError {
    /// The host, path or token contains characters that a request cannot contain.
    InvalidTarget {
        /// `host`, `path`, `token` or `header`.
        part: &'static str,
    },
    /// The server responded, but did not upgrade the connection.
    Refused {
        /// The HTTP status: 401 means that a token is required, 404 that the path is wrong.
        status: u16,
    },
    /// The response is not HTTP, or not a valid upgrade.
    NotWebSocket,
    /// TLS failed after the client's part of its handshake, for example because the server refused the certificate.
    #[cfg(feature = "tls")]
    Tls(#[from] crate::tls::TlsFailure),
    /// The server closed the connection before it responded.
    Closed,
    /// The connection failed.
    Failed(io::ErrorKind),
}

impl ConnectError {
    /// Returns what failed and why, without what to do about it.
    pub fn message(&self) -> String {
        match self {
            Self::InvalidTarget { part } => format!("the {part} contains white space or control characters"),
            Self::Refused { status } => format!("the server refused the WebSocket with status {status}"),
            Self::NotWebSocket => "the server does not speak WebSocket".to_owned(),
            #[cfg(feature = "tls")]
            Self::Tls(failure) => failure.message(),
            Self::Closed => "the server closed the connection during the handshake".to_owned(),
            Self::Failed(kind) => format!("the connection failed during the handshake: {kind}"),
        }
    }

    /// Returns what to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::InvalidTarget { .. } => "remove them",
            Self::Refused { status: 401 | 403 } => "check the token",
            Self::Refused { status: 300..=399 } => "the server has moved: ask for its new address",
            Self::Refused { status: 500..=599 } => {
                "it is starting, shutting down or overloaded: try again later"
            }
            Self::Refused { status: 421 } => {
                "the server is not known by this name: use another one, or add `--allow-host` to `remex serve`"
            }
            Self::Refused { status: 429 } => {
                "there are too many connections of this credential or address, or failed logins: close some, or try again later"
            }
            Self::Refused { status: 426 } => "it may require TLS: use `wss://`",
            Self::Refused { .. } => "check the host and the path",
            Self::NotWebSocket => "check the address",
            #[cfg(feature = "tls")]
            Self::Tls(failure) => failure.hint(),
            Self::Closed => "check that a remex server listens there, and check its log",
            Self::Failed(_) => "try again",
        }
    }
}

/// Upgrades a new connection to WebSocket.
///
/// Has no timeout of its own; callers add one.
pub async fn connect(
    stream: impl Into<Stream>,
    target: &Target<'_>,
) -> Result<(FrameReader, WriteHalf), ConnectError> {
    let mut stream = stream.into();
    let mut nonce = [0; 16];
    getrandom::fill(&mut nonce).expect("the kernel provides random bytes");
    let key = BASE64_STANDARD.encode(nonce);
    stream.write_all(request(target, &key)?.as_bytes()).await?;
    stream.flush().await?;

    let accept = accept_for(&key);
    let (answer, rest) = read_head(&mut stream, MAX_HEAD_LEN, |bytes| parse(bytes, &accept)).await?;
    answer?;
    let (reader, writer) = stream.into_split();
    let framing = Framing::WebSocket(Role::Client);
    let reader = FrameReader::new(reader, framing, target.max_message_len).with_received(&rest);
    Ok((reader, writer))
}

fn request(target: &Target<'_>, key: &str) -> Result<String, ConnectError> {
    let Target { host, path, bearer, headers, .. } = target;
    for (part, text) in [("host", *host), ("path", *path), ("token", bearer.unwrap_or("-"))] {
        // Anything else could inject a header field.
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(ConnectError::InvalidTarget { part });
        }
    }
    let authorization = bearer.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    let mut further = String::new();
    for (name, value) in *headers {
        let is_valid = !name.is_empty()
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
            && value.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
        if !is_valid {
            return Err(ConnectError::InvalidTarget { part: "header" });
        }
        further.push_str(&format!("{name}: {value}\r\n"));
    }
    Ok(format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n{authorization}{further}\r\n"
    ))
}

/// Parses and validates the server's response.
fn parse(bytes: &[u8], accept: &str) -> Parsed<Result<(), ConnectError>> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(len) = response.parse(bytes)? else { return Ok(None) };
    let headers = Headers(response.headers);
    let upgraded = headers.has_word("Connection", "upgrade")
        && headers.has_word("Upgrade", "websocket")
        && headers.only("Sec-WebSocket-Accept") == Some(accept)
        // No extension was requested, so none may be granted.
        && !headers.contains("Sec-WebSocket-Extensions")
        && !headers.contains("Sec-WebSocket-Protocol");
    let answer = match response.code {
        Some(101) if upgraded => Ok(()),
        Some(101) | None => Err(ConnectError::NotWebSocket),
        Some(status) => Err(ConnectError::Refused { status }),
    };
    Ok(Some((answer, len)))
}

impl From<io::Error> for ConnectError {
    fn from(error: io::Error) -> Self {
        // A server that speaks TLS 1.3 judges the client's certificate after the client's handshake is done.
        #[cfg(feature = "tls")]
        if let Some(failure) = crate::tls::TlsFailure::find(&error) {
            return ConnectError::Tls(failure);
        }
        ConnectError::Failed(error.kind())
    }
}

impl From<HeadError> for ConnectError {
    fn from(error: HeadError) -> Self {
        match error {
            HeadError::Malformed | HeadError::TooLong => ConnectError::NotWebSocket,
            HeadError::Closed => ConnectError::Closed,
            HeadError::Io(error) => error.into(),
        }
    }
}

//! The client side of the WebSocket handshake.

use std::{io, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use crate::{
    FrameReader, Framing, Role, Stream, WriteHalf,
    frames::http::{HeadError, Headers, MAX_HEADERS, Parsed, accept_for, read_head},
};

/// The longest response head to accept.
const MAX_HEAD_LEN: usize = 16 * 1024;

/// The longest reason for a refusal to read, and how long it may take to arrive: without it, the status has to do.
const MAX_REASON_LEN: usize = 1024;
const REASON_TIMEOUT: Duration = Duration::from_secs(1);

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
        /// The server's reason, if it sends one as a line of plain text.
        reason: Option<Reason>,
    },
    /// The response is not HTTP, or not a valid upgrade.
    NotWebSocket,
    /// TLS failed after the client's part of its handshake, for example because the server refused the certificate.
    #[cfg(feature = "tls")]
    Tls(#[from] crate::links::tls::TlsFailure),
    /// The server closed the connection before it responded.
    Closed,
    /// The connection failed.
    Failed(io::ErrorKind),
}

/// Why a server has refused a connection, in its own words.
///
/// It is the text of an untrusted peer: printable, of limited length, and only for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason(String);

impl Reason {
    /// Takes the first line of a body; `None` if it contains nothing printable.
    fn of(body: &[u8]) -> Option<Self> {
        let line = body.split(|byte| *byte == b'\n').next()?;
        let line = std::str::from_utf8(line.trim_ascii()).ok()?;
        let is_shown = !line.is_empty() && !line.chars().any(char::is_control);
        is_shown.then(|| Reason(line.to_owned()))
    }

    /// Returns why, without what to do about it; `None` if the server says only what to do.
    pub fn why(&self) -> Option<&str> {
        self.0.split_once("; ").map(|(why, _)| why)
    }

    /// Returns what to do about it; `None` if the server says only why.
    pub fn advice(&self) -> Option<&str> {
        self.0.split_once("; ").map(|(_, advice)| advice)
    }

    /// Returns all of it.
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl ConnectError {
    /// Returns what failed and why, without what to do about it.
    pub fn message(&self) -> String {
        match self {
            Self::InvalidTarget { part } => format!("the {part} contains white space or control characters"),
            Self::Refused { status, reason } => {
                let why = reason.as_ref().map(|reason| reason.why().unwrap_or(reason.text()));
                let why = why.map(|why| format!(": {why}")).unwrap_or_default();
                format!("the server refused the WebSocket with status {status}{why}")
            }
            Self::NotWebSocket => "the server does not speak WebSocket".to_owned(),
            #[cfg(feature = "tls")]
            Self::Tls(failure) => failure.message(),
            Self::Closed => "the server closed the connection during the handshake".to_owned(),
            Self::Failed(kind) => format!("the connection failed during the handshake: {kind}"),
        }
    }

    /// Returns what to do about it.
    pub fn hint(&self) -> &str {
        if let Self::Refused { reason: Some(reason), .. } = self
            && let Some(advice) = reason.advice()
        {
            return advice;
        }
        match self {
            Self::InvalidTarget { .. } => "remove them",
            Self::Refused { status: 401 | 403, .. } => "check the token",
            Self::Refused { status: 300..=399, .. } => "the server has moved: ask for its new address",
            Self::Refused { status: 500..=599, .. } => {
                "it is starting, shutting down or overloaded: try again later"
            }
            Self::Refused { status: 421, .. } => {
                "the server is not known by this name: use another one, or add `--allow-host` to `remex serve`"
            }
            Self::Refused { status: 429, .. } => {
                "there are too many connections of this credential or address, or failed logins: close some, or try again later"
            }
            Self::Refused { status: 426, .. } => "it may require TLS: use `wss://`",
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
    if let Response::Refused { status, text_len } = answer? {
        let reason = match text_len {
            0 => None,
            len => reason(&mut stream, rest, len.min(MAX_REASON_LEN)).await,
        };
        return Err(ConnectError::Refused { status, reason });
    }
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

/// Reads the rest of a body that says why a connection is refused.
async fn reason(stream: &mut (impl AsyncRead + Unpin), mut body: Vec<u8>, len: usize) -> Option<Reason> {
    body.truncate(len);
    let missing = u64::try_from(len - body.len()).unwrap_or_default();
    // What has arrived is enough if the rest does not.
    let _ = timeout(REASON_TIMEOUT, stream.take(missing).read_to_end(&mut body)).await;
    Reason::of(&body)
}

/// What the server has answered.
enum Response {
    Upgraded,
    Refused {
        status: u16,
        /// The length of the body if it is plain text, otherwise 0.
        text_len: usize,
    },
}

/// Parses and validates the server's response.
fn parse(bytes: &[u8], accept: &str) -> Parsed<Result<Response, ConnectError>> {
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
        Some(101) if upgraded => Ok(Response::Upgraded),
        Some(101) | None => Err(ConnectError::NotWebSocket),
        Some(status) => {
            let is_text = headers.only("Content-Type").is_some_and(|kind| kind.starts_with("text/plain"));
            let len = headers.only("Content-Length").filter(|_| is_text).and_then(|len| len.parse().ok());
            Ok(Response::Refused { status, text_len: len.unwrap_or(0) })
        }
    };
    Ok(Some((answer, len)))
}

impl From<io::Error> for ConnectError {
    fn from(error: io::Error) -> Self {
        // A server that speaks TLS 1.3 judges the client's certificate after the client's handshake is done.
        #[cfg(feature = "tls")]
        if let Some(failure) = crate::links::tls::TlsFailure::find(&error) {
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

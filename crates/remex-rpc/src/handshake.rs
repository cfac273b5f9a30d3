//! The HTTP side of a WebSocket port: health checks and the upgrade.

use std::{io, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{
    FrameReader, Framing, Role, WriteHalf,
    http::{HeadError, Headers, MAX_HEADERS, Parsed, accept_for, read_head},
};

/// How long a refused peer may take to read the response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The settings of the HTTP handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandshakeConfig {
    /// Whether the server accepts new connections; [`Readiness::Ready`] by default.
    pub readiness: Readiness,
    /// The longest message after the upgrade, in bytes; 64 MiB by default.
    pub max_message_len: usize,
    /// The longest request head, in bytes; 16 KiB by default.
    pub max_head_len: usize,
    /// How long a request head may take to arrive; 10 s by default.
    pub head_timeout: Duration,
}

impl Default for HandshakeConfig {
    fn default() -> Self {
        HandshakeConfig {
            readiness: Readiness::Ready,
            max_message_len: 64 << 20,
            max_head_len: 16 << 10,
            head_timeout: Duration::from_secs(10),
        }
    }
}

/// Whether a server accepts new connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// It accepts connections.
    Ready,
    /// It is shutting down; health checks and upgrades are refused.
    ShuttingDown,
}

/// Whether a bearer token, or its absence, is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Authorization<T> {
    /// The peer is accepted, with this identity.
    Admitted(T),
    /// The peer is refused with status 401.
    Refused,
}

/// A connection that was upgraded to WebSocket.
pub struct Upgraded<T> {
    /// Reads messages, including bytes that arrived right after the request.
    pub reader: FrameReader,
    /// Writes the contents of a server's [`crate::SendBuffer`].
    pub writer: WriteHalf,
    /// The identity of the peer, from the policy.
    pub who: T,
}

/// Why a connection was not upgraded; the peer has been answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotUpgraded {
    /// The request was answered, for example a health check with 200.
    #[error("the request was answered with status {status}")]
    Answered {
        /// The HTTP status.
        status: u16,
    },
    /// The peer closed the connection before its request was complete.
    #[error("the peer closed the connection before its request was complete")]
    Closed,
    /// The connection failed.
    #[error("the connection failed during the handshake: {0}")]
    Failed(io::ErrorKind),
}

/// Reads one HTTP request and answers it: a health check, an upgrade to WebSocket, or a refusal.
///
/// `policy` is asked about the bearer token of every valid upgrade; it compares in constant time.
pub async fn handshake<T>(
    mut stream: TcpStream,
    policy: impl Fn(Option<&str>) -> Authorization<T>,
    config: &HandshakeConfig,
) -> Result<Upgraded<T>, NotUpgraded> {
    let parse = |bytes: &[u8]| parse(bytes, &policy, config.readiness);
    let reading = timeout(config.head_timeout, read_head(&mut stream, config.max_head_len, parse)).await;
    let answer = match reading {
        Ok(Ok((Decision::Upgrade { accept, who }, rest))) => {
            let head = format!(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                 Sec-WebSocket-Accept: {accept}\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).await?;
            let (reader, writer) = stream.into_split();
            let framing = Framing::WebSocket(Role::Server);
            let reader =
                FrameReader::new(Box::new(reader), framing, config.max_message_len).with_received(&rest);
            return Ok(Upgraded { reader, writer: Box::new(writer), who });
        }
        Ok(Ok((Decision::Answer(answer), _))) => answer,
        Ok(Err(HeadError::Malformed)) => Answer::MALFORMED,
        Ok(Err(HeadError::TooLong)) => Answer::HEAD_TOO_LONG,
        Ok(Err(HeadError::Closed)) => return Err(NotUpgraded::Closed),
        Ok(Err(HeadError::Io(error))) => return Err(error.into()),
        Err(_) => Answer::TIMED_OUT,
    };
    // A peer that reads slowly or disconnects does not change the outcome.
    let _ = timeout(RESPONSE_TIMEOUT, respond(&mut stream, &answer)).await;
    Err(NotUpgraded::Answered { status: answer.status })
}

enum Decision<T> {
    Upgrade { accept: String, who: T },
    Answer(Answer),
}

/// A response that ends the connection.
#[derive(Clone, Copy)]
struct Answer {
    status: u16,
    phrase: &'static str,
    /// Further header fields, each with its line end.
    headers: &'static str,
    /// The body, for people.
    text: &'static str,
    /// Whether to omit the body, for HEAD requests.
    head_only: bool,
}

impl Answer {
    const HEALTHY: Answer = Answer::new(200, "OK", "");
    const MALFORMED: Answer = Answer::new(400, "Bad Request", "this is not an HTTP/1.1 request\n");
    const NOT_AN_UPGRADE: Answer =
        Answer::new(400, "Bad Request", "this is a WebSocket server: request an upgrade to `websocket`\n");
    const OTHER_VERSION: Answer =
        Answer::new(400, "Bad Request", "this server supports only version 13 of the WebSocket protocol\n")
            .with_headers("Sec-WebSocket-Version: 13\r\n");
    const REFUSED: Answer =
        Answer::new(401, "Unauthorized", "send a valid token as `Authorization: Bearer TOKEN`\n")
            .with_headers("WWW-Authenticate: Bearer\r\n");
    const FROM_A_BROWSER: Answer =
        Answer::new(403, "Forbidden", "requests with an `Origin` are refused: browsers are not supported\n");
    const NOT_FOUND: Answer =
        Answer::new(404, "Not Found", "unknown path; use `/`, `/healthz` or `/readyz`\n");
    const ONLY_GET: Answer =
        Answer::new(405, "Method Not Allowed", "use GET\n").with_headers("Allow: GET\r\n");
    const ONLY_GET_AND_HEAD: Answer =
        Answer::new(405, "Method Not Allowed", "use GET or HEAD\n").with_headers("Allow: GET, HEAD\r\n");
    const TIMED_OUT: Answer = Answer::new(408, "Request Timeout", "the request took too long to arrive\n");
    const HEAD_TOO_LONG: Answer =
        Answer::new(431, "Request Header Fields Too Large", "the head of the request is too long\n");
    const SHUTTING_DOWN: Answer = Answer::new(503, "Service Unavailable", "the server is shutting down\n");

    const fn new(status: u16, phrase: &'static str, text: &'static str) -> Self {
        Answer { status, phrase, headers: "", text, head_only: false }
    }

    const fn with_headers(mut self, headers: &'static str) -> Self {
        self.headers = headers;
        self
    }
}

/// Parses a request and decides how to respond.
fn parse<T>(
    bytes: &[u8],
    policy: &impl Fn(Option<&str>) -> Authorization<T>,
    readiness: Readiness,
) -> Parsed<Decision<T>> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(len) = request.parse(bytes)? else { return Ok(None) };
    let mut decision = decide(&request, policy, readiness);
    if let Decision::Answer(answer) = &mut decision {
        answer.head_only = request.method == Some("HEAD");
    }
    Ok(Some((decision, len)))
}

fn decide<T>(
    request: &httparse::Request<'_, '_>,
    policy: &impl Fn(Option<&str>) -> Authorization<T>,
    readiness: Readiness,
) -> Decision<T> {
    let headers = Headers(request.headers);
    if headers.contains("Origin") {
        return Decision::Answer(Answer::FROM_A_BROWSER);
    }
    let target = request.path.unwrap_or_default();
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    let method = request.method.unwrap_or_default();
    let answer = match path {
        "/healthz" | "/readyz" if !matches!(method, "GET" | "HEAD") => Answer::ONLY_GET_AND_HEAD,
        "/readyz" if readiness == Readiness::ShuttingDown => Answer::SHUTTING_DOWN,
        "/healthz" | "/readyz" => Answer::HEALTHY,
        "/" if method != "GET" => Answer::ONLY_GET,
        "/" => match upgrade(&headers, request.version) {
            Err(answer) => answer,
            Ok(accept) => match policy(headers.only("Authorization").and_then(bearer)) {
                Authorization::Refused => Answer::REFUSED,
                Authorization::Admitted(_) if readiness == Readiness::ShuttingDown => Answer::SHUTTING_DOWN,
                Authorization::Admitted(who) => return Decision::Upgrade { accept, who },
            },
        },
        _ => Answer::NOT_FOUND,
    };
    Decision::Answer(answer)
}

/// Returns the value of `Sec-WebSocket-Accept` for a valid upgrade.
fn upgrade(headers: &Headers<'_>, http_version: Option<u8>) -> Result<String, Answer> {
    let asked = headers.has_word("Connection", "upgrade") && headers.has_word("Upgrade", "websocket");
    if !asked || http_version != Some(1) {
        return Err(Answer::NOT_AN_UPGRADE);
    }
    if headers.only("Sec-WebSocket-Version") != Some("13") {
        return Err(Answer::OTHER_VERSION);
    }
    let key = headers.only("Sec-WebSocket-Key").ok_or(Answer::NOT_AN_UPGRADE)?;
    match BASE64_STANDARD.decode(key) {
        Ok(nonce) if nonce.len() == 16 => Ok(accept_for(key)),
        _ => Err(Answer::NOT_AN_UPGRADE),
    }
}

/// Returns the token of an `Authorization` field with the scheme `Bearer`, in any case.
fn bearer(authorization: &str) -> Option<&str> {
    let (scheme, token) = authorization.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

async fn respond(stream: &mut TcpStream, answer: &Answer) -> io::Result<()> {
    let Answer { status, phrase, headers, text, head_only } = answer;
    let body = if *head_only { "" } else { text };
    let response = format!(
        "HTTP/1.1 {status} {phrase}\r\nConnection: close\r\nContent-Type: text/plain\r\n\
         Content-Length: {}\r\n{headers}\r\n{body}",
        text.len()
    );
    stream.write_all(response.as_bytes()).await?;
    stream.shutdown().await?;
    // Closing a socket with unread bytes, such as a body, would reset the connection and lose the response.
    let mut unread = [0; 512];
    while stream.read(&mut unread).await? > 0 {}
    Ok(())
}

impl From<io::Error> for NotUpgraded {
    fn from(error: io::Error) -> Self {
        NotUpgraded::Failed(error.kind())
    }
}

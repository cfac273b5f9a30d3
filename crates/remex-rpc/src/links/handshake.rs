//! The HTTP side of a WebSocket port: health checks, pages and the upgrade.
//!
//! [`receive`] reads one request and answers everything that needs no decision. What it returns waits for its
//! caller to authenticate the peer: an upgrade to accept or refuse, or a page to answer.

use std::{
    borrow::Cow,
    io,
    net::{IpAddr, Shutdown},
    sync::Arc,
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{
    FrameReader, Framing, Role, Stream, WriteHalf,
    frames::http::{HeadError, Headers, MAX_HEADERS, Parsed, accept_for, read_head},
    links::tls::HANDSHAKE_RECORD,
};

/// How long a refused peer may take to read the response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The settings of the HTTP handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandshakeConfig {
    /// Whether the server accepts new connections; [`Readiness::Ready`] by default.
    pub readiness: Readiness,
    /// The longest message after the upgrade, in bytes; 64 MiB by default.
    pub max_message_len: usize,
    /// The longest request head, in bytes; 16 KiB by default.
    pub max_head_len: usize,
    /// How long a request head may take to arrive; 10 s by default.
    pub head_timeout: Duration,
    /// Browser origins that may connect, such as `https://app.example.com`; none by default.
    pub origins: Arc<[String]>,
    /// Names that the `Host` header may have besides IP addresses and `localhost`; any by default.
    pub hosts: HostNames,
    /// Paths besides the health checks that are returned as a [`Page`]; none by default.
    pub pages: &'static [&'static str],
}

impl Default for HandshakeConfig {
    fn default() -> Self {
        HandshakeConfig {
            readiness: Readiness::Ready,
            max_message_len: 64 << 20,
            max_head_len: 16 << 10,
            head_timeout: Duration::from_secs(10),
            origins: Arc::default(),
            hosts: HostNames::Any,
            pages: &[],
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

/// The names under which a server may be addressed.
///
/// A page that a browser loaded from `evil.example` can have that name resolve to this host later (DNS
/// rebinding); its requests then carry that name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostNames {
    /// Any name.
    Any,
    /// IP addresses, `localhost` and its subdomains, and these names, in any case.
    Only(Arc<[String]>),
}

impl HostNames {
    /// Returns whether a `Host` header, which may have a port, is one of the names.
    fn allow(&self, host: Option<&str>) -> bool {
        let HostNames::Only(names) = self else { return true };
        // Without it, no browser has sent the request.
        let Some(host) = host else { return true };
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        let name = name.strip_suffix('.').unwrap_or(name);
        let is_address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
        let lower = name.to_ascii_lowercase();
        is_address
            || lower == "localhost"
            || lower.ends_with(".localhost")
            || names.iter().any(|known| is_name(known, name))
    }
}

/// Returns whether a name is the known one, or matches its wildcard, which stands for one label as in certificates.
fn is_name(known: &str, name: &str) -> bool {
    if let (Some(suffix), Some((label, below))) = (known.strip_prefix("*."), name.split_once('.')) {
        return !label.is_empty() && below.eq_ignore_ascii_case(suffix);
    }
    known.eq_ignore_ascii_case(name)
}

/// A request that waits for a decision.
#[derive(Debug)]
pub enum Received {
    /// A valid request to become a WebSocket.
    Upgrade(Upgrade),
    /// A request for one of the [pages](HandshakeConfig::pages).
    Page(Page),
}

/// A valid upgrade request; authenticate the peer, then accept or refuse it.
#[derive(Debug)]
pub struct Upgrade {
    stream: Stream,
    /// Bytes that arrived after the request.
    rest: Vec<u8>,
    accept: String,
    bearer: Option<String>,
    max_message_len: usize,
}

/// A request for a page; authenticate the peer, then answer or refuse it.
#[derive(Debug)]
pub struct Page {
    stream: Stream,
    path: &'static str,
    is_head: bool,
    bearer: Option<String>,
}

/// Why a peer is refused; the status and the text of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// 401: the peer presented no credential, or a wrong one.
    Unauthenticated,
    /// 403: the credential is valid but does not suffice.
    Forbidden,
    /// 403: a user of this host who may not connect.
    OtherUser {
        /// The number of that user, which it knows.
        uid: u32,
    },
    /// 401: the user at the other end is unknown, so only a token helps.
    UnknownUser,
    /// 403: the certificate of the peer is valid, but not one of those that may connect.
    UnlistedCertificate,
    /// 403: the certificate of the peer has only a common name.
    CommonName,
    /// 403: a remex sandbox confines the peer, or may do so.
    Confined,
    /// 401: the process at the other end cannot be seen, and a sandbox may confine it.
    UnknownProcess,
    /// 401: the process that made the connection has ended.
    EndedProcess,
    /// 429: a limit on connections was reached.
    Limited {
        /// The limit and what to do, with a line end.
        reason: &'static str,
    },
    /// 503: the server is shutting down.
    ShuttingDown,
    /// 503: the login cannot be recorded, and has to be.
    Unrecorded,
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
    /// The peer speaks TLS; it has been answered in plain HTTP, as such clients expect.
    #[error("the client speaks TLS, which this port does not; it has to use `ws://` or `http://`")]
    Tls,
    /// The peer closed the connection before its request was complete.
    #[error("the peer closed the connection before its request was complete")]
    Closed,
    /// The connection failed.
    #[error("the connection failed during the handshake: {0}")]
    Failed(io::ErrorKind),
}

/// Reads one HTTP request; answers health checks and requests that are refused regardless of the peer.
pub async fn receive(stream: impl Into<Stream>, config: &HandshakeConfig) -> Result<Received, NotUpgraded> {
    let mut stream = stream.into();
    let parse = |bytes: &[u8]| parse(bytes, config);
    let reading = timeout(config.head_timeout, read_head(&mut stream, config.max_head_len, parse)).await;
    let answer = match reading {
        Ok(Ok((Decision::Upgrade { accept, bearer }, rest))) => {
            let max_message_len = config.max_message_len;
            return Ok(Received::Upgrade(Upgrade { stream, rest, accept, bearer, max_message_len }));
        }
        Ok(Ok((Decision::Page { path, is_head, bearer }, _))) => {
            return Ok(Received::Page(Page { stream, path, is_head, bearer }));
        }
        Ok(Ok((Decision::Answer(answer), _))) => answer,
        Ok(Ok((Decision::Tls, _))) => {
            Answer::NOT_TLS.send(stream).await;
            return Err(NotUpgraded::Tls);
        }
        Ok(Err(HeadError::Malformed)) => Answer::MALFORMED,
        Ok(Err(HeadError::TooLong)) => Answer::HEAD_TOO_LONG,
        Ok(Err(HeadError::Closed)) => return Err(NotUpgraded::Closed),
        Ok(Err(HeadError::Io(error))) => return Err(error.into()),
        Err(_) => Answer::TIMED_OUT,
    };
    Err(answer.send(stream).await)
}

impl Upgrade {
    /// Returns the bearer token that the peer presented.
    pub fn bearer(&self) -> Option<&str> {
        self.bearer.as_deref()
    }

    /// Completes the upgrade.
    ///
    /// # Errors
    ///
    /// If the connection fails.
    pub async fn accept(self) -> Result<(FrameReader, WriteHalf), NotUpgraded> {
        let Upgrade { mut stream, rest, accept, max_message_len, .. } = self;
        let head = format!(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Accept: {accept}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await?;
        stream.flush().await?;
        let (reader, writer) = stream.into_split();
        let framing = Framing::WebSocket(Role::Server);
        Ok((FrameReader::new(reader, framing, max_message_len).with_received(&rest), writer))
    }

    /// Refuses the peer and closes the connection.
    pub async fn refuse(self, refusal: Refusal) -> NotUpgraded {
        refusal.answer().send(self.stream).await
    }
}

impl Page {
    /// Returns the path, without the query.
    pub fn path(&self) -> &'static str {
        self.path
    }

    /// Returns the bearer token that the peer presented.
    pub fn bearer(&self) -> Option<&str> {
        self.bearer.as_deref()
    }

    /// Answers with a body of this type and closes the connection.
    pub async fn answer(self, content_type: &str, body: &str) {
        let shown = if self.is_head { "" } else { body };
        let response = format!(
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\r\n{shown}",
            body.len()
        );
        // A peer that reads slowly or disconnects does not change the answer.
        let _ = timeout(RESPONSE_TIMEOUT, respond(self.stream, response)).await;
    }

    /// Refuses the peer and closes the connection.
    pub async fn refuse(self, refusal: Refusal) -> NotUpgraded {
        let answer = Answer { head_only: self.is_head, ..refusal.answer() };
        answer.send(self.stream).await
    }
}

impl Refusal {
    fn answer(self) -> Answer {
        match self {
            Refusal::Unauthenticated => Answer::REFUSED,
            Refusal::Forbidden => Answer::FORBIDDEN,
            Refusal::OtherUser { uid } => Answer {
                text: Cow::Owned(format!(
                    "user {uid} may not use this server; its owner can start it with `--allow-user {uid}`\n"
                )),
                ..Answer::FORBIDDEN
            },
            Refusal::UnknownUser => Answer::UNKNOWN_USER,
            Refusal::UnlistedCertificate => Answer::UNLISTED_CERTIFICATE,
            Refusal::CommonName => Answer::COMMON_NAME,
            Refusal::Confined => Answer::CONFINED,
            Refusal::UnknownProcess => Answer::UNKNOWN_PROCESS,
            Refusal::EndedProcess => Answer::ENDED_PROCESS,
            Refusal::Limited { reason } => Answer { text: Cow::Borrowed(reason), ..Answer::TOO_MANY },
            Refusal::ShuttingDown => Answer::SHUTTING_DOWN,
            Refusal::Unrecorded => Answer::UNRECORDED,
        }
    }
}

/// Refuses a connection that has just been accepted, without reading from it or waiting for it.
pub fn refuse_at_once(stream: TcpStream, refusal: Refusal) {
    // The runtime does not know yet whether the socket can be written to.
    let Ok(mut stream) = stream.into_std() else { return };
    // The send buffer of a new connection has room; a peer that has disconnected does not change the answer.
    let _ = io::Write::write(&mut stream, refusal.answer().response().as_bytes());
    let _ = stream.shutdown(Shutdown::Write);
}

enum Decision {
    Upgrade { accept: String, bearer: Option<String> },
    Page { path: &'static str, is_head: bool, bearer: Option<String> },
    Answer(Answer),
    Tls,
}

/// A response that ends the connection.
struct Answer {
    status: u16,
    phrase: &'static str,
    /// Further header fields, each with its line end.
    headers: &'static str,
    /// The body, for people.
    text: Cow<'static, str>,
    /// Whether to omit the body, for HEAD requests.
    head_only: bool,
}

impl Answer {
    const HEALTHY: Answer = Answer::new(200, "OK", "");
    const MALFORMED: Answer = Answer::new(400, "Bad Request", "this is not an HTTP/1.1 request\n");
    const NOT_TLS: Answer =
        Answer::new(400, "Bad Request", "this port speaks no TLS: use a `ws://` or `http://` URL\n");
    const NOT_AN_UPGRADE: Answer =
        Answer::new(400, "Bad Request", "this is a WebSocket server: request an upgrade to `websocket`\n");
    const OTHER_VERSION: Answer =
        Answer::new(400, "Bad Request", "this server supports only version 13 of the WebSocket protocol\n")
            .with_headers("Sec-WebSocket-Version: 13\r\n");
    const HAS_BODY: Answer =
        Answer::new(400, "Bad Request", "a request to become a WebSocket has no body: send none\n");
    const REFUSED: Answer =
        Answer::new(401, "Unauthorized", "send a valid token as `Authorization: Bearer TOKEN`\n")
            .with_headers("WWW-Authenticate: Bearer\r\n");
    const FORBIDDEN: Answer =
        Answer::new(403, "Forbidden", "this credential does not allow it; ask for one with a wider scope\n");
    const CONFINED: Answer = Answer::new(
        403,
        "Forbidden",
        "a process in a remex sandbox may not use a server of its own host, which would run things outside of the sandbox\n",
    );
    const UNKNOWN_USER: Answer = Answer::new(
        401,
        "Unauthorized",
        "the server cannot tell which user connects, as from a container; its owner can start it with `--ws-auth capability-token` and give you the token\n",
    )
    .with_headers("WWW-Authenticate: Bearer\r\n");
    const UNKNOWN_PROCESS: Answer = Answer::new(
        401,
        "Unauthorized",
        "the server cannot tell whether a remex sandbox confines the process that connects; its owner can start it with `--ws-auth capability-token` and give you the token\n",
    )
    .with_headers("WWW-Authenticate: Bearer\r\n");
    const ENDED_PROCESS: Answer = Answer::new(
        401,
        "Unauthorized",
        "the process that made the connection has ended; connect again and keep the connection open\n",
    )
    .with_headers("WWW-Authenticate: Bearer\r\n");
    const UNLISTED_CERTIFICATE: Answer = Answer::new(
        403,
        "Forbidden",
        "this server does not list the client certificate; its owner can add it to `auth.certificates`\n",
    );
    const COMMON_NAME: Answer = Answer::new(
        403,
        "Forbidden",
        "the client certificate has only a common name; use one with a SPIFFE URI or a DNS name\n",
    );
    const FROM_A_BROWSER: Answer = Answer::new(
        403,
        "Forbidden",
        "requests with this `Origin` are refused; allow it with --allow-origin\n",
    );
    const OTHER_HOST: Answer = Answer::new(
        421,
        "Misdirected Request",
        "the `Host` of this request is no name of this server; allow it with --allow-host\n",
    );
    const TOO_MANY: Answer =
        Answer::new(429, "Too Many Requests", "too many connections or failed logins; try again later\n")
            .with_headers("Retry-After: 10\r\n");
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
    const UNRECORDED: Answer = Answer::new(
        503,
        "Service Unavailable",
        "the login cannot be recorded in the audit file; ask the administrator of the server to make room for it\n",
    );

    const fn new(status: u16, phrase: &'static str, text: &'static str) -> Self {
        Answer { status, phrase, headers: "", text: Cow::Borrowed(text), head_only: false }
    }

    const fn with_headers(mut self, headers: &'static str) -> Self {
        self.headers = headers;
        self
    }
}

/// Parses a request and decides how to respond.
fn parse(bytes: &[u8], config: &HandshakeConfig) -> Parsed<Decision> {
    if bytes.first() == Some(&HANDSHAKE_RECORD) {
        return Ok(Some((Decision::Tls, bytes.len())));
    }
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(len) = request.parse(bytes)? else { return Ok(None) };
    let mut decision = decide(&request, config);
    if let Decision::Answer(answer) = &mut decision {
        answer.head_only = request.method == Some("HEAD");
    }
    Ok(Some((decision, len)))
}

fn decide(request: &httparse::Request<'_, '_>, config: &HandshakeConfig) -> Decision {
    let headers = Headers(request.headers);
    if headers.contains("Origin")
        && !headers.only("Origin").is_some_and(|origin| is_listed(&config.origins, origin))
    {
        return Decision::Answer(Answer::FROM_A_BROWSER);
    }
    if headers.contains("Host") && !headers.only("Host").is_some_and(|host| config.hosts.allow(Some(host))) {
        return Decision::Answer(Answer::OTHER_HOST);
    }
    let target = request.path.unwrap_or_default();
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    let method = request.method.unwrap_or_default();
    let page = config.pages.iter().copied().find(|page| *page == path);
    let bearer = || headers.only("Authorization").and_then(bearer).map(str::to_owned);
    let answer = match path {
        _ if matches!(path, "/healthz" | "/readyz") || page.is_some() => match (method, page) {
            ("GET" | "HEAD", Some(path)) => {
                return Decision::Page { path, is_head: method == "HEAD", bearer: bearer() };
            }
            ("GET" | "HEAD", None) if path == "/readyz" && config.readiness == Readiness::ShuttingDown => {
                Answer::SHUTTING_DOWN
            }
            ("GET" | "HEAD", None) => Answer::HEALTHY,
            _ => Answer::ONLY_GET_AND_HEAD,
        },
        "/" if method != "GET" => Answer::ONLY_GET,
        "/" => match upgrade(&headers, request.version) {
            Err(answer) => answer,
            Ok(accept) => return Decision::Upgrade { accept, bearer: bearer() },
        },
        _ => Answer::NOT_FOUND,
    };
    Decision::Answer(answer)
}

/// Returns whether an origin is listed; scheme and host are compared in any case.
fn is_listed(origins: &[String], origin: &str) -> bool {
    origins.iter().any(|listed| listed.eq_ignore_ascii_case(origin))
}

/// Returns the value of `Sec-WebSocket-Accept` for a valid upgrade.
fn upgrade(headers: &Headers<'_>, http_version: Option<u8>) -> Result<String, Answer> {
    let asked = headers.has_word("Connection", "upgrade") && headers.has_word("Upgrade", "websocket");
    if !asked || http_version != Some(1) {
        return Err(Answer::NOT_AN_UPGRADE);
    }
    // The body would be read as frames: an attacker who controls the body of a request could send messages.
    if headers.contains("Transfer-Encoding")
        || headers.contains("Content-Length") && headers.only("Content-Length") != Some("0")
    {
        return Err(Answer::HAS_BODY);
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

impl Answer {
    /// Sends the answer and closes the connection; returns what that means for the caller.
    async fn send(self, stream: Stream) -> NotUpgraded {
        let status = self.status;
        // A peer that reads slowly or disconnects does not change the answer.
        let _ = timeout(RESPONSE_TIMEOUT, respond(stream, self.response())).await;
        NotUpgraded::Answered { status }
    }

    fn response(self) -> String {
        let Answer { status, phrase, headers, text, head_only } = self;
        let body = if head_only { "" } else { &*text };
        format!(
            "HTTP/1.1 {status} {phrase}\r\nConnection: close\r\nContent-Type: text/plain\r\n\
             Content-Length: {}\r\n{headers}\r\n{body}",
            text.len()
        )
    }
}

async fn respond(mut stream: Stream, response: String) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_an_address_localhost_or_a_known_name() {
        let names = HostNames::Only(["build.example".to_owned(), "*.lab.example".to_owned()].into());
        for host in [
            "127.0.0.1:4000",
            "[::1]:4000",
            "localhost",
            "x.localhost:1",
            "Build.Example:4000",
            "build.example.",
            "a.lab.example",
        ] {
            assert!(names.allow(Some(host)), "{host}");
        }
        for host in ["evil.example", "x.build.example", "lab.example", ".lab.example", "a.b.lab.example", ""]
        {
            assert!(!names.allow(Some(host)), "{host}");
        }
    }
}

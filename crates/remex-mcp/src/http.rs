//! The tools over streamable HTTP, for clients that present a token.
//!
//! Start at [`Http`].

mod sessions;

use std::{
    collections::VecDeque,
    convert::Infallible,
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, combinators::BoxBody};
use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    header::{AUTHORIZATION, CONTENT_TYPE, HOST, RETRY_AFTER, WWW_AUTHENTICATE},
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use remex_base::lock;
use rmcp::transport::streamable_http_server::{
    StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, OwnedSemaphorePermit, Semaphore, watch},
    task::AbortHandle,
};
use tower_service::Service as _;

use self::sessions::{GuardedBody, SessionTable};
use crate::Tools;

/// Where the tools are on the server.
pub const PATH: &str = "/mcp";

/// How many connections of clients that have presented the token there may be at a time.
const MAX_CONNECTIONS: usize = 512;

/// How many others there may be: one more ends the oldest of them, which had its chance.
const MAX_STRANGERS: usize = 256;

/// How long a client may take to send the head of a request, and to present the token.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a session without any message lives; longer than the longest call.
const SESSION_IDLE: Duration = Duration::from_secs(3600);

/// The header that names a session.
const SESSION_ID: &str = "mcp-session-id";

/// Returns why a client that connected to the first address from the second one is refused. May block.
type PeerCheck = Arc<dyn Fn(SocketAddr, SocketAddr) -> Result<(), String> + Send + Sync>;

type Mcp = StreamableHttpService<Tools, LocalSessionManager>;

/// A server of the tools on a TCP port.
pub struct Http {
    listener: TcpListener,
    token: Token,
    hosts: Vec<String>,
    check_peer: PeerCheck,
}

/// The token that clients present, which can be replaced while they are served.
#[derive(Debug, Clone)]
pub struct Token {
    /// Its digest.
    sha256: watch::Sender<[u8; 32]>,
}

impl Token {
    fn new(token: &str) -> Self {
        Token { sha256: watch::Sender::new(Sha256::digest(token).into()) }
    }

    /// Replaces the token. If it is another one, all connections end: their clients have presented the previous one.
    pub fn replace(&self, token: &str) {
        let new: [u8; 32] = Sha256::digest(token).into();
        self.sha256.send_if_modified(|sha256| std::mem::replace(sha256, new) != new);
    }

    fn is(&self, token: &str) -> bool {
        let digest: [u8; 32] = Sha256::digest(token).into();
        digest.ct_eq(&*self.sha256.borrow()).into()
    }
}

impl fmt::Debug for Http {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Http").field("listener", &self.listener).finish_non_exhaustive()
    }
}

impl Http {
    /// Serves on this listener to clients that present the token.
    pub fn new(listener: TcpListener, token: &str) -> Self {
        Self { listener, token: Token::new(token), hosts: Vec::new(), check_peer: Arc::new(|_, _| Ok(())) }
    }

    /// Refuses clients that present the token, but fail this check of the addresses that they connected to and from, with
    /// the reason that it returns. It runs on a thread that may block.
    #[must_use]
    pub fn check_peers(
        mut self,
        check: impl Fn(SocketAddr, SocketAddr) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.check_peer = Arc::new(check);
        self
    }

    /// Returns a handle that replaces the token.
    pub fn token(&self) -> Token {
        self.token.clone()
    }

    /// Also accepts requests for these names of the host; by default only `localhost` and loopback addresses, so that a web
    /// page cannot reach the server through a name of its own.
    #[must_use]
    pub fn hosts(mut self, hosts: impl IntoIterator<Item = String>) -> Self {
        self.hosts.extend(hosts);
        self
    }

    /// Returns the address that it listens on.
    ///
    /// # Errors
    ///
    /// Those of the system.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until it is dropped.
    pub async fn serve(self, tools: Tools) -> Infallible {
        let hosts = ["localhost", "127.0.0.1", "::1"].into_iter().map(str::to_owned).chain(self.hosts);
        // No web page may use it, whatever its token; there are none at its own address.
        let port = self.listener.local_addr().map_or(0, |address| address.port());
        let origins = ["localhost", "127.0.0.1", "[::1]"].map(|host| format!("http://{host}:{port}"));
        let config = StreamableHttpServerConfig::default()
            .with_allowed_hosts(hosts.collect::<Vec<_>>())
            .with_allowed_origins(origins)
            .enforce_origin_validation();
        let mut sessions = LocalSessionManager::default();
        sessions.session_config.keep_alive = Some(SESSION_IDLE);
        let sessions = Arc::new(sessions);
        let mcp = Mcp::new(move || Ok(tools.for_client()), Arc::clone(&sessions), config);
        let guard = Arc::new(Guard {
            token: self.token,
            check_peer: self.check_peer,
            mcp,
            sessions: SessionTable::new(sessions),
            slots: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            unauthenticated: Mutex::default(),
        });
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => guard.welcome(stream),
                Err(error) => {
                    tracing::warn!("cannot accept a connection: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

/// Lets only those in who know the token.
struct Guard {
    token: Token,
    check_peer: PeerCheck,
    mcp: Mcp,
    sessions: SessionTable,
    slots: Arc<Semaphore>,
    /// Connections that have not presented the token yet, the oldest first.
    unauthenticated: Mutex<VecDeque<(Arc<Connection>, AbortHandle)>>,
}

/// A connection; with a slot once its client has presented the token.
#[derive(Debug, Default)]
struct Connection {
    /// The local and the peer address; `None` if the client disconnected at once.
    ends: Option<(SocketAddr, SocketAddr)>,
    slot: OnceLock<OwnedSemaphorePermit>,
    admitted: Notify,
}

impl Guard {
    /// Serves a connection.
    fn welcome(self: &Arc<Self>, stream: TcpStream) {
        // Held until the connection is listed, so that it cannot end before.
        let mut unauthenticated = self.unauthenticated();
        let ends = stream.local_addr().and_then(|local| Ok((local, stream.peer_addr()?))).ok();
        let (guard, connection) = (Arc::clone(self), Arc::new(Connection { ends, ..Connection::default() }));
        let served = Arc::clone(&connection);
        let mut token = self.token.sha256.subscribe();
        let task = tokio::spawn(async move {
            let service =
                service_fn(|request| async { Ok::<_, Infallible>(guard.answer(request, &served).await) });
            let serving = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service);
            let stays_a_stranger = async {
                if tokio::time::timeout(HEAD_TIMEOUT, served.admitted.notified()).await.is_ok() {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                ended = serving => {
                    if let Err(error) = ended {
                        tracing::debug!("a connection ended: {error}");
                    }
                }
                () = stays_a_stranger => tracing::debug!("a connection ended: it presented no token"),
                _ = token.changed() => tracing::debug!("a connection ended: the token was replaced"),
            }
            guard.unauthenticated().retain(|(other, _)| !Arc::ptr_eq(other, &served));
        });
        if unauthenticated.len() >= MAX_STRANGERS
            && let Some((_, oldest)) = unauthenticated.pop_front()
        {
            oldest.abort();
        }
        unauthenticated.push_back((connection, task.abort_handle()));
    }

    fn unauthenticated(&self) -> MutexGuard<'_, VecDeque<(Arc<Connection>, AbortHandle)>> {
        lock(&self.unauthenticated)
    }

    /// Checks the peer of a connection, once.
    async fn check(&self, connection: &Connection) -> Result<(), String> {
        if connection.slot.get().is_some() {
            return Ok(());
        }
        let Some((local, peer)) = connection.ends else {
            return Err("the client has disconnected".to_owned());
        };
        let check = Arc::clone(&self.check_peer);
        let checked = tokio::task::spawn_blocking(move || check(local, peer)).await;
        checked.unwrap_or_else(|error| Err(error.to_string()))
    }

    /// Gives a connection whose client knows the token one of the slots, if there is one.
    fn admit(&self, connection: &Arc<Connection>) -> bool {
        if connection.slot.get().is_some() {
            return true;
        }
        let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() else { return false };
        let _ = connection.slot.set(slot);
        connection.admitted.notify_one();
        self.unauthenticated().retain(|(other, _)| !Arc::ptr_eq(other, connection));
        true
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        connection: &Arc<Connection>,
    ) -> Response<BoxBody<Bytes, Infallible>> {
        // Which of them counts is a matter of opinion, and a proxy may have another one.
        for (header, why) in [
            (AUTHORIZATION, "send the header `Authorization` once\n"),
            (HOST, "send the header `Host` once\n"),
        ] {
            if request.headers().get_all(header).iter().nth(1).is_some() {
                return refuse(StatusCode::BAD_REQUEST, why);
            }
        }
        if request.uri().path() != PATH {
            return refuse(StatusCode::NOT_FOUND, "the tools are at /mcp\n");
        }
        if !self.knows_token(&request) {
            let mut response = refuse(
                StatusCode::UNAUTHORIZED,
                "send the token in the header `Authorization: Bearer TOKEN`\n",
            );
            response.headers_mut().insert(WWW_AUTHENTICATE, "Bearer".parse().expect("it is a header value"));
            return response;
        }
        if let Err(why) = self.check(connection).await {
            return refuse(StatusCode::FORBIDDEN, format!("{why}\n"));
        }
        if !self.admit(connection) {
            return refuse(StatusCode::SERVICE_UNAVAILABLE, "there are too many connections\n");
        }
        self.call(request).await
    }

    /// Has a request answered, and keeps the number of sessions within bounds.
    async fn call(&self, request: Request<Incoming>) -> Response<BoxBody<Bytes, Infallible>> {
        let session = request.headers().get(SESSION_ID).and_then(|id| id.to_str().ok());
        // A client that only listens does not keep its session from ending.
        let guard = session.filter(|_| request.method() == Method::POST);
        let guard = guard.and_then(|id| self.sessions.begin_request(id));
        let is_known = session.is_some();
        let is_end = request.method() == Method::DELETE;
        let response = match self.mcp.clone().call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let made = response.headers().get(SESSION_ID).and_then(|id| id.to_str().ok());
        if let (Some(id), false) = (made, is_known)
            && !self.sessions.add(id.into()).await
        {
            let why =
                "there are too many sessions, and all are in use; end one with DELETE, or try again later\n";
            let mut response = refuse(StatusCode::SERVICE_UNAVAILABLE, why);
            response.headers_mut().insert(RETRY_AFTER, "60".parse().expect("it is a header value"));
            return response;
        }
        if is_end && response.status() == StatusCode::ACCEPTED {
            // The session has ended: the SDK for Python takes only 200 and 204 for success.
            let mut response = Response::new(Full::new(Bytes::new()).boxed());
            *response.status_mut() = StatusCode::NO_CONTENT;
            return response;
        }
        response.map(|body| GuardedBody { body, _guard: guard }.boxed())
    }

    fn knows_token(&self, request: &Request<Incoming>) -> bool {
        let header = request.headers().get(AUTHORIZATION).and_then(|header| header.to_str().ok());
        let token = header.and_then(|header| {
            let (scheme, token) = header.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
        });
        token.is_some_and(|token| self.token.is(token))
    }
}

fn refuse(status: StatusCode, why: impl Into<Bytes>) -> Response<BoxBody<Bytes, Infallible>> {
    let mut response = Response::new(Full::new(why.into()).boxed());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, "text/plain".parse().expect("it is a header value"));
    response
}

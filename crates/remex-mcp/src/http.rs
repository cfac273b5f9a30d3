//! The tools over streamable HTTP, for clients that present a token.
//!
//! Start at [`Http`].

use std::{convert::Infallible, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, combinators::BoxBody};
use hyper::{
    Request, Response, StatusCode,
    body::Incoming,
    header::{AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE},
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use rmcp::transport::streamable_http_server::{
    StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tokio::{net::TcpListener, sync::Semaphore};
use tower_service::Service as _;

use crate::Tools;

/// Where the tools are on the server.
pub const PATH: &str = "/mcp";

/// How many connections there may be at a time.
const MAX_CONNECTIONS: usize = 512;

/// How long a client may take to send the head of a request.
const HEAD_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);

type Mcp = StreamableHttpService<Tools, LocalSessionManager>;

/// A server of the tools on a TCP port.
#[derive(Debug)]
pub struct Http {
    listener: TcpListener,
    /// The digest of the token that clients present.
    token: [u8; 32],
    hosts: Vec<String>,
}

impl Http {
    /// Serves on this listener to clients that present the token.
    pub fn new(listener: TcpListener, token: &str) -> Self {
        Self { listener, token: Sha256::digest(token).into(), hosts: Vec::new() }
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
        let mcp = Mcp::new(move || Ok(tools.clone()), Arc::default(), config);
        let guard = Arc::new(Guard { token: self.token, mcp });
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { continue };
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!("cannot accept a connection: {error}");
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                    continue;
                }
            };
            let guard = Arc::clone(&guard);
            tokio::spawn(async move {
                let service = service_fn(move |request| {
                    let guard = Arc::clone(&guard);
                    async move { Ok::<_, Infallible>(guard.answer(request).await) }
                });
                let served = hyper::server::conn::http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(HEAD_TIMEOUT)
                    .serve_connection(TokioIo::new(stream), service);
                if let Err(error) = served.await {
                    tracing::debug!("a connection ended: {error}");
                }
                drop(slot);
            });
        }
    }
}

/// Lets only those in who know the token.
struct Guard {
    token: [u8; 32],
    mcp: Mcp,
}

impl Guard {
    async fn answer(&self, request: Request<Incoming>) -> Response<BoxBody<Bytes, Infallible>> {
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
        match self.mcp.clone().call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }

    fn knows_token(&self, request: &Request<Incoming>) -> bool {
        let header = request.headers().get(AUTHORIZATION).and_then(|header| header.to_str().ok());
        let token = header.and_then(|header| {
            let (scheme, token) = header.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
        });
        let digest: [u8; 32] = Sha256::digest(token.unwrap_or_default()).into();
        token.is_some() && digest.ct_eq(&self.token).into()
    }
}

fn refuse(status: StatusCode, why: &'static str) -> Response<BoxBody<Bytes, Infallible>> {
    let mut response = Response::new(Full::new(Bytes::from_static(why.as_bytes())).boxed());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, "text/plain".parse().expect("it is a header value"));
    response
}

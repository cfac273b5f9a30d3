//! HTTP requests that the server makes, from its network and with its secrets.
//!
//! Start at [`Http`]; [`Request::send`] returns the whole body, [`Request::stream`] streams it.

mod body;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use remex_base::clock::millis;
pub use remex_proto::http::ResponseHeader;
use remex_proto::{Blob, http as wire};

pub use self::body::Body;
use crate::{
    Client, Error,
    core::shared::{Route, RouteKey},
};

/// Makes HTTP requests from the remote host.
///
/// A cheap clone of its client, which lives at least as long.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/web/here.rs"));
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # let url = web_server()?;
/// let response = client.http().get(&url).send().await?;
/// assert_eq!((response.status, &response.body[..]), (200, &b"ok\n"[..]));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Http {
    client: Client,
}

impl Client {
    /// Returns an HTTP client on the remote host.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/web/here.rs"));
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let url = web_server()?;
    /// assert_eq!(client.http().get(&url).send().await?.status, 200);
    /// # Ok(()) }
    /// ```
    pub fn http(&self) -> Http {
        Http { client: self.clone() }
    }
}

impl Http {
    /// Creates a GET request.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/web/here.rs"));
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let url = web_server()?;
    /// let response = client.http().get(format!("{url}/health")).send().await?;
    /// assert_eq!(response.status, 200);
    /// # Ok(()) }
    /// ```
    pub fn get(&self, url: impl Into<String>) -> Request {
        self.request("GET", url)
    }

    /// Creates a POST request.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/web/here.rs"));
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let url = web_server()?;
    /// let request = client.http().post(&url).header("content-type", "application/json").body(r#"{"n": 7}"#);
    /// assert_eq!(request.send().await?.status, 200);
    /// # Ok(()) }
    /// ```
    pub fn post(&self, url: impl Into<String>) -> Request {
        self.request("POST", url)
    }

    /// Creates a request.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/web/here.rs"));
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let url = web_server()?;
    /// let response = client.http().request("DELETE", format!("{url}/7")).send().await?;
    /// assert_eq!(response.status, 200);
    /// # Ok(()) }
    /// ```
    pub fn request(&self, method: impl Into<String>, url: impl Into<String>) -> Request {
        Request {
            client: self.client.clone(),
            request: wire::HttpRequest {
                method: method.into(),
                url: url.into(),
                // Set when the request is sent.
                request_id: String::new(),
                headers: Vec::new(),
                body_base64: None,
                timeout_ms: None,
                redirect_policy: wire::RedirectPolicy::Follow,
                stream_response: false,
            },
        }
    }
}

/// What to do with a redirect.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/web/here.rs"));
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # let url = web_server()?;
/// use remex_client::http::Redirects;
///
/// let response = client.http().get(&url).redirects(Redirects::Stop).send().await?;
/// assert_eq!((response.status, response.header("location")), (200, None));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Redirects {
    /// Follows up to ten redirects.
    #[default]
    Follow,
    /// Returns the redirect itself.
    Stop,
}

/// An HTTP request to send.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/web/here.rs"));
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # let url = web_server()?;
/// use std::time::Duration;
///
/// let request = client.http().post(&url).header("accept", "text/plain").body("hello");
/// let response = request.timeout(Duration::from_secs(10)).send().await?;
/// assert_eq!(response.body, "ok\n");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a request does nothing until it is sent"]
pub struct Request {
    client: Client,
    request: wire::HttpRequest,
}

impl Request {
    /// Adds a header; order and repeats are kept.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/web/here.rs"));
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let url = web_server()?;
    /// let response = client.http().get(&url).header("accept", "text/plain").send().await?;
    /// assert_eq!(response.header("content-type"), Some("text/plain"));
    /// # Ok(()) }
    /// ```
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let (name, value) = (name.into(), value.into());
        self.request.headers.push(wire::Header { name, value, value_env_var: None });
        self
    }

    /// Adds a header whose value is `prefix` and the value of a variable of the server's environment, so that a
    /// secret stays there.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/web/here.rs"));
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let url = web_server()?;
    /// // `PATH` stands in for a token: its value never reaches the client.
    /// let request = client.http().get(&url).header_from_env("authorization", "Bearer ", "PATH");
    /// assert_eq!(request.send().await?.status, 200);
    /// # Ok(()) }
    /// ```
    pub fn header_from_env(
        mut self,
        name: impl Into<String>,
        prefix: impl Into<String>,
        variable: impl Into<String>,
    ) -> Self {
        let (name, value, value_env_var) = (name.into(), prefix.into(), Some(variable.into()));
        self.request.headers.push(wire::Header { name, value, value_env_var });
        self
    }

    /// Sets the body.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/web/here.rs"));
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let url = web_server()?;
    /// assert_eq!(client.http().post(&url).body("hello").send().await?.status, 200);
    /// # Ok(()) }
    /// ```
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.request.body_base64 = Some(Blob(body.into()));
        self
    }

    /// Sets a timeout for the whole exchange, including redirects and the body; none by default.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/web/here.rs"));
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let url = web_server()?;
    /// use std::time::Duration;
    ///
    /// let request = client.http().get(&url).timeout(Duration::from_secs(10));
    /// assert_eq!(request.send().await?.status, 200);
    /// # Ok(()) }
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.request.timeout_ms = Some(millis(timeout));
        self
    }

    /// Sets what to do with redirects; they are followed by default.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/web/here.rs"));
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let url = web_server()?;
    /// use remex_client::http::Redirects;
    ///
    /// let request = client.http().get(&url).redirects(Redirects::Stop);
    /// assert_eq!(request.send().await?.status, 200);
    /// # Ok(()) }
    /// ```
    pub fn redirects(mut self, redirects: Redirects) -> Self {
        self.request.redirect_policy = match redirects {
            Redirects::Follow => wire::RedirectPolicy::Follow,
            Redirects::Stop => wire::RedirectPolicy::Stop,
        };
        self
    }

    /// Sends the request and waits for the response with its whole body, whatever its status.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] with [`ErrorKind::HttpFailed`](crate::ErrorKind::HttpFailed) when the exchange fails, and
    /// with [`ErrorKind::LimitExceeded`](crate::ErrorKind::LimitExceeded) when the body is longer than 32 MiB;
    /// [`Error::Interrupted`] when it is unknown after a disconnect whether a request with side effects was made.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/web/here.rs"));
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let url = web_server()?;
    /// use remex_client::ErrorKind;
    ///
    /// assert_eq!(client.http().get(&url).send().await?.body, "ok\n");
    /// let nobody = client.http().get("http://127.0.0.1:1").send().await;
    /// assert_eq!(nobody.unwrap_err().kind(), Some(ErrorKind::HttpFailed));
    /// # Ok(()) }
    /// ```
    pub async fn send(self) -> Result<Response, Error> {
        let request = wire::HttpRequest { request_id: self.client.core().name("http"), ..self.request };
        let wire::HttpResponse { status, headers, body_base64 } =
            self.client.call_without_limit(request).await?;
        Ok(Response { status, headers, body: body_base64.0 })
    }

    /// Sends the request and returns when the response head arrives; the body is streamed.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] with [`ErrorKind::HttpFailed`](crate::ErrorKind::HttpFailed) when there is no response,
    /// [`Error::Interrupted`] after a disconnect.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/web/here.rs"));
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let url = web_server()?;
    /// let mut response = client.http().get(&url).stream().await?;
    /// let mut bytes = 0;
    /// while let Some(chunk) = response.body.chunk().await? {
    ///     bytes += chunk.len();
    /// }
    /// assert_eq!((response.status, bytes), (200, 3));
    /// # Ok(()) }
    /// ```
    pub async fn stream(self) -> Result<StreamingResponse, Error> {
        let core = Arc::clone(self.client.core());
        let request_id = core.name("http");
        let request = wire::HttpRequest { request_id, stream_response: true, ..self.request };
        let route = Arc::<Route>::default();
        core.add_route(RouteKey::Http(request.request_id.clone()), &route);
        // Removes the route when dropped, also on errors below.
        let mut body = Body::new(self.client, request.request_id.clone(), route);
        let reply = core.enqueue(request.into()).await?;
        let call = reply.id();
        let wire::HttpResponse { status, headers, .. } = reply.await?.decode("http/request")?;
        body.answered(call);
        Ok(StreamingResponse { status, headers, body })
    }
}

/// A response with its body.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/web/here.rs"));
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # let url = web_server()?;
/// let response = client.http().get(&url).send().await?;
/// assert_eq!(response.header("Content-Length"), Some("3"));
/// assert_eq!(response.body, "ok\n");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Names in lower case; values that are not visible ASCII are left out.
    pub headers: Vec<ResponseHeader>,
    /// As received, without decompression.
    pub body: Bytes,
}

impl Response {
    /// Returns the value of the first header with this name, ignoring case.
    pub fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }
}

/// A response whose body is streamed.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/web/here.rs"));
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # let url = web_server()?;
/// use tokio::io::AsyncReadExt as _;
///
/// let mut response = client.http().get(&url).stream().await?;
/// assert_eq!((response.status, response.header("content-type")), (200, Some("text/plain")));
/// let mut text = String::new();
/// response.body.read_to_string(&mut text).await?;
/// assert_eq!(text, "ok\n");
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct StreamingResponse {
    /// The status code.
    pub status: u16,
    /// Names in lower case; values that are not visible ASCII are left out.
    pub headers: Vec<ResponseHeader>,
    /// The body.
    pub body: Body,
}

impl StreamingResponse {
    /// Returns the value of the first header with this name, ignoring case.
    pub fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }
}

fn find<'a>(headers: &'a [ResponseHeader], name: &str) -> Option<&'a str> {
    headers.iter().find(|header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value.as_str())
}

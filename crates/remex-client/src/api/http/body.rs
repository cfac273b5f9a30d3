//! A response body that is streamed.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use remex_proto::{ErrorKind, RpcError, http::BodyDelta};
use tokio::io::{AsyncRead, ReadBuf};

use crate::{
    Client, Error,
    core::shared::{Route, RouteEvent, RouteKey},
};

/// After how many parts consumption is reported to the server; well below its window.
const REPORT_INTERVAL: u64 = 4;

/// The body of a response, streamed.
///
/// A stalled reader blocks only this body: backpressure reaches the web server. Dropping the body cancels the exchange
/// if the server supports that; otherwise the rest is discarded.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/web/here.rs"));
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # let url = web_server()?;
/// let mut body = client.http().get(&url).stream().await?.body;
/// assert_eq!(body.chunk().await?.as_deref(), Some(&b"ok\n"[..]));
/// assert_eq!(body.chunk().await?, None);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Body {
    client: Client,
    request_id: String,
    /// The id of the answered call, for cancelling the stream.
    call: Option<u64>,
    route: Arc<Route>,
    /// The sequence number of the last part.
    seq: u64,
    state: BodyState,
    rest: Bytes,
}

#[derive(Debug)]
enum BodyState {
    Open,
    Ended,
    Failed(Error),
}

impl Body {
    pub(super) fn new(client: Client, request_id: String, route: Arc<Route>) -> Self {
        Self { client, request_id, call: None, route, seq: 0, state: BodyState::Open, rest: Bytes::new() }
    }

    /// Records that the call was answered and the body is streaming.
    pub(super) fn answered(&mut self, call: u64) {
        self.call = Some(call);
    }

    /// Returns the next part, `None` at the end. Cancel-safe.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] with [`ErrorKind::HttpFailed`](crate::ErrorKind::HttpFailed) when the body is
    /// incomplete, [`Error::Interrupted`] after a disconnect, [`Error::Overrun`] when too much was buffered unread, and
    /// [`Error::Lost`].
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/web/here.rs"));
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let url = web_server()?;
    /// let mut body = client.http().get(&url).stream().await?.body;
    /// while let Some(chunk) = body.chunk().await? {
    ///     println!("{} bytes", chunk.len());
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Error> {
        std::future::poll_fn(|context| self.poll_chunk(context)).await
    }

    fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Error>> {
        if !self.rest.is_empty() {
            return Poll::Ready(Ok(Some(std::mem::take(&mut self.rest))));
        }
        loop {
            match &self.state {
                BodyState::Open => {}
                BodyState::Ended => return Poll::Ready(Ok(None)),
                BodyState::Failed(error) => return Poll::Ready(Err(error.clone())),
            }
            match ready!(self.route.poll_next(context)) {
                RouteEvent::Body(delta) => {
                    let chunk = self.take(delta);
                    if !chunk.is_empty() {
                        return Poll::Ready(Ok(Some(chunk)));
                    }
                }
                RouteEvent::Overrun { bytes } => self.fail(Error::Overrun { bytes: bytes as u64 }),
                RouteEvent::Broken(error) => self.fail(error),
                RouteEvent::Lost(loss) => self.fail(loss.into()),
                RouteEvent::Disconnected
                | RouteEvent::Changed(_)
                | RouteEvent::Process { .. }
                | RouteEvent::SessionEnded => {
                    self.fail(Error::Interrupted { method: "http/request" });
                }
            }
        }
    }

    /// Handles a part, and returns its bytes.
    fn take(&mut self, delta: BodyDelta) -> Bytes {
        if delta.seq != self.seq + 1 {
            let what = format!("part {} of a body followed part {}", delta.seq, self.seq);
            self.fail(Error::Protocol { what });
            return Bytes::new();
        }
        self.seq = delta.seq;
        match delta.error {
            Some(why) => {
                let message = format!("failed to read http/request response body: {why}");
                self.call = None;
                self.fail(RpcError::new(ErrorKind::HttpFailed, message).into());
            }
            None if delta.done => {
                self.call = None;
                self.state = BodyState::Ended;
            }
            None if self.seq.is_multiple_of(REPORT_INTERVAL) => {
                self.client.core().body_consumed(&self.request_id, self.seq);
            }
            None => {}
        }
        delta.delta_base64.0
    }

    fn fail(&mut self, error: Error) {
        self.state = BodyState::Failed(error);
    }
}

impl AsyncRead for Body {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        if let Some(mut chunk) = ready!(self.poll_chunk(context))? {
            buffer.put_slice(&chunk.split_to(chunk.len().min(buffer.remaining())));
            self.rest = chunk;
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        let core = self.client.core();
        core.remove_route(&RouteKey::Http(std::mem::take(&mut self.request_id)));
        if let Some(call) = self.call {
            core.cancel(call);
        }
    }
}

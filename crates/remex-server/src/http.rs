//! HTTP requests on behalf of the client: buffered in one answer, or streamed behind it.
//!
//! What goes out is checked ([`Outgoing`]), travels over the one client of the server ([`Web`]) with
//! redirects followed by ourselves, and comes back through [`body`]. Everything ends with the
//! connection. Start at [`Connection::http_request`].

mod body;
mod outgoing;
mod redirect;
mod streams;
mod web;

use std::{fmt, future::Future, sync::Arc, time::Duration};

use remex_proto::{ErrorKind, RequestId, RpcError, http as wire, initialize::Capability};
use reqwest::Response;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    connection::Connection,
    outbox::{Responder, Then},
};
use body::{Body, Collected};
use outgoing::Outgoing;
use streams::Pace;
pub(crate) use streams::Streams;
pub(crate) use web::Web;

/// How long a stream goes on after the client has sent its last.
const LAST_PARTS: Duration = Duration::from_secs(1);

/// Answers from this size on are made on a thread of their own.
const LARGE_ANSWER: usize = 64 << 10;

impl Connection {
    /// Makes an HTTP request, beside everything else.
    pub(crate) fn http_request(&mut self, id: RequestId, request: wire::HttpRequest, responder: Responder) {
        if request.stream_response {
            self.stream(id, request, responder);
        } else {
            self.buffer(id, request, responder);
        }
    }

    fn buffer(&mut self, id: RequestId, request: wire::HttpRequest, responder: Responder) {
        let deadline = Deadline::new(request.timeout_ms);
        let outgoing = match Outgoing::check(request, self.server.host_env()) {
            Ok(outgoing) => outgoing,
            Err(error) => return responder.error(&error),
        };
        let server = Arc::clone(&self.server);
        let (slots, large) = (Arc::clone(&self.streams.slots), Arc::clone(&self.streams.large));
        self.run_beside(id, async move {
            let sent = deadline.bound(failed, async {
                let slot = slots.acquire_owned().await;
                Ok((redirect::send(&server, outgoing).await?, slot))
            });
            let (response, _slot) = match sent.await {
                Ok(sent) => sent,
                Err(error) => return responder.error(&error),
            };
            let mut reply = head(&response);
            let collecting = body::collect(response, &server, &large, &responder);
            let Collected { bytes, place, share } = match deadline.bound(unreadable, collecting).await {
                Ok(collected) => collected,
                Err(error) => return responder.error(&error),
            };
            reply.body_base64 = bytes.into();
            if reply.body_base64.len() < LARGE_ANSWER {
                return responder.ok(reply);
            }
            // Not behind other answers in the making: those may wait for the share that this one has.
            responder.outbox().room().await;
            let answer = move || {
                responder.ok_long(reply, Then::Nothing, share);
                drop(place);
            };
            let _ = server.files().run(answer).await;
        });
    }

    fn stream(&mut self, id: RequestId, request: wire::HttpRequest, responder: Responder) {
        let deadline = Deadline::new(request.timeout_ms);
        let is_told = self.handshake.enabled(Capability::Consumed);
        let pace = if is_told { Pace::Consumer } else { Pace::Connection };
        let reserved = match self.streams.reserve(&request.request_id, id, pace) {
            Ok(reserved) => reserved,
            Err(error) => return responder.error(&error),
        };
        let outgoing = match Outgoing::check(request, self.server.host_env()) {
            Ok(outgoing) => outgoing,
            Err(error) => {
                drop(reserved);
                return responder.error(&error);
            }
        };
        let (server, ending) = (Arc::clone(&self.server), self.ending.clone());
        // Not ended by `abort` like other calls: a stream that was answered has a last frame.
        self.run_on(async move {
            let cancelled = reserved.cancelled();
            let sent = tokio::select! {
                biased;
                () = cancelled.cancelled() => None,
                sent = deadline.bound(failed, redirect::send(&server, outgoing)) => Some(sent),
            };
            match sent {
                None => drop(reserved),
                Some(Err(error)) => {
                    drop(reserved);
                    responder.error(&error);
                }
                Some(Ok(response)) => {
                    let outbox = Arc::clone(responder.outbox());
                    responder.ok(head(&response));
                    reserved.answered();
                    drop(server);
                    let stop = reason_to_stop(&cancelled, &deadline, &ending);
                    reserved.transfer(Body::new(response), &outbox, stop).await;
                }
            }
        });
    }
}

/// Waits until a stream has to end early, and tells why.
async fn reason_to_stop(
    cancelled: &CancellationToken,
    deadline: &Deadline,
    ending: &CancellationToken,
) -> String {
    let ended = async {
        ending.cancelled().await;
        tokio::time::sleep(LAST_PARTS).await;
    };
    tokio::select! {
        () = cancelled.cancelled() => "the request was cancelled".to_owned(),
        () = deadline.passed() => deadline.to_string(),
        () = ended => "the client has ended its side of the connection".to_owned(),
    }
}

/// The answer without its body.
fn head(response: &Response) -> wire::HttpResponse {
    let headers = response.headers().iter().filter_map(|(name, value)| {
        let value = value.to_str().ok()?.to_owned();
        Some(wire::ResponseHeader { name: name.as_str().to_owned(), value })
    });
    wire::HttpResponse {
        status: response.status().as_u16(),
        headers: headers.collect(),
        body_base64: Vec::new().into(),
    }
}

/// Until when an exchange may take.
struct Deadline {
    timeout_ms: Option<u64>,
    at: Option<Instant>,
}

impl Deadline {
    fn new(timeout_ms: Option<u64>) -> Self {
        // One that the clock cannot express is as good as none.
        let at = timeout_ms.and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms)));
        Deadline { timeout_ms, at }
    }

    async fn passed(&self) {
        match self.at {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    /// Waits for `work`, which fails as `late` says when it takes too long.
    async fn bound<T>(
        &self,
        late: fn(&str) -> RpcError,
        work: impl Future<Output = Result<T, RpcError>>,
    ) -> Result<T, RpcError> {
        // A timer is never early and may be a little late: nothing is sent when there is no time at all.
        if self.at.is_some_and(|at| at <= Instant::now()) {
            return Err(late(&self.to_string()));
        }
        tokio::select! {
            () = self.passed() => Err(late(&self.to_string())),
            done = work => done,
        }
    }
}

impl fmt::Display for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.timeout_ms {
            Some(ms) => write!(f, "timed out after {ms} ms; allow more with `timeoutMs`, or leave it out"),
            None => f.write_str("timed out"),
        }
    }
}

fn failed(why: &str) -> RpcError {
    RpcError::new(ErrorKind::HttpFailed, format!("http/request failed: {why}"))
}

fn unreadable(why: &str) -> RpcError {
    RpcError::new(ErrorKind::HttpFailed, format!("failed to read http/request response body: {why}"))
}

/// Tells what went wrong with all its causes, without the URL, which may have a secret in it.
fn causes(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        let line = error.to_string();
        if !text.ends_with(&line) {
            text.push_str(": ");
            text.push_str(&line);
        }
        cause = error.source();
    }
    text
}

//! HTTP requests on behalf of the client: buffered in one answer, or streamed after it.
//!
//! A request is checked ([`Outgoing`]) and sent by the server's only client
//! ([`WebClient`](crate::shared::web::WebClient)). The server follows redirects itself, and [`body`] receives the
//! response. Everything ends with the connection. Start at [`HttpCalls::request`].

mod body;
mod outgoing;
mod redirect;
mod streams;

use std::{fmt, future::Future, sync::Arc, time::Duration};

use remex_proto::{ErrorKind, RequestId, RpcError, http as wire};
use reqwest::Response;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    areas::context::CallContext,
    outbox::{AfterSend, Responder},
    shared::web::{failed, send_for},
};
use body::{Body, Collected};
use outgoing::Outgoing;
pub(crate) use streams::{BodyPace, HttpCalls};

/// How long a stream continues after the client has stopped sending.
const LAST_PARTS: Duration = Duration::from_secs(1);

/// Answers from this size on are built on a thread of the compute pool.
const LARGE_ANSWER: usize = 64 << 10;

impl HttpCalls {
    /// Makes an HTTP request, concurrently with other calls; `pace` limits how fast a streamed body is sent.
    pub(crate) fn request(
        &mut self,
        context: &mut CallContext,
        id: RequestId,
        request: wire::HttpRequest,
        pace: BodyPace,
        responder: Responder,
    ) {
        if request.stream_response {
            self.stream(context, id, request, pace, responder);
        } else {
            self.buffer(context, id, request, responder);
        }
    }

    fn buffer(
        &self,
        context: &mut CallContext,
        id: RequestId,
        request: wire::HttpRequest,
        responder: Responder,
    ) {
        let deadline = ExchangeDeadline::new(request.timeout_ms);
        let outgoing = match Outgoing::check(request, context.host().env()) {
            Ok(outgoing) => outgoing,
            Err(error) => return responder.error(&error),
        };
        let host = Arc::clone(context.host());
        let (slots, large) = (Arc::clone(&self.slots), Arc::clone(&self.large));
        let threads = context.threads().clone();
        context.spawn_call(id, async move {
            let sent = deadline.bound(failed, async {
                let slot = slots.acquire_owned().await;
                Ok((send_for(threads.identity(), redirect::send(&host, outgoing)).await?, slot))
            });
            let (response, _slot) = match sent.await {
                Ok(sent) => sent,
                Err(error) => return responder.error(&error),
            };
            let mut reply = head(&response);
            let collecting = body::collect(response, &host, &large, &responder);
            let Collected { bytes, permit, share } = match deadline.bound(unreadable, collecting).await {
                Ok(collected) => collected,
                Err(error) => return responder.error(&error),
            };
            reply.body_base64 = bytes.into();
            if reply.body_base64.len() < LARGE_ANSWER {
                return responder.ok(reply);
            }
            // Must not queue behind other answers being built: those may wait for the share that this one
            // holds.
            responder.outbox().wait_for_room().await;
            let answer = move || {
                responder.ok_long(reply, AfterSend::Nothing, share);
                drop(permit);
            };
            let _ = threads.run(answer).await;
        });
    }

    fn stream(
        &mut self,
        context: &mut CallContext,
        id: RequestId,
        request: wire::HttpRequest,
        pace: BodyPace,
        responder: Responder,
    ) {
        let deadline = ExchangeDeadline::new(request.timeout_ms);
        let account = context.outbox().account();
        let reserved = match self.reserve(&request.request_id, id, pace, account) {
            Ok(reserved) => reserved,
            Err(error) => return responder.error(&error),
        };
        let outgoing = match Outgoing::check(request, context.host().env()) {
            Ok(outgoing) => outgoing,
            Err(error) => {
                drop(reserved);
                return responder.error(&error);
            }
        };
        let (host, end_of_input) = (Arc::clone(context.host()), context.end_of_input().clone());
        let identity = Arc::clone(context.threads().identity());
        // Not aborted like other calls, because a stream that was answered must send a last frame.
        context.spawn_stream(async move {
            let cancelled = reserved.cancelled();
            let sent = tokio::select! {
                biased;
                () = cancelled.cancelled() => None,
                sent = deadline.bound(failed, send_for(&identity, redirect::send(&host, outgoing))) => Some(sent),
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
                    drop(host);
                    let stop = reason_to_stop(&cancelled, &deadline, &end_of_input);
                    reserved.transfer(Body::new(response), &outbox, stop).await;
                }
            }
        });
    }
}

/// Waits until a stream must end early, and returns the reason.
async fn reason_to_stop(
    cancelled: &CancellationToken,
    deadline: &ExchangeDeadline,
    end_of_input: &CancellationToken,
) -> String {
    let ended = async {
        end_of_input.cancelled().await;
        tokio::time::sleep(LAST_PARTS).await;
    };
    tokio::select! {
        () = cancelled.cancelled() => "the request was cancelled".to_owned(),
        () = deadline.passed() => deadline.to_string(),
        () = ended => "the client closed its side of the connection".to_owned(),
    }
}

/// Returns the answer without its body.
fn head(response: &Response) -> wire::HttpResponse {
    let headers = response
        .headers()
        .iter()
        .filter_map(|(name, value)| Some(wire::ResponseHeader::new(name.as_str(), value.to_str().ok()?)));
    wire::HttpResponse {
        status: response.status().as_u16(),
        headers: headers.collect(),
        body_base64: Vec::new().into(),
    }
}

/// The deadline of one exchange.
struct ExchangeDeadline {
    timeout_ms: Option<u64>,
    at: Option<Instant>,
}

impl ExchangeDeadline {
    fn new(timeout_ms: Option<u64>) -> Self {
        // A deadline that the clock cannot represent is the same as none.
        let at = timeout_ms.and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms)));
        ExchangeDeadline { timeout_ms, at }
    }

    async fn passed(&self) {
        match self.at {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    /// Waits for `work`, which fails with `late` if it takes too long.
    async fn bound<T>(
        &self,
        late: fn(&str) -> RpcError,
        work: impl Future<Output = Result<T, RpcError>>,
    ) -> Result<T, RpcError> {
        // Timers are never early and may be a little late; with no time left, nothing must be sent.
        if self.at.is_some_and(|at| at <= Instant::now()) {
            return Err(self.error(late));
        }
        tokio::select! {
            () = self.passed() => Err(self.error(late)),
            done = work => done,
        }
    }

    fn error(&self, late: fn(&str) -> RpcError) -> RpcError {
        match self.timeout_ms {
            Some(ms) => late(&format!("timed out after {ms} ms")).with_hint(ALLOW_MORE_TIME),
            None => late("timed out"),
        }
    }
}

const ALLOW_MORE_TIME: &str = "allow more with `timeoutMs`, or leave it out";

/// The whole sentence, for the last frame of a stream, which has no field for a hint.
impl fmt::Display for ExchangeDeadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.timeout_ms {
            Some(ms) => write!(f, "timed out after {ms} ms; {ALLOW_MORE_TIME}"),
            None => f.write_str("timed out"),
        }
    }
}

fn unreadable(why: &str) -> RpcError {
    RpcError::new(ErrorKind::HttpFailed, format!("failed to read http/request response body: {why}"))
}

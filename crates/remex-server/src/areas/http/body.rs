//! The body of a response: passed on in parts as it arrives, or collected up to a limit.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use remex_access::budget::{self, Share};
use remex_proto::{ErrorKind, RpcError, error::INTERNAL_ERROR};
use reqwest::Response;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::unreadable;
use crate::{
    outbox::Responder,
    shared::{host::Host, web::causes},
};

/// The longest part of a stream: as much as bulk output may send in one turn.
///
/// The base dialect allows 1 MiB; shorter parts let other messages through between them.
const PART: usize = 64 << 10;

/// The length up to which a body is collected without a share.
const SMALL: usize = 1 << 20;

/// How often other tasks get a turn before a part counts as complete.
///
/// The HTTP client hands over one chunk at a time and needs a turn for the next.
const PAUSES: usize = 4;

/// A body that is read in parts.
pub(super) struct Body {
    response: Response,
    /// The rest of a chunk that was longer than a part.
    rest: Bytes,
    /// The end of the body, if it was reached while gathering.
    end: Option<Result<(), reqwest::Error>>,
}

impl Body {
    pub(super) fn new(response: Response) -> Self {
        Body { response, rest: Bytes::new(), end: None }
    }

    /// Waits for data and returns it together with everything that has arrived after it; `None` at the end.
    ///
    /// Not cancel-safe: dropping the future may lose bytes.
    pub(super) async fn next_part(&mut self) -> Result<Option<Bytes>, reqwest::Error> {
        let mut part = std::mem::take(&mut self.rest);
        while part.is_empty() {
            if let Some(end) = self.end.take() {
                return end.map(|()| None);
            }
            match self.response.chunk().await? {
                Some(chunk) => part = chunk,
                None => return Ok(None),
            }
        }
        if part.len() < PART && self.end.is_none() {
            part = self.gather(part).await;
        }
        if part.len() > PART {
            self.rest = part.split_off(PART);
        }
        Ok(Some(part))
    }

    /// Appends chunks that have already arrived or are buffered in the HTTP client.
    async fn gather(&mut self, first: Bytes) -> Bytes {
        let (mut more, mut pauses) = (Vec::new(), 0);
        while first.len().max(more.len()) < PART && self.end.is_none() {
            match if_ready(self.response.chunk()).await {
                None if pauses == PAUSES => break,
                None => {
                    pauses += 1;
                    tokio::task::yield_now().await;
                }
                Some(Ok(Some(chunk))) => {
                    if more.is_empty() {
                        more.extend_from_slice(&first);
                    }
                    more.extend_from_slice(&chunk);
                    pauses = 0;
                }
                Some(Ok(None)) => self.end = Some(Ok(())),
                Some(Err(error)) => self.end = Some(Err(error)),
            }
        }
        if more.is_empty() { first } else { more.into() }
    }
}

/// Returns the output of `future` if it is ready.
async fn if_ready<T>(future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        value = future => Some(value),
        () = std::future::ready(()) => None,
    }
}

/// A collected body, with its share of the memory for answers.
pub(super) struct Collected {
    pub(super) bytes: Vec<u8>,
    pub(super) permit: Option<OwnedSemaphorePermit>,
    pub(super) share: Option<Share>,
}

/// Collects the whole body, up to its limit.
///
/// A body that is no longer small waits for a permit of `large`, which it keeps until that is returned, and for
/// a share of the memory for answers. While others wait for memory, it must make progress.
pub(super) async fn collect(
    mut response: Response,
    host: &Host,
    large: &Arc<Semaphore>,
    responder: &Responder,
) -> Result<Collected, RpcError> {
    let (limit, period) = (host.limits().http_body_bytes, host.limits().slow_transfer);
    let answers = host.answers();
    let declared = response.content_length().unwrap_or(0);
    let Some(declared) = usize::try_from(declared).ok().filter(|declared| *declared <= limit) else {
        return Err(too_long(limit));
    };
    // While it is short; then it waits for a share of the budget.
    let small = if declared > 0 { declared.min(SMALL) } else { SMALL };
    let share = responder.share(answers, small as u64, STREAM_IT).await?;
    let mut body = Collected { bytes: Vec::with_capacity(declared.min(SMALL)), permit: None, share };
    let received = AtomicU64::new(0);
    let collecting = async {
        loop {
            let chunk = match response.chunk().await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => break,
                Err(error) => return Err(unreadable(&causes(error))),
            };
            let len = body.bytes.len() + chunk.len();
            if len > limit {
                return Err(too_long(limit));
            }
            if len > SMALL && body.permit.is_none() {
                body.permit = Arc::clone(large).acquire_owned().await.ok();
                // Reserved all at once, so that no task waits for more while holding some.
                let most = if declared > 0 { declared } else { limit };
                drop(body.share.take());
                body.share = responder.share(answers, most.max(len) as u64, STREAM_IT).await?;
                body.bytes
                    .try_reserve_exact(declared.max(len) - body.bytes.len())
                    .map_err(|_| no_memory())?;
            }
            body.bytes.try_reserve(chunk.len()).map_err(|_| no_memory())?;
            body.bytes.extend_from_slice(&chunk);
            received.store(len as u64, Ordering::Relaxed);
        }
        Ok(())
    };
    let too_slow = answers.too_slow(period, responder.outbox().account(), || {
        // Before that, it has no share.
        Some(received.load(Ordering::Relaxed)).filter(|received| *received > SMALL as u64)
    });
    tokio::select! {
        collected = collecting => collected?,
        () = too_slow => return Err(came_too_slowly(period)),
    }
    if let Some(share) = &mut body.share {
        share.shrink(body.bytes.len() as u64);
    }
    Ok(body)
}

/// Hint for a body that does not fit.
const STREAM_IT: &str = "ask for it with `streamResponse: true`, or try again later";

fn no_memory() -> RpcError {
    budget::no_memory(STREAM_IT)
}

fn came_too_slowly(period: Duration) -> RpcError {
    let why = format!("received less than 1 MiB in {period:?} while other answers waited for memory");
    unreadable(&why).with_kind(ErrorKind::LimitExceeded).with_hint(STREAM_IT)
}

fn too_long(limit: usize) -> RpcError {
    let why = format!("it is longer than {limit} bytes");
    unreadable(&why)
        .with_kind(ErrorKind::LimitExceeded)
        .with_code(INTERNAL_ERROR)
        .with_hint("ask for it with `streamResponse: true`")
}

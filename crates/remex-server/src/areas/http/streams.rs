//! The body streams of one connection.

use std::{
    collections::HashMap,
    future::Future,
    sync::{Arc, Mutex},
};

use remex_access::account::{self, Account, Charge, Kind};
use remex_base::{limits::Limits, lock};
use remex_proto::{
    Blob, ErrorKind, RequestId, RpcError, error::INVALID_PARAMS, flow, http as wire, message::BodyFrame,
};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::body::Body;
use crate::{outbox::Outbox, shared::web::causes};

/// Buffered bodies of one connection that may be large at once; others wait while they are still small.
const LARGE_BODIES: usize = 4;

/// About what a stream needs: a part as it arrives and as it is sent, and buffers of the connection to the web server.
const STREAM_BYTES: usize = 256 << 10;

/// The HTTP requests of one connection.
#[derive(Debug)]
pub(crate) struct HttpCalls {
    active: Arc<ActiveStreams>,
    max_active: usize,
    max_id_bytes: usize,
    /// Number of streams so far.
    count: u64,
    /// Limits buffered requests.
    pub(super) slots: Arc<Semaphore>,
    /// Limits the large bodies among them.
    pub(super) large: Arc<Semaphore>,
}

/// Streams by id, from their request to their last frame.
///
/// Shared by the reader and the tasks of the streams; held briefly.
type ActiveStreams = Mutex<HashMap<String, ActiveStream>>;

#[derive(Debug)]
struct ActiveStream {
    call: RequestId,
    /// The number of the stream on this connection.
    number: u64,
    is_answered: bool,
    cancel: CancellationToken,
    /// The last part that the client has consumed, if it reports that.
    consumed: watch::Sender<u64>,
    #[expect(dead_code, reason = "releases a resource when dropped")]
    charge: Charge,
}

impl HttpCalls {
    pub(crate) fn new(limits: &Limits) -> Self {
        HttpCalls {
            active: Arc::default(),
            max_active: limits.http_streams,
            max_id_bytes: limits.id_bytes,
            count: 0,
            slots: Arc::new(Semaphore::new(limits.http_requests)),
            large: Arc::new(Semaphore::new(LARGE_BODIES)),
        }
    }

    /// Cancels the newest stream of request `call`, among those that are answered or not, as `is_answered`
    /// says.
    ///
    /// Returns whether there was one.
    pub(crate) fn cancel(&self, call: &RequestId, is_answered: bool) -> bool {
        let active = lock(&self.active);
        let asked = active.values().filter(|stream| stream.call == *call);
        let running = asked.filter(|s| s.is_answered == is_answered && !s.cancel.is_cancelled());
        let newest = running.max_by_key(|stream| stream.number);
        newest.inspect(|stream| stream.cancel.cancel()).is_some()
    }

    /// Records how much of a body the client has consumed; ignored if the stream has ended.
    pub(crate) fn consumed(&self, request_id: &str, seq: u64) {
        if let Some(stream) = lock(&self.active).get(request_id) {
            stream.consumed.send_if_modified(|consumed| {
                let is_news = seq > *consumed;
                *consumed = seq.max(*consumed);
                is_news
            });
        }
    }

    pub(super) fn reserve(
        &mut self,
        request_id: &str,
        call: RequestId,
        pace: BodyPace,
        account: &Arc<Account>,
    ) -> Result<ReservedStream, RpcError> {
        if request_id.len() > self.max_id_bytes {
            let message = format!("http/request requestId is longer than {} bytes", self.max_id_bytes);
            return Err(RpcError::new(ErrorKind::InvalidParams, message));
        }
        let mut active = lock(&self.active);
        if active.contains_key(request_id) {
            let message = format!("http/request streamResponse requestId `{request_id}` is already active");
            return Err(RpcError::new(ErrorKind::IdInUse, message)
                .with_code(INVALID_PARAMS)
                .with_hint("wait for the last frame of that stream, or choose another id"));
        }
        if active.len() >= self.max_active {
            let message =
                format!("this connection already has {} HTTP streams, which is the limit", self.max_active);
            return Err(RpcError::new(ErrorKind::LimitExceeded, message).with_hint("wait until one ends"));
        }
        let charge = account.try_take(Kind::Handles, STREAM_BYTES).ok_or_else(|| {
            let what = format!("cannot stream the response to `{request_id}`");
            account::full(&what, account, Kind::Handles, STREAM_BYTES)
        })?;
        let cancel = CancellationToken::new();
        self.count += 1;
        let (consumed, reported) = watch::channel(0);
        let (number, is_answered) = (self.count, false);
        let stream = ActiveStream { call, number, is_answered, cancel: cancel.clone(), consumed, charge };
        active.insert(request_id.to_owned(), stream);
        Ok(ReservedStream {
            active: Arc::clone(&self.active),
            request_id: Some(request_id.to_owned()),
            cancel,
            window: BodyWindow { pace, reported },
        })
    }
}

/// A stream id reserved on this connection.
pub(super) struct ReservedStream {
    active: Arc<ActiveStreams>,
    /// Taken when the last frame is sent.
    request_id: Option<String>,
    cancel: CancellationToken,
    window: BodyWindow,
}

/// How fast the parts of a body may follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyPace {
    /// As fast as the connection accepts them.
    Connection,
    /// At most [`flow::WINDOW_PARTS`] ahead of what the client has consumed.
    Consumer,
}

/// Tracks how much of a body the client has consumed.
struct BodyWindow {
    pace: BodyPace,
    reported: watch::Receiver<u64>,
}

impl BodyWindow {
    /// Waits until part `seq` may be sent.
    async fn open(&mut self, seq: u64) {
        if self.pace == BodyPace::Consumer {
            // The sender lives as long as the stream.
            let _ =
                self.reported.wait_for(|consumed| seq <= consumed.saturating_add(flow::WINDOW_PARTS)).await;
        }
    }
}

impl ReservedStream {
    /// Returns the token that is cancelled with the stream.
    pub(super) fn cancelled(&self) -> CancellationToken {
        self.cancel.clone()
    }

    /// Records that the request was answered.
    pub(super) fn answered(&self) {
        let Some(request_id) = &self.request_id else { return };
        if let Some(stream) = lock(&self.active).get_mut(request_id) {
            stream.is_answered = true;
        }
    }

    /// Sends the body to the client until it ends or `stop` returns a reason to end it.
    ///
    /// Only one part is in memory at a time, so a slow client delays only this body.
    pub(super) async fn transfer(
        mut self,
        mut body: Body,
        outbox: &Outbox,
        stop: impl Future<Output = String>,
    ) {
        let request_id = self.request_id.clone().unwrap_or_default();
        let request_json = serde_json::json!(request_id).to_string();
        let mut seq = 1;
        tokio::pin!(stop);
        let error = loop {
            let part = tokio::select! {
                biased;
                reason = &mut stop => break Some(reason),
                part = async {
                    self.window.open(seq).await;
                    body.next_part().await
                } => part,
            };
            match part {
                Ok(Some(bytes)) => {
                    let frame = BodyFrame { request_id: &request_json, seq, bytes: &bytes };
                    let part = outbox.body_part(&frame, || wire::BodyDelta {
                        request_id: request_id.clone(),
                        seq,
                        delta_base64: Blob(bytes.clone()),
                        done: false,
                        error: None,
                    });
                    drop(bytes);
                    seq += 1;
                    // The next part is read once this one is being sent.
                    let sending = outbox.push_part(part);
                    tokio::pin!(sending);
                    tokio::select! {
                        biased;
                        is_sent = &mut sending => if !is_sent { return },
                        reason = &mut stop => {
                            // Release the connection to the web server, which need not wait for the client; the
                            // last frame follows this part.
                            drop(body);
                            if !sending.await {
                                return;
                            }
                            break Some(reason);
                        }
                    }
                }
                Ok(None) => break None,
                Err(error) => break Some(causes(error)),
            }
        };
        self.finish(outbox, seq, error);
    }

    /// Sends the last frame. The id is free before the client sees it, and a new stream with that id comes
    /// after it.
    fn finish(mut self, outbox: &Outbox, seq: u64, error: Option<String>) {
        let Some(request_id) = self.request_id.take() else { return };
        let mut active = lock(&self.active);
        active.remove(&request_id);
        let last = wire::BodyDelta { request_id, seq, delta_base64: Blob::default(), done: true, error };
        outbox.push_last(last);
    }
}

impl Drop for ReservedStream {
    fn drop(&mut self) {
        if let Some(request_id) = &self.request_id {
            lock(&self.active).remove(request_id);
        }
    }
}

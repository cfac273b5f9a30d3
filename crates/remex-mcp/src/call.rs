//! One tool call: whether it was cancelled, and who hears of its progress.

use std::{collections::HashSet, future::Future, pin::pin, sync::Mutex, time::Duration};

use hyper::http::request::Parts;
use remex_base::lock;
use rmcp::{
    Peer, RoleServer,
    model::{ProgressNotificationParam, ProgressToken, RequestId},
    service::RequestContext,
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::Tools;

/// The header of a client with a session.
const SESSION_HEADER: &str = "mcp-session-id";

/// How long the reason of a cancellation may take to arrive.
const REASON_PATIENCE: Duration = Duration::from_secs(1);

/// The most remembered cancellations without a matching call.
const MAX_CANCELLED: usize = 1024;

/// Why a call was abandoned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The client has cancelled it.
    Cancelled,
    /// The client disconnected, or this program exits; started processes keep running.
    Gone,
}

/// The calls that a client has cancelled, to distinguish a cancellation from a disconnect.
#[derive(Debug, Default)]
pub(crate) struct Cancellations {
    ids: Mutex<HashSet<RequestId>>,
    noted: Notify,
}

impl Cancellations {
    pub(crate) fn note(&self, id: RequestId) {
        let mut ids = lock(&self.ids);
        if ids.len() >= MAX_CANCELLED {
            ids.clear();
        }
        ids.insert(id);
        self.noted.notify_waiters();
    }

    /// Waits until a call is cancelled.
    async fn of(&self, id: &RequestId) {
        loop {
            let mut noted = pin!(self.noted.notified());
            noted.as_mut().enable();
            if lock(&self.ids).remove(id) {
                return;
            }
            noted.await;
        }
    }
}

/// A tool call that is being answered.
#[derive(Debug)]
pub(crate) struct Call {
    peer: Peer<RoleServer>,
    progress_token: Option<ProgressToken>,
    /// Also cancelled when the client disconnects.
    cancellation: CancellationToken,
    id: RequestId,
    tools: Tools,
    /// Whether closing its connection is how the client cancels a call.
    is_stateless: bool,
}

impl Call {
    pub(crate) fn new(context: RequestContext<RoleServer>, tools: &Tools) -> Self {
        let parts = context.extensions.get::<Parts>();
        Self {
            progress_token: context.meta.get_progress_token(),
            is_stateless: parts.is_some_and(|parts| !parts.headers.contains_key(SESSION_HEADER)),
            peer: context.peer,
            cancellation: context.ct,
            id: context.id,
            tools: tools.clone(),
        }
    }

    /// Returns whether the client wants to hear of progress.
    pub(crate) fn wants_progress(&self) -> bool {
        self.progress_token.is_some()
    }

    /// Reports progress; the number has to grow with each report.
    pub(crate) async fn report(&self, progress: u64, message: String) {
        let Some(token) = &self.progress_token else { return };
        #[expect(clippy::cast_precision_loss, reason = "the protocol has no integers here")]
        let params = ProgressNotificationParam::new(token.clone(), progress as f64).with_message(message);
        // A disconnected client needs no progress.
        let _ = self.peer.notify_progress(params).await;
    }

    /// Waits for a future, unless the call is abandoned.
    pub(crate) async fn unless_stopped<T>(&self, future: impl Future<Output = T>) -> Result<T, Stop> {
        tokio::select! {
            biased;
            stop = self.stopped() => Err(stop),
            done = future => Ok(done),
        }
    }

    async fn stopped(&self) -> Stop {
        self.cancellation.cancelled().await;
        if self.tools.is_closing() {
            return Stop::Gone;
        }
        let cancelled = self.tools.cancellations.of(&self.id);
        if self.is_stateless || tokio::time::timeout(REASON_PATIENCE, cancelled).await.is_ok() {
            Stop::Cancelled
        } else {
            Stop::Gone
        }
    }
}

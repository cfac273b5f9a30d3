//! What a call handler needs from its connection: the host, the outbox, and tasks that can be cancelled.
//!
//! Start at [`CallContext`].

use std::{future::Future, sync::Arc};

use remex_base::{supervise::supervise, threads::ClientThreads};
use remex_proto::RequestId;
use tokio::{
    sync::Semaphore,
    task::{AbortHandle, JoinSet},
};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::{
    outbox::{ConnectionId, Outbox, close_code},
    shared::host::Host,
};

/// Why a connection closes after a panic.
pub(crate) const FAILED: &str = "a request handler panicked; see the server's log";

/// What a call handler needs from its connection.
#[derive(Debug)]
pub(crate) struct CallContext {
    host: Arc<Host>,
    outbox: Arc<Outbox>,
    /// For file work of the identity.
    threads: ClientThreads,
    /// Long-running calls; they end with the connection.
    tasks: JoinSet<()>,
    /// Abort handles of these calls.
    cancels: Vec<(RequestId, AbortHandle)>,
    /// Cancelled when the client stops sending.
    end_of_input: CancellationToken,
    /// Limits the calls that run at once.
    slots: Arc<Semaphore>,
}

impl CallContext {
    pub(crate) fn new(host: &Arc<Host>, outbox: &Arc<Outbox>, identity: &Arc<str>) -> Self {
        CallContext {
            host: Arc::clone(host),
            outbox: Arc::clone(outbox),
            threads: host.threads_of(identity),
            tasks: JoinSet::new(),
            cancels: Vec::new(),
            end_of_input: CancellationToken::new(),
            slots: Arc::new(Semaphore::new(host.limits().concurrent_requests)),
        }
    }

    pub(crate) fn host(&self) -> &Arc<Host> {
        &self.host
    }

    pub(crate) fn outbox(&self) -> &Arc<Outbox> {
        &self.outbox
    }

    /// Returns the threads for file work, which only this identity can occupy.
    pub(crate) fn threads(&self) -> &ClientThreads {
        &self.threads
    }

    pub(crate) fn connection(&self) -> ConnectionId {
        self.outbox.id
    }

    /// Returns the semaphore that limits the concurrent calls of this connection.
    pub(crate) fn slots(&self) -> &Arc<Semaphore> {
        &self.slots
    }

    /// Returns the token that is cancelled when the client stops sending; reads and waits end then.
    pub(crate) fn end_of_input(&self) -> &CancellationToken {
        &self.end_of_input
    }

    /// Runs a call concurrently with others; `request/cancel` with `id` aborts it.
    pub(crate) fn spawn_call(&mut self, id: RequestId, call: impl Future<Output = ()> + Send + 'static) {
        let call = async {
            // On a panic, its responder has already answered.
            let _ = supervise(call).await;
        };
        let handle = self.tasks.spawn(call.in_current_span());
        self.cancels.push((id, handle));
    }

    /// Runs work that continues after its request was answered. If it panics, closing the connection is the
    /// only way to notify the client.
    pub(crate) fn spawn_stream(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        let outbox = Arc::clone(&self.outbox);
        self.tasks.spawn(async move {
            if supervise(task).await.is_err() {
                outbox.request_close(close_code::INTERNAL, FAILED);
            }
        });
    }

    /// Aborts the newest call with this id; returns `false` if none is running.
    pub(crate) fn abort_call(&mut self, id: &RequestId) -> bool {
        self.reap();
        let running = self.cancels.iter().rposition(|(running, _)| running == id);
        running.map(|index| self.cancels.remove(index).1.abort()).is_some()
    }

    /// Removes the tasks that have ended.
    pub(crate) fn reap(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        self.cancels.retain(|(_, handle)| !handle.is_finished());
    }

    /// Cancels reads and waits, then waits until every request is answered.
    pub(crate) async fn finish(&mut self) {
        self.end_of_input.cancel();
        while self.tasks.join_next().await.is_some() {}
        self.outbox.all_answered().await;
    }

    /// Aborts all tasks.
    pub(crate) async fn shut_down(&mut self) {
        self.tasks.shutdown().await;
    }
}

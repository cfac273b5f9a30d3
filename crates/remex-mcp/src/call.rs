//! One tool call: whether it was cancelled, and who hears of its progress.

use std::future::Future;

use rmcp::{
    Peer, RoleServer,
    model::{ProgressNotificationParam, ProgressToken},
    service::RequestContext,
};
use tokio_util::sync::CancellationToken;

/// A tool call that is being answered.
#[derive(Debug)]
pub(crate) struct Call {
    peer: Peer<RoleServer>,
    progress_token: Option<ProgressToken>,
    cancellation: CancellationToken,
}

impl Call {
    pub(crate) fn new(context: RequestContext<RoleServer>) -> Self {
        Self {
            progress_token: context.meta.get_progress_token(),
            peer: context.peer,
            cancellation: context.ct,
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
        // A client that is gone needs no progress.
        let _ = self.peer.notify_progress(params).await;
    }

    /// Waits for a future, unless the call is cancelled first.
    pub(crate) async fn unless_cancelled<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.cancellation.cancelled() => None,
            done = future => Some(done),
        }
    }
}

//! The answer to come of one call.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::sync::oneshot;

use super::{Core, RawReply};
use crate::Error;

/// The answer to come of one call; dropped, the call is forgotten and cancelled.
#[derive(Debug)]
pub(crate) struct PendingReply {
    pub(super) core: Arc<Core>,
    pub(super) id: u64,
    /// Taken when the answer is there, or nobody wants it.
    pub(super) receiver: Option<oneshot::Receiver<Result<RawReply, Error>>>,
}

impl PendingReply {
    /// Returns the number of the call.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Lets the call go on without anybody who waits for it.
    pub(crate) fn detach(mut self) {
        self.receiver = None;
    }
}

impl Future for PendingReply {
    type Output = Result<RawReply, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(receiver) = &mut self.receiver else { return Poll::Pending };
        let answered = ready!(Pin::new(receiver).poll(context));
        self.receiver = None;
        Poll::Ready(answered.unwrap_or_else(|_| Err(self.core.lost_error())))
    }
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        if self.receiver.is_some() {
            self.core.forget(self.id);
        }
    }
}

//! The future reply to one call.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::sync::oneshot;

use super::{Core, RawReply};
use crate::Error;

/// The future reply to one call; dropping it cancels the call.
#[derive(Debug)]
pub(crate) struct PendingReply {
    pub(super) core: Arc<Core>,
    pub(super) id: u64,
    /// `None` once the reply has arrived or the call is detached.
    pub(super) receiver: Option<oneshot::Receiver<Result<RawReply, Error>>>,
}

impl PendingReply {
    /// Returns the id of the call.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Lets the call complete without a waiting caller.
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

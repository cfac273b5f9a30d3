//! When a connection may be read, and when more may be built for it.

use std::sync::Arc;

use remex_access::account::{Account, FLOOR, Kind};
use tokio::sync::OwnedSemaphorePermit;

use super::{Outbox, Queue};

impl Outbox {
    /// Returns the account of the connection's identity.
    pub(crate) fn account(&self) -> &Arc<Account> {
        &self.shared.account
    }

    /// Returns whether a connection with `pending` bytes may cause more, so that it can work although its account is
    /// full.
    pub(super) fn has_memory(&self, kind: Kind, pending: usize) -> bool {
        pending < FLOOR || self.shared.account.left(kind) > 0
    }

    /// Waits until the connection may be read again, or is about to close.
    pub(crate) async fn wait_until_readable(&self) {
        let limits = &self.limits;
        let is_within_limits = |queue: &Queue| {
            queue.unanswered < limits.unanswered_requests
                && queue.request_bytes < limits.waiting_request_bytes
                && queue.answer_bytes < limits.waiting_answer_bytes
        };
        let account = &self.shared.account;
        loop {
            let relieved = self.shared.requests.relieved();
            tokio::pin!(relieved);
            relieved.as_mut().enable();
            let has_memory = account.left(Kind::Requests) > 0;
            let may_read = self.until(|queue| {
                is_within_limits(queue)
                    && self.shared.requests.admits(queue.request_bytes)
                    && (has_memory || queue.request_bytes + queue.answer_bytes < FLOOR)
            });
            tokio::select! {
                () = may_read => return,
                () = relieved => {}
                () = account.room(Kind::Requests, 1), if !has_memory => {}
            }
        }
    }

    /// Waits until another large answer may be built. The permit belongs to the work, which releases it when
    /// the answer is queued or dropped.
    pub(crate) async fn room_for_answer(&self) -> Option<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.large_answer_permit).acquire_owned().await.ok();
        self.wait_for_room().await;
        permit
    }

    /// Returns whether another large answer may be built now.
    pub(crate) fn has_room(&self) -> bool {
        let pending = self.queue().answer_bytes;
        pending < self.limits.waiting_answer_bytes / 2 && self.has_memory(Kind::Answers, pending)
    }

    /// Waits until another large answer may be built.
    pub(crate) async fn wait_for_room(&self) {
        let account = &self.shared.account;
        loop {
            let has_memory = account.left(Kind::Answers) > 0;
            let has_room = self.until(|queue| {
                queue.answer_bytes < self.limits.waiting_answer_bytes / 2
                    && (has_memory || queue.answer_bytes < FLOOR)
            });
            tokio::select! {
                () = has_room => return,
                () = account.room(Kind::Answers, 1), if !has_memory => {}
            }
        }
    }
}

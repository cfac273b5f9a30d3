//! The slot of a large answer that is being built.

use std::sync::{Arc, Mutex, Weak};

use remex_base::lock;
use remex_files::HANG_THRESHOLD;
use tokio::{runtime::Handle, sync::OwnedSemaphorePermit};

use crate::shared::host::Host;

/// The slot of one answer. Its job keeps it until it ends, even if the request is cancelled.
#[derive(Debug, Default)]
pub(super) struct AnswerSlot(Mutex<Option<OwnedSemaphorePermit>>);

impl AnswerSlot {
    pub(super) fn put(&self, permit: Option<OwnedSemaphorePermit>) {
        *lock(&self.0) = permit;
    }
}

/// Releases the slot of a job that hangs, even after its request was cancelled.
pub(super) struct AnswerSlotWatch {
    host: Arc<Host>,
    slot: Weak<AnswerSlot>,
}

impl AnswerSlotWatch {
    pub(super) fn new(host: &Arc<Host>, slot: &Arc<AnswerSlot>) -> Self {
        AnswerSlotWatch { host: Arc::clone(host), slot: Arc::downgrade(slot) }
    }

    /// Releases the slot: a job that hangs must not block other answers.
    pub(super) fn give_back(&self) {
        if let Some(slot) = self.slot.upgrade() {
            slot.put(None);
        }
    }
}

impl Drop for AnswerSlotWatch {
    fn drop(&mut self) {
        if self.slot.strong_count() == 0 || Handle::try_current().is_err() {
            return;
        }
        // The request was cancelled, but its job continues.
        let slot = std::mem::take(&mut self.slot);
        self.host.spawn(async move {
            tokio::time::sleep(HANG_THRESHOLD).await;
            if let Some(slot) = slot.upgrade() {
                slot.put(None);
            }
        });
    }
}

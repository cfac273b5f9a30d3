//! The memory of a message while it is received.

use std::time::Duration;

use remex_access::{
    account::Kind,
    budget::{MIN_PROGRESS, SHORT, Share},
};
use remex_rpc::FrameReader;
use tokio::time::Instant;

use crate::{outbox::Outbox, shared::host::Host};

/// A message that is being received and is not tiny, with the memory reserved for it.
pub(super) struct Receiving {
    share: Share,
    /// Bytes received at the last check.
    len: usize,
    next_check: Instant,
}

impl Receiving {
    /// Waits for the memory of a message that may get `max_len` bytes long; it is announced again when it is long.
    ///
    /// One that gets longer than its identity can ever have memory for is not read to its end.
    pub(super) async fn begin(
        host: &Host,
        outbox: &Outbox,
        reader: &mut FrameReader,
        max_len: usize,
    ) -> Self {
        reader.announce_from(SHORT as usize);
        let (len, account) = (reader.unfinished_len(), outbox.account());
        let share = if len <= SHORT as usize {
            Share::short_in_turn(Kind::Incoming, SHORT.min(max_len as u64), account).await
        } else {
            let share = host.incoming().take_in_turn(max_len as u64, account).await;
            // The holder of the whole budget may exceed it.
            if share.bytes() < host.incoming().total() {
                reader.limit_unfinished(usize::try_from(share.bytes().max(SHORT)).unwrap_or(usize::MAX));
            }
            share
        };
        Receiving { share, len, next_check: Instant::now() + host.limits().slow_transfer }
    }

    /// Waits until the next check is due.
    pub(super) async fn due(receiving: Option<&Self>) {
        match receiving {
            Some(receiving) => tokio::time::sleep_until(receiving.next_check).await,
            None => std::future::pending().await,
        }
    }

    /// Returns whether enough has arrived, or nothing else waits for the memory.
    pub(super) fn is_progressing(&mut self, len: usize, period: Duration) -> bool {
        let is_slow = (len.saturating_sub(self.len) as u64) < MIN_PROGRESS;
        (self.len, self.next_check) = (len, Instant::now() + period);
        !is_slow || !self.share.has_waiters()
    }
}

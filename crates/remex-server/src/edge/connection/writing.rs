//! The writer of a connection: it empties the outbox. Start at [`write()`].

use std::{sync::Arc, time::Duration};

use remex_access::budget::{Budget, MIN_PROGRESS, SHORT};
use remex_base::limits::Limits;
use tokio::time::Instant;

use super::CLOSE_GRACE;
use crate::outbox::{
    CloseReason, Outbox, Sink,
    close_code::{POLICY, TRY_AGAIN},
};

/// Checks from time to time whether a client reads the long answers it requested.
struct SendProgress {
    /// Bytes written at the last check, if a long answer was pending then.
    written: Option<u64>,
    next_check: Instant,
}

impl SendProgress {
    /// Starts over with nothing pending.
    fn new() -> Self {
        SendProgress { written: None, next_check: Instant::now() }
    }

    /// Returns whether the client has read enough since the last check, or no long answer was pending
    /// throughout.
    fn is_progressing(&mut self, outbox: &Outbox, sink: &Sink, period: Duration) -> bool {
        let written = outbox.pending_answers_exceed(SHORT, sink).then(|| outbox.written());
        let is_slow = self.written.zip(written).is_some_and(|(before, now)| now < before + MIN_PROGRESS);
        *self = SendProgress { written, next_check: Instant::now() + period };
        !is_slow
    }
}

/// Closes an outbox when its writer ends, for whatever reason.
struct CloseOnDrop(Arc<Outbox>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Writes the outbox to the connection until it closes.
pub(super) async fn write(outbox: Arc<Outbox>, mut sink: Sink, limits: Arc<Limits>, answers: Arc<Budget>) {
    let closing = CloseOnDrop(Arc::clone(&outbox));
    let mut progress = SendProgress::new();
    let close_reason = loop {
        if let Some(close_reason) = outbox.fill(&mut sink) {
            break Some(close_reason);
        }
        if outbox.is_closed() {
            break None;
        }
        if sink.is_empty() {
            sink.reset_if_idle();
            progress = SendProgress::new();
            tokio::select! {
                () = outbox.notified() => {}
                () = tokio::time::sleep(limits.keep_alive), if sink.has_pings() => sink.ping(b""),
            }
            continue;
        }
        let (before, period) = (sink.len(), limits.slow_transfer);
        let is_sent = tokio::select! {
            biased;
            is_sent = sink.send() => is_sent,
            // After a close was requested, a client that reads nothing gets only a short time.
            () = overdue(&outbox) => false,
            () = outbox.wait_until_stalled() => {
                let reason = format!("the client read nothing for {:?} while answers were pending", limits.stalled_writer);
                outbox.request_close(POLICY, reason.as_str());
                break Some(CloseReason { code: POLICY, reason });
            }
            () = tokio::time::sleep_until(progress.next_check) => {
                let others_wait = answers.has_waiters() || outbox.account().has_waiters();
                if progress.is_progressing(&outbox, &sink, period) || !others_wait {
                    continue;
                }
                let reason =
                    format!("the client read less than 1 MiB of long answers in {period:?} while other connections waited for memory");
                outbox.request_close(TRY_AGAIN, reason.as_str());
                break Some(CloseReason { code: TRY_AGAIN, reason });
            }
        };
        if !is_sent {
            break None;
        }
        outbox.progress(before.saturating_sub(sink.len()), sink.has_unfinished());
    };
    if let Some(close_reason) = close_reason {
        let _ = tokio::time::timeout(CLOSE_GRACE, sink.close(close_reason)).await;
    }
    drop(closing);
}

/// Waits until closing has taken too long.
async fn overdue(outbox: &Outbox) {
    outbox.wait_until_closing().await;
    tokio::time::sleep(CLOSE_GRACE).await;
}

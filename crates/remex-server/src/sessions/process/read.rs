//! `process/read`, which acknowledges what the controlling client has seen.

use std::{sync::Arc, time::Instant};

use remex_engine::{ProcessState, Read, ReadError, StoredRead};
use remex_proto::{process as wire, state::output_log::Seq};

use super::{Followers, Process};
use crate::outbox::{AfterSend, ConnectionId};

impl Process {
    /// Waits for events as long as the request asks, counted from `asked`.
    pub(crate) async fn readable(&self, read: &wire::Read, reader: Option<ConnectionId>, asked: Instant) {
        let after = read.after_seq.unwrap_or(0);
        self.until_readable(read, asked, |state| self.note_read(state, reader, after)).await;
    }

    /// Answers a read with the available output, and returns what the answer acknowledges once it has arrived.
    ///
    /// `reader` is the controlling connection, whose reads acknowledge; `None` for others. If the answer may
    /// need more than `room`, it is not built, and nothing changes. `stored` is what was read from files before.
    pub(crate) fn read(
        &self,
        read: &wire::Read,
        reader: Option<ConnectionId>,
        room: u64,
        stored: Option<StoredRead>,
    ) -> Result<(wire::ReadReply, AfterSend), ReadError> {
        let mut state = self.state();
        let Read { mut reply, up_to, extent } = state.read(&self.id, read, room, stored)?;
        reply.incarnation = self.spec().incarnation;
        self.note_read(&mut state, reader, read.after_seq.unwrap_or(0));
        let (is_full, first_offset) = (state.is_full(), state.kind.log().first_offset());
        let Followers { control, ledger, .. } = &mut state.audience;
        let controls = reader.is_some_and(|connection| control.is(connection));
        reply.evicted_bytes = reply.closed.then(|| {
            // The answer counts what it says itself, but only if it is sent.
            let mut ledger = ledger.clone();
            extent.clone().filter(|_| controls).into_iter().for_each(|extent| ledger.on_answered(extent));
            ledger.lost(first_offset)
        });
        if reader.is_none() {
            return Ok((reply, AfterSend::Nothing));
        }
        let acknowledges = control.acknowledged_by_read(up_to);
        let wants_mark = controls && (is_full || control.is_catching_up());
        let overdue = state.audience.overdue;
        drop(state);
        if overdue {
            self.forget_if_settled();
        }
        Ok((reply, AfterSend::Delivered { source: self.source(), up_to, extent, acknowledges, wants_mark }))
    }

    /// Waits until a resumed client no longer reads what it missed.
    pub(crate) async fn caught_up(&self) {
        let reading = Arc::clone(&self.state().audience.reading);
        loop {
            let changed = reading.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if !self.state().audience.is_catching_up() {
                return;
            }
            changed.await;
        }
    }

    fn note_read(&self, state: &mut ProcessState<Followers>, reader: Option<ConnectionId>, after: Seq) {
        let newest = state.kind.log().next_seq() - 1;
        let Followers { control, reading, .. } = &mut state.audience;
        if reader.is_some_and(|connection| control.is(connection)) {
            control.reads(after, newest, Instant::now());
            reading.notify_waiters();
            if state.is_full() {
                self.wake();
            }
        }
    }
}

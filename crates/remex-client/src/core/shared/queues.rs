//! The event queues of processes, and the reads that they need.

use std::sync::Arc;

use remex_proto::{process as wire, state::pending::AfterDisconnect};

use super::{
    Core, CoreState,
    call::{Admission, PendingCall, ReplyTo},
    followed::{Followed, Left},
    outgoing::MAX_DISCARDED,
};
use crate::{
    ConnectionState, Error,
    base::error::{is_unknown_process, usage},
    core::event_queue::{AFTER_EVERYTHING, Close, EventQueue, ProcessEvent, QueueAction},
};

impl Core {
    /// Adds the queue of a process; must precede the request that starts it.
    pub(crate) fn add_queue(&self, queue: &Arc<EventQueue>) -> Result<(), Error> {
        let mut state = self.lock();
        if let ConnectionState::Lost(loss) = &*self.connection_state.borrow() {
            return Err(loss.clone().into());
        }
        match state.followed.get_mut(&queue.id) {
            None => {
                state.followed.insert(queue.id.clone(), Followed::new(Arc::clone(queue)));
            }
            Some(followed) if followed.newest().is_none_or(|newest| newest.is_replaced()) => {
                followed.succeed(Arc::clone(queue));
            }
            Some(_) => {
                let message = format!("this client already has a handle on process `{}`", queue.id);
                return Err(usage(message, "clone it"));
            }
        }
        state.unfollowed.remove(&queue.id);
        Ok(())
    }

    /// Returns how this client learns that a process is closed.
    pub(crate) fn close(&self) -> Close {
        if self.welcome().has_sessions() { Close::Announced } else { Close::AfterSilence }
    }

    /// Returns the queue of a process that has a handle, for another one.
    pub(crate) fn share_queue(&self, process_id: &str) -> Option<Arc<EventQueue>> {
        self.lock().followed.get_mut(process_id)?.share()
    }

    /// Returns the newest queue of a process that has a handle.
    pub(super) fn queue(&self, process_id: &str) -> Option<Arc<EventQueue>> {
        self.lock().newest(process_id).cloned()
    }

    /// Returns the queue that an event of a process is for.
    pub(super) fn receiver(&self, process_id: &str, incarnation: Option<u64>) -> Option<Arc<EventQueue>> {
        self.lock().followed.get(process_id)?.receiver(incarnation)
    }

    /// Returns the processes that have handles.
    pub(crate) fn process_ids(&self) -> Vec<String> {
        self.lock().followed.keys().cloned().collect()
    }

    /// Removes the queue of a process with its last handle.
    pub(crate) fn remove_queue(&self, queue: &Arc<EventQueue>) {
        let (is_closed, is_replaced) = (queue.known().closed.is_some(), queue.is_replaced());
        let mut state = self.lock();
        let Some(followed) = state.followed.get_mut(&queue.id) else { return };
        let left = followed.release(queue);
        if followed.is_empty() {
            state.followed.remove(&queue.id);
        }
        if left == Left::InUse || is_closed {
            return;
        }
        // There is no consumer for its output, which must block neither it nor the process after it.
        let incarnation = queue.incarnation();
        if left == Left::Newest && !is_replaced {
            state.unfollowed.insert(queue.id.clone(), incarnation);
        }
        drop(state);
        match incarnation {
            // A read would miss a process that is just being restarted.
            Some(_) => self.consumed(&queue.id, incarnation, AFTER_EVERYTHING),
            None => self.skip_output(queue.id.clone()),
        }
    }

    /// Acknowledges the output of a process without a handle, so that the server may drop it.
    ///
    /// Later output is skipped as it arrives.
    pub(super) fn skip_output(&self, process_id: String) {
        if !self.lock().enabled.consumed {
            return;
        }
        let read = wire::Read {
            process_id: process_id.clone(),
            session_id: None,
            incarnation: None,
            after_seq: Some(AFTER_EVERYTHING),
            max_bytes: Some(0),
            wait_ms: None,
        };
        let waiting = PendingCall {
            method: "process/read",
            body: self.encode(read.into()),
            answer: ReplyTo::Unfollowed(process_id),
            _slot: None,
        };
        // After a disconnect, the next connection repeats it.
        let _ = self.register(waiting, AfterDisconnect::Fail, Admission::Unbounded);
    }

    pub(super) fn on_unfollowed_reply(&self, process_id: &str, answer: Result<wire::ReadReply, Error>) {
        let mut state = self.lock();
        // If a handle exists again, its consumers have not consumed the earlier output.
        if !state.unfollowed.contains_key(process_id) {
            return;
        }
        match answer {
            Ok(reply) if reply.closed => state.forget_unfollowed(process_id, reply.incarnation),
            Ok(reply) => {
                drop(state);
                self.consumed(process_id, reply.incarnation, reply.next_seq.saturating_sub(1));
            }
            Err(error) if is_unknown_process(&error) => drop(state.unfollowed.remove(process_id)),
            // The next connection asks again.
            Err(_) => {}
        }
    }

    /// Handles an event of a process without a handle, which keeps running while its output is discarded.
    pub(super) fn on_unfollowed_event(&self, event: &ProcessEvent) {
        let ((process_id, seq), incarnation) = (event.position(), event.incarnation());
        let newest = self.queue(process_id);
        let is_closed = newest.as_ref().is_some_and(|newest| newest.is_closed());
        let mut state = self.lock();
        let known = state.unfollowed.get(process_id).copied();
        let is_same = newest.as_ref().map(Arc::as_ptr) == state.newest(process_id).map(Arc::as_ptr);
        if matches!(event, ProcessEvent::Closed(_)) {
            state.unfollowed_closes += 1;
            state.forget_unfollowed(process_id, incarnation);
        } else if is_same
            && incarnation.is_some()
            && (is_closed && known != Some(incarnation) || newest.is_none() && known.is_none())
            && state.unfollowed.len() < MAX_DISCARDED
        {
            // Others have restarted it: nothing of the processes before arrives after the close of the newest.
            newest.inspect(|newest| newest.on_restarted());
            state.unfollowed.insert(process_id.to_owned(), incarnation);
        }
        drop(state);
        self.discarded(process_id, incarnation, seq);
    }

    /// Sends the messages that a queue asks for.
    pub(crate) fn perform(&self, queue: &Arc<EventQueue>, action: QueueAction) {
        if let Some(seq) = action.consumed {
            self.consumed(&queue.id, queue.incarnation(), seq);
        }
        if let Some(read) = action.read {
            self.read_for_queue(queue, read);
        }
        if action.found_another {
            self.on_replaced(queue);
        }
    }

    /// Records that others have restarted a process, perhaps while this client was away: nobody follows the new one.
    fn on_replaced(&self, queue: &Arc<EventQueue>) {
        let mut state = self.lock();
        if state.newest(&queue.id).is_some_and(|newest| Arc::ptr_eq(newest, queue)) {
            state.unfollowed.entry(queue.id.clone()).or_insert(None);
            drop(state);
            self.skip_output(queue.id.clone());
        }
    }

    /// Records that a process of the own session was restarted, so that new handles are for the new one.
    ///
    /// `before` is the newest queue at the time of the request. After a repeated answer, any other may be that of a later
    /// restart.
    pub(super) fn on_restarted(
        &self,
        process_id: &str,
        started: &wire::Started,
        before: Option<&Arc<EventQueue>>,
    ) {
        let Some(incarnation) = started.incarnation else { return };
        let mut state = self.lock();
        match state.newest(process_id) {
            Some(newest) if newest.incarnation().is_none_or(|known| known == incarnation) => return,
            Some(newest) if started.replayed && !before.is_some_and(|before| Arc::ptr_eq(newest, before)) => {
                return;
            }
            Some(newest) => newest.on_restarted(),
            None => {}
        }
        let process_id = process_id.to_owned();
        if started.replayed {
            state.unfollowed.entry(process_id.clone()).or_insert(None);
            drop(state);
            // Its first events went to the connection before.
            self.skip_output(process_id);
        } else {
            state.unfollowed.insert(process_id, Some(incarnation));
        }
    }

    /// Returns whether the session that a request names is the own one.
    pub(super) fn is_own(&self, session_id: Option<&str>) -> bool {
        session_id.is_none_or(|id| id == self.welcome().session_id)
    }

    /// Records the position of a caller that polls a process with `process/read`.
    pub(super) fn on_poll(&self, read: &wire::Read) {
        let is_ours = self.is_own(read.session_id.as_deref());
        let Some(seq) = read.after_seq.filter(|seq| is_ours && *seq != AFTER_EVERYTHING) else { return };
        let followed =
            |state: &CoreState| state.followed.get(&read.process_id)?.named(read.incarnation).cloned();
        let queue = followed(&self.lock());
        if let Some(queue) = queue {
            self.on_polled(&queue, seq);
        }
    }

    /// Records that a caller has read everything up to `seq` of a process.
    pub(crate) fn on_polled(&self, queue: &Arc<EventQueue>, seq: u64) {
        let action = queue.on_poll(seq);
        self.perform(queue, action);
    }

    fn read_for_queue(&self, queue: &Arc<EventQueue>, read: wire::Read) {
        let waiting = PendingCall {
            method: "process/read",
            body: self.encode(read.into()),
            answer: ReplyTo::Queue(Arc::clone(queue)),
            _slot: None,
        };
        // A queue has at most one read in progress.
        let _ = self.register(waiting, AfterDisconnect::Fail, Admission::Unbounded);
    }
}

impl CoreState {
    /// Returns the newest queue of a process that has a handle.
    fn newest(&self, process_id: &str) -> Option<&Arc<EventQueue>> {
        self.followed.get(process_id)?.newest()
    }

    /// Forgets a process without a handle that has closed, unless that was the one before a restart.
    fn forget_unfollowed(&mut self, process_id: &str, closed: Option<u64>) {
        let known = self.unfollowed.get(process_id).copied().flatten();
        if known.is_none() || closed.is_none() || known == closed {
            self.unfollowed.remove(process_id);
        }
    }
}

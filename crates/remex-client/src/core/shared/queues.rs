//! The event queues of processes, and the reads that they need.

use std::sync::Arc;

use remex_proto::{process as wire, state::pending::AfterDisconnect};

use super::{
    Core, CoreState,
    call::{Admission, PendingCall, ReplyTo},
    outgoing::{MAX_DISCARDED, MAX_ID_BYTES},
    process_queues::{ProcessQueues, ReleasedQueue},
};
use crate::{
    ConnectionState, Error, Session,
    base::error::{is_restarted, is_unknown_process, usage},
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
                state.followed.insert(queue.id.clone(), ProcessQueues::new(Arc::clone(queue)));
            }
            Some(followed) if followed.may_succeed(queue.incarnation()) => {
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

    /// Returns the queue of a process that has a handle, for another one: of this start, or of the one that has the id now.
    pub(crate) fn share_queue(&self, process_id: &str, incarnation: Option<u64>) -> Option<Arc<EventQueue>> {
        self.lock().followed.get_mut(process_id)?.share(incarnation)
    }

    /// Returns the newest queue of a process that has a handle.
    pub(super) fn queue(&self, process_id: &str) -> Option<Arc<EventQueue>> {
        self.lock().newest(process_id).cloned()
    }

    /// Returns the queue that an event of a process is for, if it takes any more.
    pub(super) fn receiver(&self, process_id: &str, incarnation: Option<u64>) -> Option<Arc<EventQueue>> {
        self.lock().receiver(process_id, incarnation).cloned()
    }

    /// Returns the processes that have handles.
    pub(crate) fn process_ids(&self) -> Vec<String> {
        self.lock().followed.keys().cloned().collect()
    }

    /// Removes the queue of a process with its last handle.
    pub(crate) fn remove_queue(&self, queue: &Arc<EventQueue>) {
        let (is_closed, is_replaced) = (queue.is_closed(), queue.is_replaced());
        let mut state = self.lock();
        let Some(followed) = state.followed.get_mut(&queue.id) else { return };
        let released = followed.release(queue);
        if followed.is_empty() {
            state.followed.remove(&queue.id);
        }
        if released == ReleasedQueue::InUse || is_closed {
            return;
        }
        // There is no consumer for its output, which must block neither it nor the process after it.
        let incarnation = if is_replaced { queue.incarnation() } else { queue.confirmed_incarnation() };
        if released == ReleasedQueue::Newest && !is_replaced {
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
        self.read_unbounded(read, ReplyTo::Unfollowed(process_id));
    }

    pub(super) fn on_unfollowed_reply(&self, process_id: &str, answer: Result<wire::ReadReply, Error>) {
        let mut state = self.lock();
        // If a handle exists again, its consumers have not consumed the earlier output.
        if !state.unfollowed.contains_key(process_id) {
            return;
        }
        match answer {
            Ok(reply) => {
                if reply.closed {
                    state.forget_unfollowed(process_id, reply.incarnation);
                } else {
                    state.identify_unfollowed(process_id, reply.incarnation);
                }
                drop(state);
                self.consumed(process_id, reply.incarnation, reply.next_seq.saturating_sub(1));
            }
            Err(error) if is_unknown_process(&error) => drop(state.unfollowed.remove(process_id)),
            // The next connection asks again.
            Err(_) => {}
        }
    }

    /// Gives an event to the queue that it is for. A process without one keeps running, and its output is discarded.
    pub(super) fn on_process_event(&self, event: ProcessEvent) {
        let ((process_id, seq), incarnation) = (event.position(), event.incarnation());
        let mut state = self.lock();
        let is_closed = matches!(event, ProcessEvent::Closed(_));
        state.closes += u64::from(is_closed);
        if let Some(queue) = state.receiver(process_id, incarnation).cloned() {
            drop(state);
            let action = queue.on_event(event);
            return self.perform(&queue, action);
        }
        if is_closed {
            state.forget_unfollowed(process_id, incarnation);
        } else if incarnation.is_some() {
            state.find_unfollowed(process_id, incarnation);
        }
        drop(state);
        self.discarded(process_id, incarnation, seq);
    }

    /// Sends the messages that a queue requests.
    pub(crate) fn perform(&self, queue: &Arc<EventQueue>, action: QueueAction) {
        if let Some(seq) = action.consumed {
            self.consumed(&queue.id, queue.incarnation(), seq);
        }
        if let Some(read) = action.read {
            self.read_unbounded(read, ReplyTo::Queue(Arc::clone(queue)));
        }
        if action.found_another {
            self.on_replaced(queue);
        }
    }

    /// Records that another client has restarted a process: the new one has no handle here.
    fn on_replaced(&self, queue: &Arc<EventQueue>) {
        let mut state = self.lock();
        if state.newest(&queue.id).is_none_or(|newest| Arc::ptr_eq(newest, queue)) {
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

    /// Handles a new connection for the newest queue of a process.
    pub(super) fn resume_queue(&self, queue: &Arc<EventQueue>) {
        let action = queue.on_reconnect();
        let asks = action.read.is_some();
        self.perform(queue, action);
        if asks || queue.incarnation().is_none() || self.lock().unfollowed.contains_key(&queue.id) {
            return;
        }
        // Others may have restarted a process that no read is about; the new one must not wait for anybody here.
        let read = wire::Read {
            process_id: queue.id.clone(),
            session_id: None,
            incarnation: queue.incarnation(),
            after_seq: Some(AFTER_EVERYTHING),
            max_bytes: Some(0),
            wait_ms: None,
        };
        self.read_unbounded(read, ReplyTo::Check(Arc::clone(queue)));
    }

    /// Handles the answer to the question whether another process has the id of a queue.
    pub(super) fn on_checked(&self, queue: &Arc<EventQueue>, answer: Result<wire::ReadReply, Error>) {
        if answer.is_err_and(|error| is_restarted(&error)) {
            queue.on_restarted();
            self.on_replaced(queue);
        }
    }

    /// Returns whether the session that a request names is the own one.
    pub(super) fn is_own(&self, session: Option<&str>) -> bool {
        let name = match &self.options.session {
            Session::New => None,
            Session::Create(name) | Session::Named(name) => Some(name.as_str()),
            Session::Resume { id, .. } => Some(id.as_str()),
        };
        session.is_none_or(|asked| asked == self.welcome().session_id || Some(asked) == name)
    }

    /// Records the position of a caller that polls a process with `process/read`.
    pub(super) fn on_poll(&self, read: &wire::Read) {
        let is_ours = self.is_own(read.session_id.as_deref());
        let Some(seq) = read.after_seq.filter(|seq| is_ours && *seq != AFTER_EVERYTHING) else { return };
        let followed = |state: &CoreState| state.polled(read);
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

    /// Sends a read for which the client itself waits; each queue and each process has at most one in progress, and
    /// after a disconnect, the next connection repeats it.
    fn read_unbounded(&self, read: wire::Read, answer: ReplyTo) {
        let waiting =
            PendingCall { method: "process/read", body: self.encode(read.into()), answer, _slot: None };
        let _ = self.register(waiting, AfterDisconnect::Fail, Admission::Unbounded);
    }
}

impl CoreState {
    /// Returns the newest queue of a process that has a handle.
    fn newest(&self, process_id: &str) -> Option<&Arc<EventQueue>> {
        self.followed.get(process_id)?.newest()
    }

    /// Returns the queue that an event of a process is for, if it takes any more.
    fn receiver(&self, process_id: &str, incarnation: Option<u64>) -> Option<&Arc<EventQueue>> {
        self.followed.get(process_id)?.receiver(incarnation)
    }

    /// Returns the queue whose events a caller of `process/read` gets; without an incarnation, those of the process that
    /// has the id now.
    fn polled(&self, read: &wire::Read) -> Option<Arc<EventQueue>> {
        let polled = self.followed.get(&read.process_id)?.named(read.incarnation)?;
        Some(polled).filter(|queue| read.incarnation.is_some() || !queue.is_replaced()).cloned()
    }

    /// Records an event of an incarnation without a queue: another client has restarted the process.
    fn find_unfollowed(&mut self, process_id: &str, incarnation: Option<u64>) {
        let known = self.unfollowed.get(process_id);
        let is_new = match self.newest(process_id) {
            // Nothing of the processes before arrives after the close of the newest.
            Some(newest) => {
                newest.is_closed() && newest.incarnation() != incarnation && known != Some(&incarnation)
            }
            None => known.is_none(),
        };
        if is_new && process_id.len() <= MAX_ID_BYTES && self.unfollowed.len() < MAX_DISCARDED {
            self.newest(process_id).inspect(|newest| newest.on_restarted());
            self.unfollowed.insert(process_id.to_owned(), incarnation);
        }
    }

    /// Records which start a process without a handle is, if that was unknown.
    fn identify_unfollowed(&mut self, process_id: &str, incarnation: Option<u64>) {
        if let Some(known) = self.unfollowed.get_mut(process_id) {
            *known = known.or(incarnation);
        }
    }

    /// Forgets a process without a handle that has closed, unless that was the one before a restart.
    fn forget_unfollowed(&mut self, process_id: &str, closed: Option<u64>) {
        let known = self.unfollowed.get(process_id).copied().flatten();
        if known.is_none() || closed.is_none() || known == closed {
            self.unfollowed.remove(process_id);
        }
    }
}

//! The events of one process, queued between the connection and the consumers.
//!
//! The connection task adds events in the order of arrival; consumers take them in sequence, each at its own pace.
//! Events that every consumer has taken are removed and reported to the server. The queue does no I/O: it returns the
//! messages to send as a [`QueueAction`]. Start at [`EventQueue`].

mod process_event;
mod state;

use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use remex_base::lock;
use remex_proto::{
    flow::WINDOW_BYTES,
    process as wire,
    state::replay::{Reach, ReadBatch},
};
use tokio::time::Instant;

use crate::{
    Error,
    base::{
        error::{is_restarted, is_starting, is_unknown_process, restarted},
        event::{Chunk, Closed, Event, Exit},
    },
};
pub(crate) use process_event::ProcessEvent;
use process_event::gap;
use state::{Consumer, FirstConsumer, QueueState, ReadState};

/// How many bytes one read requests.
pub(crate) const READ_BYTES: u64 = WINDOW_BYTES;

/// The cursor of a read that only requests the newest position of a process, and the position of consumers that need no
/// more events.
pub(crate) const AFTER_EVERYTHING: u64 = u64::MAX - 1;

/// The events of one process.
#[derive(Debug)]
pub(crate) struct EventQueue {
    pub(crate) id: String,
    incarnation: Incarnation,
    /// Whether another process has its id now.
    is_replaced: AtomicBool,
    /// The connection task adds events, consumers take them; locked only briefly.
    state: Mutex<QueueState>,
}

/// The incarnation that requests are for, once the server has reported it.
pub(crate) type Incarnation = Arc<OnceLock<u64>>;

/// How the client learns that a process is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Close {
    /// The server announces it.
    Announced,
    /// The oldest dialect does not: an exited process that prints nothing for a while is closed.
    AfterSilence,
}

/// Whether a process may have produced output before this client followed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum History {
    None,
    Possible,
}

/// The messages that a queue wants to be sent.
#[derive(Debug, Default)]
pub(crate) struct QueueAction {
    /// A read that fetches missing events.
    pub(crate) read: Option<wire::Read>,
    /// Everything up to here is consumed; the server may drop it.
    pub(crate) consumed: Option<u64>,
    /// A read has found another process under the id.
    pub(crate) found_another: bool,
}

/// The state of a process as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProcessState {
    pub(crate) exit: Option<(u64, Exit)>,
    pub(crate) closed: Option<(u64, Closed)>,
    pub(crate) failed: Option<Error>,
    pub(crate) last_output: Instant,
}

impl EventQueue {
    pub(crate) fn new(id: String, retain_bytes: Option<u64>, close: Close) -> Self {
        Self {
            id,
            incarnation: Incarnation::default(),
            is_replaced: AtomicBool::new(false),
            state: Mutex::new(QueueState::new(retain_bytes, close)),
        }
    }

    /// Records that the server has the process; `history` says whether it may have earlier output.
    pub(crate) fn on_started(&self, history: History, incarnation: Option<u64>) -> QueueAction {
        let mut state = self.lock();
        self.identify(incarnation);
        state.is_started = true;
        state.is_unconfirmed = history == History::Possible && incarnation.is_some();
        if history == History::Possible {
            state.interrupt();
        }
        if !state.is_unconfirmed {
            state.deliver_ready(None);
        }
        state.action(&self.id, self.incarnation())
    }

    /// Records the start of the process that requests are for.
    pub(crate) fn identify(&self, incarnation: Option<u64>) {
        if let Some(incarnation) = incarnation {
            self.incarnation.get_or_init(|| incarnation);
        }
    }

    /// Returns the start of the process that requests are for.
    pub(crate) fn incarnation(&self) -> Option<u64> {
        self.incarnation.get().copied()
    }

    /// Returns the same for those that need it before it is known.
    pub(crate) fn shared_incarnation(&self) -> Incarnation {
        Arc::clone(&self.incarnation)
    }

    /// Returns whether the process has closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed.is_some()
    }

    /// Returns whether it takes no more events.
    pub(crate) fn has_ended(&self) -> bool {
        let state = self.lock();
        state.closed.is_some() || state.failed.is_some()
    }

    /// Returns the start that is known to have the id.
    pub(crate) fn confirmed_incarnation(&self) -> Option<u64> {
        self.incarnation().filter(|_| !self.lock().is_unconfirmed)
    }

    /// Returns whether another process has its id now.
    pub(crate) fn is_replaced(&self) -> bool {
        self.is_replaced.load(Ordering::Relaxed)
    }

    /// Records that nothing arrives any more of a process before a restart.
    pub(crate) fn on_succeeded(&self) {
        let mut state = self.lock();
        if state.closed.is_none() {
            state.fail(restarted(&self.id));
        }
    }

    /// Records that the process was restarted.
    pub(crate) fn on_restarted(&self) {
        self.is_replaced.store(true, Ordering::Relaxed);
    }

    /// Records that the process may have closed before this connection, which then streams nothing of it.
    pub(crate) fn on_maybe_closed(&self) {
        self.lock().is_streamed = false;
    }

    // Called by the connection task.

    /// Handles a notification of the server.
    pub(crate) fn on_event(&self, event: ProcessEvent) -> QueueAction {
        let mut state = self.lock();
        if state.failed.is_some() || state.closed.is_some() {
            // No consumer will see it, so it must not block the process.
            return QueueAction { consumed: Some(event.position().1), ..QueueAction::default() };
        }
        if state.is_full() {
            // Only a server of the base dialect sends beyond the window. Discard the event; a read fetches it later.
            state.interrupt();
            return QueueAction::default();
        }
        let position = event.position().1;
        // What names no start may be of another one after a disconnect.
        state.is_streamed |= event.incarnation().is_some() || !state.is_unconfirmed;
        state.live_from.get_or_insert(position);
        match event {
            ProcessEvent::Output(note) => {
                state.last_output = Instant::now();
                let (seq, len) = (note.seq, note.chunk.len());
                let chunk = Chunk { seq, stream: note.stream, bytes: note.chunk.0 };
                state.replay.feed(seq, len, Event::Output(chunk));
            }
            ProcessEvent::Exited(note) => {
                state.replay.feed(note.seq, 0, Event::Exited { seq: note.seq, exit: note.into() });
            }
            ProcessEvent::Closed(note) => {
                let closed =
                    Closed { seq: note.seq, produced: note.produced, evicted_bytes: note.evicted_bytes };
                state.replay.feed(note.seq, 0, Event::Closed(closed));
            }
            ProcessEvent::Gap(note) => {
                state.replay.feed_gap(gap(note.range));
            }
        }
        let had_exited = state.exit.is_some();
        if !state.is_unconfirmed {
            state.deliver_ready(None);
        }
        if !had_exited && state.awaits_silence() && state.reads == 0 {
            state.interrupt();
        }
        state.action(&self.id, self.incarnation())
    }

    /// Handles the reply to a read.
    pub(crate) fn on_read_reply(&self, answer: Result<wire::ReadReply, Error>) -> QueueAction {
        let mut state = self.lock();
        let mut found_another = false;
        state.reads = state.reads.saturating_sub(1);
        match answer {
            Ok(_) if state.failed.is_some() => {}
            Ok(reply) => {
                state.is_unconfirmed = false;
                state.is_streamed |= !reply.closed;
                let state_read = ReadState::of(&reply);
                let is_silent = std::mem::take(&mut state.listens) && reply.chunks.is_empty();
                let bytes: usize = reply.chunks.iter().map(|chunk| chunk.chunk.len()).sum();
                if bytes > 0 {
                    state.last_output = Instant::now();
                }
                // A limited read does not say what follows its last chunk: an exit, or nothing.
                let is_complete = reply.chunks.is_empty()
                    || state.live_from.is_some_and(|live_from| reply.next_seq >= live_from);
                let events = reply.chunks.into_iter().map(|chunk| {
                    let len = chunk.chunk.len();
                    let event = Chunk { seq: chunk.seq, stream: chunk.stream, bytes: chunk.chunk.0 };
                    (chunk.seq, len, Event::Output(event))
                });
                state.replay.feed_read(ReadBatch {
                    gap: reply.gap.map(gap),
                    events,
                    next_seq: reply.next_seq,
                    reach: if is_complete { Reach::Newest } else { Reach::Partial },
                });
                state.deliver_ready(Some(&state_read));
                if state.awaits_silence() && is_silent {
                    state.close();
                } else if state.awaits_silence() {
                    state.interrupt();
                }
            }
            Err(Error::Interrupted { .. }) => state.interrupt(),
            // A server of the base dialect answers a repeated start before the process exists.
            Err(error) if is_starting(&error) => state.interrupt(),
            Err(error) if is_unknown_process(&error) && state.closed.is_some() => {}
            Err(error) if is_unknown_process(&error) && state.awaits_silence() => state.close(),
            Err(error) if is_restarted(&error) => {
                self.on_restarted();
                found_another = true;
                state.on_unreadable(restarted(&self.id));
            }
            Err(error) => state.fail(error),
        }
        QueueAction { found_another, ..state.action(&self.id, self.incarnation()) }
    }

    /// Records a disconnect: events may be missing.
    pub(crate) fn on_disconnect(&self) {
        let mut state = self.lock();
        state.interrupt();
        state.is_streamed = false;
        // Without an incarnation, nothing shows that it is another one.
        state.is_unconfirmed = self.incarnation().is_some() || !state.is_started;
    }

    /// Records a reconnect.
    pub(crate) fn on_reconnect(&self) -> QueueAction {
        let mut state = self.lock();
        let mut action = state.action(&self.id, self.incarnation());
        // The last report may not have reached the server.
        action.consumed = Some(state.consumed(self.incarnation())).filter(|seq| *seq > 0);
        action
    }

    /// Records an invalid notification about the process; all later events are discarded.
    pub(crate) fn on_protocol_error(&self, error: Error) -> QueueAction {
        let mut state = self.lock();
        if state.closed.is_some() {
            return QueueAction::default();
        }
        state.fail(error);
        let newest = state.queue.back().map_or(state.removed_seq, |(seq, _)| *seq);
        let consumed = newest.max(state.consumed(self.incarnation()));
        QueueAction { consumed: Some(consumed).filter(|seq| *seq > 0), ..QueueAction::default() }
    }

    /// Ends the queue with an error.
    pub(crate) fn fail(&self, error: &Error) {
        self.lock().fail(error.clone());
    }

    // Called by consumers.

    /// Records that a caller of `process/read` has read everything up to `seq`.
    pub(crate) fn on_poll(&self, seq: u64) -> QueueAction {
        let mut state = self.lock();
        match &mut state.first_consumer {
            FirstConsumer::Awaited { polled } if *polled < seq => *polled = seq,
            FirstConsumer::Awaited { .. } | FirstConsumer::Arrived => return QueueAction::default(),
        }
        state.drop_consumed();
        let mut action = state.action(&self.id, self.incarnation());
        action.consumed = Some(state.consumed(self.incarnation()));
        action
    }

    /// Adds a consumer of the events after `after`; returns its number, and the seq up to which it must read the history
    /// from the server.
    pub(crate) fn subscribe(&self, after: u64) -> (u64, u64) {
        let mut state = self.lock();
        let number = state.next_consumer;
        state.next_consumer += 1;
        let next = state.removed + state.queue.partition_point(|(seq, _)| *seq <= after) as u64;
        state.consumers.insert(number, Consumer { next, waker: None });
        state.first_consumer = FirstConsumer::Arrived;
        state.drop_consumed();
        (number, state.removed_seq)
    }

    /// Adds a consumer of future events only.
    pub(crate) fn subscribe_at_end(&self) -> u64 {
        let mut state = self.lock();
        let number = state.next_consumer;
        state.next_consumer += 1;
        let next = state.removed + state.queue.len() as u64;
        state.consumers.insert(number, Consumer { next, waker: None });
        number
    }

    pub(crate) fn unsubscribe(&self, number: u64) -> QueueAction {
        let mut state = self.lock();
        state.consumers.remove(&number);
        state.drop_consumed();
        state.action(&self.id, self.incarnation())
    }

    /// Takes the next event for a consumer; `None` after the last.
    pub(crate) fn poll(
        &self,
        number: u64,
        context: &mut Context<'_>,
    ) -> Poll<(Result<Option<Event>, Error>, QueueAction)> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let Some(consumer) = state.consumers.get_mut(&number) else {
            return Poll::Ready((Ok(None), QueueAction::default()));
        };
        let at = usize::try_from(consumer.next - state.removed).unwrap_or(usize::MAX);
        let Some((_, event)) = state.queue.get(at) else {
            if let Some(error) = &state.failed {
                return Poll::Ready((Err(error.clone()), QueueAction::default()));
            }
            if state.closed.is_some() {
                return Poll::Ready((Ok(None), QueueAction::default()));
            }
            consumer.waker = Some(context.waker().clone());
            return Poll::Pending;
        };
        let event = event.clone();
        consumer.next += 1;
        state.drop_consumed();
        Poll::Ready((Ok(Some(event)), state.action(&self.id, self.incarnation())))
    }

    /// Stops keeping events for a first consumer.
    pub(crate) fn release(&self) -> QueueAction {
        let mut state = self.lock();
        state.first_consumer = FirstConsumer::Arrived;
        state.drop_consumed();
        state.action(&self.id, self.incarnation())
    }

    /// Returns the known state of the process.
    pub(crate) fn known(&self) -> ProcessState {
        let state = self.lock();
        ProcessState {
            exit: state.exit.clone(),
            closed: state.closed.clone(),
            failed: state.failed.clone(),
            last_output: state.last_output,
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        lock(&self.state)
    }
}

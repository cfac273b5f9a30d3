//! The events of one process, queued between the connection and the consumers.
//!
//! The connection task adds events in the order of arrival; consumers take them in sequence, each at its own pace.
//! Events that every consumer has taken are removed and reported to the server. The queue does no I/O: it returns the
//! messages to send as a [`QueueAction`]. Start at [`EventQueue`].

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
};

use remex_proto::{
    flow::{WINDOW_BYTES, WINDOW_EVENTS},
    process as wire,
    state::{
        output_log as log,
        replay::{Limits, Reach, ReadBatch, Replay, Step},
    },
};
use tokio::time::Instant;

use crate::{
    Error,
    error::{is_restarted, is_starting, is_unknown_process, restarted},
    event::{Chunk, Closed, Event, Exit, Gap},
};

/// The limits for events that are held while earlier ones are missing.
const AHEAD: Limits = Limits { events: 2 * WINDOW_EVENTS as usize, bytes: 2 * WINDOW_BYTES as usize };

/// The limits for events that wait for the slowest consumer; a server that supports `consumed` never sends that much.
const QUEUE_BYTES: usize = 1 << 20;
const QUEUE_EVENTS: usize = 16 << 10;

/// How much one read asks for.
pub(crate) const READ_BYTES: u64 = WINDOW_BYTES;

/// How long a process of the oldest dialect must be silent after its exit to count as closed.
const SILENCE_MS: u64 = 250;

/// Consumption is reported when this much of the window is used.
const REPORT_BYTES: u64 = WINDOW_BYTES / 4;
const REPORT_EVENTS: u64 = WINDOW_EVENTS / 4;

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

/// The start of a process that requests are for, once the server has told it, if it does.
pub(crate) type Incarnation = Arc<OnceLock<u64>>;

#[derive(Debug)]
struct QueueState {
    replay: Replay<Event>,
    /// In order, each with the last seq it covers; events that every consumer has taken are removed.
    queue: VecDeque<(u64, Event)>,
    queued_bytes: usize,
    /// How many events have left the queue; the index of its first.
    removed: u64,
    /// The last seq that has left the queue.
    removed_seq: u64,
    /// The position of each consumer, as an index, and its waker.
    consumers: BTreeMap<u64, Consumer>,
    next_consumer: u64,
    first_consumer: FirstConsumer,
    /// Removed from the queue since the last report to the server.
    unreported_bytes: u64,
    unreported_events: u64,
    /// The amount after which a report is due.
    report_bytes: u64,
    exit: Option<(u64, Exit)>,
    closed: Option<(u64, Closed)>,
    failed: Option<Error>,
    /// When output last arrived.
    last_output: Instant,
    /// The seq of the first event that this connection streamed; the server streams all later ones too.
    live_from: Option<u64>,
    /// The last event that this connection streamed.
    live_to: u64,
    /// Whether the process may have been restarted, so that what is streamed may be of another one, until a read shows
    /// that it was not.
    is_unconfirmed: bool,
    /// Whether the server has confirmed the process, so that it can be read.
    is_started: bool,
    close: Close,
    /// How many reads are in progress, and whether the last of them waits for output after the exit.
    reads: u32,
    listens: bool,
}

/// How the client learns that a process is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Close {
    /// The server says so.
    Announced,
    /// The oldest dialect says nothing: an exited process that prints nothing for a while is closed.
    AfterSilence,
}

#[derive(Debug)]
struct Consumer {
    /// removed <= next <= removed + queue.len()
    next: u64,
    waker: Option<Waker>,
}

/// Whether the first consumer has arrived; until then, events are kept for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FirstConsumer {
    /// Not yet: events are kept, except those that a caller of `process/read` has already received.
    Awaited {
        /// The position of that caller.
        polled: u64,
    },
    /// It has, or will not: events are kept only for existing consumers.
    Arrived,
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
    /// Everything up to here that has arrived is discarded; it may be of the process after a restart.
    pub(crate) discarded: Option<u64>,
}

/// A notification about a process of this session.
#[derive(Debug)]
pub(crate) enum ProcessEvent {
    Output(wire::Output),
    Exited(wire::Exited),
    Closed(wire::Closed),
    Gap(wire::Gap),
}

impl ProcessEvent {
    /// Returns the session that it belongs to if that is another one, whose processes may have the same ids.
    pub(crate) fn observed_session(&self) -> Option<&str> {
        let session_id = match self {
            ProcessEvent::Output(note) => &note.session_id,
            ProcessEvent::Exited(note) => &note.session_id,
            ProcessEvent::Closed(note) => &note.session_id,
            ProcessEvent::Gap(note) => &note.session_id,
        };
        session_id.as_deref()
    }

    /// Returns the process and what happened to it.
    pub(crate) fn into_event(self) -> (String, Event) {
        match self {
            ProcessEvent::Output(note) => {
                let chunk = Chunk { seq: note.seq, stream: note.stream, bytes: note.chunk.0 };
                (note.process_id, Event::Output(chunk))
            }
            ProcessEvent::Exited(mut note) => {
                let process_id = std::mem::take(&mut note.process_id);
                (process_id, Event::Exited { seq: note.seq, exit: note.into() })
            }
            ProcessEvent::Closed(note) => {
                let (produced, evicted_bytes) = (note.produced, note.evicted_bytes);
                (note.process_id, Event::Closed(Closed { seq: note.seq, produced, evicted_bytes }))
            }
            ProcessEvent::Gap(note) => {
                let log::Gap { from_seq, to_seq, bytes, cause } = gap(note.range);
                (note.process_id, Event::Gap(Gap { from_seq, to_seq, bytes, cause }))
            }
        }
    }

    /// Returns the process, and the last event that this covers.
    pub(crate) fn position(&self) -> (&str, u64) {
        match self {
            ProcessEvent::Output(note) => (&note.process_id, note.seq),
            ProcessEvent::Exited(note) => (&note.process_id, note.seq),
            ProcessEvent::Closed(note) => (&note.process_id, note.seq),
            ProcessEvent::Gap(note) => (&note.process_id, note.range.to_seq),
        }
    }
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
            state: Mutex::new(QueueState {
                replay: Replay::new(AHEAD),
                queue: VecDeque::new(),
                queued_bytes: 0,
                removed: 0,
                removed_seq: 0,
                consumers: BTreeMap::new(),
                next_consumer: 0,
                first_consumer: FirstConsumer::Awaited { polled: 0 },
                unreported_bytes: 0,
                unreported_events: 0,
                report_bytes: retain_bytes.map_or(REPORT_BYTES, |retain| (retain / 4).min(REPORT_BYTES)),
                exit: None,
                closed: None,
                failed: None,
                last_output: Instant::now(),
                live_from: None,
                live_to: 0,
                is_unconfirmed: false,
                is_started: false,
                close,
                reads: 0,
                listens: false,
            }),
        }
    }

    /// Records that the server has the process; `history` says whether it may have earlier output.
    pub(crate) fn on_started(&self, history: History, incarnation: Option<u64>) -> QueueAction {
        let mut state = self.lock();
        if let Some(incarnation) = incarnation {
            self.incarnation.get_or_init(|| incarnation);
        }
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

    /// Returns the start of the process that requests are for.
    pub(crate) fn incarnation(&self) -> Option<u64> {
        self.incarnation.get().copied()
    }

    /// Returns the same for those that need it before it is known.
    pub(crate) fn shared_incarnation(&self) -> Incarnation {
        Arc::clone(&self.incarnation)
    }

    /// Returns whether another process has its id now.
    pub(crate) fn is_replaced(&self) -> bool {
        self.is_replaced.load(Ordering::Relaxed)
    }

    /// Records that nothing arrives here any more, because there is a handle on the process after a restart.
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

    // Called by the connection task.

    /// Handles a notification of the server.
    pub(crate) fn on_event(&self, event: ProcessEvent) -> QueueAction {
        let mut state = self.lock();
        if state.failed.is_some() || state.closed.is_some() {
            // No consumer will see it, so it must not block the process: after a restart, that is another one.
            return QueueAction { discarded: Some(event.position().1), ..QueueAction::default() };
        }
        if state.is_full() {
            // Only a server of the base dialect sends beyond the window. Discard the event; a read fetches it later.
            state.interrupt();
            return QueueAction::default();
        }
        let position = event.position().1;
        state.live_from.get_or_insert(position);
        state.live_to = state.live_to.max(position);
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
        state.reads = state.reads.saturating_sub(1);
        match answer {
            Ok(_) if state.failed.is_some() => {}
            Ok(reply) => {
                state.is_unconfirmed = false;
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
                state.fail(restarted(&self.id));
                // What has arrived is of the process after the restart, which must not wait for anybody here.
                let discarded = Some(state.live_to).filter(|seq| *seq > 0);
                return QueueAction { discarded, ..QueueAction::default() };
            }
            Err(error) => state.fail(error),
        }
        state.action(&self.id, self.incarnation())
    }

    /// Records a disconnect: events may be missing.
    pub(crate) fn on_disconnect(&self) {
        let mut state = self.lock();
        state.interrupt();
        // Without an incarnation, nothing shows that it is another one.
        state.is_unconfirmed = self.incarnation().is_some() || !state.is_started;
    }

    /// Records a reconnect.
    pub(crate) fn on_reconnect(&self) -> QueueAction {
        let mut state = self.lock();
        let mut action = state.action(&self.id, self.incarnation());
        // The last report may not have reached the server.
        action.consumed = Some(state.consumed()).filter(|seq| *seq > 0);
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
        QueueAction { consumed: Some(newest).filter(|seq| *seq > 0), ..QueueAction::default() }
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
        action.consumed = Some(state.consumed());
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
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The parts of a read reply that describe the state of the process instead of events.
struct ReadState {
    exit: Option<Exit>,
    closed: Option<Closed>,
}

impl ReadState {
    fn of(reply: &wire::ReadReply) -> Self {
        let exit = Exit {
            code: reply.exit_code.unwrap_or(-1),
            signal: reply.signal.clone(),
            cause: reply.cause,
            usage: reply.usage,
            network_denied: reply.network_denied.clone(),
            sandbox_denied: reply.sandbox_denied,
        };
        // The number is that of the event that this becomes.
        let closed = Closed { seq: 0, produced: reply.produced, evicted_bytes: reply.evicted_bytes };
        ReadState { exit: reply.exited.then_some(exit), closed: reply.closed.then_some(closed) }
    }
}

impl QueueState {
    /// Returns whether the process has exited and only silence will tell that it is closed.
    fn awaits_silence(&self) -> bool {
        self.close == Close::AfterSilence && self.exit.is_some() && self.closed.is_none()
    }

    /// Closes a process whose server does not say when it is closed.
    fn close(&mut self) {
        let seq = self.replay.cursor() + 1;
        self.push(seq, Event::Closed(Closed { seq, produced: None, evicted_bytes: None }));
        self.deliver_ready(None);
    }

    fn interrupt(&mut self) {
        self.replay.interrupt();
        (self.live_from, self.live_to) = (None, 0);
    }

    /// Returns the seq up to which the server may drop events.
    fn consumed(&self) -> u64 {
        match self.first_consumer {
            FirstConsumer::Awaited { polled } => self.removed_seq.max(polled),
            FirstConsumer::Arrived => self.removed_seq,
        }
    }

    fn is_full(&self) -> bool {
        self.queued_bytes >= QUEUE_BYTES || self.queue.len() >= QUEUE_EVENTS
    }

    /// Queues the events that are next in order.
    fn deliver_ready(&mut self, state_read: Option<&ReadState>) {
        while let Some(step) = self.replay.next() {
            match step {
                Step::Event { seq, event } => self.push(seq, event),
                Step::Gap(log::Gap { from_seq, to_seq, bytes, cause }) => {
                    self.push(to_seq, Event::Gap(Gap { from_seq, to_seq, bytes, cause }));
                }
                Step::Unlisted { from_seq, to_seq } => self.push_state_changes(from_seq, to_seq, state_read),
            }
        }
        self.drop_consumed();
        for consumer in self.consumers.values_mut() {
            if consumer.next < self.removed + self.queue.len() as u64 || self.closed.is_some() {
                consumer.waker.take().inspect(Waker::wake_by_ref);
            }
        }
    }

    /// Creates the events for numbers that a read skipped: an exit, a close, or output that a server of the base
    /// dialect dropped.
    fn push_state_changes(&mut self, from_seq: u64, to_seq: u64, state_read: Option<&ReadState>) {
        let exit = state_read.and_then(|state_read| state_read.exit.clone()).filter(|_| self.exit.is_none());
        let closed =
            state_read.and_then(|state_read| state_read.closed.clone()).filter(|_| self.closed.is_none());
        let states = u64::from(exit.is_some()) + u64::from(closed.is_some());
        let mut next = from_seq;
        let surplus = (to_seq + 1 - from_seq).saturating_sub(states);
        if surplus > 0 {
            next += surplus;
            self.push(next - 1, Event::Gap(Gap { from_seq, to_seq: next - 1, bytes: None, cause: None }));
        }
        if let Some(exit) = exit.filter(|_| next <= to_seq) {
            self.push(next, Event::Exited { seq: next, exit });
            next += 1;
        }
        if let Some(closed) = closed.filter(|_| next <= to_seq) {
            self.push(next, Event::Closed(Closed { seq: next, ..closed }));
        }
    }

    fn push(&mut self, seq: u64, event: Event) {
        match &event {
            Event::Exited { exit, .. } => self.exit = Some((seq, exit.clone())),
            Event::Closed(closed) => self.closed = Some((seq, closed.clone())),
            Event::Output(_) | Event::Gap(_) => {}
        }
        self.queued_bytes += event.len();
        self.queue.push_back((seq, event));
    }

    /// Drops events that every consumer has taken.
    fn drop_consumed(&mut self) {
        let end = self.removed + self.queue.len() as u64;
        let slowest = match self.first_consumer {
            FirstConsumer::Awaited { polled } => {
                self.removed + self.queue.partition_point(|(seq, _)| *seq <= polled) as u64
            }
            FirstConsumer::Arrived => {
                self.consumers.values().map(|consumer| consumer.next).min().unwrap_or(end)
            }
        };
        while self.removed < slowest {
            let Some((seq, event)) = self.queue.pop_front() else { break };
            self.removed += 1;
            self.removed_seq = seq;
            self.queued_bytes -= event.len();
            self.unreported_bytes += event.len() as u64;
            self.unreported_events += 1;
        }
    }

    /// Returns the messages that are due.
    fn action(&mut self, process_id: &str, incarnation: Option<u64>) -> QueueAction {
        let mut action = QueueAction::default();
        let is_much = self.unreported_bytes >= self.report_bytes || self.unreported_events >= REPORT_EVENTS;
        // The server may have less room than a report is due at; without this one it would wait for ever.
        let is_all = self.queue.is_empty() && self.closed.is_none();
        if self.unreported_events > 0 && (is_much || is_all) {
            (self.unreported_bytes, self.unreported_events) = (0, 0);
            action.consumed = Some(self.removed_seq);
        }
        let has_room = self.queued_bytes < QUEUE_BYTES / 2 && self.queue.len() < QUEUE_EVENTS / 2;
        let is_over = self.closed.is_some() || self.failed.is_some();
        if has_room
            && self.is_started
            && !is_over
            && let Some(after) = self.replay.wanted_read()
        {
            action.read = Some(wire::Read {
                process_id: process_id.to_owned(),
                session_id: None,
                incarnation,
                after_seq: Some(after),
                max_bytes: Some(READ_BYTES),
                wait_ms: self.awaits_silence().then_some(SILENCE_MS),
            });
            self.listens = self.awaits_silence();
            self.reads += 1;
        }
        action
    }

    fn fail(&mut self, error: Error) {
        self.failed.get_or_insert(error);
        for consumer in self.consumers.values_mut() {
            consumer.waker.take().inspect(Waker::wake_by_ref);
        }
    }
}

fn gap(range: wire::GapRange) -> log::Gap {
    let wire::GapRange { from_seq, to_seq, bytes, cause } = range;
    log::Gap { from_seq, to_seq, bytes, cause }
}

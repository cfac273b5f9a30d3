//! The events of one process on their way from the connection to its consumers.
//!
//! The connection's task puts them in, in whatever order they come; consumers take them out in order, each at its
//! own pace. What all have taken is dropped, and the server is told. It does no I/O: what it wants done it returns
//! as an [`Order`]. Start at [`Feed`].

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use remex_proto::{
    flow::{WINDOW_BYTES, WINDOW_EVENTS},
    process as wire,
    state::{
        output_log as log,
        replay::{Answer, Limits, Reach, Replay, Step},
    },
};
use tokio::time::Instant;

use crate::{
    Error,
    error::{is_starting, is_unknown_process},
    event::{Chunk, Closed, Event, Exit, Gap},
};

/// What may be held while something before it is missing.
const AHEAD: Limits = Limits { events: 2 * WINDOW_EVENTS as usize, bytes: 2 * WINDOW_BYTES as usize };

/// How much may wait for the slowest consumer; a server that knows `consumed` never sends as much.
const QUEUE_BYTES: usize = 1 << 20;
const QUEUE_EVENTS: usize = 16 << 10;

/// How much one read asks for.
pub(crate) const READ_BYTES: u64 = WINDOW_BYTES;

/// Consumption is told when this much of the window is used up.
const TELL_BYTES: u64 = WINDOW_BYTES / 4;
const TELL_EVENTS: u64 = WINDOW_EVENTS / 4;

/// The events of one process.
#[derive(Debug)]
pub(crate) struct Feed {
    pub(crate) id: String,
    /// The connection's task puts in, consumers take out; held for moments only.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    replay: Replay<Event>,
    /// In order, each with the last seq it covers; what every consumer has taken is gone.
    queue: VecDeque<(u64, Event)>,
    queued_bytes: usize,
    /// How many events have left the queue; the index of its first.
    gone: u64,
    /// The last seq that has left the queue.
    gone_seq: u64,
    /// Where each consumer stands, as an index, and how to wake it.
    consumers: BTreeMap<u64, Consumer>,
    next_consumer: u64,
    hold: Hold,
    /// Left the queue since the server was told.
    untold_bytes: u64,
    untold_events: u64,
    /// How much of that is too much to be silent about.
    tell_bytes: u64,
    exit: Option<(u64, Exit)>,
    closed: Option<(u64, Closed)>,
    failed: Option<Error>,
    /// When output last arrived.
    last_output: Instant,
    /// The first event that this connection streamed; all later ones follow it.
    live_from: Option<u64>,
    /// Whether the server is known to know the process, so that it can be read.
    is_started: bool,
}

#[derive(Debug)]
struct Consumer {
    /// gone <= next <= gone + queue.len()
    next: u64,
    waker: Option<Waker>,
}

/// Whether events wait for a consumer that has not come yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    /// They do: the first consumer sees everything, but for what a caller of `process/read` has got by itself.
    ForTheFirst {
        /// How far that one has come.
        polled: u64,
    },
    /// They wait for those consumers only that there are.
    Released,
}

/// Whether a process may have said something that nobody here has heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum History {
    None,
    Possible,
}

/// What a feed wants done.
#[derive(Debug, Default)]
pub(crate) struct Order {
    /// A read that brings what is missing.
    pub(crate) read: Option<wire::Read>,
    /// The server may forget everything up to here.
    pub(crate) consumed: Option<u64>,
}

/// What a server told about a process of this session.
#[derive(Debug)]
pub(crate) enum Heard {
    Output(wire::Output),
    Exited(wire::Exited),
    Closed(wire::Closed),
    Gap(wire::Gap),
}

impl Heard {
    /// Tells whether it is about another session, whose processes may have the same names.
    pub(crate) fn is_observed(&self) -> bool {
        let session_id = match self {
            Heard::Output(note) => &note.session_id,
            Heard::Exited(note) => &note.session_id,
            Heard::Closed(note) => &note.session_id,
            Heard::Gap(note) => &note.session_id,
        };
        session_id.is_some()
    }

    /// Returns the process, and the last event that this is about.
    pub(crate) fn place(&self) -> (&str, u64) {
        match self {
            Heard::Output(note) => (&note.process_id, note.seq),
            Heard::Exited(note) => (&note.process_id, note.seq),
            Heard::Closed(note) => (&note.process_id, note.seq),
            Heard::Gap(note) => (&note.process_id, note.range.to_seq),
        }
    }
}

/// What has come of a process by now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) exit: Option<(u64, Exit)>,
    pub(crate) closed: Option<(u64, Closed)>,
    pub(crate) failed: Option<Error>,
    pub(crate) last_output: Instant,
}

impl Feed {
    pub(crate) fn new(id: String, retain_bytes: Option<u64>) -> Self {
        Self {
            id,
            state: Mutex::new(State {
                replay: Replay::new(AHEAD),
                queue: VecDeque::new(),
                queued_bytes: 0,
                gone: 0,
                gone_seq: 0,
                consumers: BTreeMap::new(),
                next_consumer: 0,
                hold: Hold::ForTheFirst { polled: 0 },
                untold_bytes: 0,
                untold_events: 0,
                tell_bytes: retain_bytes.map_or(TELL_BYTES, |retain| (retain / 4).min(TELL_BYTES)),
                exit: None,
                closed: None,
                failed: None,
                last_output: Instant::now(),
                live_from: None,
                is_started: false,
            }),
        }
    }

    /// Notes that the server has the process; `history` says whether something was said before.
    pub(crate) fn begin(&self, history: History) -> Order {
        let mut state = self.lock();
        state.is_started = true;
        if history == History::Possible {
            state.interrupt();
        }
        state.order(&self.id)
    }

    // What the connection's task does.

    /// Takes what the server told.
    pub(crate) fn hear(&self, heard: Heard) -> Order {
        let mut state = self.lock();
        if state.failed.is_some() {
            // Nobody will see it, so it may not hold up the process.
            return Order { consumed: Some(heard.place().1), ..Order::default() };
        }
        if state.is_full() {
            // Only a foreign server sends beyond the window. What it sends now a read brings later.
            state.interrupt();
            return Order::default();
        }
        state.live_from.get_or_insert(heard.place().1);
        match heard {
            Heard::Output(note) => {
                state.last_output = Instant::now();
                let (seq, len) = (note.seq, note.chunk.len());
                let chunk = Chunk { seq, stream: note.stream, bytes: note.chunk.0 };
                state.replay.feed(seq, len, Event::Output(chunk));
            }
            Heard::Exited(note) => {
                state.replay.feed(note.seq, 0, Event::Exited(note.into()));
            }
            Heard::Closed(note) => {
                let closed = Closed { produced: note.produced, evicted_bytes: note.evicted_bytes };
                state.replay.feed(note.seq, 0, Event::Closed(closed));
            }
            Heard::Gap(note) => {
                state.replay.feed_gap(gap(note.range));
            }
        }
        state.go_on(None);
        state.order(&self.id)
    }

    /// Takes the answer to a read.
    pub(crate) fn hear_read(&self, answer: Result<wire::ReadReply, Error>) -> Order {
        let mut state = self.lock();
        match answer {
            Ok(_) if state.failed.is_some() => {}
            Ok(reply) => {
                let told = Told::of(&reply);
                let bytes: usize = reply.chunks.iter().map(|chunk| chunk.chunk.len()).sum();
                if bytes > 0 {
                    state.last_output = Instant::now();
                }
                // With a limit a read never tells what is behind its last chunk, be it an exit or nothing.
                let is_complete = reply.chunks.is_empty()
                    || state.live_from.is_some_and(|live_from| reply.next_seq >= live_from);
                let events = reply.chunks.into_iter().map(|chunk| {
                    let len = chunk.chunk.len();
                    let event = Chunk { seq: chunk.seq, stream: chunk.stream, bytes: chunk.chunk.0 };
                    (chunk.seq, len, Event::Output(event))
                });
                state.replay.feed_read(Answer {
                    gap: reply.gap.map(gap),
                    events,
                    next_seq: reply.next_seq,
                    reach: if is_complete { Reach::Newest } else { Reach::Partial },
                });
                state.go_on(Some(&told));
            }
            Err(Error::Interrupted { .. }) => state.interrupt(),
            // A start of the base dialect that was sent again is answered before the process is there.
            Err(error) if is_starting(&error) => state.interrupt(),
            Err(error) if is_unknown_process(&error) && state.closed.is_some() => {}
            Err(error) => state.fail(error),
        }
        state.order(&self.id)
    }

    /// Notes that the connection was cut: events may be missing.
    pub(crate) fn interrupt(&self) {
        self.lock().interrupt();
    }

    /// Notes that there is a connection again.
    pub(crate) fn resume(&self) -> Order {
        let mut state = self.lock();
        let mut order = state.order(&self.id);
        // The server may not have heard what it was told last.
        order.consumed = Some(state.consumed()).filter(|seq| *seq > 0);
        order
    }

    /// Notes that the server said something about the process that makes no sense: nothing that follows is seen.
    pub(crate) fn break_off(&self, error: Error) -> Order {
        let mut state = self.lock();
        if state.closed.is_some() {
            return Order::default();
        }
        state.fail(error);
        let newest = state.queue.back().map_or(state.gone_seq, |(seq, _)| *seq);
        Order { consumed: Some(newest).filter(|seq| *seq > 0), ..Order::default() }
    }

    /// Notes that nothing will come any more.
    pub(crate) fn fail(&self, error: &Error) {
        self.lock().fail(error.clone());
    }

    // What consumers do.

    /// Notes that somebody has read everything up to `seq` without being a consumer.
    pub(crate) fn on_poll(&self, seq: u64) -> Order {
        let mut state = self.lock();
        match &mut state.hold {
            Hold::ForTheFirst { polled } if *polled < seq => *polled = seq,
            Hold::ForTheFirst { .. } | Hold::Released => return Order::default(),
        }
        state.drop_taken();
        let mut order = state.order(&self.id);
        order.consumed = Some(state.consumed());
        order
    }

    /// Adds a consumer; returns its number, and the events up to which it has to read the history itself.
    pub(crate) fn subscribe(&self) -> (u64, u64) {
        let mut state = self.lock();
        let number = state.next_consumer;
        state.next_consumer += 1;
        let next = state.gone;
        state.consumers.insert(number, Consumer { next, waker: None });
        state.hold = Hold::Released;
        (number, state.gone_seq)
    }

    /// Adds a consumer of what comes from now on.
    pub(crate) fn subscribe_at_end(&self) -> u64 {
        let mut state = self.lock();
        let number = state.next_consumer;
        state.next_consumer += 1;
        let next = state.gone + state.queue.len() as u64;
        state.consumers.insert(number, Consumer { next, waker: None });
        number
    }

    pub(crate) fn unsubscribe(&self, number: u64) -> Order {
        let mut state = self.lock();
        state.consumers.remove(&number);
        state.drop_taken();
        state.order(&self.id)
    }

    /// Takes the next event for a consumer; `None` after the last.
    pub(crate) fn poll(
        &self,
        number: u64,
        context: &mut Context<'_>,
    ) -> Poll<(Result<Option<Event>, Error>, Order)> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let Some(consumer) = state.consumers.get_mut(&number) else {
            return Poll::Ready((Ok(None), Order::default()));
        };
        let at = usize::try_from(consumer.next - state.gone).unwrap_or(usize::MAX);
        let Some((_, event)) = state.queue.get(at) else {
            if let Some(error) = &state.failed {
                return Poll::Ready((Err(error.clone()), Order::default()));
            }
            if state.closed.is_some() {
                return Poll::Ready((Ok(None), Order::default()));
            }
            consumer.waker = Some(context.waker().clone());
            return Poll::Pending;
        };
        let event = event.clone();
        consumer.next += 1;
        state.drop_taken();
        Poll::Ready((Ok(Some(event)), state.order(&self.id)))
    }

    /// Stops keeping events for a first consumer that may never come.
    pub(crate) fn release(&self) -> Order {
        let mut state = self.lock();
        state.hold = Hold::Released;
        state.drop_taken();
        state.order(&self.id)
    }

    /// Returns what is known by now.
    pub(crate) fn known(&self) -> Known {
        let state = self.lock();
        Known {
            exit: state.exit.clone(),
            closed: state.closed.clone(),
            failed: state.failed.clone(),
            last_output: state.last_output,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the answer to a read tells as state and not as an event.
struct Told {
    exit: Option<Exit>,
    closed: Option<Closed>,
}

impl Told {
    fn of(reply: &wire::ReadReply) -> Self {
        let exit = Exit {
            code: reply.exit_code.unwrap_or(-1),
            signal: reply.signal.clone(),
            cause: reply.cause,
            usage: reply.usage,
        };
        let closed = Closed { produced: reply.produced, evicted_bytes: reply.evicted_bytes };
        Told { exit: reply.exited.then_some(exit), closed: reply.closed.then_some(closed) }
    }
}

impl State {
    fn interrupt(&mut self) {
        self.replay.interrupt();
        self.live_from = None;
    }

    /// Returns how far nothing has to be kept by the server.
    fn consumed(&self) -> u64 {
        match self.hold {
            Hold::ForTheFirst { polled } => self.gone_seq.max(polled),
            Hold::Released => self.gone_seq,
        }
    }

    fn is_full(&self) -> bool {
        self.queued_bytes >= QUEUE_BYTES || self.queue.len() >= QUEUE_EVENTS
    }

    /// Moves what is next in order to the consumers.
    fn go_on(&mut self, told: Option<&Told>) {
        while let Some(step) = self.replay.next() {
            match step {
                Step::Event { seq, event } => self.push(seq, event),
                Step::Gap(log::Gap { from_seq, to_seq, bytes }) => {
                    self.push(to_seq, Event::Gap(Gap { from_seq, to_seq, bytes }));
                }
                Step::Told { from_seq, to_seq } => self.push_told(from_seq, to_seq, told),
            }
        }
        self.drop_taken();
        for consumer in self.consumers.values_mut() {
            if consumer.next < self.gone + self.queue.len() as u64 || self.closed.is_some() {
                consumer.waker.take().inspect(Waker::wake_by_ref);
            }
        }
    }

    /// Makes events of numbers that a read passed over: an exit, a close, or output that a foreign server dropped.
    fn push_told(&mut self, from_seq: u64, to_seq: u64, told: Option<&Told>) {
        let exit = told.and_then(|told| told.exit.clone()).filter(|_| self.exit.is_none());
        let closed = told.and_then(|told| told.closed.clone()).filter(|_| self.closed.is_none());
        let states = u64::from(exit.is_some()) + u64::from(closed.is_some());
        let mut next = from_seq;
        let surplus = (to_seq + 1 - from_seq).saturating_sub(states);
        if surplus > 0 {
            next += surplus;
            self.push(next - 1, Event::Gap(Gap { from_seq, to_seq: next - 1, bytes: None }));
        }
        if let Some(exit) = exit.filter(|_| next <= to_seq) {
            self.push(next, Event::Exited(exit));
            next += 1;
        }
        if let Some(closed) = closed.filter(|_| next <= to_seq) {
            self.push(next, Event::Closed(closed));
        }
    }

    fn push(&mut self, seq: u64, event: Event) {
        match &event {
            Event::Exited(exit) => self.exit = Some((seq, exit.clone())),
            Event::Closed(closed) => self.closed = Some((seq, closed.clone())),
            Event::Output(_) | Event::Gap(_) => {}
        }
        self.queued_bytes += event.len();
        self.queue.push_back((seq, event));
    }

    /// Lets go of what every consumer has taken.
    fn drop_taken(&mut self) {
        let end = self.gone + self.queue.len() as u64;
        let slowest = match self.hold {
            Hold::ForTheFirst { polled } => {
                self.gone + self.queue.partition_point(|(seq, _)| *seq <= polled) as u64
            }
            Hold::Released => self.consumers.values().map(|consumer| consumer.next).min().unwrap_or(end),
        };
        while self.gone < slowest {
            let Some((seq, event)) = self.queue.pop_front() else { break };
            self.gone += 1;
            self.gone_seq = seq;
            self.queued_bytes -= event.len();
            self.untold_bytes += event.len() as u64;
            self.untold_events += 1;
        }
    }

    /// Returns what is to be done now.
    fn order(&mut self, process_id: &str) -> Order {
        let mut order = Order::default();
        let is_news = self.untold_events > 0;
        if is_news && (self.untold_bytes >= self.tell_bytes || self.untold_events >= TELL_EVENTS) {
            (self.untold_bytes, self.untold_events) = (0, 0);
            order.consumed = Some(self.gone_seq);
        }
        let has_room = self.queued_bytes < QUEUE_BYTES / 2 && self.queue.len() < QUEUE_EVENTS / 2;
        let is_over = self.closed.is_some() || self.failed.is_some();
        if has_room
            && self.is_started
            && !is_over
            && let Some(after) = self.replay.wanted_read()
        {
            order.read = Some(wire::Read {
                process_id: process_id.to_owned(),
                session_id: None,
                after_seq: Some(after),
                max_bytes: Some(READ_BYTES),
                wait_ms: None,
            });
        }
        order
    }

    fn fail(&mut self, error: Error) {
        self.failed.get_or_insert(error);
        for consumer in self.consumers.values_mut() {
            consumer.waker.take().inspect(Waker::wake_by_ref);
        }
    }
}

fn gap(range: wire::GapRange) -> log::Gap {
    log::Gap { from_seq: range.from_seq, to_seq: range.to_seq, bytes: range.bytes }
}

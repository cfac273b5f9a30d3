//! The events of one process that some consumer has not taken yet, and what is known of the process.

use std::{
    collections::{BTreeMap, VecDeque},
    task::Waker,
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

use super::{AFTER_EVERYTHING, Close, QueueAction, READ_BYTES};
use crate::{
    Error,
    base::event::{Closed, Event, Exit, Gap},
};

/// The limits for events that are held while earlier ones are missing.
const AHEAD: Limits = Limits { events: 2 * WINDOW_EVENTS as usize, bytes: 2 * WINDOW_BYTES as usize };

/// The limits for events that wait for the slowest consumer; a server that supports `consumed` never sends that much.
const QUEUE_BYTES: usize = 1 << 20;
const QUEUE_EVENTS: usize = 16 << 10;

/// How long a process of the oldest dialect must be silent after its exit to count as closed.
const SILENCE_MS: u64 = 250;

/// Consumption is reported when this much of the window is used.
const REPORT_BYTES: u64 = WINDOW_BYTES / 4;
const REPORT_EVENTS: u64 = WINDOW_EVENTS / 4;

#[derive(Debug)]
pub(super) struct QueueState {
    pub(super) replay: Replay<Event>,
    /// In order, each with the last seq it covers; events that every consumer has taken are removed.
    pub(super) queue: VecDeque<(u64, Event)>,
    pub(super) queued_bytes: usize,
    /// How many events have left the queue; the index of its first.
    pub(super) removed: u64,
    /// The last seq that has left the queue.
    pub(super) removed_seq: u64,
    /// The position of each consumer, as an index, and its waker.
    pub(super) consumers: BTreeMap<u64, Consumer>,
    pub(super) next_consumer: u64,
    pub(super) first_consumer: FirstConsumer,
    /// Removed from the queue since the last report to the server.
    pub(super) unreported_bytes: u64,
    pub(super) unreported_events: u64,
    /// Whether the server was told that no more events are needed.
    pub(super) has_given_up: bool,
    /// The amount after which a report is due.
    pub(super) report_bytes: u64,
    pub(super) exit: Option<(u64, Exit)>,
    pub(super) closed: Option<(u64, Closed)>,
    pub(super) failed: Option<Error>,
    /// When output last arrived.
    pub(super) last_output: Instant,
    /// The seq of the first event that this connection streamed; the server streams all later ones too.
    pub(super) live_from: Option<u64>,
    /// Whether the process may have been restarted, so that what is streamed may be of another one, until a read shows
    /// that it was not.
    pub(super) is_unconfirmed: bool,
    /// Whether the server has confirmed the process, so that it can be read.
    pub(super) is_started: bool,
    /// Whether this connection streams the rest of the process and its close, even if it is restarted.
    pub(super) is_streamed: bool,
    pub(super) close: Close,
    /// How many reads are in progress, and whether the last of them waits for output after the exit.
    pub(super) reads: u32,
    pub(super) listens: bool,
}

#[derive(Debug)]
pub(super) struct Consumer {
    /// removed <= next <= removed + queue.len()
    pub(super) next: u64,
    pub(super) waker: Option<Waker>,
}

/// Whether the first consumer has arrived; until then, events are kept for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FirstConsumer {
    /// Not yet: events are kept, except those that a caller of `process/read` has already received.
    Awaited {
        /// The position of that caller.
        polled: u64,
    },
    /// It has, or will not: events are kept only for existing consumers.
    Arrived,
}

/// The parts of a read reply that describe the state of the process instead of events.
pub(super) struct ReadState {
    exit: Option<Exit>,
    closed: Option<Closed>,
}

impl ReadState {
    pub(super) fn of(reply: &wire::ReadReply) -> Self {
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
    pub(super) fn new(retain_bytes: Option<u64>, close: Close) -> Self {
        Self {
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
            has_given_up: false,
            report_bytes: retain_bytes.map_or(REPORT_BYTES, |retain| (retain / 4).min(REPORT_BYTES)),
            exit: None,
            closed: None,
            failed: None,
            last_output: Instant::now(),
            live_from: None,
            is_unconfirmed: false,
            is_started: false,
            is_streamed: true,
            close,
            reads: 0,
            listens: false,
        }
    }

    /// Returns whether the process has exited and its close can only be inferred from silence.
    pub(super) fn awaits_silence(&self) -> bool {
        self.close == Close::AfterSilence && self.exit.is_some() && self.closed.is_none()
    }

    /// Closes a process whose server does not announce the close.
    pub(super) fn close(&mut self) {
        let seq = self.replay.cursor() + 1;
        self.push(seq, Event::Closed(Closed { seq, produced: None, evicted_bytes: None }));
        self.deliver_ready(None);
    }

    pub(super) fn interrupt(&mut self) {
        self.replay.interrupt();
        self.live_from = None;
    }

    /// Returns the seq up to which the server may drop events.
    ///
    /// After a failure no more events are needed, and they must not delay those after a restart. Without an incarnation,
    /// the process after a restart cannot be distinguished.
    pub(super) fn consumed(&self, incarnation: Option<u64>) -> u64 {
        match self.first_consumer {
            _ if self.failed.is_some() && incarnation.is_some() => AFTER_EVERYTHING,
            FirstConsumer::Awaited { polled } => self.removed_seq.max(polled),
            FirstConsumer::Arrived => self.removed_seq,
        }
    }

    /// Records that the process cannot be read any more, because another one has its id. What is missing may still be
    /// streamed, but nothing before that.
    pub(super) fn on_unreadable(&mut self, restarted: Error) {
        if !self.is_streamed {
            return self.fail(restarted);
        }
        self.is_unconfirmed = false;
        self.replay.feed_read(ReadBatch {
            gap: None,
            events: std::iter::empty(),
            next_seq: self.replay.cursor() + 1,
            reach: Reach::Newest,
        });
        self.deliver_ready(None);
        if self.replay.wanted_read().is_some() {
            self.fail(restarted);
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.queued_bytes >= QUEUE_BYTES || self.queue.len() >= QUEUE_EVENTS
    }

    /// Queues the events that are next in order.
    pub(super) fn deliver_ready(&mut self, state_read: Option<&ReadState>) {
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
    pub(super) fn drop_consumed(&mut self) {
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
    pub(super) fn action(&mut self, process_id: &str, incarnation: Option<u64>) -> QueueAction {
        let mut action = QueueAction::default();
        let is_much = self.unreported_bytes >= self.report_bytes || self.unreported_events >= REPORT_EVENTS;
        // The window of the server may be smaller than the reporting threshold; it would then wait forever.
        let is_all = self.queue.is_empty() && self.closed.is_none();
        if self.unreported_events > 0 && (is_much || is_all) {
            (self.unreported_bytes, self.unreported_events) = (0, 0);
            action.consumed = Some(self.removed_seq);
        }
        if self.failed.is_some() && incarnation.is_some() && !self.has_given_up {
            self.has_given_up = true;
            action.consumed = Some(AFTER_EVERYTHING);
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

    pub(super) fn fail(&mut self, error: Error) {
        self.failed.get_or_insert(error);
        for consumer in self.consumers.values_mut() {
            consumer.waker.take().inspect(Waker::wake_by_ref);
        }
    }
}

//! Streaming: puts events that a following connection has not seen into its send buffer.

use std::{sync::Arc, time::Instant};

use remex_engine::{
    Block, Denials, Engine, Exit, ProcessState, ReadExtent, ServedKind, ServerLog, ServerProcess,
};
use remex_proto::{
    binary,
    flow::WINDOW_BYTES,
    process::{self as wire, Overflow},
    state::{
        output::{Cursor, Point, Seq},
        output_log::Next,
    },
};

use super::{Followers, Process, Standing, window::StreamWindow};
use crate::outbox::{ConnectionId, Delivery, Outbox, Responder, Sink, Source, Urgency};

/// A process at most this far behind has fresh output, which goes before bulk output.
const FRESH_BYTES: u64 = 4 << 10;

/// Gathering ends once this much is pending.
const NOTIFY_BYTES: u64 = 64 << 10;

/// One connection that follows the process.
#[derive(Debug)]
pub(super) struct Follow {
    pub(super) connection: ConnectionId,
    pub(super) outbox: Arc<Outbox>,
    pub(super) cursor: Cursor,
    /// Whether the process is on the outbox's list, or will be as soon as its output is loaded.
    pub(super) queued: bool,
    /// Output that was read from files for this connection.
    pub(super) loaded: Option<Arc<Block>>,
    /// The connection holds the session: its acknowledgements control the flow.
    pub(super) controls: bool,
    /// The session id for an observer, as it is and as a JSON string.
    session: Option<(Box<str>, Box<str>)>,
    pub(super) wants_gaps: bool,
    /// Bytes sent since the last requested acknowledgement.
    unmarked: usize,
    /// Bytes that were evicted before this connection received them.
    pub(super) lost: u64,
    /// Answers to reads have covered everything up to here, including gaps.
    read_up_to: Seq,
    /// For a client that reports what it has consumed.
    window: Option<StreamWindow>,
    /// The connection is still sent the process before this one under the same id.
    pub(super) waits: bool,
}

impl Follow {
    /// Returns whether there are events for this connection and it is not queued yet.
    fn is_due(&self, log: &dyn ServerLog) -> bool {
        !self.queued && !self.waits && log.has_next(&self.cursor) && self.has_room(log)
    }

    /// Returns whether the client has consumed enough for the next event.
    fn has_room(&self, log: &dyn ServerLog) -> bool {
        self.window.as_ref().is_none_or(|window| window.has_room(log, &self.cursor))
    }

    /// Returns whether the client still expects events of a closed process.
    pub(super) fn is_waiting(&self, log: &dyn ServerLog) -> bool {
        self.controls && (log.has_next(&self.cursor) || self.is_catching_up())
    }

    /// Returns whether a client that has resumed has not consumed everything before the stream.
    pub(super) fn is_catching_up(&self) -> bool {
        self.window.as_ref().is_some_and(StreamWindow::is_catching_up)
    }

    /// Returns whether so much is pending that the connection must be notified at once.
    pub(super) fn has_large_backlog(&self, log: &dyn ServerLog) -> bool {
        log.behind(&self.cursor) >= NOTIFY_BYTES && self.is_due(log)
    }

    fn streamed(&mut self, seq: Seq, bytes: usize) {
        if let Some(window) = &mut self.window {
            window.stream(seq, bytes);
        }
    }

    /// Requests an acknowledgement of what was sent so far.
    pub(super) fn want_mark(&self) {
        self.outbox.want_mark();
    }

    /// Skips evicted events that answers to reads have covered: for this connection, they are not a gap.
    fn pass_over_read(&mut self, log: &mut dyn ServerLog) {
        let read_up_to = self.read_up_to;
        if let Some(gap) = log.gap(&self.cursor).filter(|gap| gap.from_seq <= read_up_to) {
            self.cursor = log.cursor_after(read_up_to.min(gap.to_seq));
        }
    }
}

/// How a connection follows a process.
#[derive(Clone, Debug)]
pub(crate) struct Viewer {
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) controls: bool,
    /// The session id to include in every notification.
    pub(crate) session_id: Option<String>,
    pub(crate) wants_gaps: bool,
    /// Whether it reports how much it has consumed.
    pub(crate) consumes: bool,
}

/// Where a viewer starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartAt {
    Now,
    After(Seq),
}

impl<K: ServedKind<Followers>> Source for Engine<Followers, K> {
    fn open(self: Arc<Self>, outbox: &Outbox) {
        Process(K::handle(&self)).open(outbox);
    }

    fn deliver(self: Arc<Self>, connection: ConnectionId, sink: &mut Sink, quota: usize) -> Delivery {
        Process(K::handle(&self)).deliver(connection, sink, quota)
    }

    fn acknowledge(self: Arc<Self>, connection: ConnectionId, seq: Seq) {
        Process(K::handle(&self)).acknowledge(connection, seq);
    }

    fn on_answered(&self, connection: ConnectionId, seq: Seq, extent: Option<ReadExtent>) {
        let mut state = self.state();
        let Followers { follows, control, ledger, .. } = &mut state.audience;
        if let Some(follow) = follows.iter_mut().find(|follow| follow.connection == connection) {
            follow.read_up_to = follow.read_up_to.max(seq);
        }
        if let Some(extent) = extent.filter(|_| control.is(connection)) {
            control.on_sent(seq, extent.sent.end);
            ledger.on_answered(extent);
        }
    }

    fn cancel_input(&self, is_cancelled: &dyn Fn(&Responder) -> bool) -> bool {
        Engine::cancel_input(self, is_cancelled)
    }
}

impl Process {
    /// Returns the process as an outbox knows it.
    pub(crate) fn source(&self) -> Arc<dyn Source> {
        source(&self.0)
    }

    fn open(&self, outbox: &Outbox) {
        let Some(owner) = self.owner() else { return };
        if !self.state().audience.control.is(outbox.id) {
            return;
        }
        if let Some(viewer) = owner.controller(outbox.id) {
            self.follow(&viewer, StartAt::After(0));
        }
    }

    fn deliver(&self, connection: ConnectionId, sink: &mut Sink, quota: usize) -> Delivery {
        let mut guard = self.state();
        #[cfg(test)]
        remex_base::supervise::break_at("!deliver", &self.id);
        let state = &mut *guard;
        let mut delivery = Delivery::default();
        let before = sink.len();
        let is_its_turn = |follow: &Follow| follow.connection == connection && !follow.waits;
        let Some(index) = state.audience.follows.iter().position(is_its_turn) else { return delivery };
        let begins_after = state.audience.follows[index].cursor.seq;
        loop {
            delivery.sent_bytes = sink.len() - before;
            let ProcessState {
                kind,
                exit,
                audience: Followers { id_json, follows, control, ledger, .. },
                ..
            } = &mut *state;
            let (log, denials) = kind.log_and_denials();
            let follow = &mut follows[index];
            follow.pass_over_read(log);
            if !follow.has_room(log) {
                follow.queued = false;
                break;
            }
            if delivery.sent_bytes >= quota {
                delivery.more = Some(urgency(log.behind(&follow.cursor)));
                break;
            }
            let (produced, first_offset) = (log.produced(), log.first_offset());
            let Ok(next) = log.next(&mut follow.cursor) else {
                self.load_for(connection, follow.cursor);
                break;
            };
            match next {
                None => {
                    follow.queued = false;
                    break;
                }
                Some(Next::Gap(gap)) => {
                    self.host().metrics().gaps.add(1);
                    follow.lost += gap.bytes.unwrap_or(0);
                    if let (true, Some(bytes), Some(end)) = (follow.controls, gap.bytes, follow.cursor.offset)
                    {
                        ledger.on_missing(end.saturating_sub(bytes)..end);
                    }
                    if follow.wants_gaps {
                        let range = wire::GapRange {
                            from_seq: gap.from_seq,
                            to_seq: gap.to_seq,
                            bytes: gap.bytes,
                            cause: gap.cause,
                        };
                        sink.note(128, self.gap_note(follow, range));
                    }
                }
                Some(Next::Output { seq, stream, bytes, .. }) => {
                    let session = follow.session.as_ref().map(|(id, json)| (&**id, &**json));
                    let (session_id, session_json) = session.unzip();
                    let output = binary::Output {
                        process_id: &self.id,
                        session_id,
                        incarnation: self.told_incarnation(),
                        seq,
                        stream,
                        bytes,
                    };
                    delivery.bytes += bytes.len();
                    sink.output(&output, (id_json, session_json));
                    if let (true, Some(end)) = (follow.controls, follow.cursor.offset) {
                        ledger.on_sent(end.saturating_sub(bytes.len() as u64)..end);
                    }
                    follow.streamed(seq, bytes.len());
                }
                Some(Next::Exited(seq)) => {
                    follow.streamed(seq, 0);
                    if let Some(exit) = exit {
                        let note = self.exited_note(follow, seq, exit, denials);
                        sink.note(300 + 100 * note.network_denied.len(), note);
                    }
                }
                Some(Next::Closed(seq)) => {
                    follow.streamed(seq, 0);
                    let lost = if follow.controls { ledger.lost(first_offset) } else { follow.lost };
                    sink.note(200, self.closed_note(follow, seq, produced, lost));
                }
            }
            if let (true, Some(end)) = (follow.controls, follow.cursor.offset) {
                log.note_end(Point { seq: follow.cursor.seq, offset: end });
                control.on_sent(follow.cursor.seq, end);
            }
        }
        self.account(state, index, begins_after, &mut delivery);
        self.release_loaded(state, index);
        let overdue = state.audience.overdue;
        let has_all =
            state.kind.log().is_closed() && !state.kind.log().has_next(&state.audience.follows[index].cursor);
        drop(guard);
        if has_all {
            self.pass_on(connection);
        }
        if overdue && delivery.more.is_none() {
            self.forget_if_settled();
        }
        delivery
    }

    fn acknowledge(&self, connection: ConnectionId, seq: Seq) {
        let mut state = self.state();
        if !state.audience.control.is(connection) {
            return;
        }
        state.audience.control.acknowledge(seq);
        state.audience.reading.notify_waiters();
        let (wake, overdue) = (state.is_full(), state.audience.overdue);
        drop(state);
        if wake {
            self.wake();
        }
        if overdue {
            self.forget_if_settled();
        }
    }

    /// Starts streaming events to a connection.
    pub(crate) fn follow(&self, viewer: &Viewer, from: StartAt) {
        self.follow_in(&mut self.state(), viewer, from);
    }

    fn follow_in(&self, state: &mut ProcessState<Followers>, viewer: &Viewer, from: StartAt) {
        let cursor = match from {
            StartAt::Now => state.kind.log_mut().newest(),
            StartAt::After(seq) => state.kind.log_mut().cursor_after(seq),
        };
        let window = viewer.consumes.then(|| {
            let consumed = state.kind.log_mut().cursor_after(state.audience.control.consumed());
            StreamWindow::new(WINDOW_BYTES.min(self.spec().rules.retain_bytes as u64), consumed, cursor)
        });
        let waits = state.audience.succession.sent_before(viewer.outbox.id).is_some();
        state.audience.follows.retain(|follow| follow.connection != viewer.outbox.id);
        state.audience.follows.push(Follow {
            connection: viewer.outbox.id,
            outbox: Arc::clone(&viewer.outbox),
            cursor,
            queued: false,
            loaded: None,
            controls: viewer.controls,
            session: viewer.session_id.as_deref().map(|id| (id.into(), quoted(id))),
            wants_gaps: viewer.wants_gaps,
            unmarked: 0,
            lost: 0,
            read_up_to: 0,
            window,
            waits,
        });
        self.notify(state);
    }

    pub(crate) fn unfollow(&self, connection: ConnectionId) {
        let mut state = self.state();
        state.audience.follows.retain(|follow| follow.connection != connection);
        let overdue = state.audience.overdue;
        drop(state);
        self.pass_on(connection);
        if overdue {
            self.forget_if_settled();
        }
    }

    /// Called when the session loses its connection.
    pub(crate) fn detach(&self, connection: ConnectionId) {
        let mut state = self.state();
        state.audience.follows.retain(|follow| follow.connection != connection);
        if state.audience.control.is(connection) {
            state.audience.control.detach(Instant::now());
        }
        state.audience.reading.notify_waiters();
        let overdue = state.audience.overdue;
        let is_replaced = state.audience.succession.standing == Standing::Replaced;
        drop(state);
        self.0.cancel_input(|responder| responder.outbox().id == connection);
        self.pass_on(connection);
        if is_replaced {
            // A client that returns finds the next one.
            self.forget_if_settled();
        } else if overdue {
            self.forget_after(self.host().limits().resume_hold);
        }
        self.wake();
    }

    /// Called when the session is resumed: the new connection sees events from now on.
    pub(crate) fn resume(&self, viewer: &Viewer) {
        let mut state = self.state();
        let newest = state.kind.log_mut().newest();
        let Followers { control, ledger, .. } = &mut state.audience;
        ledger.on_resumed(control.surely_received_bytes(), newest.offset.unwrap_or(0));
        control.resume(viewer, newest.seq, Instant::now());
        self.follow_in(&mut state, viewer, StartAt::Now);
        drop(state);
        // What is held has changed, and until when.
        self.wake();
    }

    /// Records what was sent after `begins_after`; what the controller was sent is held until it is acknowledged.
    fn account(
        &self,
        state: &mut ProcessState<Followers>,
        index: usize,
        begins_after: Seq,
        delivery: &mut Delivery,
    ) {
        let is_full = state.is_full();
        let follow = &mut state.audience.follows[index];
        if follow.cursor.seq == begins_after {
            return;
        }
        // Observers, and the controllers of processes that evict, are also subject to the send window; they
        // just do not hold the log.
        delivery.up_to = Some(follow.cursor.seq);
        if !follow.controls || self.spec().rules.overflow == Overflow::Evict {
            return;
        }
        follow.unmarked += delivery.bytes;
        let is_much = follow.window.is_none() && follow.unmarked >= self.spec().rules.retain_bytes / 4;
        delivery.wants_mark = is_much || is_full;
        if delivery.wants_mark {
            follow.unmarked = 0;
        }
    }

    /// Records that the client of `connection` has consumed everything up to `seq`, which opens its window.
    ///
    /// While it is still sent a process from before a restart, that is the one it means, unless it names this one.
    pub(crate) fn consumed(&self, connection: ConnectionId, seq: Seq, incarnation: Option<u64>) {
        let mut guard = self.state();
        let is_its_turn = |follow: &Follow| follow.connection == connection && !follow.waits;
        let means_this = incarnation.is_some() && incarnation == self.spec().incarnation;
        if !means_this
            && !guard.audience.follows.iter().any(is_its_turn)
            && let Some(before) = guard.audience.succession.sent_before(connection)
        {
            drop(guard);
            return before.consumed(connection, seq, incarnation);
        }
        // What was consumed of a process before a restart says nothing about the one after it.
        if self.check_incarnation(incarnation).is_err() {
            return;
        }
        let ProcessState { kind, audience: Followers { follows, control, .. }, .. } = &mut *guard;
        let log = kind.log_mut();
        let seq = seq.min(log.next_seq() - 1);
        if !control.is(connection) || !control.consume(seq) {
            return;
        }
        let follow = follows.iter_mut().find(|follow| follow.connection == connection);
        if let Some(window) = follow.and_then(|follow| follow.window.as_mut()) {
            window.consume(log.cursor_after(seq));
        }
        guard.audience.reading.notify_waiters();
        if guard.is_full() {
            self.wake();
        }
        queue(self, &mut guard);
        let overdue = guard.audience.overdue;
        drop(guard);
        if overdue {
            self.forget_if_settled();
        }
    }

    pub(super) fn gap_note(&self, follow: &Follow, range: wire::GapRange) -> wire::Gap {
        wire::Gap {
            process_id: self.id.to_string(),
            session_id: self.observed(follow),
            incarnation: self.told_incarnation(),
            range,
        }
    }

    pub(super) fn exited_note(
        &self,
        follow: &Follow,
        seq: Seq,
        exit: &Exit,
        denials: Option<&Denials>,
    ) -> wire::Exited {
        wire::Exited {
            process_id: self.id.to_string(),
            session_id: self.observed(follow),
            incarnation: self.told_incarnation(),
            seq,
            exit_code: exit.code,
            sandbox_denied: exit.sandbox_denied,
            signal: exit.signal.clone(),
            cause: Some(exit.cause),
            usage: Some(exit.usage),
            network_denied: Denials::list_of(denials),
        }
    }

    pub(super) fn closed_note(
        &self,
        follow: &Follow,
        seq: Seq,
        produced: wire::Produced,
        evicted: u64,
    ) -> wire::Closed {
        wire::Closed {
            process_id: self.id.to_string(),
            session_id: self.observed(follow),
            incarnation: self.told_incarnation(),
            seq,
            produced: Some(produced),
            evicted_bytes: Some(evicted),
        }
    }

    /// Returns what the events of a process name that can be restarted, so that clients can tell them from those after.
    fn told_incarnation(&self) -> Option<u64> {
        self.spec().request.as_ref().and(self.spec().incarnation)
    }

    fn observed(&self, follow: &Follow) -> Option<String> {
        follow.session.as_ref().map(|(id, _)| id.to_string())
    }
}

/// Adds the process to the list of each connection that it has events for.
pub(super) fn queue(process: &ServerProcess<Followers>, state: &mut ProcessState<Followers>) {
    let ProcessState { kind, audience, .. } = state;
    let log = kind.log();
    for follow in audience.follows.iter_mut().filter(|follow| follow.is_due(log)) {
        follow.queued = true;
        follow.outbox.ready(source(process), urgency(log.behind(&follow.cursor)));
    }
}

fn source(process: &ServerProcess<Followers>) -> Arc<dyn Source> {
    match process {
        ServerProcess::Local(process) => Arc::clone(process) as _,
        ServerProcess::Remote(process) => Arc::clone(process) as _,
    }
}

fn urgency(behind: u64) -> Urgency {
    if behind <= FRESH_BYTES { Urgency::Fresh } else { Urgency::Bulk }
}

/// Returns a text as a JSON string.
pub(super) fn quoted(text: &str) -> Box<str> {
    serde_json::Value::from(text).to_string().into()
}

//! The messages to be sent on one connection, and those sent but not acknowledged.
//!
//! Handlers and processes add messages and wake the connection's writer. The writer sends answers first, then
//! sources with fresh output, then bulk output in turn, within the window of unacknowledged output. Start at
//! [`Outbox`].

mod connections;
mod fill;
mod in_flight;
mod long;
mod ready;
mod requests;
mod responder;
mod room;
mod server_requests;
mod sink;
mod size;
mod source;
#[cfg(test)]
mod tests;
mod throttle;

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use remex_access::account::{Charge, Kind};
use remex_base::{limits::Limits, lock};
use remex_engine::ReadExtent;
use remex_proto::{
    RequestId, RpcError, ServerNote, call::Note, http::BodyDelta, message::BodyFrame, state::output_log::Seq,
};
use tokio::sync::{Notify, Semaphore, oneshot};

pub(crate) use connections::{Connections, Shared};
use in_flight::InFlight;
pub(crate) use long::Fallible;
use long::{LongMessage, LongReply};
use ready::Ready;
use requests::{OpenRequest, RequestNumber};
pub(crate) use responder::{Observation, Responder};
use server_requests::ServerRequests;
pub(crate) use sink::{Encoding, QueuedMessage, Sink};
pub(crate) use size::{Reply, of_call};
use source::SourceKey;
pub(crate) use source::{Delivery, Source, Urgency};

/// WebSocket close codes.
pub(crate) mod close_code {
    pub(crate) const NORMAL: u16 = 1000;
    pub(crate) const GOING_AWAY: u16 = 1001;
    pub(crate) const POLICY: u16 = 1008;
    pub(crate) const TOO_LONG: u16 = 1009;
    pub(crate) const INTERNAL: u16 = 1011;
    pub(crate) const RESTART: u16 = 1012;
    pub(crate) const TRY_AGAIN: u16 = 1013;
}

/// Identifies one connection for the lifetime of the server.
pub(crate) type ConnectionId = u64;

/// The send buffer is filled up to this size before it is written.
const SEND_BYTES: usize = 64 << 10;

/// The approximate memory of an idle connection.
const CONNECTION_BYTES: usize = 16 << 10;

/// Pending bytes up to which a client is sent more than it has asked for.
const SPARE_BYTES: usize = 256 << 10;

/// How long it takes at most to notice that a local connection has closed.
const CLOSE_NOTICE_DELAY: Duration = Duration::from_millis(100);

/// How a client acknowledges output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acks {
    /// Over WebSocket: every client answers a ping.
    Ping,
    /// With `flow/mark`, which the client has asked for.
    Mark,
    /// Not at all: what the operating system has taken counts as received.
    Written,
}

/// Why a connection closes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CloseReason {
    /// The WebSocket close code.
    pub(crate) code: u16,
    pub(crate) reason: String,
}

/// The outgoing side of one connection.
#[derive(Debug)]
pub(crate) struct Outbox {
    pub(crate) id: ConnectionId,
    /// The encoding at first; [`Outbox::encoding`] returns that of now.
    encoding: Encoding,
    /// The client reads binary messages.
    is_binary: AtomicBool,
    limits: Arc<Limits>,
    /// Shared by the reader, the writer, handlers and process tasks; held briefly.
    queue: Mutex<Queue>,
    /// Our own requests to the client.
    server_requests: ServerRequests,
    /// Wakes the writer.
    wakeup: Notify,
    /// Wakes a reader that stopped because too much was pending.
    drained: Notify,
    /// Wakes a task that checks whether the client is alive.
    alive: Notify,
    /// Notified when the connection is about to close.
    closing: Notify,
    /// Permits one large answer to be built at a time.
    large_answer_permit: Arc<Semaphore>,
    shared: Shared,
    #[expect(dead_code, reason = "releases a resource when dropped")]
    charge: Charge,
    /// The client has disconnected, and sends unanswered input again after it reconnects.
    is_disconnected: AtomicBool,
    /// The next server answers what is not answered yet.
    leaves_unanswered: AtomicBool,
}

#[derive(Debug)]
struct Queue {
    acks: Acks,
    answers: VecDeque<Answer>,
    answer_bytes: usize,
    /// Bytes in the send buffer up to the end of the last answer, or of the encoded part of it.
    answer_ahead: usize,
    /// The unfinished message is an answer, not a part of a stream.
    is_within_answer: bool,
    /// Bytes written so far.
    written: u64,
    /// Since when an answer waits to be sent, or since the client last read something.
    answer_pending_since: Option<Instant>,
    unanswered: usize,
    request_bytes: usize,
    ready: Ready<dyn Source>,
    /// Only the last ping needs a pong.
    pong: Option<Bytes>,
    ping: bool,
    /// Request an acknowledgement as soon as the current answer is complete.
    mark_behind_answer: bool,
    /// Request an acknowledgement of everything sent so far, however little it is.
    mark_wanted: bool,
    in_flight: InFlight<dyn Source>,
    /// Number of requests received.
    requests: u64,
    /// Unanswered requests, in any order; bounded by `unanswered_requests`.
    open: Vec<OpenRequest>,
    close_reason: Option<CloseReason>,
    /// The writer has ended: nothing more is accepted.
    closed: bool,
}

#[derive(Debug)]
struct Answer {
    /// `None` if the request was cancelled.
    message: Option<QueuedMessage>,
    then: AfterSend,
    /// The memory of a message that is not sent piece by piece.
    charge: Option<Charge>,
}

/// The action once an answer is in the send buffer.
#[derive(Debug)]
pub(crate) enum AfterSend {
    Nothing,
    /// The process was started: its events may follow now.
    Follow(Arc<dyn Source>),
    /// The answer contains the output of this process up to the given event.
    Delivered {
        source: Arc<dyn Source>,
        up_to: Seq,
        extent: Option<ReadExtent>,
        /// The event that the acknowledgement of this answer acknowledges.
        acknowledges: Seq,
        /// The process waits for that acknowledgement.
        wants_mark: bool,
    },
}

impl AfterSend {
    /// Returns what remains if the answer becomes an error, which contains no output.
    fn without_delivery(self) -> Self {
        match self {
            AfterSend::Delivered { .. } => AfterSend::Nothing,
            AfterSend::Nothing | AfterSend::Follow(_) => self,
        }
    }
}

impl Outbox {
    pub(crate) fn new(
        id: ConnectionId,
        acks: Acks,
        encoding: Encoding,
        limits: impl Into<Arc<Limits>>,
        shared: Shared,
    ) -> Self {
        Outbox {
            id,
            encoding,
            is_binary: AtomicBool::new(false),
            limits: limits.into(),
            queue: Mutex::new(Queue {
                acks,
                answers: VecDeque::new(),
                answer_bytes: 0,
                answer_ahead: 0,
                is_within_answer: false,
                written: 0,
                answer_pending_since: None,
                unanswered: 0,
                request_bytes: 0,
                ready: Ready::default(),
                pong: None,
                ping: false,
                mark_behind_answer: false,
                mark_wanted: false,
                in_flight: InFlight::default(),
                requests: 0,
                open: Vec::new(),
                close_reason: None,
                closed: false,
            }),
            server_requests: ServerRequests::default(),
            wakeup: Notify::new(),
            drained: Notify::new(),
            alive: Notify::new(),
            closing: Notify::new(),
            large_answer_permit: Arc::new(Semaphore::new(1)),
            charge: shared.account.take(Kind::Sessions, CONNECTION_BYTES),
            shared,
            is_disconnected: AtomicBool::new(false),
            leaves_unanswered: AtomicBool::new(false),
        }
    }

    pub(crate) fn encoding(&self) -> Encoding {
        match self.encoding {
            Encoding::Json if self.is_binary.load(Ordering::Relaxed) => Encoding::Binary,
            encoding => encoding,
        }
    }

    /// Switches to binary messages for everything with bytes.
    pub(crate) fn use_binary(&self) {
        self.is_binary.store(true, Ordering::Relaxed);
    }

    /// Switches to explicit acknowledgements on a transport without pings.
    pub(crate) fn use_marks(&self) {
        let mut queue = self.queue();
        if queue.acks == Acks::Written {
            queue.acks = Acks::Mark;
        }
    }

    /// Queues an unsolicited notification; disconnects a client that is too far behind.
    pub(crate) fn push_note<N: Note + Into<ServerNote>>(&self, note: N) {
        let pending = self.queue().answer_bytes;
        if pending > self.limits.waiting_answer_bytes || !self.has_memory(Kind::Answers, pending) {
            return self
                .request_close(close_code::POLICY, "too many notifications are pending; read them faster");
        }
        self.push_last(note);
    }

    /// Queues a notification that the client can do without; drops it if the client is behind.
    pub(crate) fn offer_note<N: Note + Into<ServerNote>>(&self, note: N) {
        if self.has_spare_room() {
            self.push_last(note);
        }
    }

    /// Returns whether so little is pending that more than the client has asked for may be sent.
    fn has_spare_room(&self) -> bool {
        let queue = self.queue();
        let (pending, is_open) = (queue.answer_bytes, queue.close_reason.is_none() && !queue.closed);
        drop(queue);
        is_open && pending <= SPARE_BYTES && self.has_memory(Kind::Answers, pending)
    }

    /// Queues a notification after everything else, however much is pending.
    pub(crate) fn push_last<N: Note + Into<ServerNote>>(&self, note: N) {
        self.push(Some(QueuedMessage::note(self.encoding(), note)), AfterSend::Nothing);
    }

    /// Returns whether the transport can report why a connection closes; line framing cannot.
    pub(crate) fn closes_with_a_reason(&self) -> bool {
        self.queue().acks == Acks::Ping
    }

    /// Queues an error under `id`.
    pub(crate) fn push_error(&self, id: &RequestId, error: &RpcError) {
        self.push(Some(QueuedMessage::error(self.encoding, id, error)), AfterSend::Nothing);
    }

    /// Queues a message, and what happens once it is in the send buffer.
    fn push(&self, message: Option<QueuedMessage>, then: AfterSend) {
        let mut queue = self.queue();
        if queue.closed {
            return;
        }
        let mut message = message;
        let mut charge = None;
        if let Some(message) = &mut message {
            queue.answer_bytes += message.size();
            queue.answer_pending_since.get_or_insert_with(Instant::now);
            charge = message.charge(&self.shared.account);
        }
        queue.answers.push_back(Answer { message, then, charge });
        drop(queue);
        self.wakeup.notify_one();
    }

    /// Adds a source to the list of those with pending events.
    ///
    /// The caller has marked it as queued, so it is on the list only once.
    pub(crate) fn ready(&self, source: Arc<dyn Source>, urgency: Urgency) {
        let mut queue = self.queue();
        if queue.closed {
            return;
        }
        queue.ready.push(source, urgency);
        drop(queue);
        self.wakeup.notify_one();
    }

    /// Removes a source from that list.
    pub(crate) fn withdraw<S: Source + ?Sized>(&self, source: &Arc<S>) {
        self.queue().ready.withdraw(source);
    }

    /// Turns a notification into a part of a stream.
    pub(crate) fn part<N: Note + Into<ServerNote>>(&self, note: N) -> QueuedMessage {
        QueuedMessage::note(self.encoding(), note)
    }

    /// Turns the next bytes of a body into a part of a stream; frame and value are equivalent.
    pub(crate) fn body_part(
        &self,
        frame: &BodyFrame<'_>,
        value: impl FnOnce() -> BodyDelta,
    ) -> QueuedMessage {
        match self.encoding() {
            Encoding::Json => {
                let mut json = Vec::new();
                frame.write(&mut json);
                QueuedMessage::Json(json)
            }
            encoding @ (Encoding::Binary | Encoding::Value) => QueuedMessage::note(encoding, value()),
        }
    }

    /// Sends a part of a stream in turn with bulk output; returns `false` if the connection has closed.
    ///
    /// Completes when the part is in the send buffer, so a stream that waits here has only one part in memory.
    pub(crate) async fn push_part(&self, part: QueuedMessage) -> bool {
        let (taken, waiting) = oneshot::channel();
        {
            let mut queue = self.queue();
            if queue.closed {
                return false;
            }
            queue.ready.push_part(part, taken);
        }
        self.wakeup.notify_one();
        waiting.await.is_ok()
    }

    pub(crate) fn pong(&self, payload: Bytes) {
        self.queue().pong = Some(payload);
        self.wakeup.notify_one();
    }

    /// Records that the client has received everything up to mark `mark`.
    pub(crate) fn acknowledged(&self, mark: u64) {
        self.acknowledge_sources(mark);
        self.wakeup.notify_one();
    }

    fn acknowledge_sources(&self, mark: u64) {
        let acknowledged = self.queue().in_flight.acknowledge(mark);
        for (source, seq) in acknowledged {
            source.acknowledge(self.id, seq);
        }
    }

    /// Requests an acknowledgement of everything sent so far, because a source needs it to continue.
    pub(crate) fn want_mark(&self) {
        self.queue().mark_wanted = true;
        self.wakeup.notify_one();
    }

    /// Returns whether the client acknowledges what it receives.
    pub(crate) fn has_acks(&self) -> bool {
        self.queue().acks != Acks::Written
    }

    /// Records that the client is alive.
    pub(crate) fn on_sign_of_life(&self) {
        self.alive.notify_waiters();
    }

    /// Pings the client and returns whether it responds in time.
    pub(crate) async fn is_alive(&self, silence: Duration) -> bool {
        let responded = self.alive.notified();
        tokio::pin!(responded);
        responded.as_mut().enable();
        let can_answer = {
            let mut queue = self.queue();
            queue.ping = queue.acks != Acks::Written;
            queue.ping
        };
        self.wakeup.notify_one();
        // A local peer that cannot be pinged closes its socket when it ends, which is noticed soon.
        let silence = if can_answer { silence } else { CLOSE_NOTICE_DELAY };
        tokio::select! {
            biased;
            () = self.wait_until_closing() => false,
            () = responded => true,
            () = tokio::time::sleep(silence) => !can_answer,
        }
    }

    /// Closes the connection once all queued answers are sent.
    pub(crate) fn request_close(&self, code: u16, reason: impl Into<String>) {
        self.queue().close_reason.get_or_insert(CloseReason { code, reason: reason.into() });
        self.notify_all();
    }

    /// Waits until the connection must be closed.
    pub(crate) async fn wait_until_closing(&self) {
        loop {
            let closing = self.closing.notified();
            tokio::pin!(closing);
            closing.as_mut().enable();
            {
                let queue = self.queue();
                if queue.close_reason.is_some() || queue.closed {
                    return;
                }
            }
            closing.await;
        }
    }

    /// Records that the client has disconnected: its pending input must no longer reach a process.
    pub(crate) fn mark_disconnected(&self) {
        self.is_disconnected.store(true, Ordering::SeqCst);
    }

    /// Leaves what is not answered yet to the next server: the client reconnects and repeats it.
    pub(crate) fn leave_unanswered(&self) {
        self.leaves_unanswered.store(true, Ordering::SeqCst);
    }

    /// Returns whether the next server answers what is not answered yet.
    pub(crate) fn leaves_unanswered(&self) -> bool {
        self.leaves_unanswered.load(Ordering::SeqCst)
    }

    pub(crate) fn is_disconnected(&self) -> bool {
        self.is_disconnected.load(Ordering::SeqCst)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.queue().closed
    }

    fn notify_all(&self) {
        self.wakeup.notify_one();
        self.drained.notify_waiters();
        self.closing.notify_waiters();
    }

    /// Drops everything that is queued and ignores later messages.
    pub(crate) fn close(&self) {
        let mut queue = self.queue();
        queue.closed = true;
        queue.answer_bytes = 0;
        queue.answer_pending_since = None;
        let answers = std::mem::take(&mut queue.answers);
        let ready = std::mem::take(&mut queue.ready);
        let in_flight = std::mem::take(&mut queue.in_flight);
        drop(queue);
        // Outside the lock, because the last reference to a source may be among them.
        drop((answers, ready, in_flight));
        self.server_requests.clear();
        self.notify_all();
    }

    /// Waits until the client has read nothing for too long while an answer is pending.
    ///
    /// Output alone may stay pending as long as the client likes: its processes pause, and nothing accumulates.
    pub(crate) async fn wait_until_stalled(&self) {
        let limit = self.limits.stalled_writer;
        loop {
            let since = self.queue().answer_pending_since.map_or(Duration::ZERO, |since| since.elapsed());
            if since >= limit {
                return;
            }
            tokio::time::sleep(limit - since).await;
        }
    }

    /// Waits until every request is answered.
    pub(crate) async fn all_answered(&self) {
        self.until(|queue| queue.unanswered == 0).await;
    }

    /// Waits until everything that can be sent is in the send buffer.
    pub(crate) async fn all_sent(&self) {
        self.until(|queue| queue.answers.is_empty() && queue.ready.is_empty()).await;
    }

    /// Waits until `holds`, or until the connection closes.
    async fn until(&self, holds: impl Fn(&Queue) -> bool) {
        loop {
            let drained = self.drained.notified();
            tokio::pin!(drained);
            drained.as_mut().enable();
            {
                let queue = self.queue();
                if holds(&queue) || queue.closed || queue.close_reason.is_some() {
                    return;
                }
            }
            drained.await;
        }
    }

    /// Returns whether more than `bytes` of answers wait for a client on a wire, and occupy memory until it
    /// reads them.
    pub(crate) fn pending_answers_exceed(&self, bytes: u64, sink: &Sink) -> bool {
        // A message that is being sent keeps all its memory until its end.
        let owed = self.queue().answer_bytes.saturating_add(sink.begun_len());
        self.encoding != Encoding::Value && owed as u64 > bytes
    }

    /// Returns the number of bytes written.
    pub(crate) fn written(&self) -> u64 {
        self.queue().written
    }

    /// Waits until there may be something to send.
    pub(crate) async fn notified(&self) {
        self.wakeup.notified().await;
    }

    /// Records that the client's side accepted `sent_bytes`, and whether the rest of a message must still be
    /// encoded.
    pub(crate) fn progress(&self, sent_bytes: usize, is_within_message: bool) {
        let mut queue = self.queue();
        queue.answer_ahead = queue.answer_ahead.saturating_sub(sent_bytes);
        let is_owed = queue.is_within_answer || queue.answer_ahead > 0 || !queue.answers.is_empty();
        queue.answer_pending_since = is_owed.then(Instant::now);
        queue.written += sent_bytes as u64;
        let mark = match queue.acks {
            Acks::Written => queue.in_flight.written_mark(queue.written),
            Acks::Ping | Acks::Mark => None,
        };
        drop(queue);
        if let Some(mark) = mark {
            self.acknowledge_sources(mark);
        }
        if is_within_message && sent_bytes > 0 {
            // No ping can be sent within a message, but a client that reads is alive.
            self.on_sign_of_life();
        }
        self.drained.notify_waiters();
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }
}

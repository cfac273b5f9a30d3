//! What waits to be sent on one connection, and what was sent but not acknowledged.
//!
//! Handlers and processes put things in and ring the bell; the connection's writer takes them out:
//! answers first, then processes that have only a little to say, then the floods in turn, within
//! the window of what is unacknowledged. Start at [`Outbox`].

mod connections;
mod fill;
mod in_flight;
mod long;
mod ready;
mod responder;
mod sink;
mod size;
mod source;
#[cfg(test)]
mod tests;
mod throttle;

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use remex_proto::{
    RequestId, RpcError, ServerNote, call::Note, http::BodyDelta, message::BodyFrame, state::output_log::Seq,
};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};

use crate::config::Limits;
pub(crate) use connections::{Connections, Shared};
use in_flight::InFlight;
pub(crate) use long::Fallible;
use long::{LongMessage, LongReply};
use ready::Ready;
pub(crate) use responder::{CancelCheck, Responder};
pub(crate) use sink::{Encoding, QueuedMessage, Sink};
pub(crate) use size::{Reply, of_call};
use source::SourceKey;
pub(crate) use source::{Delivery, Source, Urgency};

/// Codes with which a WebSocket is closed.
pub(crate) mod close_code {
    pub(crate) const NORMAL: u16 = 1000;
    pub(crate) const GOING_AWAY: u16 = 1001;
    pub(crate) const POLICY: u16 = 1008;
    pub(crate) const TOO_LONG: u16 = 1009;
    pub(crate) const INTERNAL: u16 = 1011;
    pub(crate) const TRY_AGAIN: u16 = 1013;
}

/// Identifies one connection for the life of the server.
pub(crate) type ConnectionId = u64;

/// A send buffer is filled up to here before it is written.
const SEND_BYTES: usize = 64 << 10;

/// In this time the end of a local connection is noticed.
const SOON: Duration = Duration::from_millis(100);

/// How a client acknowledges output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acks {
    /// WebSocket: a ping is answered by every client.
    Ping,
    /// The client asked for `flow/mark`.
    Mark,
    /// No way to ask: the last bytes written count as not got (see [`Source::deliver`]).
    Lag,
}

/// Why a connection ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Goodbye {
    /// WebSocket close code.
    pub(crate) code: u16,
    pub(crate) reason: String,
}

/// The outgoing side of one connection.
#[derive(Debug)]
pub(crate) struct Outbox {
    pub(crate) id: ConnectionId,
    encoding: Encoding,
    limits: Limits,
    /// Shared by the reader, the writer, handlers and process tasks; held for moments only.
    queue: Mutex<Queue>,
    /// Rings the writer.
    bell: Notify,
    /// Rings a reader that stopped because too much was waiting.
    drained: Notify,
    /// Rings whoever asked whether the client is alive.
    heard: Notify,
    /// Rings when the connection is about to end.
    leaving: Notify,
    /// Held by whoever makes a large answer: one at a time.
    making: Arc<Semaphore>,
    shared: Shared,
    /// Its client is somewhere else by now, and sends again there what was not answered here.
    gone: AtomicBool,
}

#[derive(Debug)]
struct Queue {
    acks: Acks,
    answers: VecDeque<Answer>,
    answer_bytes: usize,
    /// Bytes in the send buffer up to the end of the last answer, or to the end of what is encoded of it.
    answer_ahead: usize,
    /// The message that has begun and not ended is an answer, and not a part of a stream.
    is_within_answer: bool,
    /// Bytes that were written.
    written: u64,
    /// Where nothing is acknowledged: answers with output in the send buffer, in their order.
    sent_reads: VecDeque<SentRead>,
    /// Where an answer waits to be queued or sent: since when, or since the client last took a byte.
    owed_since: Option<Instant>,
    unanswered: usize,
    request_bytes: usize,
    ready: Ready<dyn Source>,
    /// Only the last ping needs an answer.
    pong: Option<Bytes>,
    ping: bool,
    /// An acknowledgement is to be asked for when the answer that is being sent has ended.
    mark_behind_answer: bool,
    in_flight: InFlight<dyn Source>,
    /// How many requests have come.
    requests: u64,
    /// Requests that have no answer yet, in any order; bounded by `unanswered_requests`.
    open: Vec<OpenRequest>,
    goodbye: Option<Goodbye>,
    /// The writer is gone: nothing is taken any more.
    closed: bool,
}

/// An answer with the output of a process up to an event, on its way.
#[derive(Debug)]
struct SentRead {
    /// When so many bytes are written, it is.
    ends_at: u64,
    source: Arc<dyn Source>,
    seq: Seq,
}

/// Tells the requests of a connection apart: the id of one that was answered may be used again while its work goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RequestNumber(u64);

/// A request that has no answer yet.
#[derive(Debug)]
struct OpenRequest {
    number: RequestNumber,
    id: RequestId,
    /// The process that has to take it as input.
    input_of: Option<Weak<dyn Source>>,
}

#[derive(Debug)]
struct Answer {
    /// `None` when the request was cancelled.
    message: Option<QueuedMessage>,
    then: Then,
}

/// What happens when an answer is on its way.
#[derive(Debug)]
pub(crate) enum Then {
    Nothing,
    /// The process was started: its events may follow now.
    Follow(Arc<dyn Source>),
    /// The answer carried the output of this process up to the given event.
    Delivered {
        source: Arc<dyn Source>,
        up_to: Seq,
        /// What its acknowledgement acknowledges.
        worth: Seq,
        /// The process waits for that.
        wants_mark: bool,
    },
}

impl Then {
    /// Returns what is left of it where the answer has become an error: that carries no output.
    fn without_delivery(self) -> Self {
        match self {
            Then::Delivered { .. } => Then::Nothing,
            Then::Nothing | Then::Follow(_) => self,
        }
    }
}

impl Outbox {
    pub(crate) fn new(
        id: ConnectionId,
        acks: Acks,
        encoding: Encoding,
        limits: Limits,
        shared: Shared,
    ) -> Self {
        Outbox {
            id,
            encoding,
            limits,
            queue: Mutex::new(Queue {
                acks,
                answers: VecDeque::new(),
                answer_bytes: 0,
                answer_ahead: 0,
                is_within_answer: false,
                written: 0,
                sent_reads: VecDeque::new(),
                owed_since: None,
                unanswered: 0,
                request_bytes: 0,
                ready: Ready::default(),
                pong: None,
                ping: false,
                mark_behind_answer: false,
                in_flight: InFlight::default(),
                requests: 0,
                open: Vec::new(),
                goodbye: None,
                closed: false,
            }),
            bell: Notify::new(),
            drained: Notify::new(),
            heard: Notify::new(),
            leaving: Notify::new(),
            making: Arc::new(Semaphore::new(1)),
            shared,
            gone: AtomicBool::new(false),
        }
    }

    pub(crate) fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Switches to explicit acknowledgements on a transport without pings.
    pub(crate) fn use_marks(&self) {
        let mut queue = self.queue();
        if queue.acks == Acks::Lag {
            queue.acks = Acks::Mark;
        }
    }

    /// Counts a request that has to be answered.
    fn register(&self, id: &RequestId, request_bytes: usize) -> RequestNumber {
        let mut queue = self.queue();
        queue.requests += 1;
        let number = RequestNumber(queue.requests);
        queue.open.push(OpenRequest { number, id: id.clone(), input_of: None });
        queue.unanswered += 1;
        self.shared.requests.change(queue.request_bytes, queue.request_bytes + request_bytes);
        queue.request_bytes += request_bytes;
        number
    }

    /// Notes which process has to take an open request as its input.
    fn set_input_of(&self, number: RequestNumber, source: Weak<dyn Source>) {
        if let Some(open) = self.queue().open.iter_mut().find(|open| open.number == number) {
            open.input_of = Some(source);
        }
    }

    /// Returns the process that has to take an open request as its input.
    pub(crate) fn input_of(&self, id: &RequestId) -> Option<Arc<dyn Source>> {
        self.queue().newest_open(id)?.input_of.as_ref()?.upgrade()
    }

    /// Returns the processes that have to take open requests as their input.
    pub(crate) fn inputs(&self) -> Vec<Arc<dyn Source>> {
        self.queue().open.iter().filter_map(|open| open.input_of.as_ref()?.upgrade()).collect()
    }

    /// Answers an open request that nobody waits for any more; whatever it does goes on.
    ///
    /// Returns whether there was one.
    pub(crate) fn cancel(&self, id: &RequestId) -> bool {
        let number = self.queue().newest_open(id).map(|open| open.number);
        let is_open = number.is_some_and(|number| self.close_request(number));
        if is_open {
            self.push_error(id, &responder::cancelled());
        }
        is_open
    }

    /// Notes that a request gets its answer now; `false` when it was cancelled and has one.
    fn close_request(&self, number: RequestNumber) -> bool {
        let open = &mut self.queue().open;
        let found = open.iter().position(|known| known.number == number);
        found.map(|index| open.swap_remove(index)).is_some()
    }

    /// Queues a notification that nobody asked for; a client that is too far behind is sent away.
    pub(crate) fn push_note<N: Note + Into<ServerNote>>(&self, note: N) {
        if self.queue().answer_bytes > self.limits.waiting_answer_bytes {
            return self
                .say_goodbye(close_code::POLICY, "too many notifications are waiting; read them faster");
        }
        self.push_last(note);
    }

    /// Queues a notification behind everything, whatever is waiting.
    pub(crate) fn push_last<N: Note + Into<ServerNote>>(&self, note: N) {
        self.push(Some(QueuedMessage::note(self.encoding, note)), Then::Nothing);
    }

    /// Tells whether the end of the connection can carry its reason; that of lines cannot.
    pub(crate) fn closes_with_a_reason(&self) -> bool {
        self.queue().acks == Acks::Ping
    }

    /// Queues an error under `id`.
    pub(crate) fn push_error(&self, id: &RequestId, error: &RpcError) {
        self.push(Some(QueuedMessage::error(self.encoding, id, error)), Then::Nothing);
    }

    fn settle(&self, request_bytes: usize) {
        let mut queue = self.queue();
        queue.unanswered -= 1;
        self.shared.requests.change(queue.request_bytes, queue.request_bytes - request_bytes);
        queue.request_bytes -= request_bytes;
        drop(queue);
        self.drained.notify_waiters();
    }

    /// Queues a message, and what happens when it is on its way.
    fn push(&self, message: Option<QueuedMessage>, then: Then) {
        let mut queue = self.queue();
        if queue.closed {
            return;
        }
        if let Some(message) = &message {
            queue.answer_bytes += message.size();
            queue.owed_since.get_or_insert_with(Instant::now);
        }
        queue.answers.push_back(Answer { message, then });
        drop(queue);
        self.bell.notify_one();
    }

    /// Puts a process on the list of those that have something to say.
    ///
    /// The caller has marked it as queued, so it is on the list once.
    pub(crate) fn ready(&self, source: Arc<dyn Source>, urgency: Urgency) {
        let mut queue = self.queue();
        if queue.closed {
            return;
        }
        queue.ready.push(source, urgency);
        drop(queue);
        self.bell.notify_one();
    }

    /// Takes a process off that list.
    pub(crate) fn withdraw<S: Source>(&self, source: &Arc<S>) {
        self.queue().ready.withdraw(source);
    }

    /// Makes a part of a stream of a notification.
    pub(crate) fn part<N: Note + Into<ServerNote>>(&self, note: N) -> QueuedMessage {
        QueuedMessage::note(self.encoding, note)
    }

    /// Makes a part of a stream of the next bytes of a body; the frame and the value say the same.
    pub(crate) fn body_part(
        &self,
        frame: &BodyFrame<'_>,
        value: impl FnOnce() -> BodyDelta,
    ) -> QueuedMessage {
        match self.encoding {
            Encoding::Json => {
                let mut json = Vec::new();
                frame.write(&mut json);
                QueuedMessage::Json(json)
            }
            Encoding::Value => QueuedMessage::note_value(value().into()),
        }
    }

    /// Sends a part of a stream in turn with the floods; `false` when the connection has ended.
    ///
    /// Returns when it is on its way, so a stream that waits here has no more than one part in memory.
    pub(crate) async fn push_part(&self, part: QueuedMessage) -> bool {
        let (taken, waiting) = oneshot::channel();
        {
            let mut queue = self.queue();
            if queue.closed {
                return false;
            }
            queue.ready.push_part(part, taken);
        }
        self.bell.notify_one();
        waiting.await.is_ok()
    }

    pub(crate) fn pong(&self, payload: Bytes) {
        self.queue().pong = Some(payload);
        self.bell.notify_one();
    }

    /// Notes that the client has got everything up to mark `mark`.
    pub(crate) fn acknowledged(&self, mark: u64) {
        let acknowledged = self.queue().in_flight.acknowledge(mark);
        for (source, seq) in acknowledged {
            source.acknowledge(self.id, seq);
        }
        self.bell.notify_one();
    }

    /// Notes that the client gave a sign of life.
    pub(crate) fn heard(&self) {
        self.heard.notify_waiters();
    }

    /// Asks the client for a sign of life and tells whether one came in time.
    pub(crate) async fn is_alive(&self, silence: Duration) -> bool {
        let heard = self.heard.notified();
        tokio::pin!(heard);
        heard.as_mut().enable();
        let can_answer = {
            let mut queue = self.queue();
            queue.ping = queue.acks != Acks::Lag;
            queue.ping
        };
        self.bell.notify_one();
        // A local peer that cannot be asked has closed its socket when it is gone, which is noticed soon.
        let silence = if can_answer { silence } else { SOON };
        tokio::select! {
            biased;
            () = self.leaving() => false,
            () = heard => true,
            () = tokio::time::sleep(silence) => !can_answer,
        }
    }

    /// Ends the connection after what is already queued as an answer.
    pub(crate) fn say_goodbye(&self, code: u16, reason: impl Into<String>) {
        self.queue().goodbye.get_or_insert(Goodbye { code, reason: reason.into() });
        self.ring_all();
    }

    /// Waits until somebody has said goodbye.
    pub(crate) async fn leaving(&self) {
        loop {
            let leaving = self.leaving.notified();
            tokio::pin!(leaving);
            leaving.as_mut().enable();
            {
                let queue = self.queue();
                if queue.goodbye.is_some() || queue.closed {
                    return;
                }
            }
            leaving.await;
        }
    }

    /// Notes that the client is gone: input that it sent and that waits is not for a process any more.
    pub(crate) fn let_go(&self) {
        self.gone.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.queue().closed
    }

    fn ring_all(&self) {
        self.bell.notify_one();
        self.drained.notify_waiters();
        self.leaving.notify_waiters();
    }

    /// Drops everything that waits; later pushes are ignored.
    pub(crate) fn close(&self) {
        let mut queue = self.queue();
        queue.closed = true;
        queue.answers.clear();
        queue.answer_bytes = 0;
        queue.owed_since = None;
        queue.sent_reads.clear();
        let ready = std::mem::take(&mut queue.ready);
        let in_flight = std::mem::take(&mut queue.in_flight);
        drop(queue);
        drop((ready, in_flight));
        self.ring_all();
    }

    /// Waits until the connection may be read again, or is about to end.
    pub(crate) async fn may_read(&self) {
        let limits = &self.limits;
        let is_within_limits = |queue: &Queue| {
            queue.unanswered < limits.unanswered_requests
                && queue.request_bytes < limits.waiting_request_bytes
                && queue.answer_bytes < limits.waiting_answer_bytes
        };
        loop {
            let relieved = self.shared.requests.relieved();
            tokio::pin!(relieved);
            relieved.as_mut().enable();
            let may_read = self
                .until(|queue| is_within_limits(queue) && self.shared.requests.admits(queue.request_bytes));
            tokio::select! {
                () = may_read => return,
                () = relieved => {}
            }
        }
    }

    /// Waits until the client has taken nothing for too long while an answer waits.
    ///
    /// Output alone may wait for as long as the client likes: the processes wait, and nothing piles up.
    pub(crate) async fn stalled(&self) {
        let limit = self.limits.stalled_writer;
        loop {
            let since = self.queue().owed_since.map_or(Duration::ZERO, |since| since.elapsed());
            if since >= limit {
                return;
            }
            tokio::time::sleep(limit - since).await;
        }
    }

    /// Waits until another large answer may be made; the permit belongs to the work, and is given back when the answer
    /// is queued or dropped.
    pub(crate) async fn room_for_answer(&self) -> Option<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.making).acquire_owned().await.ok();
        self.room().await;
        permit
    }

    /// Tells whether another large answer may be made now.
    pub(crate) fn has_room(&self) -> bool {
        self.queue().answer_bytes < self.limits.waiting_answer_bytes / 2
    }

    /// Waits until another large answer may be made.
    pub(crate) async fn room(&self) {
        self.until(|queue| queue.answer_bytes < self.limits.waiting_answer_bytes / 2).await;
    }

    /// Tells whether somebody still waits for the answer to a request.
    fn is_open(&self, number: RequestNumber) -> bool {
        let queue = self.queue();
        !queue.closed && queue.open.iter().any(|open| open.number == number)
    }

    /// Waits until every request has its answer.
    pub(crate) async fn all_answered(&self) {
        self.until(|queue| queue.unanswered == 0).await;
    }

    /// Waits until everything that can be sent has been put into the send buffer.
    pub(crate) async fn all_sent(&self) {
        self.until(|queue| queue.answers.is_empty() && queue.ready.is_empty()).await;
    }

    /// Waits until `holds`, or the connection ends.
    async fn until(&self, holds: impl Fn(&Queue) -> bool) {
        loop {
            let drained = self.drained.notified();
            tokio::pin!(drained);
            drained.as_mut().enable();
            {
                let queue = self.queue();
                if holds(&queue) || queue.closed || queue.goodbye.is_some() {
                    return;
                }
            }
            drained.await;
        }
    }

    /// Tells whether answers of more than `bytes` wait to be taken by a client on a wire, and keep memory until then.
    pub(crate) fn owes_more_than(&self, bytes: u64, sink: &Sink) -> bool {
        // What has begun keeps all of its memory to its end.
        let owed = self.queue().answer_bytes.saturating_add(sink.begun_len());
        self.encoding == Encoding::Json && owed as u64 > bytes
    }

    /// Returns how many bytes were written.
    pub(crate) fn written(&self) -> u64 {
        self.queue().written
    }

    /// Waits until there may be something to send.
    pub(crate) async fn bell(&self) {
        self.bell.notified().await;
    }

    /// Notes that the client's side took this many bytes, and whether the rest of a message is still to be encoded.
    pub(crate) fn progress(&self, sent_bytes: usize, is_within_message: bool) {
        let mut queue = self.queue();
        queue.answer_ahead = queue.answer_ahead.saturating_sub(sent_bytes);
        let is_owed = queue.is_within_answer || queue.answer_ahead > 0 || !queue.answers.is_empty();
        queue.owed_since = is_owed.then(Instant::now);
        queue.written += sent_bytes as u64;
        let written = queue.written;
        let mut reads = Vec::new();
        while queue.sent_reads.front().is_some_and(|read| read.ends_at <= written) {
            reads.extend(queue.sent_reads.pop_front());
        }
        drop(queue);
        for read in reads {
            read.source.acknowledge_unasked(self.id, read.seq);
        }
        if is_within_message && sent_bytes > 0 {
            // It cannot be asked before the end, and whoever takes bytes is there.
            self.heard();
        }
        self.drained.notify_waiters();
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Queue {
    /// Returns the request with this id that has no answer yet, of several the newest.
    fn newest_open(&self, id: &RequestId) -> Option<&OpenRequest> {
        self.open.iter().filter(|open| open.id == *id).max_by_key(|open| open.number)
    }
}

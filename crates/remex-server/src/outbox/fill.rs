//! Decides which messages go into the send buffer next, and when to request acknowledgements.

use std::{
    sync::{Arc, MutexGuard},
    time::Instant,
};

use remex_proto::flow;

use super::{
    Acks, AfterSend, Answer, CloseReason, Outbox, Queue, SEND_BYTES, Sink, Source, in_flight::THROTTLE_TIME,
    ready::BulkItem, sink::QueuedMessage,
};

/// Bytes that one source with bulk output may send before the next one's turn.
const TURN_BYTES: usize = 64 << 10;

/// At the end of a burst, an acknowledgement is requested only if this much is unmarked.
const IDLE_MARK_BYTES: usize = 16 << 10;

impl Outbox {
    /// Moves pending messages into `sink`; returns the close reason once everything before it is sent.
    pub(crate) fn fill(&self, sink: &mut Sink) -> Option<CloseReason> {
        sink.set_encoding(self.encoding());
        if sink.is_within_message() {
            return None;
        }
        let mut queue = self.queue();
        if std::mem::take(&mut queue.is_within_answer) {
            queue.answer_ahead = sink.len();
        }
        if std::mem::take(&mut queue.mark_behind_answer) {
            self.mark(&mut queue, sink);
        }
        if let Some(payload) = queue.pong.take() {
            sink.pong(&payload);
        }
        if std::mem::take(&mut queue.ping) {
            let ends_at = queue.written + sink.len() as u64;
            let mark = queue.in_flight.mark(ends_at).unwrap_or(queue.in_flight.last_mark());
            ask(queue.acks, mark, sink);
        }
        while sink.len() < SEND_BYTES {
            if let Some(answer) = queue.answers.pop_front() {
                queue = self.fill_answer(queue, answer, sink);
            } else if queue.close_reason.is_some() {
                return queue.close_reason.clone();
            } else if queue.in_flight.is_full() {
                break;
            } else if let Some(source) = queue.ready.take_fresh() {
                let until = Instant::now() + THROTTLE_TIME;
                queue.in_flight.throttle_bulk(&source, until);
                self.shared.throttle.throttle_others(self.id, until);
                queue = self.fill_output(queue, source, sink);
            } else if queue.in_flight.has_room(|| self.shared.throttle.is_throttled(self.id)) {
                match queue.ready.take_bulk() {
                    Some(BulkItem::Source(source)) => queue = self.fill_output(queue, source, sink),
                    Some(BulkItem::Part(part, taken)) => {
                        queue.in_flight.add_part(part.size());
                        sink.message(part);
                        let _ = taken.send(());
                    }
                    None => break,
                }
            } else {
                break;
            }
        }
        if sink.is_within_message() {
            return None;
        }
        let open = queue.in_flight.open_bytes();
        let is_wanted = std::mem::take(&mut queue.mark_wanted) || queue.acks == Acks::Written;
        let is_stuck = open > 0 && !queue.in_flight.has_room(|| self.shared.throttle.is_throttled(self.id));
        if is_stuck
            || (is_wanted && open > 0)
            || queue.in_flight.is_mark_due()
            || open >= self.limits.mark_bytes
            || (open >= IDLE_MARK_BYTES && sink.len() < SEND_BYTES)
        {
            self.mark(&mut queue, sink);
        }
        None
    }

    fn fill_answer<'a>(
        &'a self,
        mut queue: MutexGuard<'a, Queue>,
        answer: Answer,
        sink: &mut Sink,
    ) -> MutexGuard<'a, Queue> {
        let size = answer.message.as_ref().map_or(0, QueuedMessage::size);
        queue.answer_bytes -= size;
        // Keeps this answer apart from earlier stream output, whose acknowledgement means something else.
        if matches!(answer.then, AfterSend::Delivered { wants_mark: true, .. }) {
            self.mark(&mut queue, sink);
        }
        if let Some(message) = answer.message {
            sink.message(message);
            // It is in the send buffer, or has a charge of its own.
            drop(answer.charge);
            queue.answer_ahead = sink.len();
            queue.is_within_answer = sink.has_unfinished();
        }
        match answer.then {
            AfterSend::Nothing => queue,
            AfterSend::Follow(source) => {
                drop(queue);
                source.open(self);
                self.queue()
            }
            AfterSend::Delivered { source, up_to, extent, acknowledges, wants_mark } => {
                drop(queue);
                source.on_answered(self.id, up_to, extent);
                let mut queue = self.queue();
                queue.in_flight.add(&source, acknowledges, size);
                if wants_mark && sink.has_unfinished() {
                    queue.mark_behind_answer = true;
                } else if wants_mark {
                    self.mark(&mut queue, sink);
                }
                queue
            }
        }
    }

    fn fill_output<'a>(
        &'a self,
        queue: MutexGuard<'a, Queue>,
        source: Arc<dyn Source>,
        sink: &mut Sink,
    ) -> MutexGuard<'a, Queue> {
        drop(queue);
        let delivery = Arc::clone(&source).deliver(self.id, sink, TURN_BYTES);
        let mut queue = self.queue();
        if let Some(seq) = delivery.up_to {
            queue.in_flight.add(&source, seq, delivery.sent_bytes);
            if delivery.wants_mark {
                self.mark(&mut queue, sink);
            }
        }
        if let Some(urgency) = delivery.more {
            queue.ready.push(source, urgency);
        }
        queue
    }

    /// Requests an acknowledgement of everything sent so far, unless too many are outstanding.
    fn mark(&self, queue: &mut Queue, sink: &mut Sink) {
        let ends_at = queue.written + sink.len() as u64;
        if let Some(mark) = queue.in_flight.mark(ends_at) {
            ask(queue.acks, mark, sink);
        }
    }
}

/// Requests an acknowledgement of a mark.
fn ask(acks: Acks, mark: u64, sink: &mut Sink) {
    match acks {
        Acks::Ping => sink.ping(&mark.to_be_bytes()),
        Acks::Mark => sink.note(64, flow::Mark { mark }),
        Acks::Written => {}
    }
}

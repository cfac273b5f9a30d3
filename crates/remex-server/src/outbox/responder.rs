//! The obligation to answer one request.

use std::{
    any::TypeId,
    sync::{Arc, Weak},
    time::Instant,
};

use remex_access::{
    account::{FLOOR, Kind},
    audit::{Entry, Outcome},
    budget::{self, Budget, PATIENCE, SHORT, Share},
};
use remex_base::{supervise::defect, trace::RequestTrace};
use remex_files::CancelCheck;
use remex_proto::{
    Blob, ErrorKind, RequestId, RpcError,
    attachment::{self, Attached},
    message,
    process::Started,
};
use tokio::sync::oneshot;

use super::{
    AfterSend, ConnectionId, Encoding, LongMessage, LongReply, Outbox, QueuedMessage, Reply, RequestNumber,
    Source, long::json_of,
};
use crate::shared::host::Host;

/// The obligation to answer one request exactly once.
///
/// Dropped without an answer, it answers that the request was cancelled, or after a panic that the server
/// failed, so that no caller waits forever.
#[derive(Debug)]
pub(crate) struct Responder {
    outbox: Arc<Outbox>,
    number: RequestNumber,
    /// Taken when the answer is sent.
    id: Option<RequestId>,
    request_bytes: usize,
    /// The type of the answer, once the method is known.
    reply: Option<TypeId>,
    observation: Option<Observation>,
    /// Receives the answer within this program, in place of a client.
    internal_caller: Option<oneshot::Sender<InternalAnswer>>,
    /// Whether this program itself made the request, so that the connection does not count it.
    is_internal: bool,
}

/// The answer to a request that this program makes for a client; that of a start has content.
pub(crate) type InternalAnswer = Result<Option<Started>, RpcError>;

/// What is counted and recorded about a request.
#[derive(Debug)]
pub(crate) struct Observation {
    pub(crate) host: Arc<Host>,
    pub(crate) method: &'static str,
    pub(crate) started: Instant,
    /// The entry for the audit file, if there is one.
    pub(crate) entry: Option<Box<Entry>>,
    pub(crate) trace: RequestTrace,
}

impl Observation {
    fn finish(self, error: Option<ErrorKind>, request_bytes: usize, answer_bytes: usize) {
        let word = error.map(ErrorKind::word);
        self.trace.span.record("outcome", word.unwrap_or("ok"));
        self.host.metrics().on_answer(self.method, word, self.started.elapsed());
        let outcome = error.map_or(Outcome::Ok, Outcome::Failed);
        let line = self.entry.and_then(|entry| entry.line(outcome, request_bytes, answer_bytes));
        if let Some(line) = line {
            self.host.audit().record(line);
        }
    }
}

impl Responder {
    pub(crate) fn new(outbox: &Arc<Outbox>, id: RequestId, request_bytes: usize) -> Self {
        let number = outbox.register(&id, request_bytes);
        Responder {
            outbox: Arc::clone(outbox),
            number,
            id: Some(id),
            request_bytes,
            reply: None,
            observation: None,
            internal_caller: None,
            is_internal: false,
        }
    }

    /// Returns a responder for a request that this program makes on behalf of a connection, with its answer.
    pub(crate) fn within(outbox: &Arc<Outbox>) -> (Self, oneshot::Receiver<InternalAnswer>) {
        let (internal_caller, answer) = oneshot::channel();
        let responder = Responder {
            outbox: Arc::clone(outbox),
            number: RequestNumber::default(),
            id: None,
            request_bytes: 0,
            reply: None,
            observation: None,
            internal_caller: Some(internal_caller),
            is_internal: true,
        };
        (responder, answer)
    }

    /// Takes the internal receiver of the answer, if there is one.
    pub(crate) fn take_internal_caller(&mut self) -> Option<oneshot::Sender<InternalAnswer>> {
        self.internal_caller.take()
    }

    pub(crate) fn is_for(&self, connection: ConnectionId, id: &RequestId) -> bool {
        self.outbox.id == connection && self.id.as_ref() == Some(id)
    }

    /// Records that the request is input for `source`, so that it is found there when it is cancelled.
    pub(crate) fn set_input_of(&self, source: Weak<dyn Source>) {
        self.outbox.set_input_of(self.number, source);
    }

    pub(crate) fn request_bytes(&self) -> usize {
        self.request_bytes
    }

    pub(crate) fn outbox(&self) -> &Arc<Outbox> {
        &self.outbox
    }

    /// Returns a check for long-running work whether it was cancelled.
    pub(crate) fn cancel_check(&self) -> CancelCheck {
        let (outbox, number) = (Arc::clone(&self.outbox), self.number);
        CancelCheck::new(move || outbox.is_open(number))
    }

    /// Returns whether the request was cancelled, and thereby answered.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.id.is_some() && self.outbox.has_answered(self.number)
    }

    /// Sets what is counted and recorded when the request is answered.
    pub(crate) fn observed(mut self, observation: Observation) -> Self {
        self.observation = Some(observation);
        self
    }

    /// Returns the entry of the request for the audit file, if there is one.
    pub(crate) fn entry(&self) -> Option<&Entry> {
        self.observation.as_ref()?.entry.as_deref()
    }

    pub(crate) fn entry_mut(&mut self) -> Option<&mut Entry> {
        self.observation.as_mut()?.entry.as_deref_mut()
    }

    /// Returns the trace of the request.
    pub(crate) fn trace(&self) -> Option<&RequestTrace> {
        Some(&self.observation.as_ref()?.trace)
    }

    fn finish(&mut self, error: Option<ErrorKind>, answer_bytes: usize) {
        if let Some(observation) = self.observation.take() {
            observation.finish(error, self.request_bytes, answer_bytes);
        }
    }

    /// Sets the type of the answer.
    pub(crate) fn promising(mut self, reply: TypeId) -> Self {
        self.reply = Some(reply);
        self
    }

    pub(crate) fn answer<R: Reply>(self, result: Result<R, RpcError>) {
        match result {
            Ok(reply) => self.ok(reply),
            Err(error) => self.error(&error),
        }
    }

    pub(crate) fn ok(self, reply: impl Reply) {
        self.ok_then(reply, AfterSend::Nothing);
    }

    pub(crate) fn ok_then(self, reply: impl Reply, then: AfterSend) {
        self.result(reply, then, |id, reply, is_binary| {
            if is_binary {
                let (json, attached) = attached(id, &reply)?;
                return Ok(QueuedMessage::with_attached(json, attached));
            }
            json_of(id, &reply).map(QueuedMessage::Json).map_err(|_| no_memory())
        });
    }

    /// Answers with `reply`; `write` appends its JSON faster than serde would.
    pub(crate) fn ok_with<R: Reply>(self, reply: R, write: impl FnOnce(&R, &mut Vec<u8>)) {
        if self.outbox.encoding() == Encoding::Binary {
            return self.ok(reply);
        }
        self.result(reply, AfterSend::Nothing, |id, reply, _| {
            let mut json = Vec::new();
            message::write_result_with(&mut json, id, |json| write(&reply, json));
            Ok(QueuedMessage::Json(json))
        });
    }

    /// Answers with `reply`, whose JSON is the base64 of `blob` between two texts and is encoded while it is
    /// sent.
    pub(crate) fn ok_blob<R: Reply>(self, reply: R, around: [&str; 2], blob: impl FnOnce(R) -> Blob) {
        self.result(reply, AfterSend::Nothing, |id, reply, is_binary| {
            if is_binary {
                let (json, attached) = attached(id, &reply)?;
                return Ok(QueuedMessage::Long(LongMessage::shared_binary(&json, attached)));
            }
            Ok(QueuedMessage::Long(LongMessage::around(id, around, blob(reply))))
        });
    }

    /// Answers with `reply`, whose blobs are encoded while it is sent; then its share is returned.
    pub(crate) fn ok_long<R: LongReply>(self, reply: R, then: AfterSend, share: Option<Share>) {
        self.result(reply, then, |id, reply, is_binary| {
            if is_binary {
                let (json, attached) = attached(id, &reply)?;
                return Ok(QueuedMessage::Long(if attached.pieces.is_empty() {
                    LongMessage::text(json, share)
                } else {
                    LongMessage::binary(&json, attached).with(share)
                }));
            }
            LongMessage::reply(id, reply, share).map(QueuedMessage::Long).map_err(|_| no_memory())
        });
    }

    /// Answers with complete JSON, sent piece by piece; then its share is returned.
    pub(crate) fn ok_json<R: Reply>(mut self, json: Vec<u8>, share: Option<Share>) {
        self.check_type::<R>();
        self.finish(None, json.len());
        if self.id.take().is_some() && self.outbox.close_request(self.number) {
            self.outbox.push(Some(QueuedMessage::Long(LongMessage::text(json, share))), AfterSend::Nothing);
        }
    }

    /// Waits for the share that an answer of `bytes` needs, if any.
    ///
    /// Values passed within the process need none: their memory belongs to the client.
    pub(crate) async fn share(
        &self,
        budget: &Arc<Budget>,
        bytes: u64,
        hint: &str,
    ) -> Result<Option<Share>, RpcError> {
        if bytes <= FLOOR as u64 || self.outbox.encoding() == Encoding::Value {
            return Ok(None);
        }
        let account = self.outbox.account();
        let taking = async {
            if bytes <= SHORT {
                Share::short(Kind::Answers, bytes, account).await
            } else {
                budget.take(bytes, account).await
            }
        };
        match tokio::time::timeout(PATIENCE, taking).await {
            Ok(share) => Ok(Some(share)),
            Err(_) => Err(budget::no_room(hint)),
        }
    }

    fn result<R: Reply>(
        mut self,
        reply: R,
        then: AfterSend,
        json: impl FnOnce(&RequestId, R, bool) -> Result<QueuedMessage, RpcError>,
    ) {
        self.check_type::<R>();
        let Some(id) = self.id.take() else { return };
        let message = self.outbox.close_request(self.number).then(|| match self.outbox.encoding() {
            Encoding::Json => json(&id, reply, false),
            Encoding::Binary => json(&id, reply, true),
            Encoding::Value => Ok(QueuedMessage::reply_value(id.clone(), reply)),
        });
        let message = match message.transpose() {
            Ok(message) => message,
            Err(error) => {
                self.finish(Some(error.kind), 0);
                let error = QueuedMessage::error(self.outbox.encoding(), &id, &error);
                return self.outbox.push(Some(error), then.without_delivery());
            }
        };
        self.finish(None, message.as_ref().map_or(0, QueuedMessage::size));
        if message.is_none() && matches!(then, AfterSend::Delivered { .. }) {
            // An answer that was not sent acknowledges nothing.
            return;
        }
        // A cancelled request is already answered, but its effects still apply.
        self.outbox.push(message, then);
    }

    fn check_type<R: Reply>(&self) {
        debug_assert!(
            self.reply.is_none_or(|promised| promised == TypeId::of::<R>()),
            "{} is not what the method answers",
            std::any::type_name::<R>()
        );
    }

    pub(crate) fn error(mut self, error: &RpcError) {
        self.send_error(error);
    }

    fn send_error(&mut self, error: &RpcError) {
        let Some(id) = self.id.take() else { return };
        self.finish(Some(error.kind), 0);
        if self.outbox.close_request(self.number) {
            self.outbox.push_error(&id, error);
        }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if self.id.is_some() && !self.outbox.leaves_unanswered() {
            let is_broken = std::thread::panicking();
            self.send_error(&if is_broken { defect() } else { cancelled() });
        }
        if !self.is_internal {
            self.outbox.settle(self.request_bytes);
        }
    }
}

/// Encodes an answer, and collects its bytes to be sent beside it.
fn attached<R: Reply>(id: &RequestId, reply: &R) -> Result<(Vec<u8>, Attached), RpcError> {
    let (json, attached) = attachment::collect(|| json_of(id, reply));
    Ok((json.map_err(|_| no_memory())?, attached))
}

fn no_memory() -> RpcError {
    budget::no_memory("ask for less at once")
}

/// Returns the answer to a cancelled request.
pub(super) fn cancelled() -> RpcError {
    RpcError::new(ErrorKind::Cancelled, "the request was cancelled; nothing was undone")
}

#[cfg(test)]
mod tests {
    use remex_proto::call::Empty;

    use super::*;
    use crate::{
        Limits,
        outbox::{Acks, Shared},
    };

    fn sent(outbox: &Outbox) -> usize {
        outbox.queue().answers.iter().filter(|answer| answer.message.is_some()).count()
    }

    #[test]
    fn a_cancelled_request_never_answers_a_later_one_with_the_same_id() {
        let outbox =
            Arc::new(Outbox::new(1, Acks::Ping, Encoding::Json, Limits::default(), Shared::default()));
        let id = RequestId::MALFORMED;
        let late: [fn(Responder); 3] =
            [|responder| responder.ok(Empty {}), |responder| responder.error(&cancelled()), drop];
        for (round, late) in late.into_iter().enumerate() {
            let first = Responder::new(&outbox, id.clone(), 1);
            assert!(outbox.cancel(&id));
            let second = Responder::new(&outbox, id.clone(), 1);
            assert_eq!(sent(&outbox), 2 * round + 1, "the cancel is answered");
            late(first);
            assert_eq!(sent(&outbox), 2 * round + 1, "the first request has its answer");
            second.ok(Empty {});
            assert_eq!(sent(&outbox), 2 * round + 2, "the second request gets its own");
        }
    }
}

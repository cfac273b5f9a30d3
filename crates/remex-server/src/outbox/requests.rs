//! The requests of one connection that have no answer yet.

use std::sync::{Arc, Weak};

use remex_access::account::Kind;
use remex_proto::RequestId;

use super::{Outbox, Queue, Source, responder::cancelled};

/// About what a request needs besides its message, with a task.
const REQUEST_BYTES: usize = 2 << 10;

/// Identifies a request of a connection. The id of an answered request may be reused while its work continues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RequestNumber(u64);

/// A request without an answer.
#[derive(Debug)]
pub(super) struct OpenRequest {
    number: RequestNumber,
    id: RequestId,
    /// The process that this request is input for.
    input_of: Option<Weak<dyn Source>>,
}

impl Outbox {
    /// Registers a request that must be answered.
    pub(super) fn register(&self, id: &RequestId, request_bytes: usize) -> RequestNumber {
        let mut queue = self.queue();
        queue.requests += 1;
        let number = RequestNumber(queue.requests);
        queue.open.push(OpenRequest { number, id: id.clone(), input_of: None });
        queue.unanswered += 1;
        self.shared.requests.change(queue.request_bytes, queue.request_bytes + request_bytes);
        queue.request_bytes += request_bytes;
        self.shared.account.charge(Kind::Requests, 0, REQUEST_BYTES + request_bytes);
        number
    }

    /// Records which process an open request is input for.
    pub(super) fn set_input_of(&self, number: RequestNumber, source: Weak<dyn Source>) {
        if let Some(open) = self.queue().open.iter_mut().find(|open| open.number == number) {
            open.input_of = Some(source);
        }
    }

    /// Returns the process that an open request is input for.
    pub(crate) fn input_of(&self, id: &RequestId) -> Option<Arc<dyn Source>> {
        self.queue().newest_open(id)?.input_of.as_ref()?.upgrade()
    }

    /// Returns all processes that open requests are input for.
    pub(crate) fn inputs(&self) -> Vec<Arc<dyn Source>> {
        self.queue().open.iter().filter_map(|open| open.input_of.as_ref()?.upgrade()).collect()
    }

    /// Answers an open request as cancelled; its work continues.
    ///
    /// Returns whether there was one.
    pub(crate) fn cancel(&self, id: &RequestId) -> bool {
        let number = self.queue().newest_open(id).map(|open| open.number);
        let is_open = number.is_some_and(|number| self.close_request(number));
        if is_open {
            self.push_error(id, &cancelled());
        }
        is_open
    }

    /// Records that a request is being answered; returns `false` if it was cancelled and thereby answered.
    pub(super) fn close_request(&self, number: RequestNumber) -> bool {
        let open = &mut self.queue().open;
        let found = open.iter().position(|known| known.number == number);
        found.map(|index| open.swap_remove(index)).is_some()
    }

    /// Returns how many requests wait for their answer.
    pub(crate) fn unanswered(&self) -> usize {
        self.queue().unanswered
    }

    /// Returns whether a request is still unanswered.
    pub(super) fn is_open(&self, number: RequestNumber) -> bool {
        let queue = self.queue();
        !queue.closed && queue.open.iter().any(|open| open.number == number)
    }

    /// Returns whether a request has its answer.
    pub(super) fn has_answered(&self, number: RequestNumber) -> bool {
        !self.queue().open.iter().any(|open| open.number == number)
    }

    /// Stops counting a request of `request_bytes`; called when its responder is dropped.
    pub(super) fn settle(&self, request_bytes: usize) {
        let mut queue = self.queue();
        queue.unanswered -= 1;
        self.shared.requests.change(queue.request_bytes, queue.request_bytes - request_bytes);
        queue.request_bytes -= request_bytes;
        self.shared.account.charge(Kind::Requests, REQUEST_BYTES + request_bytes, 0);
        drop(queue);
        self.drained.notify_waiters();
    }
}

impl Queue {
    /// Returns the newest unanswered request with this id.
    fn newest_open(&self, id: &RequestId) -> Option<&OpenRequest> {
        self.open.iter().filter(|open| open.id == *id).max_by_key(|open| open.number)
    }
}

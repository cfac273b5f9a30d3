//! Requests from the server to the client of one connection.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll},
};

use remex_base::lock;
use remex_proto::{
    RequestId, message,
    network::{Decision, PolicyRequest},
};
use tokio::sync::oneshot;

use super::{AfterSend, Encoding, Outbox, QueuedMessage};

/// Requests that wait for an answer on one connection; further ones are not sent.
const MAX_PENDING: usize = 128;

/// What the ids of our requests begin with; clients number their own.
const PREFIX: &str = "remex-";

/// The requests that were sent on a connection.
#[derive(Debug, Default)]
pub(super) struct ServerRequests {
    /// A leaf, held briefly.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the last request.
    last: u64,
    pending: BTreeMap<u64, oneshot::Sender<Option<Decision>>>,
}

impl ServerRequests {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Returns the number of the next request and where its answer arrives, unless too many wait.
    fn next(&self) -> Option<(u64, oneshot::Receiver<Option<Decision>>)> {
        let mut state = self.state();
        if state.pending.len() >= MAX_PENDING {
            return None;
        }
        state.last += 1;
        let (number, (sender, receiver)) = (state.last, oneshot::channel());
        state.pending.insert(number, sender);
        Some((number, receiver))
    }

    /// Passes an answer on; returns false if there was no such request.
    fn answer(&self, id: &RequestId, decision: Option<Decision>) -> bool {
        let RequestId::Text(id) = id else { return false };
        let number = id.strip_prefix(PREFIX).and_then(|number| number.parse().ok());
        // A number has other spellings too, which we have not sent.
        let Some(number) = number.filter(|number| **id == spelled(*number)) else { return false };
        let mut state = self.state();
        if !(1..=state.last).contains(&number) {
            return false;
        }
        // Without a waiting caller, the answer is late or a duplicate.
        if let Some(waiting) = state.pending.remove(&number) {
            let _ = waiting.send(decision);
        }
        true
    }

    /// Forgets all requests, because no answer can arrive any more.
    pub(super) fn clear(&self) {
        let pending = std::mem::take(&mut self.state().pending);
        drop(pending);
    }
}

fn spelled(number: u64) -> String {
    format!("{PREFIX}{number}")
}

/// The future decision of a client; `None` if it answers with anything else, or the connection closes.
#[derive(Debug)]
pub(crate) struct PendingDecision {
    outbox: Arc<Outbox>,
    number: u64,
    answer: oneshot::Receiver<Option<Decision>>,
}

impl Future for PendingDecision {
    type Output = Option<Decision>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.answer).poll(context).map(|answer| answer.ok().flatten())
    }
}

impl Drop for PendingDecision {
    fn drop(&mut self) {
        self.outbox.server_requests.state().pending.remove(&self.number);
    }
}

impl Outbox {
    /// Asks the client; returns `None` if it cannot be asked.
    ///
    /// A client in this process cannot.
    pub(crate) fn ask(self: &Arc<Self>, request: &PolicyRequest) -> Option<PendingDecision> {
        if self.encoding == Encoding::Value || !self.has_spare_room() {
            return None;
        }
        let (number, answer) = self.server_requests.next()?;
        let pending = PendingDecision { outbox: Arc::clone(self), number, answer };
        let mut json = Vec::with_capacity(256);
        message::write_request(&mut json, &RequestId::Text(spelled(number).into()), request);
        self.push(Some(QueuedMessage::Json(json)), AfterSend::Nothing);
        // A connection that closes from here on forgets the request itself.
        let is_closed = self.queue().closed;
        (!is_closed).then_some(pending)
    }

    /// Passes on the answer to a request of ours; returns false if there was no such request.
    pub(crate) fn on_response(&self, id: &RequestId, decision: Option<Decision>) -> bool {
        self.server_requests.answer(id, decision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_reaches_only_its_caller_and_only_once() {
        let asked = ServerRequests::default();
        let (first, mut answer) = asked.next().unwrap();
        let (second, other) = asked.next().unwrap();
        let id = |text: &str| RequestId::Text(text.into());
        for unknown in ["remex-3", "remex-0", "remex-01", "remex-+1", "remex-", "1", "remex-1 "] {
            assert!(!asked.answer(&id(unknown), Some(Decision::Allow)), "{unknown}");
        }
        assert!(!asked.answer(&RequestId::Integer(1), Some(Decision::Allow)));
        assert!(answer.try_recv().is_err());
        assert!(asked.answer(&id(&spelled(first)), Some(Decision::Allow)));
        assert!(asked.answer(&id(&spelled(first)), None), "a second answer does no harm");
        assert_eq!(answer.try_recv(), Ok(Some(Decision::Allow)));
        drop(other);
        assert!(asked.answer(&id(&spelled(second)), None), "nobody waits for it any more");
    }

    #[test]
    fn the_number_of_pending_requests_is_bounded_and_all_of_them_end() {
        let asked = ServerRequests::default();
        let mut pending: Vec<_> = std::iter::from_fn(|| asked.next()).collect();
        assert_eq!(pending.len(), MAX_PENDING);
        asked.clear();
        assert!(pending.iter_mut().all(|(_, answer)| answer.try_recv().is_err()));
        assert!(asked.next().is_some());
    }
}

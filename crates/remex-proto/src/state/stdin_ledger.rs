//! Decides about every write to the standard input of one process.
//!
//! Pure: it sees ids and lengths, never the bytes. Start at [`StdinLedger`].

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
};

/// What one process may make the server remember of its writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many accepted write ids are remembered.
    pub ids: usize,
    /// How many bytes the remembered ids may have together; the newest one is remembered in any case.
    pub id_bytes: usize,
    /// How many bytes may wait for the child; a single larger write is accepted when none wait.
    pub queue_bytes: u64,
}

/// What becomes of one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// Queue it, and report it with [`StdinLedger::delivered`] when the child has it.
    Accepted,
    /// A write with this id was accepted before: acknowledge it and write nothing.
    Repeated,
    /// No room: offer it again after the next delivery, and until then nothing that came later.
    Full,
    /// Nothing is written any more.
    Closed,
}

/// The writes to one process: which were accepted before, and how much still waits for the child.
///
/// Allocates nothing before the first write with an id.
///
/// ```
/// use remex_proto::state::stdin_ledger::{Limits, Offer, StdinLedger};
///
/// let mut ledger = StdinLedger::new(Limits { ids: 4_096, id_bytes: 256 * 1024, queue_bytes: 10 });
/// assert_eq!(ledger.offer(Some("w1"), 8), Offer::Accepted);
/// assert_eq!(ledger.offer(Some("w1"), 8), Offer::Repeated);
/// assert_eq!(ledger.offer(Some("w2"), 8), Offer::Full);
/// ledger.delivered(8);
/// assert_eq!(ledger.offer(Some("w2"), 8), Offer::Accepted);
/// ```
#[derive(Debug)]
pub struct StdinLedger {
    limits: Limits,
    state: State,
    queued: u64,
    /// Oldest first; holds the same ids as `known`.
    order: VecDeque<Arc<str>>,
    known: HashSet<Arc<str>>,
    known_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Closed,
}

impl StdinLedger {
    /// Returns the ledger of a process that has not been written to.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            state: State::Open,
            queued: 0,
            order: VecDeque::new(),
            known: HashSet::new(),
            known_bytes: 0,
        }
    }

    /// Decides about a write of `len` bytes; only an accepted one changes anything.
    pub fn offer(&mut self, write_id: Option<&str>, len: u64) -> Offer {
        if write_id.is_some_and(|id| self.known.contains(id)) {
            return Offer::Repeated;
        }
        if self.state == State::Closed {
            return Offer::Closed;
        }
        let queued = self.queued.saturating_add(len);
        if len > 0 && self.queued > 0 && queued > self.limits.queue_bytes {
            return Offer::Full;
        }
        self.queued = queued;
        if let Some(id) = write_id {
            self.remember(id);
        }
        Offer::Accepted
    }

    /// Notes that the child has taken `len` bytes more.
    pub fn delivered(&mut self, len: u64) {
        self.queued = self.queued.saturating_sub(len);
    }

    /// Accepts nothing from now on; what is queued is still to be delivered.
    pub fn close(&mut self) {
        self.state = State::Closed;
    }

    /// Notes that the child reads no more, and returns how many queued bytes it never got.
    pub fn fail(&mut self) -> u64 {
        self.close();
        std::mem::take(&mut self.queued)
    }

    /// Returns how many accepted bytes the child has not taken yet.
    pub fn queued(&self) -> u64 {
        self.queued
    }

    /// Returns whether [`close`](Self::close) or [`fail`](Self::fail) was called.
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    fn remember(&mut self, id: &str) {
        let id: Arc<str> = id.into();
        self.known_bytes += id.len();
        self.order.push_back(Arc::clone(&id));
        self.known.insert(id);
        while self.order.len() > 1
            && (self.order.len() > self.limits.ids || self.known_bytes > self.limits.id_bytes)
        {
            let Some(oldest) = self.order.pop_front() else { break };
            self.known_bytes -= oldest.len();
            self.known.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    const LIMITS: Limits = Limits { ids: 8, id_bytes: 64, queue_bytes: 100 };

    #[derive(Clone, Debug)]
    enum Step {
        Offer { id: Option<u8>, len: u64 },
        Deliver(u64),
        Close,
        Fail,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            20 => (prop::option::weighted(0.9, 0..12u8), 0..150u64).prop_map(|(id, len)| Step::Offer { id, len }),
            10 => (0..150u64).prop_map(Step::Deliver),
            1 => Just(Step::Close),
            1 => Just(Step::Fail),
        ]
    }

    proptest! {
        #[test]
        fn a_repeated_write_id_is_never_written_twice(steps in vec(step(), 0..200)) {
            let mut ledger = StdinLedger::new(LIMITS);
            let mut accepted: Vec<u8> = Vec::new();
            let (mut written, mut delivered, mut closed) = (0, 0, false);
            for step in steps {
                match step {
                    Step::Offer { id, len } => {
                        let remembered = accepted.iter().rev().take(LIMITS.ids).any(|&old| Some(old) == id);
                        let fits = len == 0 || written == delivered || written - delivered + len <= 100;
                        let expected = match (remembered, closed, fits) {
                            (true, _, _) => Offer::Repeated,
                            (_, true, _) => Offer::Closed,
                            (_, _, false) => Offer::Full,
                            _ => Offer::Accepted,
                        };
                        prop_assert_eq!(ledger.offer(id.map(|id| id.to_string()).as_deref(), len), expected);
                        if expected == Offer::Accepted {
                            written += len;
                            accepted.extend(id);
                        }
                    }
                    Step::Deliver(len) => {
                        let len = len.min(written - delivered);
                        delivered += len;
                        ledger.delivered(len);
                    }
                    Step::Close => {
                        closed = true;
                        ledger.close();
                    }
                    Step::Fail => {
                        closed = true;
                        prop_assert_eq!(ledger.fail(), written - delivered);
                        delivered = written;
                    }
                }
                prop_assert_eq!(ledger.queued(), written - delivered);
                prop_assert_eq!(ledger.is_closed(), closed);
                prop_assert!(ledger.order.len() <= LIMITS.ids);
                prop_assert_eq!(ledger.order.len(), ledger.known.len());
            }
        }

        #[test]
        fn remembered_ids_stay_within_their_bytes_or_are_one(lens in vec(1..100usize, 1..50)) {
            let mut ledger = StdinLedger::new(LIMITS);
            for (n, len) in lens.into_iter().enumerate() {
                let id = format!("{n:>len$}");
                prop_assert_eq!(ledger.offer(Some(&id), 0), Offer::Accepted);
                prop_assert_eq!(ledger.offer(Some(&id), 0), Offer::Repeated);
                prop_assert_eq!(ledger.known_bytes, ledger.order.iter().map(|id| id.len()).sum::<usize>());
                prop_assert!(ledger.known_bytes <= LIMITS.id_bytes || ledger.order.len() == 1);
            }
        }
    }

    #[test]
    fn a_write_larger_than_the_queue_is_accepted_alone() {
        let mut ledger = StdinLedger::new(LIMITS);
        assert_eq!(ledger.offer(None, 1_000), Offer::Accepted);
        assert_eq!(ledger.offer(None, 1), Offer::Full);
        assert_eq!(ledger.offer(None, 0), Offer::Accepted);
        ledger.delivered(1_000);
        assert_eq!(ledger.offer(None, 1_000), Offer::Accepted);
    }

    #[test]
    fn a_write_accepted_before_the_close_is_still_acknowledged_after_it() {
        let mut ledger = StdinLedger::new(LIMITS);
        assert_eq!(ledger.offer(Some("w1"), 5), Offer::Accepted);
        ledger.close();
        assert_eq!(ledger.offer(Some("w1"), 5), Offer::Repeated);
        assert_eq!(ledger.offer(Some("w2"), 5), Offer::Closed);
        assert_eq!(ledger.queued(), 5);
    }

    #[test]
    fn a_ledger_without_writes_holds_no_memory() {
        let ledger = StdinLedger::new(LIMITS);
        assert_eq!((ledger.order.capacity(), ledger.known.capacity()), (0, 0));
    }
}

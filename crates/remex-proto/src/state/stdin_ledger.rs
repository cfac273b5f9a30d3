//! Admits, deduplicates and bounds writes to the standard input of one process.
//!
//! Pure: it handles ids and lengths, never the bytes. Start at [`StdinLedger`].

use std::{
    collections::{HashMap, VecDeque},
    ops::Range,
    sync::Arc,
};

/// Limits on the writes to one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The number of accepted write ids to remember.
    pub ids: usize,
    /// The total length of remembered ids in bytes; the newest id is always remembered.
    pub id_bytes: usize,
    /// The bytes that may be queued for the child; a larger write is accepted in parts of this length.
    pub queue_bytes: u64,
}

/// One write to admit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write<'a> {
    /// The id that makes the write idempotent.
    pub id: Option<&'a str>,
    /// Its length in bytes.
    pub len: u64,
    /// The bytes already accepted as parts within the same request.
    pub accepted: u64,
}

/// The decision about one write.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Offer {
    /// Queue these bytes, the rest of the write, and report them with [`StdinLedger::delivered`] when the
    /// child has them.
    Accepted(Range<u64>),
    /// Queue these bytes, and offer the write again after the next delivery; offer no later write before that.
    Part(Range<u64>),
    /// A write with this id was accepted before: acknowledge it and write nothing.
    Repeated,
    /// No room: offer the write again after the next delivery; offer no later write before that.
    Full,
    /// Standard input is closed.
    Closed,
}

/// The writes to one process: which were accepted, and how many bytes are queued for the child.
///
/// Never queues more than [`Limits::queue_bytes`]. Allocates nothing before the first write with an id.
///
/// ```
/// use remex_proto::state::stdin_ledger::{Limits, Offer, StdinLedger, Write};
///
/// let mut ledger = StdinLedger::new(Limits { ids: 4_096, id_bytes: 256 * 1024, queue_bytes: 10 });
/// let write = |id, len| Write { id: Some(id), len, accepted: 0 };
/// assert_eq!(ledger.offer(write("w1", 8)), Offer::Accepted(0..8));
/// assert_eq!(ledger.offer(write("w1", 8)), Offer::Repeated);
/// assert_eq!(ledger.offer(write("w2", 12)), Offer::Full);
/// ledger.delivered(8);
/// assert_eq!(ledger.offer(write("w2", 12)), Offer::Part(0..10));
/// ledger.delivered(10);
/// // The client reconnects and sends it again.
/// assert_eq!(ledger.offer(write("w2", 12)), Offer::Accepted(10..12));
/// ```
#[derive(Debug)]
pub struct StdinLedger {
    limits: Limits,
    state: LedgerState,
    queued: u64,
    /// Oldest first; holds the same ids as `known`.
    order: VecDeque<Arc<str>>,
    known: HashMap<Arc<str>, Progress>,
    known_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LedgerState {
    Open,
    Closed,
}

/// How much of a write has been accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Bytes(u64),
    Everything,
}

/// The state of a ledger, to be stored or sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Record {
    /// Whether it accepts no more writes.
    pub is_closed: bool,
    /// Accepted bytes that the child has not taken yet.
    pub queued: u64,
    /// The ids of accepted writes, oldest first; with the accepted bytes of those that are not accepted completely.
    pub ids: Vec<(String, Option<u64>)>,
}

impl StdinLedger {
    /// Returns the state of the ledger.
    pub fn record(&self) -> Record {
        let progress = |id: &Arc<str>| match self.known.get(id) {
            Some(Progress::Bytes(bytes)) => Some(*bytes),
            Some(Progress::Everything) | None => None,
        };
        let ids = self.order.iter().map(|id| (id.to_string(), progress(id))).collect();
        Record { is_closed: self.is_closed(), queued: self.queued, ids }
    }

    /// Returns a ledger that continues from the record of another one.
    pub fn resume(limits: Limits, record: &Record) -> Self {
        let mut ledger = Self::new(limits);
        for (id, bytes) in &record.ids {
            ledger.remember(Some(id), bytes.map_or(Progress::Everything, Progress::Bytes));
        }
        ledger.queued = record.queued;
        if record.is_closed {
            ledger.close();
        }
        ledger
    }

    /// Returns the ledger of a new process.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            state: LedgerState::Open,
            queued: 0,
            order: VecDeque::new(),
            known: HashMap::new(),
            known_bytes: 0,
        }
    }

    /// Decides about a write; only `Accepted` and `Part` change the state.
    pub fn offer(&mut self, write: Write<'_>) -> Offer {
        let from = match write.id.and_then(|id| self.known.get(id)) {
            Some(Progress::Everything) => return Offer::Repeated,
            Some(Progress::Bytes(accepted)) => write.accepted.max(*accepted).min(write.len),
            None => write.accepted.min(write.len),
        };
        if self.state == LedgerState::Closed {
            return Offer::Closed;
        }
        let most = self.limits.queue_bytes.max(1);
        let rest = write.len - from;
        if rest <= most.saturating_sub(self.queued) {
            self.queued += rest;
            self.remember(write.id, Progress::Everything);
            return Offer::Accepted(from..write.len);
        }
        // A write is split only if it exceeds the queue, and only when the queue is empty.
        if rest <= most || self.queued > 0 {
            return Offer::Full;
        }
        self.queued = most;
        self.remember(write.id, Progress::Bytes(from + most));
        Offer::Part(from..from + most)
    }

    /// Records that the child has taken another `len` bytes.
    pub fn delivered(&mut self, len: u64) {
        self.queued = self.queued.saturating_sub(len);
    }

    /// Stops accepting writes; queued bytes are still delivered.
    pub fn close(&mut self) {
        self.state = LedgerState::Closed;
    }

    /// Records that the child no longer reads, and returns the number of queued bytes it never got.
    pub fn fail(&mut self) -> u64 {
        self.close();
        std::mem::take(&mut self.queued)
    }

    /// Returns the number of accepted bytes that the child has not taken yet.
    pub fn queued(&self) -> u64 {
        self.queued
    }

    /// Returns about how much memory the ids of writes use, in bytes.
    pub fn remembered_bytes(&self) -> usize {
        /// An entry of each collection, and what an allocation needs besides its contents.
        const ENTRY_BYTES: usize = 96;

        self.known_bytes + self.order.len() * ENTRY_BYTES
    }

    /// Returns whether [`close`](Self::close) or [`fail`](Self::fail) was called.
    pub fn is_closed(&self) -> bool {
        self.state == LedgerState::Closed
    }

    fn remember(&mut self, id: Option<&str>, progress: Progress) {
        let Some(id) = id else { return };
        if let Some(known) = self.known.get_mut(id) {
            *known = progress;
            return;
        }
        let id: Arc<str> = id.into();
        self.known_bytes += id.len();
        self.order.push_back(Arc::clone(&id));
        self.known.insert(id, progress);
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

    fn write(id: Option<&str>, len: u64) -> Write<'_> {
        Write { id, len, accepted: 0 }
    }

    /// What happens to a server: writes arrive, wait in line, are cancelled and sent again, and the child reads.
    #[derive(Clone, Debug)]
    enum Step {
        Send { id: u8 },
        GiveUp,
        Deliver(u64),
        Close,
        Fail,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            20 => (0..12_u8).prop_map(|id| Step::Send { id }),
            4 => Just(Step::GiveUp),
            20 => (0..150_u64).prop_map(Step::Deliver),
            1 => Just(Step::Close),
            1 => Just(Step::Fail),
        ]
    }

    /// Returns the length of the write with this id: some fit the queue many times, some not at all.
    fn len_of(id: u8) -> u64 {
        u64::from(id).pow(2) * 3
    }

    /// Offers what waits in line, and returns which bytes of which write were queued.
    fn admit(
        ledger: &mut StdinLedger,
        line: &mut VecDeque<(u8, u64)>,
        acknowledged: &mut Vec<u8>,
    ) -> Vec<(u8, Range<u64>)> {
        let mut queued = Vec::new();
        while let Some((id, accepted)) = line.front_mut() {
            let name = id.to_string();
            match ledger.offer(Write { id: Some(&name), len: len_of(*id), accepted: *accepted }) {
                Offer::Part(range) => {
                    *accepted = range.end;
                    queued.push((*id, range));
                    continue;
                }
                Offer::Accepted(range) => {
                    queued.push((*id, range));
                    acknowledged.push(*id);
                }
                Offer::Repeated => assert!(acknowledged.contains(id), "repeated before it was accepted"),
                Offer::Full => break,
                Offer::Closed => {}
            }
            line.pop_front();
        }
        queued
    }

    proptest! {
        #[test]
        fn every_byte_of_a_write_is_queued_once_and_in_order_however_often_it_is_sent(steps in vec(step(), 0..200)) {
            let mut ledger = StdinLedger::new(Limits { ids: 12, ..LIMITS });
            let (mut line, mut acknowledged) = (VecDeque::new(), Vec::new());
            let mut progress = [0_u64; 12];
            let (mut queued, mut closed) = (0, false);
            for step in steps {
                // Resuming from a record must not be noticeable.
                ledger = StdinLedger::resume(ledger.limits, &ledger.record());
                match step {
                    Step::Send { id } => line.push_back((id, 0)),
                    Step::GiveUp => line.clear(),
                    Step::Deliver(len) => {
                        let len = len.min(queued);
                        queued -= len;
                        ledger.delivered(len);
                    }
                    Step::Close => {
                        closed = true;
                        ledger.close();
                    }
                    Step::Fail => {
                        closed = true;
                        prop_assert_eq!(ledger.fail(), queued);
                        queued = 0;
                    }
                }
                for (id, range) in admit(&mut ledger, &mut line, &mut acknowledged) {
                    prop_assert!(!closed, "nothing is queued after the end");
                    prop_assert_eq!(range.start, progress[usize::from(id)]);
                    progress[usize::from(id)] = range.end;
                    queued += range.end - range.start;
                }
                for &id in &acknowledged {
                    prop_assert_eq!(progress[usize::from(id)], len_of(id), "what is acknowledged was queued");
                }
                prop_assert!(queued <= LIMITS.queue_bytes, "the cap holds for a write of any length");
                prop_assert!(line.is_empty() || queued > 0, "no write waits while nothing is queued");
                prop_assert_eq!(ledger.queued(), queued);
                prop_assert_eq!(ledger.is_closed(), closed);
                prop_assert_eq!(ledger.order.len(), ledger.known.len());
            }
        }

        #[test]
        fn remembered_ids_stay_within_their_bytes_or_are_one(lens in vec(1..100usize, 1..50)) {
            let mut ledger = StdinLedger::new(LIMITS);
            for (n, len) in lens.into_iter().enumerate() {
                let id = format!("{n:>len$}");
                prop_assert_eq!(ledger.offer(write(Some(&id), 0)), Offer::Accepted(0..0));
                prop_assert_eq!(ledger.offer(write(Some(&id), 0)), Offer::Repeated);
                prop_assert_eq!(ledger.known_bytes, ledger.order.iter().map(|id| id.len()).sum::<usize>());
                prop_assert!(ledger.known_bytes <= LIMITS.id_bytes || ledger.order.len() == 1);
                prop_assert!(ledger.order.len() <= LIMITS.ids);
            }
        }
    }

    #[test]
    fn a_write_larger_than_the_queue_is_accepted_in_parts_when_nothing_waits() {
        let mut ledger = StdinLedger::new(LIMITS);
        let large = |accepted| Write { id: None, len: 250, accepted };
        assert_eq!(ledger.offer(large(0)), Offer::Part(0..100));
        assert_eq!(ledger.offer(large(100)), Offer::Full);
        ledger.delivered(99);
        assert_eq!(ledger.offer(large(100)), Offer::Full);
        ledger.delivered(1);
        assert_eq!(ledger.offer(large(100)), Offer::Part(100..200));
        ledger.delivered(50);
        assert_eq!(ledger.offer(large(200)), Offer::Accepted(200..250));
        assert_eq!(ledger.offer(write(None, 1)), Offer::Full);
        assert_eq!(ledger.offer(write(None, 0)), Offer::Accepted(0..0));
    }

    #[test]
    fn a_write_accepted_before_the_close_is_still_acknowledged_after_it() {
        let mut ledger = StdinLedger::new(LIMITS);
        assert_eq!(ledger.offer(write(Some("w1"), 5)), Offer::Accepted(0..5));
        ledger.close();
        assert_eq!(ledger.offer(write(Some("w1"), 5)), Offer::Repeated);
        assert_eq!(ledger.offer(write(Some("w2"), 5)), Offer::Closed);
        assert_eq!(ledger.queued(), 5);
    }

    #[test]
    fn a_ledger_without_writes_holds_no_memory() {
        let ledger = StdinLedger::new(LIMITS);
        assert_eq!((ledger.order.capacity(), ledger.known.capacity()), (0, 0));
    }
}

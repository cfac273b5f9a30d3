//! Reorders the event stream of one process on the client.
//!
//! Pure: it sends nothing and decodes nothing. Start at [`Replay`].

use std::collections::VecDeque;

use super::output_log::{Gap, GapCause, Seq};

/// Limits on events held while earlier ones are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The number of events and gaps.
    pub events: usize,
    /// The bytes of output; a single larger event is held if it is the only one.
    pub bytes: usize,
}

/// The next item for the consumer of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<E> {
    /// An event.
    Event {
        /// Its number.
        seq: Seq,
        /// The event that was fed.
        event: E,
    },
    /// Events that the server no longer has.
    Gap(Gap),
    /// An exit or a close that a read reply reported as state instead of an event.
    Unlisted {
        /// The first of them.
        from_seq: Seq,
        /// The last of them.
        to_seq: Seq,
    },
}

/// What happened to an event that was fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fed {
    /// It is the next in order; [`Replay::next`] returns it.
    InOrder,
    /// It was known and is dropped.
    Duplicate,
    /// Earlier events are missing; it is held until a read returns them.
    Ahead,
    /// Earlier events are missing and no more can be held; a read will return it again.
    Dropped,
}

/// How far the answer to a read goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// To the newest event at that time.
    Newest,
    /// To an older event, because the read had a limit: another read must follow.
    Partial,
}

/// The events that one read returned.
#[derive(Clone, Debug)]
pub struct ReadBatch<I> {
    /// The gap before the events.
    pub gap: Option<Gap>,
    /// Events in order, each as number, bytes of output, and the event itself.
    pub events: I,
    /// One past the last event that the answer covers. Events up to there that it does not list are an
    /// exit or a close.
    pub next_seq: Seq,
    /// Whether there may be more events after that.
    pub reach: Reach,
}

/// Puts the events of one process in order: each is returned once, or a gap reports which are lost.
///
/// Live events go in by [`feed`](Self::feed) and [`feed_gap`](Self::feed_gap), answers to reads by
/// [`feed_read`](Self::feed_read). After each, call [`next`](Self::next) until it returns `None`, then
/// [`wanted_read`](Self::wanted_read) to learn whether events are missing.
///
/// ```
/// use remex_proto::state::replay::{Fed, Limits, ReadBatch, Reach, Replay, Step};
///
/// let mut replay = Replay::new(Limits { events: 1_024, bytes: 1 << 20 });
/// assert_eq!(replay.feed(1, 3, "one"), Fed::InOrder);
/// assert_eq!(replay.next(), Some(Step::Event { seq: 1, event: "one" }));
/// assert_eq!(replay.feed(3, 5, "three"), Fed::Ahead);
/// assert_eq!(replay.next(), None);
/// assert_eq!(replay.wanted_read(), Some(1));
/// let events = [(2, 3, "two"), (3, 5, "three")];
/// replay.feed_read(ReadBatch { gap: None, events, next_seq: 4, reach: Reach::Newest });
/// assert_eq!(replay.next(), Some(Step::Event { seq: 2, event: "two" }));
/// assert_eq!(replay.next(), Some(Step::Event { seq: 3, event: "three" }));
/// ```
#[derive(Debug)]
pub struct Replay<E> {
    limits: Limits,
    /// The last event returned.
    cursor: Seq,
    /// The last event known to exist, whether it was held or dropped.
    latest: Seq,
    /// The last event covered by answers to reads, as an event or as state.
    covered: Seq,
    /// Events and gaps not returned yet, in order of `from_seq`, which is unique.
    held: VecDeque<HeldEvent<E>>,
    held_bytes: usize,
    reading: Reading,
}

#[derive(Debug)]
struct HeldEvent<E> {
    from_seq: Seq,
    to_seq: Seq,
    len: usize,
    content: HeldContent<E>,
}

#[derive(Debug)]
enum HeldContent<E> {
    Event(E),
    Gap { bytes: Option<u64>, cause: Option<GapCause> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    /// Live events are enough.
    Idle,
    /// Events may be missing that no later live event would reveal.
    Wanted,
    /// A read is in progress.
    InProgress,
}

impl<E> Replay<E> {
    /// Returns the state before the first event of a process.
    pub fn new(limits: Limits) -> Self {
        Self::after(0, limits)
    }

    /// Returns the state of a consumer that has seen everything up to `cursor`.
    pub fn after(cursor: Seq, limits: Limits) -> Self {
        let reading = if cursor == 0 { Reading::Idle } else { Reading::Wanted };
        Self {
            limits,
            cursor,
            latest: cursor,
            covered: cursor,
            held: VecDeque::new(),
            held_bytes: 0,
            reading,
        }
    }

    /// Returns the last event returned: the position to resume from.
    pub fn cursor(&self) -> Seq {
        self.cursor
    }

    /// Adds a live event with `len` bytes of output.
    pub fn feed(&mut self, seq: Seq, len: usize, event: E) -> Fed {
        let fed =
            self.hold(HeldEvent { from_seq: seq, to_seq: seq, len, content: HeldContent::Event(event) });
        self.shed(seq, fed)
    }

    /// Adds a gap that the server reported.
    pub fn feed_gap(&mut self, gap: Gap) -> Fed {
        let fed = self.hold(HeldEvent::from(gap));
        self.shed(gap.from_seq, fed)
    }

    /// Adds the answer to the read that [`wanted_read`](Self::wanted_read) requested.
    pub fn feed_read<I: IntoIterator<Item = (Seq, usize, E)>>(&mut self, batch: ReadBatch<I>) {
        if let Some(gap) = batch.gap {
            self.hold(HeldEvent::from(gap));
        }
        for (seq, len, event) in batch.events {
            self.hold(HeldEvent { from_seq: seq, to_seq: seq, len, content: HeldContent::Event(event) });
        }
        self.covered = self.covered.max(batch.next_seq.saturating_sub(1));
        self.latest = self.latest.max(self.covered);
        self.reading = match batch.reach {
            Reach::Newest => Reading::Idle,
            Reach::Partial => Reading::Wanted,
        };
    }

    /// Returns the next step for the consumer, or `None` if it has not arrived yet.
    #[expect(clippy::should_implement_trait, reason = "not an iterator: it continues after `None`")]
    pub fn next(&mut self) -> Option<Step<E>> {
        loop {
            let from_seq = self.cursor.checked_add(1)?;
            let arrived = self.held.front().map(|held| held.from_seq);
            if arrived.is_none_or(|arrived| arrived > from_seq) {
                if self.covered < from_seq {
                    return None;
                }
                let to_seq = arrived.map_or(self.covered, |arrived| self.covered.min(arrived - 1));
                self.cursor = to_seq;
                return Some(Step::Unlisted { from_seq, to_seq });
            }
            let held = self.held.pop_front()?;
            self.held_bytes -= held.len;
            if held.from_seq < from_seq {
                // A gap that starts before the cursor and ends after it includes bytes already returned, so its
                // size is wrong. Read again from the cursor to get the exact gap.
                if held.to_seq >= from_seq {
                    self.covered = self.cursor;
                }
                continue;
            }
            self.cursor = held.to_seq;
            return Some(match held.content {
                HeldContent::Event(event) => Step::Event { seq: held.from_seq, event },
                HeldContent::Gap { bytes, cause } => {
                    Step::Gap(Gap { from_seq, to_seq: held.to_seq, bytes, cause })
                }
            });
        }
    }

    /// Returns the event to read after, if events are missing and no read is in progress.
    pub fn wanted_read(&mut self) -> Option<Seq> {
        let is_missing = self.reading == Reading::Wanted || self.latest > self.cursor;
        if !is_missing || self.reading == Reading::InProgress {
            return None;
        }
        self.reading = Reading::InProgress;
        Some(self.cursor)
    }

    /// Records a disconnect or a failed read: events may be missing, and no read is in progress.
    pub fn interrupt(&mut self) {
        self.reading = Reading::Wanted;
    }

    fn hold(&mut self, new: HeldEvent<E>) -> Fed {
        if new.to_seq <= self.cursor || new.to_seq < new.from_seq {
            return Fed::Duplicate;
        }
        self.latest = self.latest.max(new.to_seq);
        let index = match self.held.binary_search_by_key(&new.from_seq, |held| held.from_seq) {
            Err(index) => index,
            // The longer gap wins: its bytes include those of an event with the same number.
            Ok(index) if self.held[index].to_seq < new.to_seq => {
                self.held_bytes -= self.held[index].len;
                self.held.remove(index);
                index
            }
            Ok(_) => return Fed::Duplicate,
        };
        let fed = if new.from_seq > self.cursor.saturating_add(1) { Fed::Ahead } else { Fed::InOrder };
        self.held_bytes += new.len;
        self.held.insert(index, new);
        fed
    }

    /// Drops the live events farthest ahead until the limits hold; `from_seq` was fed just now.
    ///
    /// Events from reads stay: a missing one would be taken for an exit. They were in memory anyway.
    fn shed(&mut self, from_seq: Seq, mut fed: Fed) -> Fed {
        while self.held.len() > 1
            && (self.held.len() > self.limits.events || self.held_bytes > self.limits.bytes)
            && self.held.back().is_some_and(|farthest| farthest.from_seq > self.covered)
        {
            let Some(farthest) = self.held.pop_back() else { break };
            self.held_bytes -= farthest.len;
            if farthest.from_seq == from_seq {
                fed = Fed::Dropped;
            }
        }
        fed
    }
}

impl<E> From<Gap> for HeldEvent<E> {
    fn from(gap: Gap) -> Self {
        HeldEvent {
            from_seq: gap.from_seq,
            to_seq: gap.to_seq,
            len: 0,
            content: HeldContent::Gap { bytes: gap.bytes, cause: gap.cause },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    const LIMITS: Limits = Limits { events: 6, bytes: 200 };

    #[derive(Clone, Copy, Debug)]
    enum Act {
        /// Bytes of output, or an exit or close, which has none.
        Produce(Option<u8>),
        /// Sends the next live event, which may get lost.
        Live {
            lost: bool,
        },
        /// Sends something again.
        Repeat(usize),
        Evict(u64),
        /// Answers a read, with at most so many events.
        Answer {
            max_events: usize,
        },
        Cut,
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            6 => prop::option::weighted(0.8, 1..100u8).prop_map(Act::Produce),
            6 => prop::bool::weighted(0.2).prop_map(|lost| Act::Live { lost }),
            1 => any::<usize>().prop_map(Act::Repeat),
            1 => (0..6u64).prop_map(Act::Evict),
            3 => (1..8usize).prop_map(|max_events| Act::Answer { max_events }),
            1 => Just(Act::Cut),
        ]
    }

    /// A server with one process, and the consumer at the other end.
    struct World {
        /// Event `n` is at `n - 1`; exit and close are `None`.
        events: Vec<Option<u8>>,
        /// The oldest retained event.
        first: Seq,
        /// The last event sent live.
        sent: Seq,
        asked: Option<Seq>,
        replay: Replay<Option<u8>>,
        seen: Seq,
    }

    impl World {
        fn bytes(&self, from: Seq, to: Seq) -> u64 {
            self.events[from as usize - 1..to as usize].iter().map(|len| u64::from(len.unwrap_or(0))).sum()
        }

        fn gap_after(&self, seq: Seq) -> Option<Gap> {
            (seq + 1 < self.first).then(|| Gap {
                from_seq: seq + 1,
                to_seq: self.first - 1,
                bytes: Some(self.bytes(seq + 1, self.first - 1)),
                cause: None,
            })
        }

        fn feed(&mut self, seq: Seq) {
            let event = self.events[seq as usize - 1];
            self.replay.feed(seq, usize::from(event.unwrap_or(0)), event);
            let live = self.replay.held.iter().filter(|held| held.from_seq > self.replay.covered);
            assert!(live.count() <= LIMITS.events);
        }

        fn answer(&mut self, max_events: usize) {
            let Some(after) = self.asked.take() else { return };
            let from = (after + 1).max(self.first);
            let outputs = (from..=self.events.len() as Seq).filter_map(|seq| {
                self.events[seq as usize - 1].map(|len| (seq, usize::from(len), Some(len)))
            });
            let outputs: Vec<_> = outputs.take(max_events).collect();
            let is_partial = outputs.len() == max_events;
            let newest = self.events.len() as Seq + 1;
            self.replay.feed_read(ReadBatch {
                gap: self.gap_after(after),
                next_seq: outputs.last().filter(|_| is_partial).map_or(newest, |last| last.0 + 1),
                reach: if is_partial { Reach::Partial } else { Reach::Newest },
                events: outputs,
            });
        }

        /// Checks everything that comes out against what the server knows.
        fn drain(&mut self) {
            while let Some(step) = self.replay.next() {
                let from = self.seen + 1;
                match step {
                    Step::Event { seq, event } => {
                        assert_eq!((seq, event), (from, self.events[from as usize - 1]));
                        self.seen = seq;
                    }
                    Step::Gap(gap) => {
                        let bytes = self.bytes(from, gap.to_seq);
                        assert_eq!(gap, Gap { from_seq: from, bytes: Some(bytes), ..gap });
                        self.seen = gap.to_seq;
                    }
                    Step::Unlisted { from_seq, to_seq } => {
                        assert_eq!((from_seq, self.bytes(from, to_seq)), (from, 0));
                        self.seen = to_seq;
                    }
                }
                assert_eq!(self.seen, self.replay.cursor());
            }
            if let Some(after) = self.replay.wanted_read() {
                assert_eq!((after, self.asked), (self.seen, None));
                self.asked = Some(after);
            }
        }

        fn act(&mut self, act: Act) {
            match act {
                Act::Produce(len) => self.events.push(len),
                Act::Live { lost } => {
                    if let Some(gap) = self.gap_after(self.sent) {
                        self.sent = gap.to_seq;
                        if !lost {
                            self.replay.feed_gap(gap);
                        }
                    } else if self.sent < self.events.len() as Seq {
                        self.sent += 1;
                        if !lost {
                            self.feed(self.sent);
                        }
                    }
                }
                Act::Repeat(index) if self.sent >= self.first => {
                    self.feed(self.first + index as Seq % (self.sent + 1 - self.first));
                }
                Act::Repeat(_) => {}
                Act::Evict(count) => self.first = (self.first + count).min(self.events.len() as Seq + 1),
                Act::Answer { max_events } => self.answer(max_events),
                Act::Cut => {
                    self.asked = None;
                    self.sent = self.events.len() as Seq;
                    self.replay.interrupt();
                }
            }
        }
    }

    proptest! {
        #[test]
        fn every_event_comes_out_once_and_in_order_or_in_an_exact_gap(acts in vec(act(), 0..150)) {
            let mut world = World {
                events: Vec::new(),
                first: 1,
                sent: 0,
                asked: None,
                replay: Replay::new(LIMITS),
                seen: 0,
            };
            for act in acts {
                world.act(act);
                world.drain();
            }
            world.act(Act::Cut);
            world.drain();
            while world.asked.is_some() {
                world.answer(3);
                world.drain();
            }
            prop_assert_eq!(world.seen, world.events.len() as Seq);
            prop_assert!(world.replay.held.is_empty() && world.replay.held_bytes == 0);
        }

        #[test]
        fn numbers_from_a_hostile_peer_never_panic(
            gaps in vec((any::<Seq>(), any::<Seq>()), 0..20),
            seqs in vec(prop_oneof![any::<Seq>(), Just(0), Just(Seq::MAX)], 0..20),
        ) {
            let mut replay = Replay::new(LIMITS);
            for (&(from_seq, to_seq), &seq) in gaps.iter().zip(&seqs) {
                replay.feed_gap(Gap { from_seq, to_seq, bytes: None, cause: None });
                replay.feed(seq, 1, ());
                let before = replay.cursor();
                replay.feed_read(ReadBatch { gap: None, events: [(seq, 1, ())], next_seq: seq, reach: Reach::Newest });
                while replay.next().is_some() {}
                replay.wanted_read();
                prop_assert!(replay.cursor() >= before);
            }
        }
    }

    #[test]
    fn live_events_beyond_the_limits_are_dropped_and_read_again() {
        let mut replay = Replay::new(LIMITS);
        assert_eq!(replay.feed(3, 150, "three"), Fed::Ahead);
        assert_eq!(replay.feed(4, 150, "four"), Fed::Dropped);
        assert_eq!(replay.feed(2, 150, "two"), Fed::Ahead);
        assert_eq!(replay.feed(1, 150, "one"), Fed::InOrder);
        assert_eq!(replay.feed(1, 150, "one"), Fed::Duplicate);
        assert_eq!(replay.next(), Some(Step::Event { seq: 1, event: "one" }));
        assert_eq!(replay.next(), None);
        assert_eq!(replay.wanted_read(), Some(1));
        assert_eq!(replay.wanted_read(), None);
        replay.interrupt();
        assert_eq!(replay.wanted_read(), Some(1));
    }

    #[test]
    fn output_from_a_read_is_never_mistaken_for_an_exit() {
        let mut replay = Replay::new(LIMITS);
        let events = [(1, 150, "one"), (3, 150, "three")];
        replay.feed_read(ReadBatch { gap: None, events, next_seq: 4, reach: Reach::Newest });
        assert_eq!(replay.feed(4, 150, "four"), Fed::Dropped);
        assert_eq!(replay.next(), Some(Step::Event { seq: 1, event: "one" }));
        assert_eq!(replay.next(), Some(Step::Unlisted { from_seq: 2, to_seq: 2 }));
        assert_eq!(replay.next(), Some(Step::Event { seq: 3, event: "three" }));
        assert_eq!(replay.next(), None);
        assert_eq!(replay.wanted_read(), Some(3));
    }
}

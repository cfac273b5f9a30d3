//! The client's side of the event stream of one process.
//!
//! Pure: it sends nothing and decodes nothing. Start at [`Replay`].

use std::collections::VecDeque;

use super::output_log::{Gap, Seq};

/// How much may be held while something before it is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many events and gaps.
    pub events: usize,
    /// How many bytes of output; a single larger event is held when it is alone.
    pub bytes: usize,
}

/// What the consumer of a process gets next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<E> {
    /// An event.
    Event {
        /// Its number.
        seq: Seq,
        /// What was fed.
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
    /// It is the next in order, and [`Replay::next`] has it.
    InOrder,
    /// It was known, and is dropped.
    Duplicate,
    /// Something before it is missing; it is held until a read has brought that.
    Ahead,
    /// Something before it is missing and no more can be held; the read has to bring it again.
    Dropped,
}

/// How far an answer to a read goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// To the newest event at that time.
    Newest,
    /// To some older event, because the read had a limit: another read has to follow.
    Partial,
}

/// What a read was answered with.
#[derive(Clone, Debug)]
pub struct Answer<I> {
    /// What is missing in front of the events.
    pub gap: Option<Gap>,
    /// Events in order, each as number, bytes of output, and the event itself.
    pub events: I,
    /// One past the last event that the answer accounts for. What it does not list up to there is an
    /// exit or a close.
    pub next_seq: Seq,
    /// Whether anything can be behind that.
    pub reach: Reach,
}

/// The order of one process's events: each comes out once and in order, or a gap says which are lost.
///
/// Live events go in by [`feed`](Self::feed) and [`feed_gap`](Self::feed_gap), answers to reads by
/// [`feed_read`](Self::feed_read). After each, take all that [`next`](Self::next) has, and then ask
/// [`wanted_read`](Self::wanted_read) whether something is missing.
///
/// ```
/// use remex_proto::state::replay::{Answer, Fed, Limits, Reach, Replay, Step};
///
/// let mut replay = Replay::new(Limits { events: 1_024, bytes: 1 << 20 });
/// assert_eq!(replay.feed(1, 3, "one"), Fed::InOrder);
/// assert_eq!(replay.next(), Some(Step::Event { seq: 1, event: "one" }));
/// assert_eq!(replay.feed(3, 5, "three"), Fed::Ahead);
/// assert_eq!(replay.next(), None);
/// assert_eq!(replay.wanted_read(), Some(1));
/// let events = [(2, 3, "two"), (3, 5, "three")];
/// replay.feed_read(Answer { gap: None, events, next_seq: 4, reach: Reach::Newest });
/// assert_eq!(replay.next(), Some(Step::Event { seq: 2, event: "two" }));
/// assert_eq!(replay.next(), Some(Step::Event { seq: 3, event: "three" }));
/// ```
#[derive(Debug)]
pub struct Replay<E> {
    limits: Limits,
    /// The last event that came out.
    cursor: Seq,
    /// The last event ever heard of, whether it was held or dropped.
    heard: Seq,
    /// Answers to reads have told everything up to here, as events or as state.
    told: Seq,
    /// What has not come out, in order of `from_seq`, each of which occurs once.
    held: VecDeque<Held<E>>,
    held_bytes: usize,
    reading: Reading,
}

#[derive(Debug)]
struct Held<E> {
    from_seq: Seq,
    to_seq: Seq,
    len: usize,
    what: What<E>,
}

#[derive(Debug)]
enum What<E> {
    Event(E),
    Gap { bytes: Option<u64> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    /// Live events are enough.
    Idle,
    /// Events may be missing that no live event will show.
    Wanted,
    /// A read is under way.
    UnderWay,
}

impl<E> Replay<E> {
    /// Returns the state before the first event of a process.
    pub fn new(limits: Limits) -> Self {
        Self::after(0, limits)
    }

    /// Returns the state of a consumer that has seen everything up to `cursor`.
    pub fn after(cursor: Seq, limits: Limits) -> Self {
        let reading = if cursor == 0 { Reading::Idle } else { Reading::Wanted };
        Self { limits, cursor, heard: cursor, told: cursor, held: VecDeque::new(), held_bytes: 0, reading }
    }

    /// Returns the last event that came out: the place to resume from.
    pub fn cursor(&self) -> Seq {
        self.cursor
    }

    /// Takes a live event with `len` bytes of output.
    pub fn feed(&mut self, seq: Seq, len: usize, event: E) -> Fed {
        let fed = self.hold(Held { from_seq: seq, to_seq: seq, len, what: What::Event(event) });
        self.shed(seq, fed)
    }

    /// Takes the server's word that it no longer has some events.
    pub fn feed_gap(&mut self, gap: Gap) -> Fed {
        let fed = self.hold(Held::from(gap));
        self.shed(gap.from_seq, fed)
    }

    /// Takes the answer to the read that [`wanted_read`](Self::wanted_read) asked for.
    pub fn feed_read<I: IntoIterator<Item = (Seq, usize, E)>>(&mut self, answer: Answer<I>) {
        if let Some(gap) = answer.gap {
            self.hold(Held::from(gap));
        }
        for (seq, len, event) in answer.events {
            self.hold(Held { from_seq: seq, to_seq: seq, len, what: What::Event(event) });
        }
        self.told = self.told.max(answer.next_seq.saturating_sub(1));
        self.heard = self.heard.max(self.told);
        self.reading = match answer.reach {
            Reach::Newest => Reading::Idle,
            Reach::Partial => Reading::Wanted,
        };
    }

    /// Returns what comes next for the consumer, or `None` when that has not arrived.
    #[expect(clippy::should_implement_trait, reason = "it is no iterator: it goes on after a `None`")]
    pub fn next(&mut self) -> Option<Step<E>> {
        loop {
            let from_seq = self.cursor.checked_add(1)?;
            let arrived = self.held.front().map(|held| held.from_seq);
            if arrived.is_none_or(|arrived| arrived > from_seq) {
                if self.told < from_seq {
                    return None;
                }
                let to_seq = arrived.map_or(self.told, |arrived| self.told.min(arrived - 1));
                self.cursor = to_seq;
                return Some(Step::Unlisted { from_seq, to_seq });
            }
            let held = self.held.pop_front()?;
            self.held_bytes -= held.len;
            if held.from_seq < from_seq {
                // A gap that begins before the cursor and ends behind it counts bytes that came out. Nothing behind
                // the cursor is told then: a read from there finds the exact gap.
                if held.to_seq >= from_seq {
                    self.told = self.cursor;
                }
                continue;
            }
            self.cursor = held.to_seq;
            return Some(match held.what {
                What::Event(event) => Step::Event { seq: held.from_seq, event },
                What::Gap { bytes } => Step::Gap(Gap { from_seq, to_seq: held.to_seq, bytes }),
            });
        }
    }

    /// Returns the event to read after, when something is missing and no read is under way.
    pub fn wanted_read(&mut self) -> Option<Seq> {
        let is_missing = self.reading == Reading::Wanted || self.heard > self.cursor;
        if !is_missing || self.reading == Reading::UnderWay {
            return None;
        }
        self.reading = Reading::UnderWay;
        Some(self.cursor)
    }

    /// Notes that the connection was cut or a read failed: events may be missing, and no read is under way.
    pub fn interrupt(&mut self) {
        self.reading = Reading::Wanted;
    }

    fn hold(&mut self, new: Held<E>) -> Fed {
        if new.to_seq <= self.cursor || new.to_seq < new.from_seq {
            return Fed::Duplicate;
        }
        self.heard = self.heard.max(new.to_seq);
        let index = match self.held.binary_search_by_key(&new.from_seq, |held| held.from_seq) {
            Err(index) => index,
            // The longer gap wins: its bytes include those of an event that begins at the same place.
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

    /// Lets go of the farthest live events until the limits are kept; `from_seq` was fed just now.
    ///
    /// What a read has told stays: otherwise it would be taken for an exit. It was in memory anyway.
    fn shed(&mut self, from_seq: Seq, mut fed: Fed) -> Fed {
        while self.held.len() > 1
            && (self.held.len() > self.limits.events || self.held_bytes > self.limits.bytes)
            && self.held.back().is_some_and(|farthest| farthest.from_seq > self.told)
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

impl<E> From<Gap> for Held<E> {
    fn from(gap: Gap) -> Self {
        Held { from_seq: gap.from_seq, to_seq: gap.to_seq, len: 0, what: What::Gap { bytes: gap.bytes } }
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
            })
        }

        fn feed(&mut self, seq: Seq) {
            let event = self.events[seq as usize - 1];
            self.replay.feed(seq, usize::from(event.unwrap_or(0)), event);
            let live = self.replay.held.iter().filter(|held| held.from_seq > self.replay.told);
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
            self.replay.feed_read(Answer {
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
                replay.feed_gap(Gap { from_seq, to_seq, bytes: None });
                replay.feed(seq, 1, ());
                let before = replay.cursor();
                replay.feed_read(Answer { gap: None, events: [(seq, 1, ())], next_seq: seq, reach: Reach::Newest });
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
    fn output_that_a_read_has_brought_is_never_taken_for_an_exit() {
        let mut replay = Replay::new(LIMITS);
        let events = [(1, 150, "one"), (3, 150, "three")];
        replay.feed_read(Answer { gap: None, events, next_seq: 4, reach: Reach::Newest });
        assert_eq!(replay.feed(4, 150, "four"), Fed::Dropped);
        assert_eq!(replay.next(), Some(Step::Event { seq: 1, event: "one" }));
        assert_eq!(replay.next(), Some(Step::Unlisted { from_seq: 2, to_seq: 2 }));
        assert_eq!(replay.next(), Some(Step::Event { seq: 3, event: "three" }));
        assert_eq!(replay.next(), None);
        assert_eq!(replay.wanted_read(), Some(3));
    }
}

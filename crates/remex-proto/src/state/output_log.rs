//! The ordered, bounded record of what one process has said.
//!
//! Pure: no I/O, no clock. One writer appends, readers come with a [`Cursor`]; live streaming,
//! reading back, resuming after a cut and a second viewer are the same call. Start at [`OutputLog`].

mod store;

use std::collections::VecDeque;

use store::{Place, Store};

pub use crate::process::{Produced, Stream};

/// The number of an event in its process: 1, 2, 3 … over output, exit and close.
pub type Seq = u64;

/// The caps of one log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of output kept, the head for snapshots included.
    pub retain_bytes: usize,
    /// Events kept.
    pub retain_events: usize,
    /// The longest chunk that reads are gathered into.
    pub chunk_bytes: usize,
    /// How many of the first bytes ever produced are kept for snapshots, inside `retain_bytes`.
    pub head_bytes: usize,
}

impl Default for Limits {
    /// The base dialect's retention: 1 MiB and 50,000 events; chunks of 64 KiB; a head of 32 KiB.
    fn default() -> Self {
        Limits { retain_bytes: 1 << 20, retain_events: 50_000, chunk_bytes: 64 << 10, head_bytes: 32 << 10 }
    }
}

/// What eviction has to spare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Nobody waits for anything: the oldest output goes when room is needed.
    Nothing,
    /// Events above this number have not been acknowledged and stay; a full log then has no room.
    After(Seq),
}

/// Where one reader stands in one log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The last event seen; 0 before the first.
    pub seq: Seq,
    /// Bytes of output up to and including that event; `None` when that was forgotten.
    pub offset: Option<u64>,
}

impl Cursor {
    /// Before the first event.
    pub const START: Cursor = Cursor { seq: 0, offset: Some(0) };
}

/// Events that were evicted before a reader got to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The first missing event.
    pub from_seq: Seq,
    /// The last missing event.
    pub to_seq: Seq,
    /// Bytes of output in them; `None` for a cursor so old that its place in the stream is forgotten.
    pub bytes: Option<u64>,
}

/// What a reader finds at its cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next<'a> {
    /// Something was evicted here; the reader now stands behind it.
    Gap(Gap),
    /// A chunk of output.
    Output {
        /// Its number.
        seq: Seq,
        /// Its stream.
        stream: Stream,
        /// When its first byte was read.
        at_ms: u64,
        /// Never empty.
        bytes: &'a [u8],
    },
    /// The direct child has ended.
    Exited(Seq),
    /// Nothing more will come.
    Closed(Seq),
}

/// Head and tail of everything a process has printed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Kept bytes of standard output.
    pub stdout: Vec<u8>,
    /// Kept bytes of standard error.
    pub stderr: Vec<u8>,
    /// Kept bytes of the terminal.
    pub pty: Vec<u8>,
    /// Bytes produced but not in here, lost between head and tail.
    pub omitted: u64,
}

/// How many ends of evicted events are remembered, so that a late reader's gap is told exactly.
const REMEMBERED_ENDS: usize = 4096;

/// The record of one process: output, exit and close, each with its number.
///
/// A chunk may still grow until a reader takes it; then it is sealed. Produced bytes are always the
/// retained ones plus the evicted ones.
#[derive(Debug)]
pub struct OutputLog {
    limits: Limits,
    entries: VecDeque<Entry>,
    /// Number of `entries[0]`, or of the next event when there is none.
    first_seq: Seq,
    store: Store,
    /// Bytes in `entries`.
    retained: usize,
    produced: Produced,
    evicted: u64,
    /// `end` of the events just before `first_seq`, the last one last.
    evicted_ends: VecDeque<u64>,
    head: Head,
    /// Events up to here were taken by a reader and no longer grow.
    sealed: Seq,
    exited: Option<Seq>,
    closed: bool,
}

#[derive(Debug)]
struct Entry {
    kind: Kind,
    at_ms: u64,
    place: Place,
    /// Bytes of output up to and including this event.
    end: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Output(Stream),
    Exited,
    Closed,
}

/// The first bytes ever produced, filled only when they leave the entries.
#[derive(Debug, Default)]
struct Head {
    bytes: Vec<u8>,
    /// Streams of consecutive runs in `bytes`.
    runs: Vec<(Stream, usize)>,
}

impl OutputLog {
    /// Returns an empty log. Nothing is allocated before the first byte.
    pub fn new(limits: Limits) -> Self {
        OutputLog {
            limits,
            entries: VecDeque::new(),
            first_seq: 1,
            store: Store::default(),
            retained: 0,
            produced: Produced::default(),
            evicted: 0,
            evicted_ends: VecDeque::new(),
            head: Head::default(),
            sealed: 0,
            exited: None,
            closed: false,
        }
    }

    /// Returns how many bytes may be appended now: 0 means full, the producer has to wait.
    ///
    /// `budget` is what session and server leave to this log beside its own cap.
    pub fn room(&self, hold: Hold, budget: usize) -> usize {
        let cap = self.limits.retain_bytes.min(budget);
        let free = cap.saturating_sub(self.held_bytes());
        let evictable = self.evictable(hold);
        let events_full = self.entries.len() >= self.limits.retain_events;
        if events_full && !self.front_evictable(hold) && !self.may_join_any() {
            return 0;
        }
        // What moves to the head does not become free.
        let head_room = self.head_cap() - self.head.bytes.len();
        free.max((free + evictable).saturating_sub(head_room)).min(self.limits.chunk_bytes)
    }

    /// Appends up to `max` bytes of `stream` that `fill` writes into the slice it is given.
    ///
    /// `fill` returns how many bytes it wrote; 0 appends nothing. Afterwards the oldest events that
    /// `hold` does not protect are evicted until the cap is kept.
    pub fn append<E>(
        &mut self,
        stream: Stream,
        now_ms: u64,
        max: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        debug_assert!(!self.closed, "nothing follows the close");
        let wanted = usize::try_from(self.total()).unwrap_or(usize::MAX).min(self.limits.chunk_bytes);
        let (mut place, spare) = self.store.spare(wanted, self.limits.chunk_bytes);
        let limit = spare.len().min(max);
        let len = fill(&mut spare[..limit])?;
        if len == 0 {
            return Ok(0);
        }
        self.store.commit(len);
        match stream {
            Stream::Stdout => self.produced.stdout += len as u64,
            Stream::Stderr => self.produced.stderr += len as u64,
            Stream::Pty => self.produced.pty += len as u64,
        }
        self.retained += len;
        let end = self.total();
        if self.may_join(stream, place, len) {
            let last = self.entries.back_mut().expect("may_join found a last entry");
            last.place.len += len;
            last.end = end;
        } else {
            place.len = len;
            self.push(Entry { kind: Kind::Output(stream), at_ms: now_ms, place, end });
        }
        Ok(len)
    }

    /// Evicts the oldest events that `hold` does not protect until the caps are kept.
    pub fn evict(&mut self, hold: Hold, budget: usize) {
        let cap = self.limits.retain_bytes.min(budget);
        while (self.held_bytes() > cap || self.entries.len() > self.limits.retain_events)
            && self.front_evictable(hold)
        {
            self.evict_front();
        }
    }

    /// Records that the direct child has ended.
    pub fn push_exited(&mut self, now_ms: u64) -> Seq {
        debug_assert!(self.exited.is_none(), "a process exits once");
        let seq = self.push_marker(Kind::Exited, now_ms);
        self.exited = Some(seq);
        seq
    }

    /// Records that nothing more will come, and gives spare memory back.
    pub fn push_closed(&mut self, now_ms: u64) -> Seq {
        debug_assert!(!self.closed, "a process closes once");
        let seq = self.push_marker(Kind::Closed, now_ms);
        self.closed = true;
        self.store.trim();
        seq
    }

    /// Returns what `cursor` finds and moves it on, or `None` at the end.
    pub fn next(&mut self, cursor: &mut Cursor) -> Option<Next<'_>> {
        if let Some(gap) = self.gap(cursor) {
            *cursor = Cursor { seq: gap.to_seq, offset: Some(self.start_of_first()) };
            return Some(Next::Gap(gap));
        }
        let index = self.index_after(cursor.seq)?;
        let entry = self.entries.get(index)?;
        let seq = self.first_seq + index as u64;
        *cursor = Cursor { seq, offset: Some(entry.end) };
        self.sealed = self.sealed.max(seq);
        Some(match entry.kind {
            Kind::Output(stream) => {
                Next::Output { seq, stream, at_ms: entry.at_ms, bytes: self.store.bytes(entry.place) }
            }
            Kind::Exited => Next::Exited(seq),
            Kind::Closed => Next::Closed(seq),
        })
    }

    /// Returns the length of the output at `cursor`, 0 for exit and close, `None` at the end or a gap.
    pub fn peek_len(&self, cursor: &Cursor) -> Option<usize> {
        self.entries.get(self.index_after(cursor.seq)?).map(|entry| entry.place.len)
    }

    /// Returns the bytes that wait behind `cursor`, as far as they are retained.
    pub fn behind(&self, cursor: &Cursor) -> u64 {
        let seen = cursor.offset.unwrap_or(0).max(self.start_of_first());
        self.total().saturating_sub(seen)
    }

    /// Tells whether `cursor` has something to read.
    pub fn has_next(&self, cursor: &Cursor) -> bool {
        cursor.seq < self.next_seq() - 1
    }

    /// Returns what was evicted right behind `cursor`.
    pub fn gap(&self, cursor: &Cursor) -> Option<Gap> {
        let from_seq = cursor.seq.checked_add(1)?;
        (from_seq < self.first_seq).then(|| Gap {
            from_seq,
            to_seq: self.first_seq - 1,
            bytes: cursor.offset.map(|offset| self.start_of_first() - offset),
        })
    }

    /// Returns the cursor of a reader that has seen everything up to `seq`.
    ///
    /// What it has seen no longer grows.
    pub fn cursor_after(&mut self, seq: Seq) -> Cursor {
        self.sealed = self.sealed.max(seq.min(self.next_seq() - 1));
        Cursor { seq, offset: self.end_of(seq) }
    }

    /// Returns the cursor behind the newest event.
    pub fn newest(&mut self) -> Cursor {
        self.cursor_after(self.next_seq() - 1)
    }

    /// Returns head and tail of everything produced, at most `max_bytes` of it.
    pub fn snapshot(&self, max_bytes: usize) -> Snapshot {
        let mut pieces = self.head.pieces();
        pieces.extend(self.entries.iter().filter_map(|entry| match entry.kind {
            Kind::Output(stream) => Some((stream, self.store.bytes(entry.place))),
            Kind::Exited | Kind::Closed => None,
        }));
        let available: usize = pieces.iter().map(|(_, bytes)| bytes.len()).sum();
        let (front, back) =
            if available <= max_bytes { (available, 0) } else { (max_bytes / 2, max_bytes - max_bytes / 2) };
        let mut snapshot = Snapshot { omitted: self.total() - (front + back) as u64, ..Snapshot::default() };
        let mut position = 0;
        for (stream, bytes) in pieces {
            let target = match stream {
                Stream::Stdout => &mut snapshot.stdout,
                Stream::Stderr => &mut snapshot.stderr,
                Stream::Pty => &mut snapshot.pty,
            };
            let first = front.saturating_sub(position).min(bytes.len());
            target.extend_from_slice(&bytes[..first]);
            let tail_from = (available - back).saturating_sub(position).clamp(first, bytes.len());
            target.extend_from_slice(&bytes[tail_from..]);
            position += bytes.len();
        }
        snapshot
    }

    /// Returns the number the next event will get.
    pub fn next_seq(&self) -> Seq {
        self.first_seq + self.entries.len() as u64
    }

    /// Returns the number of the oldest retained event, or of the next one.
    pub fn first_seq(&self) -> Seq {
        self.first_seq
    }

    /// Returns the number of the exit, once it is recorded.
    pub fn exited(&self) -> Option<Seq> {
        self.exited
    }

    /// Tells whether the last event is recorded.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Returns the bytes produced so far, by stream.
    pub fn produced(&self) -> Produced {
        self.produced
    }

    /// Returns the bytes produced so far on all streams.
    pub fn total(&self) -> u64 {
        self.produced.stdout + self.produced.stderr + self.produced.pty
    }

    /// Returns the newest event whose output ends at or before `offset`, 0 when there is none retained.
    pub fn seq_ending_by(&self, offset: u64) -> Seq {
        self.first_seq - 1 + self.entries.partition_point(|entry| entry.end <= offset) as u64
    }

    /// Returns the bytes that can no longer be read.
    pub fn evicted_bytes(&self) -> u64 {
        self.evicted
    }

    /// Returns the bytes kept: readable ones and the head for snapshots.
    pub fn held_bytes(&self) -> usize {
        self.retained + self.head.bytes.len()
    }

    /// Returns the bytes of memory allocated for output.
    pub fn memory(&self) -> usize {
        self.store.memory() + self.head.bytes.capacity()
    }

    /// Bytes of output up to and including event `seq`, unless that is forgotten.
    fn end_of(&self, seq: Seq) -> Option<u64> {
        if seq == 0 {
            Some(0)
        } else if seq >= self.next_seq() - 1 {
            Some(self.total())
        } else if seq >= self.first_seq {
            Some(self.entries[(seq - self.first_seq) as usize].end)
        } else {
            let back = (self.first_seq - seq) as usize;
            self.evicted_ends.len().checked_sub(back).map(|index| self.evicted_ends[index])
        }
    }

    fn push(&mut self, entry: Entry) -> Seq {
        self.entries.push_back(entry);
        self.next_seq() - 1
    }

    fn push_marker(&mut self, kind: Kind, now_ms: u64) -> Seq {
        let end = self.total();
        self.push(Entry { kind, at_ms: now_ms, place: self.store.tail(), end })
    }

    fn may_join_any(&self) -> bool {
        self.entries.back().is_some_and(|last| {
            matches!(last.kind, Kind::Output(_))
                && self.next_seq() - 1 > self.sealed
                && last.place.len < self.limits.chunk_bytes
        })
    }

    fn may_join(&self, stream: Stream, place: Place, len: usize) -> bool {
        self.may_join_any()
            && self.entries.back().is_some_and(|last| {
                last.kind == Kind::Output(stream)
                    && last.place.is_followed_by(place)
                    && last.place.len + len <= self.limits.chunk_bytes
            })
    }

    fn index_after(&self, seq: Seq) -> Option<usize> {
        usize::try_from(seq.checked_add(1)?.checked_sub(self.first_seq)?).ok()
    }

    /// Bytes of output before the first entry.
    fn start_of_first(&self) -> u64 {
        self.total() - self.retained as u64
    }

    fn head_cap(&self) -> usize {
        self.limits.head_bytes.min(self.limits.retain_bytes / 4)
    }

    fn front_evictable(&self, hold: Hold) -> bool {
        !self.entries.is_empty()
            && match hold {
                Hold::Nothing => true,
                Hold::After(seq) => self.first_seq <= seq,
            }
    }

    fn evictable(&self, hold: Hold) -> usize {
        match hold {
            Hold::Nothing => self.retained,
            Hold::After(seq) if seq < self.first_seq => 0,
            Hold::After(seq) => {
                let end = self.end_of(seq).unwrap_or_else(|| self.start_of_first());
                usize::try_from(end - self.start_of_first()).unwrap_or(usize::MAX)
            }
        }
    }

    fn evict_front(&mut self) {
        let Some(entry) = self.entries.pop_front() else { return };
        if let Kind::Output(stream) = entry.kind {
            let bytes = self.store.bytes(entry.place);
            let room = self.head_cap() - self.head.bytes.len();
            if self.evicted == self.head.bytes.len() as u64 && room > 0 {
                self.head.push(stream, &bytes[..bytes.len().min(room)]);
            }
            self.retained -= entry.place.len;
            self.evicted += entry.place.len as u64;
        }
        self.first_seq += 1;
        if self.evicted_ends.len() == REMEMBERED_ENDS {
            self.evicted_ends.pop_front();
        }
        self.evicted_ends.push_back(entry.end);
        self.store.release_before(self.entries.front().map(|entry| entry.place));
    }
}

impl Head {
    fn push(&mut self, stream: Stream, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        match self.runs.last_mut() {
            Some((last, len)) if *last == stream => *len += bytes.len(),
            _ => self.runs.push((stream, bytes.len())),
        }
    }

    fn pieces(&self) -> Vec<(Stream, &[u8])> {
        let mut start = 0;
        self.runs
            .iter()
            .map(|&(stream, len)| {
                start += len;
                (stream, &self.bytes[start - len..start])
            })
            .collect()
    }
}

#[cfg(test)]
mod tests;

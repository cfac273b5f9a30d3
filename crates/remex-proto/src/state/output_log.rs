//! The ordered, bounded record of the output of one process.
//!
//! Pure: no I/O, no clock. One writer appends, and each reader has a [`Cursor`]; live streaming,
//! reading back, resuming after a disconnect and a second viewer all use the same call. Start at
//! [`OutputLog`].

mod head_tail;
mod store;

use std::collections::{TryReserveError, VecDeque};

use head_tail::HeadTail;
use store::{Span, Store};

pub use super::output::{Cursor, Gap, GapCause, Hold, Produced, Seq, Stream};

/// The limits of one log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of output to keep, including heads and tails for snapshots.
    pub retain_bytes: usize,
    /// Events to keep.
    pub retain_events: usize,
    /// The longest chunk that consecutive reads are merged into.
    pub chunk_bytes: usize,
    /// The longest time that reads are merged into one chunk, in milliseconds: the precision of its timestamp.
    pub chunk_ms: u64,
    /// How many of the first bytes of all streams to keep for snapshots, within `retain_bytes`; a quarter of that may
    /// be kept of the last bytes of each.
    pub head_bytes: usize,
}

impl Default for Limits {
    /// The base dialect's retention: 1 MiB and 50,000 events; chunks of 64 KiB or 100 ms; a head of 32 KiB.
    fn default() -> Self {
        Limits {
            retain_bytes: 1 << 20,
            retain_events: 50_000,
            chunk_bytes: 64 << 10,
            chunk_ms: 100,
            head_bytes: 32 << 10,
        }
    }
}

/// The next item for a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next<'a> {
    /// Events were evicted here; the cursor is now after them.
    Gap(Gap),
    /// A chunk of output.
    Output {
        /// Its number.
        seq: Seq,
        /// Its stream.
        stream: Stream,
        /// When its first byte was read.
        at_ms: u64,
        /// The output; never empty.
        bytes: &'a [u8],
    },
    /// The direct child has ended.
    Exited(Seq),
    /// Nothing more will come.
    Closed(Seq),
}

/// The head and tail of everything a process has printed, per stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Kept bytes of standard output.
    pub stdout: Vec<u8>,
    /// Kept bytes of standard error.
    pub stderr: Vec<u8>,
    /// Kept bytes of the terminal.
    pub pty: Vec<u8>,
    /// Bytes omitted between heads and tails.
    pub omitted: u64,
}

/// How many ends of evicted events the log remembers, so that a late reader learns the exact size of its gap.
const REMEMBERED_ENDS: usize = 4096;

/// The record of one process: output, exit and close, each with its number.
///
/// The newest chunk may still grow for a moment, until a reader takes it; then it is sealed. Produced bytes are always
/// the sum of retained and evicted bytes.
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
    /// `end` of the events just before `first_seq`, newest last.
    evicted_ends: VecDeque<u64>,
    head_tail: HeadTail,
    /// Events up to this one were taken by a reader and no longer grow.
    sealed: Seq,
    /// Whether the last eviction left the maximum number of events, all of them held: a chunk with a coarse timestamp
    /// is better than a blocked process.
    is_crowded: bool,
    exited: Option<Seq>,
    closed: bool,
}

#[derive(Debug)]
struct Entry {
    kind: Kind,
    at_ms: u64,
    span: Span,
    /// Bytes of output up to and including this event.
    end: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Output(Stream),
    Exited,
    Closed,
}

/// The memory of an event in addition to its bytes.
const EVENT_BYTES: usize = size_of::<Entry>();

/// The index never shrinks below this capacity.
const SMALL_INDEX: usize = 64;

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
            head_tail: HeadTail::new(limits.head_bytes.min(limits.retain_bytes / 4)),
            sealed: 0,
            is_crowded: false,
            exited: None,
            closed: false,
        }
    }

    /// Returns how many bytes may be appended now; 0 means that the log is full and the producer must wait.
    ///
    /// `budget` is what the limits of session and server leave for this log, including its index.
    pub fn room(&self, hold: Hold, budget: usize) -> usize {
        let evictable = self.evictable(hold);
        let events_full = self.entries.len() >= self.limits.retain_events;
        if events_full && evictable.events == 0 && !self.may_join_any() {
            return 0;
        }
        // Heads and tails for snapshots are not freed.
        let freed = evictable.bytes - self.head_tail.growth(evictable.bytes);
        let index = evictable.events * EVENT_BYTES;
        let within_cap = (self.limits.retain_bytes + freed).saturating_sub(self.held_bytes());
        let within_budget = budget.saturating_add(freed + index).saturating_sub(self.footprint());
        within_cap.min(within_budget).min(self.limits.chunk_bytes)
    }

    /// Appends up to `max` bytes of `stream` that `fill` writes into the slice it is given.
    ///
    /// `fill` returns how many bytes it wrote; 0 appends nothing. Then evicts the oldest events that
    /// `hold` does not protect until the log is within its limits.
    pub fn append<E>(
        &mut self,
        stream: Stream,
        now_ms: u64,
        max: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        debug_assert!(!self.closed, "nothing follows the close");
        let wanted = usize::try_from(self.total()).unwrap_or(usize::MAX).min(self.limits.chunk_bytes);
        let (mut span, spare) = self.store.spare(wanted, self.limits.chunk_bytes);
        let limit = spare.len().min(max);
        let len = fill(&mut spare[..limit])?;
        if len == 0 {
            return Ok(0);
        }
        self.store.commit(len);
        self.produced.add(stream, len as u64);
        self.retained += len;
        self.head_tail.appended(stream, len);
        let end = self.total();
        let is_current = self.is_crowded || self.is_gathering(now_ms);
        if is_current && self.may_join(stream, span, len) {
            let last = self.entries.back_mut().expect("may_join found a last entry");
            last.span.len += len;
            last.end = end;
        } else {
            span.len = len;
            self.push(Entry { kind: Kind::Output(stream), at_ms: now_ms, span, end });
        }
        Ok(len)
    }

    /// Evicts the oldest events that `hold` does not protect until the log is within its limits, but never the newest
    /// event: a reader or a search that waits for it must be able to see it.
    pub fn evict(&mut self, hold: Hold, budget: usize) {
        self.evict_all_but(1, hold, budget);
    }

    fn evict_all_but(&mut self, newest: usize, hold: Hold, budget: usize) {
        while (self.held_bytes() > self.limits.retain_bytes
            || self.footprint() > budget
            || self.entries.len() > self.limits.retain_events)
            && self.entries.len() > newest
            && self.front_evictable(hold)
        {
            self.evict_front();
        }
        self.is_crowded = self.entries.len() >= self.limits.retain_events && !self.front_evictable(hold);
    }

    /// Evicts everything that `hold` does not protect, including heads and tails for snapshots.
    pub fn give_up(&mut self, hold: Hold) {
        self.evict_all_but(0, hold, 0);
        self.head_tail.clear();
        self.store.forget_spare();
    }

    /// Records that the direct child has ended.
    pub fn push_exited(&mut self, now_ms: u64) -> Seq {
        debug_assert!(self.exited.is_none(), "a process exits once");
        let seq = self.push_marker(Kind::Exited, now_ms);
        self.exited = Some(seq);
        seq
    }

    /// Records that no more events will follow, and releases spare memory.
    pub fn push_closed(&mut self, now_ms: u64) -> Seq {
        debug_assert!(!self.closed, "a process closes once");
        let seq = self.push_marker(Kind::Closed, now_ms);
        self.closed = true;
        self.store.trim();
        self.entries.shrink_to_fit();
        seq
    }

    /// Returns the next item and advances `cursor`, or `None` at the end.
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
                Next::Output { seq, stream, at_ms: entry.at_ms, bytes: self.store.bytes(entry.span) }
            }
            Kind::Exited => Next::Exited(seq),
            Kind::Closed => Next::Closed(seq),
        })
    }

    /// Returns the length of the output at `cursor`, 0 for exit and close, `None` at the end or a gap.
    pub fn peek_len(&self, cursor: &Cursor) -> Option<usize> {
        self.entries.get(self.index_after(cursor.seq)?).map(|entry| entry.span.len)
    }

    /// Returns the retained bytes after `cursor`.
    pub fn behind(&self, cursor: &Cursor) -> u64 {
        let seen = cursor.offset.unwrap_or(0).max(self.start_of_first());
        self.total().saturating_sub(seen)
    }

    /// Returns whether `cursor` has something to read.
    pub fn has_next(&self, cursor: &Cursor) -> bool {
        cursor.seq < self.next_seq() - 1
    }

    /// Returns the evicted events right after `cursor`.
    pub fn gap(&self, cursor: &Cursor) -> Option<Gap> {
        let from_seq = cursor.seq.checked_add(1)?;
        (from_seq < self.first_seq).then(|| Gap {
            from_seq,
            to_seq: self.first_seq - 1,
            bytes: cursor.offset.map(|offset| self.start_of_first() - offset),
            cause: None,
        })
    }

    /// Returns the cursor of a reader that has seen everything up to `seq`.
    ///
    /// Chunks up to `seq` no longer grow.
    pub fn cursor_after(&mut self, seq: Seq) -> Cursor {
        self.sealed = self.sealed.max(seq.min(self.next_seq() - 1));
        Cursor { seq, offset: self.end_of(seq) }
    }

    /// Returns the cursor after the newest event.
    pub fn newest(&mut self) -> Cursor {
        self.cursor_after(self.next_seq() - 1)
    }

    /// Returns head and tail of everything produced, at most `max_bytes` of it.
    ///
    /// If the output is longer, short streams are kept before long ones.
    ///
    /// # Errors
    ///
    /// If memory cannot be allocated.
    pub fn snapshot(&self, max_bytes: usize) -> Result<Snapshot, TryReserveError> {
        const STREAMS: [Stream; 3] = [Stream::Stdout, Stream::Stderr, Stream::Pty];
        let mut pieces = STREAMS.map(|stream| self.head_tail.ends(stream).to_vec());
        for entry in &self.entries {
            if let Kind::Output(stream) = entry.kind {
                let index = STREAMS.iter().position(|known| *known == stream).unwrap_or_default();
                pieces[index].push(self.store.bytes(entry.span));
            }
        }
        let lens = pieces.each_ref().map(|pieces| pieces.iter().map(|bytes| bytes.len()).sum::<usize>());
        let shares = share(lens, max_bytes);
        let ends = |index: usize| ends_of(&pieces[index], lens[index], shares[index]);
        let (stdout, stderr, pty) = (ends(0)?, ends(1)?, ends(2)?);
        let omitted = self.total() - (stdout.len() + stderr.len() + pty.len()) as u64;
        Ok(Snapshot { stdout, stderr, pty, omitted })
    }

    /// Returns the number of the next event.
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

    /// Returns whether the close is recorded.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Returns the bytes produced so far, by stream.
    pub fn produced(&self) -> Produced {
        self.produced
    }

    /// Returns the bytes produced so far on all streams.
    pub fn total(&self) -> u64 {
        self.produced.total()
    }

    /// Returns the newest event whose output ends at or before `offset`, or 0 if none is retained.
    pub fn seq_ending_by(&self, offset: u64) -> Seq {
        self.first_seq - 1 + self.entries.partition_point(|entry| entry.end <= offset) as u64
    }

    /// Returns the newest retained event before the first one at or after `at_ms`, or the last evicted one.
    ///
    /// If the clock was set back in between, it is one of the events at which the clock passed that time.
    pub fn seq_before(&self, at_ms: u64) -> Seq {
        self.first_seq - 1 + self.entries.partition_point(|entry| entry.at_ms < at_ms) as u64
    }

    /// Returns the number of evicted bytes.
    pub fn evicted_bytes(&self) -> u64 {
        self.evicted
    }

    /// Returns the bytes kept: retained output, and heads and tails for snapshots.
    pub fn held_bytes(&self) -> usize {
        self.retained + self.head_tail.len()
    }

    /// Returns the bytes kept, including the index.
    pub fn footprint(&self) -> usize {
        self.held_bytes() + self.entries.len() * EVENT_BYTES
    }

    /// Returns the bytes of memory allocated: for output, index, heads and tails.
    pub fn memory(&self) -> usize {
        self.store.memory()
            + self.head_tail.memory()
            + self.entries.capacity() * EVENT_BYTES
            + self.evicted_ends.capacity() * size_of::<u64>()
    }

    /// Returns the bytes of output up to and including event `seq`, if the log still knows.
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
        self.push(Entry { kind, at_ms: now_ms, span: self.store.tail(), end })
    }

    /// Returns whether output read now may join the last chunk; the clock may go back.
    fn is_gathering(&self, now_ms: u64) -> bool {
        self.entries.back().is_some_and(|last| now_ms.abs_diff(last.at_ms) < self.limits.chunk_ms)
    }

    fn may_join_any(&self) -> bool {
        self.entries.back().is_some_and(|last| {
            matches!(last.kind, Kind::Output(_))
                && self.next_seq() - 1 > self.sealed
                && last.span.len < self.limits.chunk_bytes
        })
    }

    fn may_join(&self, stream: Stream, span: Span, len: usize) -> bool {
        self.may_join_any()
            && self.entries.back().is_some_and(|last| {
                last.kind == Kind::Output(stream)
                    && last.span.is_followed_by(span)
                    && last.span.len + len <= self.limits.chunk_bytes
            })
    }

    fn index_after(&self, seq: Seq) -> Option<usize> {
        usize::try_from(seq.checked_add(1)?.checked_sub(self.first_seq)?).ok()
    }

    /// Returns the bytes of output before the first entry.
    fn start_of_first(&self) -> u64 {
        self.total() - self.retained as u64
    }

    fn front_evictable(&self, hold: Hold) -> bool {
        !self.entries.is_empty()
            && match hold {
                Hold::Nothing => true,
                Hold::After(seq) => self.first_seq <= seq,
            }
    }

    fn evictable(&self, hold: Hold) -> Evictable {
        match hold {
            Hold::Nothing => Evictable { bytes: self.retained, events: self.entries.len() },
            Hold::After(seq) if seq < self.first_seq => Evictable { bytes: 0, events: 0 },
            Hold::After(seq) => {
                let end = self.end_of(seq).unwrap_or_else(|| self.start_of_first());
                let events = usize::try_from(seq - self.first_seq + 1).unwrap_or(usize::MAX);
                Evictable {
                    bytes: usize::try_from(end - self.start_of_first()).unwrap_or(usize::MAX),
                    events: events.min(self.entries.len()),
                }
            }
        }
    }

    fn evict_front(&mut self) {
        let Some(entry) = self.entries.pop_front() else { return };
        if let Kind::Output(stream) = entry.kind {
            self.head_tail.evicted(stream, self.store.bytes(entry.span));
            self.retained -= entry.span.len;
            self.evicted += entry.span.len as u64;
        }
        self.first_seq += 1;
        if self.evicted_ends.len() == REMEMBERED_ENDS {
            self.evicted_ends.pop_front();
        }
        self.evicted_ends.push_back(entry.end);
        let room = self.entries.capacity();
        if room > SMALL_INDEX && self.entries.len() < room / 4 {
            self.entries.shrink_to(room / 2);
        }
        self.store.release_before(self.entries.front().map(|entry| entry.span));
    }
}

/// What eviction may free.
#[derive(Clone, Copy)]
struct Evictable {
    bytes: usize,
    events: usize,
}

/// Divides `most` bytes among streams of these lengths; what one does not need goes to the others.
fn share(lens: [usize; 3], most: usize) -> [usize; 3] {
    let mut shares = [0; 3];
    let mut order = [0, 1, 2];
    order.sort_by_key(|&index| lens[index]);
    let mut left = most;
    for (done, index) in order.into_iter().enumerate() {
        shares[index] = lens[index].min(left / (order.len() - done));
        left -= shares[index];
    }
    shares
}

/// Joins the pieces of a stream, `len` bytes in all; if that is more than `most`, keeps only the beginning and the end.
fn ends_of(pieces: &[&[u8]], len: usize, most: usize) -> Result<Vec<u8>, TryReserveError> {
    let (front, back) = if len <= most { (len, 0) } else { (most / 2, most - most / 2) };
    let mut joined = Vec::new();
    joined.try_reserve_exact(front + back)?;
    let mut position = 0;
    for bytes in pieces {
        let first = front.saturating_sub(position).min(bytes.len());
        joined.extend_from_slice(&bytes[..first]);
        let tail_from = (len - back).saturating_sub(position).clamp(first, bytes.len());
        joined.extend_from_slice(&bytes[tail_from..]);
        position += bytes.len();
    }
    Ok(joined)
}

#[cfg(test)]
mod tests;

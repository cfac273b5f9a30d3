//! The log of a process, wherever its output is kept: in memory, or on disk by the keeper.
//!
//! The engine appends to a log and readers follow it with a cursor; neither has to know where it is. Start at
//! [`ProcessLog`].

mod block;
mod ends;
mod kept;
mod mirror;
mod stored;
mod synced;
mod view;

use std::{collections::TryReserveError, io};

use remex_proto::{
    process::Produced,
    state::output_log::{Cursor, Gap, Hold, Next, OutputLog, Seq, Snapshot, Stream},
};

use crate::keeper_link::message::ExitRecord;
pub(crate) use block::Block;
pub(crate) use kept::{KeptLog, LogRecord};
pub(crate) use mirror::{Loaded, Mirror};
pub(crate) use stored::{NoSnapshot, StoredLog};
pub(crate) use synced::{SyncJob, SyncStep};

/// The log of one process.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "most logs are in memory, and each read would follow one more pointer"
)]
pub(crate) enum ProcessLog {
    /// In memory.
    Memory(OutputLog),
    /// On disk, written by the keeper: what the server knows of it.
    Mirror(Box<Mirror>),
    /// On disk, in the keeper itself, which only writes.
    Kept(Box<KeptLog>),
}

/// Why a reader does not get the next item.
#[derive(Debug)]
pub(crate) enum Unread {
    /// It is only on disk, and has to be loaded first.
    OnDisk,
    /// The files cannot be read, for a reason that may pass.
    Failed(io::Error),
}

impl From<io::Error> for Unread {
    fn from(error: io::Error) -> Self {
        Unread::Failed(error)
    }
}

/// What can be read with a cursor: a log in memory, or the files of one.
pub(crate) trait LogReader {
    /// Returns the next item and advances `cursor`, or `None` at the end. After an error, `cursor` is where it was.
    fn next(&mut self, cursor: &mut Cursor) -> Result<Option<Next<'_>>, Unread>;

    /// Returns the length of the output at `cursor`, 0 for exit and close, `None` at the end or a gap.
    fn peek_len(&mut self, cursor: &Cursor) -> Result<Option<usize>, Unread>;

    /// Returns the cursor of a reader that has seen everything up to `seq`.
    fn cursor_after(&mut self, seq: Seq) -> Result<Cursor, Unread>;

    /// Returns the retained bytes after `cursor`.
    fn behind(&self, cursor: &Cursor) -> u64;

    fn next_seq(&self) -> Seq;

    fn first_seq(&self) -> Seq;
}

impl LogReader for ProcessLog {
    fn next(&mut self, cursor: &mut Cursor) -> Result<Option<Next<'_>>, Unread> {
        ProcessLog::next(self, cursor)
    }

    fn peek_len(&mut self, cursor: &Cursor) -> Result<Option<usize>, Unread> {
        Ok(ProcessLog::peek_len(self, cursor))
    }

    fn cursor_after(&mut self, seq: Seq) -> Result<Cursor, Unread> {
        Ok(ProcessLog::cursor_after(self, seq))
    }

    fn behind(&self, cursor: &Cursor) -> u64 {
        ProcessLog::behind(self, cursor)
    }

    fn next_seq(&self) -> Seq {
        ProcessLog::next_seq(self)
    }

    fn first_seq(&self) -> Seq {
        ProcessLog::first_seq(self)
    }
}

impl ProcessLog {
    /// Returns how many bytes may be appended now; 0 means that the process must wait.
    pub(crate) fn room(&mut self, hold: Hold, budget: usize) -> usize {
        match self {
            Self::Memory(log) => log.room(hold, budget),
            Self::Mirror(_) => 0,
            Self::Kept(log) => log.room(hold),
        }
    }

    /// Returns how many bytes of the rest of the output may be appended to a full log; nothing is evicted for them.
    pub(crate) fn room_for_rest(&mut self, hold: Hold) -> usize {
        match self {
            // An append takes a chunk at most.
            Self::Memory(_) => usize::MAX,
            Self::Mirror(_) => 0,
            Self::Kept(log) => log.room_for_rest(hold),
        }
    }

    /// Appends up to `max` bytes of `stream` that `fill` writes into the slice it is given.
    pub(crate) fn append<E>(
        &mut self,
        stream: Stream,
        now_ms: u64,
        max: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        match self {
            Self::Memory(log) => log.append(stream, now_ms, max, fill),
            Self::Mirror(_) => Ok(0),
            Self::Kept(log) => log.append(stream, now_ms, max, fill),
        }
    }

    /// Returns whether output joins the newest event until that is read; otherwise each append is an event.
    pub(crate) fn joins_events(&self) -> bool {
        matches!(self, Self::Memory(_))
    }

    /// Evicts the oldest events that `hold` does not protect until the log is within its limits.
    pub(crate) fn evict(&mut self, hold: Hold, budget: usize) {
        match self {
            Self::Memory(log) => log.evict(hold, budget),
            Self::Mirror(_) => {}
            Self::Kept(log) => log.evict(hold),
        }
    }

    /// Frees memory: evicts what `hold` does not protect, unless it is on disk as well.
    pub(crate) fn give_up(&mut self, hold: Hold) {
        match self {
            Self::Memory(log) => log.give_up(hold),
            Self::Mirror(mirror) => mirror.free_memory(),
            Self::Kept(_) => {}
        }
    }

    /// Records that the direct child has ended.
    pub(crate) fn push_exited(&mut self, now_ms: u64, exit: &ExitRecord) {
        match self {
            Self::Memory(log) => _ = log.push_exited(now_ms),
            Self::Mirror(_) => {}
            Self::Kept(log) => log.push_exited(now_ms, exit),
        }
    }

    /// Records that no more events will follow.
    pub(crate) fn push_closed(&mut self, now_ms: u64) {
        match self {
            Self::Memory(log) => _ = log.push_closed(now_ms),
            Self::Mirror(_) => {}
            Self::Kept(log) => log.push_closed(now_ms),
        }
    }

    /// Writes what a full disk has refused, and returns whether everything is written.
    pub(crate) fn settle(&mut self) -> bool {
        match self {
            Self::Memory(_) | Self::Mirror(_) => true,
            Self::Kept(log) => log.writer().flush().is_ok(),
        }
    }

    /// Returns the next item and advances `cursor`, or `None` at the end.
    ///
    /// # Errors
    ///
    /// If it is only on disk: this never reads files, because the log is locked.
    pub(crate) fn next(&mut self, cursor: &mut Cursor) -> Result<Option<Next<'_>>, Unread> {
        match self {
            Self::Memory(log) => Ok(log.next(cursor)),
            Self::Mirror(mirror) => mirror.next(cursor),
            Self::Kept(_) => Ok(None),
        }
    }

    /// Returns the length of the output at `cursor`, 0 for exit and close, `None` at the end or a gap, or if it is only
    /// on disk.
    pub(crate) fn peek_len(&self, cursor: &Cursor) -> Option<usize> {
        match self {
            Self::Memory(log) => log.peek_len(cursor),
            Self::Mirror(mirror) => mirror.peek_len(cursor),
            Self::Kept(_) => None,
        }
    }

    /// Returns the retained bytes after `cursor`.
    pub(crate) fn behind(&self, cursor: &Cursor) -> u64 {
        match self {
            Self::Memory(log) => log.behind(cursor),
            Self::Mirror(mirror) => mirror.behind(cursor),
            Self::Kept(_) => 0,
        }
    }

    /// Returns whether `cursor` has something to read.
    pub(crate) fn has_next(&self, cursor: &Cursor) -> bool {
        match self {
            Self::Memory(log) => log.has_next(cursor),
            Self::Mirror(_) | Self::Kept(_) => cursor.seq < self.next_seq() - 1,
        }
    }

    /// Returns the missing events right after `cursor`, as far as they are known without reading.
    pub(crate) fn gap(&self, cursor: &Cursor) -> Option<Gap> {
        match self {
            Self::Memory(log) => log.gap(cursor),
            Self::Mirror(mirror) => mirror.gap(cursor),
            Self::Kept(_) => None,
        }
    }

    /// Returns the cursor of a reader that has seen everything up to `seq`; without its offset if that is only on disk.
    pub(crate) fn cursor_after(&mut self, seq: Seq) -> Cursor {
        match self {
            Self::Memory(log) => log.cursor_after(seq),
            Self::Mirror(mirror) => mirror.cursor_after(seq),
            Self::Kept(_) => Cursor { seq, offset: None },
        }
    }

    /// Returns the cursor after the newest event.
    pub(crate) fn newest(&mut self) -> Cursor {
        match self {
            Self::Memory(log) => log.newest(),
            Self::Mirror(_) | Self::Kept(_) => self.cursor_after(self.next_seq() - 1),
        }
    }

    /// Returns head and tail of everything produced, at most `max_bytes` of it; nothing of a log on disk, which a
    /// [`StoredLog`] reads.
    ///
    /// # Errors
    ///
    /// If memory cannot be allocated.
    pub(crate) fn snapshot(&self, max_bytes: usize) -> Result<Snapshot, TryReserveError> {
        match self {
            Self::Memory(log) => log.snapshot(max_bytes),
            Self::Mirror(_) | Self::Kept(_) => Ok(Snapshot::default()),
        }
    }

    /// Returns the number of the next event.
    pub(crate) fn next_seq(&self) -> Seq {
        match self {
            Self::Memory(log) => log.next_seq(),
            Self::Mirror(mirror) => mirror.next_seq(),
            Self::Kept(log) => log.next_seq(),
        }
    }

    /// Returns the number of the oldest retained event, or of the next one.
    pub(crate) fn first_seq(&self) -> Seq {
        match self {
            Self::Memory(log) => log.first_seq(),
            Self::Mirror(mirror) => mirror.first_seq(),
            Self::Kept(log) => log.first_seq(),
        }
    }

    /// Returns the number of the exit, once it is recorded.
    pub(crate) fn exited(&self) -> Option<Seq> {
        match self {
            Self::Memory(log) => log.exited(),
            Self::Mirror(mirror) => mirror.exited(),
            Self::Kept(log) => log.exited(),
        }
    }

    /// Returns whether the close is recorded.
    pub(crate) fn is_closed(&self) -> bool {
        match self {
            Self::Memory(log) => log.is_closed(),
            Self::Mirror(mirror) => mirror.is_closed(),
            Self::Kept(log) => log.is_closed(),
        }
    }

    /// Returns the bytes produced so far, by stream.
    pub(crate) fn produced(&self) -> Produced {
        match self {
            Self::Memory(log) => log.produced(),
            Self::Mirror(mirror) => mirror.produced(),
            Self::Kept(log) => log.produced(),
        }
    }

    /// Returns the newest event whose output ends at or before `offset`, or 0 if none is retained.
    pub(crate) fn seq_ending_by(&self, offset: u64) -> Seq {
        match self {
            Self::Memory(log) => log.seq_ending_by(offset),
            Self::Mirror(mirror) => mirror.seq_ending_by(offset),
            Self::Kept(_) => 0,
        }
    }

    /// Remembers where an event ends that a reader was given, if the log does not know that itself when it is evicted.
    pub(crate) fn note_end(&mut self, seq: Seq, end: u64) {
        if let Self::Mirror(mirror) = self {
            mirror.learn_ends([(seq, end)].into_iter());
        }
    }

    /// Returns the bytes of output before the oldest retained event.
    pub(crate) fn first_offset(&self) -> u64 {
        match self {
            Self::Memory(log) => log.evicted_bytes(),
            Self::Mirror(mirror) => mirror.first_offset(),
            Self::Kept(_) => 0,
        }
    }

    /// Returns the newest retained event before the first one at or after `at_ms`; of a log in memory only.
    pub(crate) fn seq_before(&self, at_ms: u64) -> Seq {
        match self {
            Self::Memory(log) => log.seq_before(at_ms),
            Self::Mirror(_) | Self::Kept(_) => 0,
        }
    }

    /// Returns the number of evicted bytes.
    pub(crate) fn evicted_bytes(&self) -> u64 {
        match self {
            Self::Memory(log) => log.evicted_bytes(),
            Self::Mirror(mirror) => mirror.evicted_bytes(),
            Self::Kept(log) => log.evicted_bytes(),
        }
    }

    /// Returns the bytes that can be read, in memory or on disk.
    pub(crate) fn held_bytes(&self) -> u64 {
        match self {
            Self::Memory(log) => log.held_bytes() as u64,
            Self::Mirror(mirror) => mirror.held_bytes(),
            Self::Kept(log) => log.held_bytes(),
        }
    }

    /// Returns the memory that output and its index need.
    pub(crate) fn footprint(&self) -> usize {
        match self {
            Self::Memory(log) => log.footprint(),
            Self::Mirror(_) | Self::Kept(_) => self.memory(),
        }
    }

    /// Returns the bytes of memory allocated.
    pub(crate) fn memory(&self) -> usize {
        match self {
            Self::Memory(log) => log.memory(),
            Self::Mirror(mirror) => mirror.memory(),
            Self::Kept(log) => log.memory(),
        }
    }

    /// Returns the bytes produced so far on all streams.
    pub(crate) fn total(&self) -> u64 {
        self.produced().total()
    }
}

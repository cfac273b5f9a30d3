//! The log of a process, wherever its output is kept: in memory, or on disk by the keeper.
//!
//! The task of a process appends with a [`LogWriter`], in memory or to disk. Followers, reads, waits and seeks have a
//! cursor and a [`LogReader`], which may not be able to read. Start at [`ServerLog`].

mod block;
mod disk_view;
mod disk_writer;
mod ends;
mod memory;
mod stored;
mod synced;
mod view;

use std::{collections::TryReserveError, io};

use remex_proto::{
    process::{Produced, SeekTo, Sought},
    state::{
        output::{Cursor, Gap, Hold, Point, Seq, Stream},
        output_log::{Next, Snapshot},
    },
};

use crate::state::keeper_link::message::ExitRecord;
pub use block::Block;
pub(crate) use disk_view::{DiskLogView, Loaded};
pub(crate) use disk_writer::{DiskLogWriter, LogRecord};
pub(crate) use stored::StoredLog;
pub(crate) use synced::{SyncJob, SyncStep};

/// Why a reader does not get the next item.
#[derive(Debug)]
pub enum Unread {
    /// It is only on disk, and has to be loaded first.
    OnDisk,
    /// The files cannot be read, for a reason that may pass.
    Failed(io::Error),
    /// The host has no memory for it.
    NoMemory,
}

impl From<io::Error> for Unread {
    fn from(error: io::Error) -> Self {
        Unread::Failed(error)
    }
}

impl From<TryReserveError> for Unread {
    fn from(_: TryReserveError) -> Self {
        Unread::NoMemory
    }
}

/// The extent of a log, known without reading it.
pub trait LogState {
    /// Returns the number of the next event.
    fn next_seq(&self) -> Seq;

    /// Returns the number of the oldest retained event, or of the next one.
    fn first_seq(&self) -> Seq;

    /// Returns the number of the exit, once it is recorded.
    fn exited(&self) -> Option<Seq>;

    /// Returns whether the close is recorded.
    fn is_closed(&self) -> bool;

    /// Returns the bytes produced so far, by stream.
    fn produced(&self) -> Produced;

    /// Returns the bytes produced so far on all streams.
    fn total(&self) -> u64 {
        self.produced().total()
    }

    /// Returns the number of evicted bytes.
    fn evicted_bytes(&self) -> u64;

    /// Returns the bytes that can be read, in memory or on disk.
    fn held_bytes(&self) -> u64;
}

/// What can be read with a cursor: a log in memory, one on disk as far as it is in memory, or the files of one.
pub trait LogReader: LogState {
    /// Returns the next item and advances `cursor`, or `None` at the end. After an error, `cursor` is where it was.
    fn next(&mut self, cursor: &mut Cursor) -> Result<Option<Next<'_>>, Unread>;

    /// Returns the length of the output at `cursor`, 0 for exit and close, `None` at the end or a gap.
    fn peek_len(&mut self, cursor: &Cursor) -> Result<Option<usize>, Unread>;

    /// Finds a position in the output.
    fn seek(&mut self, to: SeekTo) -> Result<Sought, Unread>;

    /// Returns the cursor of a reader that has seen everything up to `seq`; without its offset if that has to be read.
    fn cursor_after(&mut self, seq: Seq) -> Cursor;

    /// Returns the retained bytes after `cursor`.
    fn behind(&self, cursor: &Cursor) -> u64;

    /// Returns the missing events right after `cursor`, as far as they are known without reading.
    fn gap(&self, cursor: &Cursor) -> Option<Gap>;

    /// Returns whether `cursor` has something to read.
    fn has_next(&self, cursor: &Cursor) -> bool {
        cursor.seq < self.next_seq() - 1
    }

    /// Returns the cursor after the newest event.
    fn newest(&mut self) -> Cursor {
        self.cursor_after(self.next_seq() - 1)
    }
}

/// The log to which the task of a process appends output and its end.
pub trait LogWriter: LogState {
    /// Returns how many bytes may be appended now; 0 means that the process must wait.
    fn room(&mut self, hold: Hold, budget: usize) -> usize;

    /// Returns how many bytes of the rest of the output may be appended to a full log; nothing is evicted for them.
    fn room_for_rest(&mut self, hold: Hold) -> usize;

    /// Appends up to `max` bytes of `stream` that `fill` writes into the slice it is given.
    fn append(&mut self, stream: Stream, now_ms: u64, max: usize, fill: Fill<'_>) -> io::Result<usize>;

    /// Returns whether output joins the newest event until that is read; otherwise each append is an event.
    fn joins_events(&self) -> bool;

    /// Evicts the oldest events that `hold` does not protect until the log is within its limits.
    fn evict(&mut self, hold: Hold, budget: usize);

    /// Learns how the process ended, before that is in the log.
    fn note_exit(&mut self, exit: ExitRecord);

    /// Records that the direct child has ended.
    fn push_exited(&mut self, now_ms: u64, exit: &ExitRecord);

    /// Records that no more events will follow.
    fn push_closed(&mut self, now_ms: u64);

    /// Writes what a full disk has refused, and returns whether everything is written.
    fn settle(&mut self) -> bool;

    /// Returns whether the space that logs share is used up.
    fn lacks_space(&self) -> bool;
}

/// Writes output into a slice, and returns how much.
pub(crate) type Fill<'a> = &'a mut dyn FnMut(&mut [u8]) -> io::Result<usize>;

/// The log of a process, wherever that runs.
pub trait ProcessLog: LogState + std::fmt::Debug + Send + 'static {
    /// Returns the bytes of memory allocated.
    fn memory(&self) -> usize;

    /// Returns the memory that output and its index need.
    fn footprint(&self) -> usize {
        self.memory()
    }
}

/// A log in a server, for its readers: in memory, or on disk, written by the keeper.
pub trait ServerLog: LogReader + ProcessLog {
    /// Returns what the server knows of a log on disk.
    fn disk(&mut self) -> Option<&mut DiskLogView>;

    /// Returns the files of a log on disk.
    fn stored(&self) -> Option<StoredLog>;

    /// Returns head and tail of everything produced, at most `max_bytes` of it.
    fn snapshot(&self, max_bytes: usize) -> Result<Snapshot, Unread>;

    /// Returns why what was announced may not survive a power failure, if that was promised.
    fn sync_failure(&self) -> Option<&String>;

    /// Returns the length of the output at `cursor`, 0 for exit and close, `None` at the end or a gap, or if it has to be
    /// read.
    fn known_len(&self, cursor: &Cursor) -> Option<usize>;

    /// Returns the newest event whose output ends at or before `offset`, or 0 if none is retained.
    fn seq_ending_by(&self, offset: u64) -> Seq;

    /// Returns whether there is output, or a gap, after event `seq`.
    fn has_output_after(&mut self, seq: Seq) -> bool;

    /// Remembers where an event ends that a reader was given, if the log does not know that itself when it is evicted.
    fn note_end(&mut self, end: Point);

    /// Returns the bytes of output before the oldest retained event.
    fn first_offset(&self) -> u64;

    /// Frees memory: evicts what `hold` does not protect, unless it is on disk as well.
    fn give_up(&mut self, hold: Hold);

    /// Frees what readers have taken.
    fn release(&mut self);
}

//! A log in memory, which is written and read in one process.

use std::io;

use remex_proto::{
    process::{Produced, SeekTo, Sought},
    state::{
        output::{Cursor, Gap, Hold, Point, Seq, Stream},
        output_log::{Next, OutputLog, Snapshot},
    },
};

use super::{DiskLogView, Fill, LogReader, LogState, LogWriter, ProcessLog, ServerLog, StoredLog, Unread};
use crate::state::keeper_link::message::ExitRecord;

impl LogState for OutputLog {
    fn next_seq(&self) -> Seq {
        self.next_seq()
    }

    fn first_seq(&self) -> Seq {
        self.first_seq()
    }

    fn exited(&self) -> Option<Seq> {
        self.exited()
    }

    fn is_closed(&self) -> bool {
        self.is_closed()
    }

    fn produced(&self) -> Produced {
        self.produced()
    }

    fn evicted_bytes(&self) -> u64 {
        self.evicted_bytes()
    }

    fn held_bytes(&self) -> u64 {
        self.held_bytes() as u64
    }
}

impl LogReader for OutputLog {
    fn next(&mut self, cursor: &mut Cursor) -> Result<Option<Next<'_>>, Unread> {
        Ok(self.next(cursor))
    }

    fn peek_len(&mut self, cursor: &Cursor) -> Result<Option<usize>, Unread> {
        Ok(OutputLog::peek_len(self, cursor))
    }

    fn seek(&mut self, to: SeekTo) -> Result<Sought, Unread> {
        let (newest_seq, produced_bytes) = (self.next_seq() - 1, self.total());
        let (oldest, oldest_offset) = (self.first_seq() - 1, self.evicted_bytes());
        let (after_seq, is_evicted) = match to {
            SeekTo::AtMs(at_ms) => {
                let seq = self.seq_before(at_ms);
                (seq, seq <= oldest)
            }
            SeekTo::Offset(offset) => (self.seq_ending_by(offset), offset < oldest_offset),
            SeekTo::TailBytes(bytes) => {
                let offset = produced_bytes.saturating_sub(bytes);
                (self.seq_ending_by(offset), offset < oldest_offset)
            }
        };
        if is_evicted {
            return Ok(Sought { after_seq: 0, offset: Some(0), newest_seq, produced_bytes });
        }
        Ok(Sought { after_seq, offset: self.cursor_after(after_seq).offset, newest_seq, produced_bytes })
    }

    fn cursor_after(&mut self, seq: Seq) -> Cursor {
        self.cursor_after(seq)
    }

    fn behind(&self, cursor: &Cursor) -> u64 {
        self.behind(cursor)
    }

    fn gap(&self, cursor: &Cursor) -> Option<Gap> {
        self.gap(cursor)
    }
}

impl LogWriter for OutputLog {
    fn room(&mut self, hold: Hold, budget: usize) -> usize {
        OutputLog::room(self, hold, budget)
    }

    fn room_for_rest(&mut self, _hold: Hold) -> usize {
        // An append takes a chunk at most.
        usize::MAX
    }

    fn append(&mut self, stream: Stream, now_ms: u64, max: usize, fill: Fill<'_>) -> io::Result<usize> {
        self.append(stream, now_ms, max, fill)
    }

    fn joins_events(&self) -> bool {
        true
    }

    fn evict(&mut self, hold: Hold, budget: usize) {
        self.evict(hold, budget);
    }

    fn note_exit(&mut self, _exit: ExitRecord) {}

    fn push_exited(&mut self, now_ms: u64, _exit: &ExitRecord) {
        self.push_exited(now_ms);
    }

    fn push_closed(&mut self, now_ms: u64) {
        self.push_closed(now_ms);
    }

    fn settle(&mut self) -> bool {
        true
    }

    fn lacks_space(&self) -> bool {
        false
    }
}

impl ProcessLog for OutputLog {
    fn memory(&self) -> usize {
        self.memory()
    }

    fn footprint(&self) -> usize {
        self.footprint()
    }
}

impl ServerLog for OutputLog {
    fn disk(&mut self) -> Option<&mut DiskLogView> {
        None
    }

    fn stored(&self) -> Option<StoredLog> {
        None
    }

    fn snapshot(&self, max_bytes: usize) -> Result<Snapshot, Unread> {
        Ok(self.snapshot(max_bytes)?)
    }

    fn sync_failure(&self) -> Option<&String> {
        None
    }

    fn known_len(&self, cursor: &Cursor) -> Option<usize> {
        self.peek_len(cursor)
    }

    fn seq_ending_by(&self, offset: u64) -> Seq {
        self.seq_ending_by(offset)
    }

    fn has_output_after(&mut self, seq: Seq) -> bool {
        let mut cursor = self.cursor_after(seq);
        loop {
            if self.gap(&cursor).is_some() || OutputLog::peek_len(self, &cursor).is_some_and(|len| len > 0) {
                return true;
            }
            if self.next(&mut cursor).is_none() {
                return false;
            }
        }
    }

    fn note_end(&mut self, _end: Point) {}

    fn first_offset(&self) -> u64 {
        self.evicted_bytes()
    }

    fn give_up(&mut self, hold: Hold) {
        self.give_up(hold);
    }

    fn release(&mut self) {}
}

//! The extent of a log on disk, known without reading it. Start at [`View`].

use remex_proto::{
    process::Produced,
    state::output_log::{Cursor, Gap, Next, Seq},
};

use super::LogState;
use crate::state::keeper_link::message::{ExitRecord, Progress};

/// Where a log on disk stands: what it still has, its newest event, its exit and close.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(super) known: Progress,
}

impl View {
    pub(crate) fn newest(&self) -> Seq {
        self.known.newest
    }

    /// Returns the bytes of output up to the newest event.
    pub(crate) fn total(&self) -> u64 {
        self.known.produced.total()
    }

    /// Returns the item after `cursor` and advances that, unless it is output: then it has to be read.
    pub(super) fn next(&self, cursor: &mut Cursor) -> Option<Option<Next<'static>>> {
        if cursor.seq >= self.known.newest {
            return Some(None);
        }
        if let Some(gap) = self.gap(cursor) {
            *cursor = Cursor { seq: gap.to_seq, offset: Some(self.known.first_offset) };
            return Some(Some(Next::Gap(gap)));
        }
        let end = self.end_event(cursor.seq + 1)?;
        cursor.seq += 1;
        Some(Some(end))
    }

    pub(super) fn behind(&self, cursor: &Cursor) -> u64 {
        let seen = cursor.offset.unwrap_or(0).max(self.known.first_offset);
        self.total().saturating_sub(seen)
    }

    pub(super) fn gap(&self, cursor: &Cursor) -> Option<Gap> {
        let from_seq = cursor.seq.checked_add(1)?;
        (from_seq < self.known.first_seq).then(|| Gap {
            from_seq,
            to_seq: self.known.first_seq - 1,
            bytes: cursor.offset.map(|offset| self.known.first_offset.saturating_sub(offset)),
            cause: None,
        })
    }

    /// Returns the bytes of output up to event `seq`, if that follows from where the log stands.
    pub(super) fn offset_after(&self, seq: Seq) -> Option<u64> {
        let Progress { first_seq, first_offset, .. } = self.known;
        if seq == 0 {
            Some(0)
        } else if seq >= self.last_output() {
            Some(self.total())
        } else {
            (seq + 1 == first_seq).then_some(first_offset)
        }
    }

    /// Returns the newest event that is neither the exit nor the close.
    pub(super) fn last_output(&self) -> Seq {
        let last = self.known.newest - u64::from(self.known.is_closed);
        last - u64::from(self.known.exited == Some(last))
    }

    /// Returns the exit or the close with this number.
    pub(super) fn end_event(&self, seq: Seq) -> Option<Next<'static>> {
        if self.known.exited == Some(seq) {
            Some(Next::Exited(seq))
        } else if self.known.is_closed && seq == self.known.newest {
            Some(Next::Closed(seq))
        } else {
            None
        }
    }

    /// Returns whether there is output, or a gap, after event `seq`.
    pub(super) fn has_output_after(&self, seq: Seq) -> bool {
        let Progress { newest, exited, is_closed, .. } = self.known;
        let ends =
            u64::from(exited.is_some_and(|exited| exited > seq)) + u64::from(is_closed && newest > seq);
        newest.saturating_sub(seq) > ends
    }

    /// Returns the position after an exit and a close that are not on disk.
    pub(crate) fn closed_now(&self, exit: ExitRecord) -> Progress {
        let mut known = Progress { exit: Some(exit), is_full: false, ..self.known.clone() };
        if known.exited.is_none() {
            known.newest += 1;
            known.exited = Some(known.newest);
        }
        if !known.is_closed {
            known.newest += 1;
            known.is_closed = true;
        }
        known
    }
}

impl LogState for View {
    fn next_seq(&self) -> Seq {
        self.known.newest + 1
    }

    fn first_seq(&self) -> Seq {
        self.known.first_seq
    }

    fn exited(&self) -> Option<Seq> {
        self.known.exited
    }

    fn is_closed(&self) -> bool {
        self.known.is_closed
    }

    fn produced(&self) -> Produced {
        self.known.produced
    }

    fn evicted_bytes(&self) -> u64 {
        self.total().saturating_sub(self.known.retained)
    }

    fn held_bytes(&self) -> u64 {
        self.known.retained
    }
}

//! The output of one process on its server: finds where to begin and to end, and reads what lies between.
//!
//! Start at [`Source`].

use std::time::Duration;

use remex_client::process::{OutputBatch, ProcessRef, SeekTo};

use crate::{
    remote::{
        probe::is_unknown_method,
        processes::{READ_BYTES, READ_WAIT},
    },
    render::failure::Failure,
};

/// A position in the output: after this event, and so many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) seq: u64,
    /// `None` if it is not known.
    pub(super) offset: Option<u64>,
}

impl Position {
    pub(super) const START: Position = Position { seq: 0, offset: Some(0) };

    /// Returns whether nothing between the two is left to read.
    pub(super) fn has_reached(self, end: Position) -> bool {
        self.seq >= end.seq || self.offset.zip(end.offset).is_some_and(|(offset, end)| offset >= end)
    }

    /// Returns the position after a batch that was read here.
    pub(super) fn after(self, batch: &OutputBatch) -> Self {
        let missing = batch.gap.as_ref().map_or(Some(0), |gap| gap.bytes);
        let read = batch.chunks.iter().map(|chunk| chunk.bytes.len() as u64).sum::<u64>();
        let offset = self.offset.zip(missing).map(|(offset, missing)| offset + missing + read);
        Position { seq: batch.last_seq, offset }
    }
}

/// The output of one process.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) process: ProcessRef,
}

impl Source {
    /// Returns the position of the newest event.
    pub(super) async fn newest(&self) -> Result<Position, Failure> {
        match self.seek(SeekTo::TailBytes(0)).await? {
            Some(newest) => Ok(newest),
            None => Ok(Position { seq: self.process.cursor_before_newest(0).await?, offset: None }),
        }
    }

    /// Returns the position before the first output at or after a time.
    pub(super) async fn since(&self, at_ms: u64) -> Result<Position, Failure> {
        Ok(self.seek(SeekTo::AtMs(at_ms)).await?.unwrap_or(Position::START))
    }

    /// Returns the position after the first output later than a time, but not after `newest`.
    ///
    /// What is missing before that output may be older than the time, so it has to be read.
    pub(super) async fn until(&self, at_ms: u64, newest: Position) -> Result<Position, Failure> {
        let found = self.seek(SeekTo::AtMs(at_ms.saturating_add(1))).await?;
        let later = found.filter(|found| found.seq < newest.seq);
        Ok(later.map_or(newest, |Position { seq, offset }| Position {
            seq: seq + 1,
            offset: offset.map(|offset| offset + 1),
        }))
    }

    /// Returns the position before the byte at `offset`; the very first one if the server cannot tell.
    pub(super) async fn at(&self, offset: u64) -> Result<Position, Failure> {
        Ok(self.seek(SeekTo::Offset(offset)).await?.unwrap_or(Position::START))
    }

    /// Returns a position, or `None` if the server cannot find any.
    async fn seek(&self, to: SeekTo) -> Result<Option<Position>, Failure> {
        match self.process.seek(to).await {
            Ok(found) => Ok(Some(Position { seq: found.after_seq, offset: found.offset })),
            Err(error) if is_unknown_method(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads from `from`, not much farther than to `end`.
    pub(super) async fn read_to(&self, from: Position, end: Position) -> Result<OutputBatch, Failure> {
        let left = end.offset.zip(from.offset).map(|(end, offset)| end.saturating_sub(offset));
        let max_bytes = left.unwrap_or(READ_BYTES).clamp(1, READ_BYTES);
        Ok(self.process.read(from.seq, max_bytes, Duration::ZERO).await?)
    }

    /// Reads from `from`, and waits a while for new output.
    pub(super) async fn read_on(&self, from: Position) -> Result<OutputBatch, Failure> {
        Ok(self.process.read(from.seq, READ_BYTES, READ_WAIT).await?)
    }
}

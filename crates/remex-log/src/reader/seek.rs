//! Finds cursors by number, offset, time and from the end. Start at [`Reader::cursor_after`].
//!
//! The names of segments lead to the right one; only that one is read.

use std::io;

use super::{Bookmark, Reader, RecordPosition};
use crate::base::{
    event::{Cursor, Seq},
    format::{HEAD_LEN, Kind, RecordHeader},
    names::SegmentName,
    scanner::{Found, Opened, lasting},
};

/// Space for the headers of records when the tail is looked for from the end of a segment.
const TAIL_SLACK: u64 = 64 << 10;

/// The outcome of going through a segment.
#[derive(Clone, Copy, Debug)]
enum Walk {
    /// Before the event that was looked for.
    Found(Bookmark),
    /// After the last event of the segment, or at its start if it cannot be read.
    End(Bookmark),
}

impl Reader {
    /// Returns the cursor before the first event that was not evicted when the directory was last listed.
    pub fn oldest(&self) -> Cursor {
        self.names
            .first()
            .map_or(Cursor::START, |name| Cursor { seq: name.first_seq - 1, offset: Some(name.first_offset) })
    }

    /// Returns the cursor of a reader that has seen everything up to `seq`.
    ///
    /// # Errors
    ///
    /// As for [`Reader::next`].
    pub fn cursor_after(&mut self, seq: Seq) -> io::Result<Cursor> {
        let unknown = Cursor { seq, offset: (seq == 0).then_some(0) };
        self.refresh()?;
        let Some(next) = seq.checked_add(1) else { return Ok(unknown) };
        let Some(index) = self.segment_of(next) else { return Ok(unknown) };
        let (Walk::Found(found) | Walk::End(found)) = self.walk(index, None, |header, _| header.seq > seq)?;
        Ok(if found.seq() == seq { self.at(found) } else { unknown })
    }

    /// Returns the cursor before the first event that ends after `offset`.
    ///
    /// If that is evicted, the cursor is before the first event that is not.
    ///
    /// # Errors
    ///
    /// As for [`Reader::next`].
    pub fn cursor_at_offset(&mut self, offset: u64) -> io::Result<Cursor> {
        self.refresh()?;
        let found = self.walk_to_offset(offset)?;
        Ok(self.at(found))
    }

    /// Returns the cursor before the first event at or after `at_ms`.
    ///
    /// If the clock was set back in between, it is one of the events at which the clock passed that time.
    ///
    /// # Errors
    ///
    /// As for [`Reader::next`].
    pub fn cursor_since(&mut self, at_ms: u64) -> io::Result<Cursor> {
        self.refresh()?;
        let (mut low, mut high) = (0, self.names.len());
        while low < high {
            let middle = low.midpoint(high);
            if self.begins_before(middle, at_ms)? {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let found = self.walk_on(low.saturating_sub(1), |header, _| header.at_ms >= at_ms)?;
        Ok(self.at(found))
    }

    /// Returns a cursor that about the last `bytes` bytes of output follow.
    ///
    /// # Errors
    ///
    /// As for [`Reader::next`].
    pub fn tail(&mut self, bytes: u64) -> io::Result<Cursor> {
        self.refresh()?;
        let Some(last) = self.names.len().checked_sub(1) else { return Ok(Cursor::START) };
        let start = self.position_before_end(last, bytes)?;
        let mut first = None;
        let (Walk::Found(end) | Walk::End(end)) = self.walk(last, start, |header, _| {
            first.get_or_insert(header.offset);
            false
        })?;
        let from = end.cursor.offset.unwrap_or(self.names[last].first_offset).saturating_sub(bytes);
        if start.is_some()
            && first.is_some_and(|first| first <= from)
            && let Walk::Found(found) = self.walk(last, start, |_, end| end > from)?
        {
            return Ok(self.at(found));
        }
        let found = self.walk_to_offset(from)?;
        Ok(self.at(found))
    }

    /// Returns the cursor of a bookmark, and makes that the reader's position.
    fn at(&mut self, found: Bookmark) -> Cursor {
        self.last = Some(found);
        found.cursor
    }

    /// Discards buffered data that may be outdated.
    fn refresh(&mut self) -> io::Result<()> {
        // The end of the buffer may have been read in the middle of a write.
        self.scanner.forget();
        self.list().map(|_| ())
    }

    fn walk_to_offset(&mut self, offset: u64) -> io::Result<Bookmark> {
        let index = self.names.partition_point(|name| name.first_offset <= offset).saturating_sub(1);
        self.walk_on(index, |_, end| end > offset)
    }

    /// Goes through the segments from `index` on to the first event that `is_it` accepts.
    fn walk_on(&mut self, index: usize, is_it: impl Fn(&RecordHeader, u64) -> bool) -> io::Result<Bookmark> {
        let mut last = Bookmark::START;
        for index in index..self.names.len() {
            match self.walk(index, None, &is_it)? {
                Walk::Found(found) => return Ok(found),
                Walk::End(end) => last = end,
            }
        }
        Ok(last)
    }

    /// Returns whether the first event of a segment is before `at_ms`; no event is not.
    fn begins_before(&mut self, index: usize, at_ms: u64) -> io::Result<bool> {
        let mut first = None;
        self.walk(index, None, |header, _| {
            first = Some(header.at_ms);
            true
        })?;
        Ok(first.is_some_and(|first| first < at_ms))
    }

    /// Goes through a segment to the first event that `is_it`, given its header and the offset after it, accepts.
    fn walk(
        &mut self,
        index: usize,
        start: Option<RecordPosition>,
        is_it: impl FnMut(&RecordHeader, u64) -> bool,
    ) -> io::Result<Walk> {
        let name = self.names[index];
        let cursor = Cursor { seq: name.first_seq - 1, offset: Some(name.first_offset) };
        let mut found = Bookmark { cursor, position: None };
        let walked = match self.scanner.open(&self.dir, name)? {
            Opened::Unreadable(_) => return Ok(Walk::End(found)),
            Opened::Ready(header) => {
                let at = start.map_or(HEAD_LEN as u64, |position| position.at);
                found.position = Some(RecordPosition { salt: header.salt, at });
                self.walk_from(&mut found, at, is_it)
            }
        };
        match walked {
            Err(error) if lasting(&error).is_none() => Err(error),
            Ok(true) => Ok(Walk::Found(found)),
            Ok(false) | Err(_) => Ok(Walk::End(found)),
        }
    }

    fn walk_from(
        &mut self,
        found: &mut Bookmark,
        mut at: u64,
        mut is_it: impl FnMut(&RecordHeader, u64) -> bool,
    ) -> io::Result<bool> {
        loop {
            let header = match self.scanner.look(at, 0)? {
                Found::Record(header) => header,
                Found::End => return Ok(false),
                Found::Damage => match self.scanner.resync(at + 8, &(found.seq() + 1..=Seq::MAX - 1), 0)? {
                    Some(next) => {
                        at = next;
                        continue;
                    }
                    None => return Ok(false),
                },
            };
            let after = at.saturating_add(header.size());
            if let Some(last) = header.last_seq().filter(|last| *last > found.seq() && *last < Seq::MAX) {
                let end = match header.kind {
                    Kind::Output(_) => header.offset.saturating_add(u64::from(header.len)),
                    Kind::Gap => {
                        let dropped = self.scanner.dropped(at, &header, 0)?;
                        header.offset.saturating_add(dropped.map_or(0, |dropped| dropped.bytes.total()))
                    }
                    _ => header.offset,
                };
                if is_it(&header, end) {
                    let seq = header.seq.max(found.seq() + 1) - 1;
                    found.advance(seq, header.offset, at);
                    return Ok(true);
                }
                found.advance(last, end, after);
            }
            at = after;
        }
    }

    /// Returns the first record in the last part of a segment, which has at least the last `bytes` bytes of output
    /// unless its records are small; `None` if that is the whole segment.
    fn position_before_end(&mut self, index: usize, bytes: u64) -> io::Result<Option<RecordPosition>> {
        let name = self.names[index];
        let Opened::Ready(header) = self.scanner.open(&self.dir, name)? else { return Ok(None) };
        let part = bytes.saturating_add(bytes / 8).saturating_add(TAIL_SLACK);
        let at = self.scanner.len()?.saturating_sub(part).next_multiple_of(8);
        if at <= HEAD_LEN as u64 {
            return Ok(None);
        }
        let SegmentName { first_seq, .. } = name;
        match self.scanner.resync(at, &(first_seq..=Seq::MAX - 1), 0) {
            Ok(found) => Ok(found.map(|at| RecordPosition { salt: header.salt, at })),
            Err(error) => lasting(&error).map(|_| None).ok_or(error),
        }
    }
}

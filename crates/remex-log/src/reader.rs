//! Reads a log while it is written, from this or another process. Start at [`Reader`].
//!
//! It uses `pread` and never a mapping: truncating a mapped file would kill the reader.

mod seek;

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::base::{
    event::{Cursor, Gap, GapCause, Item, Seq},
    format::{DroppedOutput, HEAD_LEN, Kind, RecordHeader},
    names::{self, SegmentName},
    scanner::{Found, Opened, Scanner, lasting},
};

/// How often one call lists the directory again because it has changed.
const MAX_ATTEMPTS: usize = 16;

/// A cursor and the position of the record after it, which saves a search.
#[derive(Clone, Copy, Debug)]
pub struct Bookmark {
    cursor: Cursor,
    position: Option<RecordPosition>,
}

/// Where the next record probably is; checked on use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RecordPosition {
    salt: u64,
    at: u64,
}

impl Bookmark {
    const START: Bookmark = Bookmark { cursor: Cursor::START, position: None };

    /// Returns the last event before it; 0 before the first.
    pub fn seq(&self) -> Seq {
        self.cursor.seq
    }

    /// Moves it within its segment.
    fn advance(&mut self, seq: Seq, offset: u64, at: u64) {
        self.cursor = Cursor { seq, offset: Some(offset) };
        self.position = self.position.map(|position| RecordPosition { at, ..position });
    }
}

/// Reads the log in one directory; any number of cursors can share it.
///
/// It continues at its last position. For a cursor at another event, it searches for the record, unless it gets a
/// [`Bookmark`].
/// It has one buffer of 192 KiB, allocated with the first read, and at most one open file.
#[derive(Debug)]
pub struct Reader {
    dir: PathBuf,
    /// The segments when the directory was last listed.
    names: Vec<SegmentName>,
    scanner: Scanner,
    /// Its last position.
    last: Option<Bookmark>,
}

/// The next step for a cursor.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The record of the event and its position in the open segment.
    Record { header: RecordHeader, at: u64 },
    /// Missing events, the offset after them, and the position in the open segment to continue at.
    Gap { gap: Gap, offset: Option<u64>, at: Option<u64> },
}

/// The outcome of looking for an event in a segment.
#[derive(Clone, Copy, Debug)]
enum Search {
    /// Its record.
    Record { header: RecordHeader, at: u64 },
    /// The record that says that it was dropped.
    Dropped { header: RecordHeader, at: u64, dropped: DroppedOutput },
    /// It is not there, but this later position is.
    Later { seq: Seq, offset: u64, at: u64, cause: GapCause },
    /// The segment has nothing from it on.
    Nothing(GapCause),
}

impl Reader {
    /// Opens the log in `dir`.
    ///
    /// # Errors
    ///
    /// If the directory cannot be listed.
    pub fn open(dir: impl Into<PathBuf>) -> io::Result<Reader> {
        let dir = dir.into();
        let names = names::list(&dir)?;
        Ok(Reader { dir, names, scanner: Scanner::default(), last: None })
    }

    /// Returns the directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns its last position.
    pub fn bookmark(&self) -> Option<Bookmark> {
        self.last
    }

    /// Continues at the position of another reader.
    pub fn resume(&mut self, bookmark: Option<Bookmark>) {
        self.last = bookmark;
    }

    /// Returns the next item and advances `cursor`, or `None` if it has seen event `up_to`.
    ///
    /// `up_to` is the newest event that is known to be written; nothing after it is read or reported, except that a gap
    /// of evicted events may end after it. What cannot be read is a gap: with exact numbers, and with exact bytes
    /// unless the damage reaches `up_to`.
    ///
    /// # Errors
    ///
    /// If the log has a newer format ([`crate::VersionError`]), if the directory cannot be listed, or for a reason that
    /// may pass, such as too many open files. The cursor stays where it is.
    pub fn next(&mut self, cursor: &mut Cursor, up_to: Seq) -> io::Result<Option<Item<'_>>> {
        if cursor.seq >= up_to {
            return Ok(None);
        }
        let position = self.last.filter(|last| last.seq() == cursor.seq).and_then(|last| last.position);
        match self.step(cursor, position, up_to)? {
            Step::Gap { gap, offset, at } => {
                self.advance(cursor, Cursor { seq: gap.to_seq, offset }, at);
                Ok(Some(Item::Gap(gap)))
            }
            Step::Record { header, at } => self.item(cursor, up_to, &header, at).map(Some),
        }
    }

    /// Moves `cursor`, after which the next record is at `at`.
    fn advance(&mut self, cursor: &mut Cursor, target: Cursor, at: Option<u64>) {
        let position = at.zip(self.scanner.salt()).map(|(at, salt)| RecordPosition { salt, at });
        *cursor = target;
        self.last = Some(Bookmark { cursor: target, position });
    }

    /// Returns the event of the record at `at`, or a gap if its payload is damaged.
    fn item(
        &mut self,
        cursor: &mut Cursor,
        up_to: Seq,
        header: &RecordHeader,
        at: u64,
    ) -> io::Result<Item<'_>> {
        let RecordHeader { kind, seq, at_ms, offset, .. } = *header;
        let is_whole = match self.scanner.load_payload(at, header, up_to) {
            Err(error) if lasting(&error).is_some() => false,
            loaded => loaded?,
        };
        let len = if matches!(kind, Kind::Output(_)) { u64::from(header.len) } else { 0 };
        let end = Cursor { seq, offset: offset.checked_add(len) };
        self.advance(cursor, end, Some(at.saturating_add(header.size())));
        let payload = self.scanner.payload(at, header);
        Ok(match kind {
            _ if !is_whole => {
                let is_short = payload.len() < header.len as usize;
                let cause = if is_short { GapCause::Missing } else { GapCause::Corrupted };
                Item::Gap(Gap { from_seq: seq, to_seq: seq, bytes: Some(len), cause })
            }
            Kind::Output(stream) => Item::Output { seq, stream, at_ms, offset, bytes: payload },
            Kind::Exited => Item::Exited { seq, at_ms, payload },
            _ => Item::Closed { seq, at_ms, payload },
        })
    }

    /// Finds the event after `cursor`, or what is missing there.
    fn step(
        &mut self,
        cursor: &Cursor,
        mut position: Option<RecordPosition>,
        up_to: Seq,
    ) -> io::Result<Step> {
        let want = cursor.seq + 1;
        let mut is_listed = false;
        for _ in 0..MAX_ATTEMPTS {
            let Some(index) = self.segment_of(want) else {
                // A listing during which the newest segment changes may have none.
                if is_listed && (!self.names.is_empty() || !self.list()?) {
                    break;
                }
                if !is_listed {
                    self.list()?;
                    is_listed = true;
                }
                continue;
            };
            let cause = match self.search(index, position, want, up_to)? {
                Search::Record { header, at } => return Ok(Step::Record { header, at }),
                Search::Dropped { header, at, dropped } => {
                    return Ok(dropped_gap(cursor, &header, at, &dropped));
                }
                Search::Later { seq, offset, at, cause } => {
                    return Ok(gap_until(
                        cursor,
                        SegmentName { first_seq: seq, first_offset: offset },
                        up_to,
                        cause,
                    )
                    .going_on_at(at));
                }
                Search::Nothing(cause) => cause,
            };
            // The event may be in a segment that did not exist when the directory was listed, or be evicted since.
            if self.list()? || self.scanner.is_replaced() {
                is_listed = true;
                self.scanner.close();
                continue;
            }
            // A recovery may have moved the end of the segment back.
            if position.take().is_some() {
                continue;
            }
            return Ok(self.gap_before(index + 1, cursor, up_to, cause));
        }
        let (index, cause) = match self.segment_of(want) {
            Some(index) => (index + 1, GapCause::Missing),
            None if self.names.is_empty() => (0, GapCause::Missing),
            None => (0, GapCause::Evicted),
        };
        Ok(self.gap_before(index, cursor, up_to, cause))
    }

    /// Looks for the event `want` in a segment.
    fn search(
        &mut self,
        index: usize,
        position: Option<RecordPosition>,
        want: Seq,
        up_to: Seq,
    ) -> io::Result<Search> {
        let header = match self.scanner.open(&self.dir, self.names[index])? {
            Opened::Ready(header) => header,
            Opened::Unreadable(cause) => return Ok(Search::Nothing(cause)),
        };
        let start = position
            .filter(|position| position.salt == header.salt)
            .map_or(HEAD_LEN as u64, |position| position.at);
        match self.search_from(start, want, up_to) {
            Err(error) => lasting(&error).map(Search::Nothing).ok_or(error),
            found => found,
        }
    }

    fn search_from(&mut self, mut at: u64, want: Seq, up_to: Seq) -> io::Result<Search> {
        let mut cause = GapCause::Missing;
        loop {
            let header = match self.scanner.look(at, up_to)? {
                Found::End => return Ok(Search::Nothing(cause)),
                Found::Record(header) => header,
                Found::Damage => {
                    cause = GapCause::Corrupted;
                    // A later event than the next one may be seen before those between, which are being written.
                    match self.scanner.resync(at + 8, &(want..=up_to.saturating_add(1)), up_to)? {
                        Some(found) => at = found,
                        None => return Ok(Search::Nothing(cause)),
                    }
                    continue;
                }
            };
            let last = header.last_seq();
            if header.seq > want {
                return Ok(Search::Later { seq: header.seq, offset: header.offset, at, cause });
            }
            if last.is_some_and(|last| last >= want) {
                match header.kind {
                    Kind::Unknown | Kind::Note(_) => {}
                    Kind::Gap => match self.scanner.dropped(at, &header, up_to)? {
                        Some(dropped) => return Ok(Search::Dropped { header, at, dropped }),
                        // The offset of the next record tells how many bytes are missing.
                        None => cause = GapCause::Corrupted,
                    },
                    Kind::Output(_) | Kind::Exited | Kind::Closed => {
                        return Ok(Search::Record { header, at });
                    }
                }
            }
            at = at.saturating_add(header.size());
        }
    }

    /// Returns the gap between `cursor` and the segment with this index, or `up_to` if there is none.
    fn gap_before(&self, index: usize, cursor: &Cursor, up_to: Seq, cause: GapCause) -> Step {
        match self.names.get(index) {
            // Segments are evicted only with finished events.
            Some(name) if cause == GapCause::Evicted => gap_until(cursor, *name, Seq::MAX, cause),
            Some(name) => gap_until(cursor, *name, up_to, cause),
            None => gap_to(cursor, up_to, cause),
        }
    }

    /// Returns the index of the segment that has event `seq` if any has it.
    fn segment_of(&self, seq: Seq) -> Option<usize> {
        self.names.partition_point(|name| name.first_seq <= seq).checked_sub(1)
    }

    /// Lists the directory, and returns whether it has changed.
    fn list(&mut self) -> io::Result<bool> {
        let names = names::list(&self.dir)?;
        let is_changed = names != self.names;
        self.names = names;
        Ok(is_changed)
    }
}

impl Step {
    fn going_on_at(self, position: u64) -> Step {
        match self {
            Step::Gap { gap, offset, .. } => Step::Gap { gap, offset, at: Some(position) },
            record @ Step::Record { .. } => record,
        }
    }
}

/// Returns the gap that a gap record reports.
fn dropped_gap(cursor: &Cursor, header: &RecordHeader, at: u64, dropped: &DroppedOutput) -> Step {
    let from_seq = cursor.seq + 1;
    let total = dropped.bytes.total();
    let gap = Gap {
        from_seq,
        to_seq: header.last_seq().unwrap_or(from_seq),
        bytes: (header.seq == from_seq).then_some(total),
        cause: GapCause::Dropped(dropped.cause),
    };
    Step::Gap { gap, offset: header.offset.checked_add(total), at: Some(at.saturating_add(header.size())) }
}

/// Returns the gap between `cursor` and a known later position, but not after `up_to`.
fn gap_until(cursor: &Cursor, next: SegmentName, up_to: Seq, cause: GapCause) -> Step {
    let to_seq = next.first_seq - 1;
    if to_seq > up_to {
        return gap_to(cursor, up_to, cause);
    }
    let bytes = cursor.offset.and_then(|offset| next.first_offset.checked_sub(offset));
    let gap = Gap { from_seq: cursor.seq + 1, to_seq, bytes, cause };
    Step::Gap { gap, offset: Some(next.first_offset), at: None }
}

/// Returns the gap from `cursor` to `up_to`, of an unknown number of bytes.
fn gap_to(cursor: &Cursor, up_to: Seq, cause: GapCause) -> Step {
    let gap = Gap { from_seq: cursor.seq + 1, to_seq: up_to, bytes: None, cause };
    Step::Gap { gap, offset: None, at: None }
}

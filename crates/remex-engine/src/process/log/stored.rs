//! A log on disk, read from its files. Start at [`StoredLog`].

use std::{
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use remex_log::{Bookmark, Cause, Item, Reader};
use remex_proto::{
    process::{GapCause, Produced, SeekTo, Sought},
    state::output_log::{Cursor, Gap, Limits, Next, OutputLog, Seq, Snapshot},
};

use super::{Block, LogReader, LogState, Unread, view::View};
use crate::process::LOG_TARGET;

/// How much output is read from the files at once, about.
const LOAD_BYTES: usize = 256 << 10;

/// A log on disk as it was known at a moment, read from its files.
///
/// Every read waits for the disk, so it belongs on a file thread, and never under a lock. The files are open as long as
/// this value exists.
#[derive(Debug)]
pub struct StoredLog {
    dir: PathBuf,
    view: View,
    reader: Option<Box<Reader>>,
    /// Where the reader continues, once it is open.
    bookmark: Option<Bookmark>,
    /// Where the log begins; the files do not have that for evicted events.
    start: Cursor,
}

impl StoredLog {
    pub(super) fn new(dir: &Path, view: View) -> Self {
        Self::starting(dir, view, Cursor::START)
    }

    pub(super) fn starting(dir: &Path, view: View, start: Cursor) -> Self {
        StoredLog { dir: dir.to_owned(), view, reader: None, bookmark: None, start }
    }

    /// Returns what was known of the log.
    pub(crate) fn view(&self) -> &View {
        &self.view
    }

    /// Reads the next part after `cursor`, at `bookmark` if one is known there.
    ///
    /// Returns the part, and a bookmark after it.
    ///
    /// # Errors
    ///
    /// If nothing can be read, for a reason that may pass. What is lost for good is a gap.
    pub(crate) fn load(
        &mut self,
        cursor: Cursor,
        bookmark: Option<Bookmark>,
    ) -> io::Result<(Block, Option<Bookmark>)> {
        self.bookmark = bookmark;
        let (mut block, mut cursor) = (Block::new(cursor), cursor);
        while block.len() < LOAD_BYTES {
            let read = match self.read_next(&mut cursor) {
                Ok(Some(next)) => block.push(next, cursor).map_err(|_| io::ErrorKind::OutOfMemory.into()),
                Ok(None) => break,
                Err(error) => Err(error),
            };
            match read {
                Ok(()) => {}
                // Bytes that were read before are not lost; the next attempt has the same error.
                Err(_) if !block.is_empty() => break,
                // Of the directory, or a newer format; a file that cannot be read is a gap already.
                Err(error) if remex_log::is_lasting(&error) => {
                    tracing::warn!(target: LOG_TARGET, %error, dir = %self.dir.display(), "giving up the rest of a log that cannot be read");
                    self.lose_rest(&mut block);
                }
                Err(error) => return Err(error),
            }
        }
        if block.is_empty() {
            return Err(io::Error::other("its files end before the last event"));
        }
        let last = self.reader.as_ref().and_then(|reader| reader.bookmark());
        let bookmark = last.filter(|last| last.seq() == block.end().seq);
        Ok((block, bookmark))
    }

    /// Adds all output after the end of a block as a gap.
    fn lose_rest(&self, block: &mut Block) {
        let (from, end) =
            (block.end(), Cursor { seq: self.view.last_output(), offset: Some(self.view.total()) });
        let bytes = from.offset.and_then(|offset| self.view.total().checked_sub(offset));
        let cause = Some(GapCause::Damaged);
        block.push_gap(Gap { from_seq: from.seq + 1, to_seq: end.seq, bytes, cause }, end);
    }

    /// Returns the first and the last output on disk: a quarter of it, but at most 32 KiB, from the beginning.
    ///
    /// # Errors
    ///
    /// If the files cannot be read, or if memory cannot be allocated.
    pub(crate) fn snapshot(&mut self, max_bytes: usize) -> Result<Snapshot, Unread> {
        let retained = self.view.held_bytes();
        let max = max_bytes as u64;
        let limits =
            Limits { retain_bytes: usize::MAX >> 2, retain_events: usize::MAX >> 2, ..Limits::default() };
        let mut ends = OutputLog::new(limits);
        // Twice as much as is asked for, because short streams are kept before long ones.
        if retained <= max.saturating_mul(2) {
            self.copy(Cursor::START, u64::MAX, &mut ends)?;
        } else {
            let head = (max / 4).min(Limits::default().head_bytes as u64);
            self.copy(Cursor::START, head, &mut ends)?;
            let tail = self.reader()?.tail(max)?;
            self.copy(tail, u64::MAX, &mut ends)?;
        }
        let mut snapshot = ends.snapshot(max_bytes)?;
        let kept = snapshot.stdout.len() + snapshot.stderr.len() + snapshot.pty.len();
        snapshot.omitted = self.view.total().saturating_sub(kept as u64);
        Ok(snapshot)
    }

    /// Appends output from `cursor` on to `log`, at least `bytes` of it if there is so much.
    fn copy(&mut self, mut cursor: Cursor, bytes: u64, log: &mut OutputLog) -> io::Result<()> {
        let (mut left, up_to) = (bytes, self.view.newest());
        let reader = self.reader()?;
        while left > 0 {
            match reader.next(&mut cursor, up_to)? {
                Some(Item::Output { stream, at_ms, bytes, .. }) => {
                    left = left.saturating_sub(bytes.len() as u64);
                    let mut rest = bytes;
                    while !rest.is_empty() {
                        let Ok(_) = log.append(stream, at_ms, rest.len(), |room| {
                            rest.read(room).or(Ok::<_, std::convert::Infallible>(0))
                        });
                    }
                }
                Some(_) => {}
                None => break,
            }
        }
        Ok(())
    }

    /// Returns the next item and advances `cursor`, or `None` at the end.
    fn read_next(&mut self, cursor: &mut Cursor) -> io::Result<Option<Next<'_>>> {
        if let Some(next) = self.view.next(cursor) {
            return Ok(next);
        }
        let mut ahead = self.at_offset(*cursor)?;
        let (before, last, end) = (cursor.offset, self.view.last_output(), self.view.total());
        let Some(item) = self.reader()?.next(&mut ahead, last)? else { return Ok(None) };
        *cursor = ahead;
        let mut next = on_wire(item);
        if let Next::Gap(gap) = &mut next {
            // The files do not tell how much is missing at their end; they may be ahead of what is known.
            cursor.offset = cursor.offset.or_else(|| (gap.to_seq >= last).then_some(end));
            // Nor what was there before they were evicted further.
            gap.bytes = gap.bytes.or_else(|| cursor.offset?.checked_sub(before?));
        }
        Ok(Some(next))
    }

    /// Returns the cursor with its offset, if the files know that.
    fn at_offset(&mut self, cursor: Cursor) -> io::Result<Cursor> {
        match cursor.offset {
            Some(_) => Ok(cursor),
            None => self.reader()?.cursor_after(cursor.seq),
        }
    }

    fn reader(&mut self) -> io::Result<&mut Reader> {
        let reader = match self.reader.take() {
            Some(reader) => reader,
            None => {
                let mut reader = Reader::open(&self.dir)?;
                reader.resume(self.bookmark);
                Box::new(reader)
            }
        };
        Ok(self.reader.insert(reader))
    }
}

impl LogReader for StoredLog {
    fn next(&mut self, cursor: &mut Cursor) -> Result<Option<Next<'_>>, Unread> {
        Ok(self.read_next(cursor)?)
    }

    fn peek_len(&mut self, cursor: &Cursor) -> Result<Option<usize>, Unread> {
        let mut ahead = *cursor;
        if let Some(known) = self.view.next(&mut ahead) {
            return Ok(known.and_then(|next| matches!(next, Next::Exited(_) | Next::Closed(_)).then_some(0)));
        }
        let (mut ahead, last) = (*cursor, self.view.last_output());
        let reader = self.reader()?;
        let bookmark = reader.bookmark();
        let len = match reader.next(&mut ahead, last)? {
            Some(Item::Output { bytes, .. }) => Some(bytes.len()),
            Some(Item::Exited { .. } | Item::Closed { .. }) => Some(0),
            Some(Item::Gap(_)) | None => None,
        };
        reader.resume(bookmark);
        Ok(len)
    }

    fn seek(&mut self, to: SeekTo) -> Result<Sought, Unread> {
        let (newest, produced) = (self.view.newest(), self.view.total());
        let at_the_end = Sought {
            after_seq: newest,
            offset: Some(produced),
            newest_seq: newest,
            produced_bytes: produced,
        };
        let reader = self.reader()?;
        let (found, is_evicted) = match to {
            SeekTo::AtMs(at_ms) => {
                let found = reader.cursor_since(at_ms)?;
                (found, found.seq <= reader.oldest().seq)
            }
            SeekTo::TailBytes(0) => return Ok(at_the_end),
            SeekTo::TailBytes(bytes) if bytes < produced => {
                (reader.tail(bytes)?, reader.oldest().offset > Some(produced - bytes))
            }
            SeekTo::TailBytes(_) => (reader.oldest(), true),
            SeekTo::Offset(offset) if offset < produced => {
                (reader.cursor_at_offset(offset)?, reader.oldest().offset > Some(offset))
            }
            SeekTo::Offset(_) => return Ok(at_the_end),
        };
        // The keeper may have written more than it has announced.
        if found.seq >= newest {
            return Ok(at_the_end);
        }
        let (after_seq, offset) = if is_evicted { (0, Some(0)) } else { (found.seq, found.offset) };
        Ok(Sought { after_seq, offset, ..at_the_end })
    }

    fn cursor_after(&mut self, seq: Seq) -> Cursor {
        let known = self.start.offset.filter(|_| self.start.seq == seq);
        Cursor { seq, offset: known.or_else(|| self.view.offset_after(seq)) }
    }

    fn behind(&self, cursor: &Cursor) -> u64 {
        self.view.behind(cursor)
    }

    fn gap(&self, cursor: &Cursor) -> Option<Gap> {
        self.view.gap(cursor)
    }
}

impl LogState for StoredLog {
    fn next_seq(&self) -> Seq {
        self.view.next_seq()
    }

    fn first_seq(&self) -> Seq {
        self.view.first_seq()
    }

    fn exited(&self) -> Option<Seq> {
        self.view.exited()
    }

    fn is_closed(&self) -> bool {
        self.view.is_closed()
    }

    fn produced(&self) -> Produced {
        self.view.produced()
    }

    fn evicted_bytes(&self) -> u64 {
        self.view.evicted_bytes()
    }

    fn held_bytes(&self) -> u64 {
        self.view.held_bytes()
    }
}

fn on_wire(item: Item<'_>) -> Next<'_> {
    match item {
        Item::Output { seq, stream, at_ms, bytes, .. } => Next::Output { seq, stream, at_ms, bytes },
        Item::Exited { seq, .. } => Next::Exited(seq),
        Item::Closed { seq, .. } => Next::Closed(seq),
        Item::Gap(remex_log::Gap { from_seq, to_seq, bytes, cause }) => {
            Next::Gap(Gap { from_seq, to_seq, bytes, cause: cause_on_wire(cause) })
        }
    }
}

fn cause_on_wire(cause: remex_log::GapCause) -> Option<GapCause> {
    Some(match cause {
        remex_log::GapCause::Evicted | remex_log::GapCause::Dropped(Cause::Retention) => return None,
        remex_log::GapCause::Corrupted
        | remex_log::GapCause::Missing
        | remex_log::GapCause::Unreadable(_) => GapCause::Damaged,
        remex_log::GapCause::Dropped(Cause::ProcessQuota | Cause::SessionQuota | Cause::ServerQuota) => {
            GapCause::Quota
        }
        remex_log::GapCause::Dropped(Cause::DiskFull) => GapCause::DiskFull,
        remex_log::GapCause::Dropped(Cause::Io(_)) => GapCause::Io,
    })
}

//! The files of a log, open while somebody reads them.
//!
//! Start at [`Files`].

use std::{
    collections::VecDeque,
    io::{self, Read as _},
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
};

use remex_log::{Cause, Item, Reader};
use remex_proto::{
    process::{GapCause, Stream},
    state::output_log::{Cursor, Gap, Next, OutputLog, Seq},
};

/// How many readers that are behind have their place in the files remembered.
const MAX_PLACES: usize = 8;

/// How many logs may have open files while nothing is read from them.
///
/// Beyond that, files are opened for each step: slower, but a server with many logs does not run out of descriptors.
const MAX_RESTING: usize = 32;

/// How many readers this process has open; descriptors are limited by process as well.
static OPEN_READERS: AtomicUsize = AtomicUsize::new(0);

/// The files of the log, open while somebody reads them.
#[derive(Debug, Default)]
pub(super) struct Files {
    reader: Option<OpenReader>,
    /// Where readers were last.
    pub(super) places: VecDeque<remex_log::Cursor>,
    /// Why something could not be read.
    pub(super) failure: Option<String>,
    /// Whether the last reader had a single question, or has seen the end of a closed log.
    pub(super) is_done: bool,
}

/// A reader that is counted while it is open.
#[derive(Debug)]
struct OpenReader(Box<Reader>);

impl OpenReader {
    fn open(dir: &Path) -> io::Result<Self> {
        let reader = Box::new(Reader::open(dir)?);
        OPEN_READERS.fetch_add(1, Ordering::Relaxed);
        Ok(OpenReader(reader))
    }
}

impl Drop for OpenReader {
    fn drop(&mut self) {
        OPEN_READERS.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Files {
    pub(super) fn is_open(&self) -> bool {
        self.reader.is_some()
    }

    /// Closes the files if nobody is likely to read them soon, or if too many logs have open files.
    pub(super) fn rest(&mut self) {
        if self.reader.is_some() && (self.is_done || OPEN_READERS.load(Ordering::Relaxed) > MAX_RESTING) {
            self.reader = None;
        }
    }

    /// Returns the next item on disk and advances `cursor`; `None` at the end, or if nothing can be read for now.
    pub(super) fn next(&mut self, dir: &Path, cursor: &mut Cursor, up_to: Seq) -> Option<Next<'_>> {
        let mut place = match self.places.iter().position(|place| place.seq() == cursor.seq) {
            Some(index) => self.places.remove(index)?,
            None => {
                let place = self.reader(dir)?.cursor_after(cursor.seq);
                self.read(place)?
            }
        };
        self.reader(dir)?;
        self.is_done = false;
        let Files { reader, places, failure, .. } = self;
        let item =
            reader.as_mut()?.0.next(&mut place, up_to).inspect_err(|error| note(failure, error)).ok()??;
        *cursor = Cursor { seq: place.seq(), offset: place.offset() };
        remember(places, place);
        Some(on_wire(item))
    }

    /// Like [`next`](Self::next), but leaves the place of the reader where it is.
    pub(super) fn peek(&mut self, dir: &Path, cursor: &mut Cursor, up_to: Seq) -> Option<Next<'_>> {
        let mut place = match self.places.iter().find(|place| place.seq() == cursor.seq) {
            Some(place) => *place,
            None => {
                let place = self.reader(dir)?.cursor_after(cursor.seq);
                let place = self.read(place)?;
                remember(&mut self.places, place);
                place
            }
        };
        self.reader(dir)?;
        self.is_done = false;
        let Files { reader, failure, .. } = self;
        let item =
            reader.as_mut()?.0.next(&mut place, up_to).inspect_err(|error| note(failure, error)).ok()??;
        *cursor = Cursor { seq: place.seq(), offset: place.offset() };
        Some(on_wire(item))
    }

    pub(super) fn offset_after(&mut self, dir: &Path, seq: Seq) -> Option<u64> {
        let place = self.reader(dir)?.cursor_after(seq);
        let place = self.read(place)?;
        remember(&mut self.places, place);
        place.offset()
    }

    pub(super) fn seq_ending_by(&mut self, dir: &Path, offset: u64) -> Seq {
        let found = self.reader(dir).map(|reader| reader.cursor_at_offset(offset));
        found.and_then(|found| self.read(found)).map_or(0, |cursor| cursor.seq())
    }

    pub(super) fn tail(&mut self, dir: &Path, bytes: u64) -> Option<remex_log::Cursor> {
        let tail = self.reader(dir)?.tail(bytes);
        self.read(tail)
    }

    /// Appends output from `place` on to `log`, at least `bytes` of it if there is so much.
    pub(super) fn copy(
        &mut self,
        dir: &Path,
        place: remex_log::Cursor,
        up_to: Seq,
        bytes: u64,
        log: &mut OutputLog,
    ) {
        let (mut place, mut left) = (place, bytes);
        let Some(reader) = self.reader(dir) else { return };
        while left > 0 {
            match reader.next(&mut place, up_to) {
                Ok(Some(Item::Output { stream, at_ms, bytes, .. })) => {
                    left = left.saturating_sub(bytes.len() as u64);
                    let mut rest = bytes;
                    while !rest.is_empty() {
                        let Ok(_) = log.append(stream_on_wire(stream), at_ms, rest.len(), |room| {
                            rest.read(room).or(Ok::<_, std::convert::Infallible>(0))
                        });
                    }
                }
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(error) => return note(&mut self.failure, &error),
            }
        }
    }

    fn reader(&mut self, dir: &Path) -> Option<&mut Reader> {
        if self.reader.is_none() {
            let opened = OpenReader::open(dir);
            self.reader = Some(self.read(opened)?);
            self.is_done = true;
        }
        self.reader.as_mut().map(|open| &mut *open.0)
    }

    /// Returns what was read, or notes why it was not.
    fn read<T>(&mut self, read: io::Result<T>) -> Option<T> {
        read.inspect_err(|error| note(&mut self.failure, error)).ok()
    }
}

fn remember(places: &mut VecDeque<remex_log::Cursor>, place: remex_log::Cursor) {
    if places.len() == MAX_PLACES {
        places.pop_front();
    }
    places.push_back(place);
}

fn on_wire(item: Item<'_>) -> Next<'_> {
    match item {
        Item::Output { seq, stream, at_ms, bytes, .. } => {
            Next::Output { seq, stream: stream_on_wire(stream), at_ms, bytes }
        }
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

fn stream_on_wire(stream: remex_log::Stream) -> Stream {
    match stream {
        remex_log::Stream::Stdout => Stream::Stdout,
        remex_log::Stream::Stderr => Stream::Stderr,
        remex_log::Stream::Terminal => Stream::Pty,
    }
}

fn note(failure: &mut Option<String>, error: &io::Error) {
    tracing::warn!(%error, "cannot read the log of a process");
    *failure = Some(error.to_string());
}

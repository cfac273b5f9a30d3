//! A log on disk, as the server sees it: where it stands, its newest output, and the files for everything older.

mod files;

use std::{
    cell::RefCell,
    collections::{TryReserveError, VecDeque},
    path::{Path, PathBuf},
};

use remex_proto::{
    process::Produced,
    state::output_log::{Cursor, Gap, Limits, Next, OutputLog, Seq, Snapshot},
};

use self::files::Files;
use crate::keeper_link::message::{ExitRecord, FreshChunk, Progress};

/// How much of the newest output is kept in memory.
const RECENT_BYTES: usize = 64 << 10;

/// How many events have their ends remembered.
const MAX_ENDS: usize = 2048;

/// A log on disk, as the server sees it.
#[derive(Debug)]
pub(crate) struct Mirror {
    dir: PathBuf,
    known: Progress,
    /// The newest output, without a gap, up to the newest event; perhaps none.
    recent: VecDeque<Recent>,
    recent_bytes: usize,
    /// Events and the bytes of output up to each, oldest first: those that were announced or read last.
    ends: VecDeque<(Seq, u64)>,
    files: RefCell<Files>,
}

/// Output in memory.
#[derive(Debug)]
struct Recent {
    chunk: FreshChunk,
    /// Bytes of output up to and including it.
    end: u64,
}

impl Mirror {
    pub(crate) fn new(dir: PathBuf, known: Progress) -> Self {
        Self {
            dir,
            known,
            recent: VecDeque::new(),
            recent_bytes: 0,
            ends: VecDeque::new(),
            files: RefCell::default(),
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns a view of its own of the same log as it is now, to read the files without holding up anything else.
    pub(crate) fn detached(&self) -> Self {
        Self::new(self.dir.clone(), self.known.clone())
    }

    /// Returns whether the event after `seq` has to be read from the files.
    pub(crate) fn is_on_disk_only(&self, seq: Seq) -> bool {
        let next = seq.saturating_add(1).max(self.known.first_seq);
        next <= self.known.newest && self.end_event(next).is_none() && self.index_of(next).is_none()
    }

    /// Returns whether there is output, or a gap, after event `seq`.
    pub(crate) fn has_output_after(&self, seq: Seq) -> bool {
        let Progress { newest, exited, is_closed, .. } = self.known;
        let ends =
            u64::from(exited.is_some_and(|exited| exited > seq)) + u64::from(is_closed && newest > seq);
        newest.saturating_sub(seq) > ends
    }

    /// Remembers what another view of this log has read.
    pub(crate) fn learn_ends(&mut self, other: &Mirror) {
        for (seq, end) in &other.ends {
            note_end(&mut self.ends, *seq, *end);
        }
    }

    /// Returns why something could not be read.
    pub(crate) fn take_failure(&mut self) -> Option<String> {
        self.files.get_mut().failure.take()
    }

    /// Closes the files if nobody is likely to read them soon, or if too many logs have open files.
    pub(crate) fn rest(&mut self) {
        self.files.get_mut().rest();
    }

    /// Records how far the log has come.
    pub(crate) fn advance(&mut self, mut known: Progress) {
        let fresh = std::mem::take(&mut known.fresh);
        let mut end = total(&self.known.produced);
        let len = fresh.iter().map(|chunk| chunk.bytes.len() as u64).sum::<u64>();
        let is_seamless = fresh.first().is_none_or(|first| first.seq == self.known.newest + 1);
        let is_complete = is_seamless && total(&known.produced) == end + len;
        // Also if the keeper is gone, which knew it.
        known.sync_failure = known.sync_failure.or(self.known.sync_failure.take());
        self.known = known;
        if !is_complete {
            (self.recent, self.recent_bytes) = (VecDeque::new(), 0);
            return note_end(&mut self.ends, self.known.newest, total(&self.known.produced));
        }
        for chunk in fresh {
            end += chunk.bytes.len() as u64;
            note_end(&mut self.ends, chunk.seq, end);
            self.recent_bytes += chunk.bytes.len();
            self.recent.push_back(Recent { chunk, end });
        }
        while self.recent_bytes > RECENT_BYTES && self.recent.len() > 1 {
            self.recent_bytes -= self.recent.pop_front().map_or(0, |oldest| oldest.chunk.bytes.len());
        }
    }

    /// Returns the newest event and the bytes of output up to it.
    pub(crate) fn newest(&self) -> (Seq, u64) {
        (self.known.newest, total(&self.known.produced))
    }

    /// Returns the bytes of output after such a position.
    pub(crate) fn produced_since(&self, (_, end): (Seq, u64)) -> u64 {
        total(&self.known.produced).saturating_sub(end)
    }

    /// Returns the bytes that can no longer be read.
    pub(crate) fn lost(&self) -> u64 {
        self.evicted_bytes()
    }

    /// Returns why what was announced may not survive a power failure, if that was promised.
    pub(crate) fn sync_failure(&self) -> Option<&String> {
        self.known.sync_failure.as_ref()
    }

    pub(crate) fn has_exited(&self) -> bool {
        self.known.exited.is_some()
    }

    /// Returns the newest event up to `seq` whose end is known without reading, and the bytes of output up to it.
    pub(crate) fn known_end_by(&self, seq: Seq) -> (Seq, u64) {
        if seq >= self.known.newest {
            return self.newest();
        }
        let index = self.ends.partition_point(|(known, _)| *known <= seq);
        index.checked_sub(1).and_then(|index| self.ends.get(index).copied()).unwrap_or((0, 0))
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

    pub(super) fn next(&mut self, cursor: &mut Cursor) -> Option<Next<'_>> {
        if cursor.seq >= self.known.newest {
            self.files.get_mut().is_done |= self.known.is_closed;
            // Nobody else will need the files soon.
            if self.files.get_mut().places.iter().all(|place| place.seq() >= self.known.newest) {
                *self.files.get_mut() = Files::default();
            }
            return None;
        }
        if let Some(gap) = self.gap(cursor) {
            *cursor = Cursor { seq: gap.to_seq, offset: Some(self.known.first_offset) };
            return Some(Next::Gap(gap));
        }
        let seq = cursor.seq + 1;
        if let Some(end) = self.end_event(seq) {
            self.files.get_mut().is_done |= self.known.is_closed;
            cursor.seq = seq;
            return Some(end);
        }
        if let Some(index) = self.index_of(seq) {
            let Recent { chunk, end } = self.recent.get(index)?;
            *cursor = Cursor { seq, offset: Some(*end) };
            return Some(Next::Output { seq, stream: chunk.stream, at_ms: chunk.at_ms, bytes: &chunk.bytes });
        }
        let (before, last, end) = (cursor.offset, self.last_output(), total(&self.known.produced));
        let mut next = self.files.get_mut().next(&self.dir, cursor, last)?;
        if let Next::Gap(gap) = &mut next {
            // The files do not tell how much is missing at their end; they may be ahead of what is known.
            cursor.offset = cursor.offset.or_else(|| (gap.to_seq >= last).then_some(end));
            // Nor what was there before they were evicted further.
            gap.bytes = gap.bytes.or_else(|| cursor.offset?.checked_sub(before?));
        }
        if let Some(end) = cursor.offset {
            note_end(&mut self.ends, cursor.seq, end);
        }
        Some(next)
    }

    /// Returns the newest event that is neither the exit nor the close.
    fn last_output(&self) -> Seq {
        let last = self.known.newest - u64::from(self.known.is_closed);
        last - u64::from(self.known.exited == Some(last))
    }

    /// Returns the exit or the close with this number.
    fn end_event(&self, seq: Seq) -> Option<Next<'static>> {
        if self.known.exited == Some(seq) {
            Some(Next::Exited(seq))
        } else if self.known.is_closed && seq == self.known.newest {
            Some(Next::Closed(seq))
        } else {
            None
        }
    }

    /// Returns the place of an event in memory.
    fn index_of(&self, seq: Seq) -> Option<usize> {
        let index = self.recent.partition_point(|recent| recent.chunk.seq < seq);
        self.recent.get(index).is_some_and(|recent| recent.chunk.seq == seq).then_some(index)
    }

    pub(super) fn peek_len(&self, cursor: &Cursor) -> Option<usize> {
        let seq = cursor.seq.checked_add(1)?;
        if seq > self.known.newest || self.gap(cursor).is_some() {
            return None;
        }
        if self.end_event(seq).is_some() {
            return Some(0);
        }
        if let Some(index) = self.index_of(seq) {
            return self.recent.get(index).map(|recent| recent.chunk.bytes.len());
        }
        let mut ahead = *cursor;
        match self.files.borrow_mut().peek(&self.dir, &mut ahead, self.known.newest)? {
            Next::Output { bytes, .. } => Some(bytes.len()),
            Next::Gap(_) => None,
            Next::Exited(_) | Next::Closed(_) => Some(0),
        }
    }

    pub(super) fn behind(&self, cursor: &Cursor) -> u64 {
        let seen = cursor.offset.unwrap_or(0).max(self.known.first_offset);
        total(&self.known.produced).saturating_sub(seen)
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

    pub(super) fn cursor_after(&self, seq: Seq) -> Cursor {
        let newest = self.known.newest;
        let offset = if seq == 0 {
            Some(0)
        } else if seq >= newest {
            Some(total(&self.known.produced))
        } else if let (known, end) = self.known_end_by(seq)
            && known == seq
        {
            Some(end)
        } else if let Some(next) = self.index_of(seq + 1).and_then(|index| self.recent.get(index)) {
            Some(next.end - next.chunk.bytes.len() as u64)
        } else if seq + 1 < self.known.first_seq {
            None
        } else if self.known.exited.is_some_and(|exited| seq >= exited) && seq + 1 >= newest {
            Some(total(&self.known.produced))
        } else {
            self.files.borrow_mut().offset_after(&self.dir, seq)
        };
        Cursor { seq, offset }
    }

    pub(super) fn seq_ending_by(&self, offset: u64) -> Seq {
        if offset >= total(&self.known.produced) {
            return self.known.newest;
        }
        let index = self.ends.partition_point(|(_, end)| *end <= offset);
        if let Some((seq, _)) = index.checked_sub(1).and_then(|index| self.ends.get(index)) {
            return *seq;
        }
        self.files.borrow_mut().seq_ending_by(&self.dir, offset)
    }

    /// Returns the newest event whose output ends at or before `offset`, if it is remembered, or 0.
    pub(super) fn known_seq_by(&self, offset: u64) -> Seq {
        let index = self.ends.partition_point(|(_, end)| *end <= offset);
        index.checked_sub(1).and_then(|index| self.ends.get(index)).map_or(0, |(seq, _)| *seq)
    }

    pub(super) fn first_offset(&self) -> u64 {
        self.known.first_offset
    }

    /// Returns the first and the last output on disk: a quarter of it, but at most 32 KiB, from the beginning.
    pub(crate) fn snapshot(&self, max_bytes: usize) -> Result<Snapshot, TryReserveError> {
        let retained = self.known.retained;
        let max = max_bytes as u64;
        let limits =
            Limits { retain_bytes: usize::MAX >> 2, retain_events: usize::MAX >> 2, ..Limits::default() };
        let mut ends = OutputLog::new(limits);
        let mut files = self.files.borrow_mut();
        let newest = self.known.newest;
        // Twice as much as is asked for, because short streams are kept before long ones.
        if retained <= max.saturating_mul(2) {
            files.copy(&self.dir, remex_log::Cursor::START, newest, u64::MAX, &mut ends);
        } else {
            let head = (max / 4).min(Limits::default().head_bytes as u64);
            files.copy(&self.dir, remex_log::Cursor::START, newest, head, &mut ends);
            if let Some(tail) = files.tail(&self.dir, max) {
                files.copy(&self.dir, tail, newest, u64::MAX, &mut ends);
            }
        }
        let mut snapshot = ends.snapshot(max_bytes)?;
        let kept = snapshot.stdout.len() + snapshot.stderr.len() + snapshot.pty.len();
        snapshot.omitted = total(&self.known.produced).saturating_sub(kept as u64);
        Ok(snapshot)
    }

    pub(super) fn next_seq(&self) -> Seq {
        self.known.newest + 1
    }

    pub(super) fn first_seq(&self) -> Seq {
        self.known.first_seq
    }

    pub(super) fn exited(&self) -> Option<Seq> {
        self.known.exited
    }

    pub(super) fn is_closed(&self) -> bool {
        self.known.is_closed
    }

    pub(super) fn produced(&self) -> Produced {
        self.known.produced
    }

    pub(super) fn evicted_bytes(&self) -> u64 {
        total(&self.known.produced).saturating_sub(self.known.retained)
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.known.retained
    }

    pub(super) fn memory(&self) -> usize {
        /// The buffer of an open reader.
        const READER_BYTES: usize = 192 << 10;
        let reader = if self.files.borrow().is_open() { READER_BYTES } else { 0 };
        let index = self.ends.capacity() * size_of::<(Seq, u64)>();
        self.recent_bytes + self.recent.capacity() * size_of::<Recent>() + index + reader
    }

    /// Forgets what is on disk as well.
    pub(super) fn free_memory(&mut self) {
        (self.recent, self.recent_bytes, self.ends) = (VecDeque::new(), 0, VecDeque::new());
        *self.files.get_mut() = Files::default();
    }
}

/// Remembers how many bytes of output there are up to an event.
fn note_end(ends: &mut VecDeque<(Seq, u64)>, seq: Seq, end: u64) {
    if ends.len() == MAX_ENDS {
        ends.pop_front();
    }
    let index = ends.partition_point(|(known, _)| *known < seq);
    if ends.get(index).is_none_or(|(known, _)| *known != seq) {
        ends.insert(index, (seq, end));
    }
}

fn total(produced: &Produced) -> u64 {
    produced.stdout + produced.stderr + produced.pty
}

#[cfg(test)]
mod tests {
    use std::{fs, io, sync::Arc};

    use remex_log::{Hold, Options, Room, Unlimited, Writer};
    use remex_proto::process::GapCause;

    use super::*;

    /// Creates the log of a closed process with ten events of 1000 bytes each.
    fn closed_log(dir: &Path) -> Progress {
        let options = Options { retain_bytes: 1 << 20, segment_bytes: None };
        let mut writer = Writer::create(dir, options, Arc::new(Unlimited)).unwrap();
        for _ in 0..10 {
            let Room::Bytes(room) = writer.room(Hold::Nothing) else { panic!("it is full") };
            writer
                .append(remex_log::Stream::Stdout, 1, room, |spare| io::Result::Ok(spare.len().min(1000)))
                .unwrap();
        }
        writer.exited(2, b"{}").unwrap();
        writer.closed(3, &[]).unwrap();
        let mut known = Progress::start();
        (known.newest, known.exited, known.is_closed) = (12, Some(11), true);
        (known.produced.stdout, known.retained) = (10_000, 10_000);
        known
    }

    /// Appends events of 1000 bytes each, and returns how far the log has come.
    fn append(writer: &mut Writer, count: usize) -> Progress {
        for _ in 0..count {
            let Room::Bytes(room) = writer.room(Hold::Nothing) else { panic!("it is full") };
            writer
                .append(remex_log::Stream::Stdout, 1, room, |spare| io::Result::Ok(spare.len().min(1000)))
                .unwrap();
        }
        writer.flush().unwrap();
        let position = writer.position();
        let mut known = Progress::start();
        (known.first_seq, known.first_offset) = (position.first_seq, position.first_offset);
        (known.newest, known.produced.stdout) = (position.written_seq, position.offset);
        known
    }

    #[test]
    fn what_is_evicted_while_it_is_read_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { retain_bytes: 20_000, segment_bytes: Some(4096) };
        let mut writer = Writer::create(dir.path(), options, Arc::new(Unlimited)).unwrap();
        for more in [10, 30, 200] {
            // The server knows of this, and not yet of what follows.
            let known = append(&mut writer, 100);
            assert!(known.first_seq > 1);
            let mut mirror = Mirror::new(dir.path().to_owned(), known);
            let mut cursor = mirror.cursor_after(0);
            let Some(Next::Gap(first)) = mirror.next(&mut cursor) else { panic!("no gap") };
            let mut seen = first.bytes.unwrap();
            let newest = append(&mut writer, more);
            let mut is_advanced = false;
            loop {
                match mirror.next(&mut cursor) {
                    Some(Next::Gap(gap)) => seen += gap.bytes.unwrap_or_else(|| panic!("{gap:?}")),
                    Some(Next::Output { bytes, .. }) => seen += bytes.len() as u64,
                    Some(_) => {}
                    None if is_advanced => break,
                    None => {
                        mirror.advance(newest.clone());
                        is_advanced = true;
                    }
                }
            }
            assert_eq!(seen, newest.produced.stdout, "{more} more");
        }
    }

    /// Returns the bytes of output, the gap, and the kinds of events after it.
    fn read_all(mirror: &mut Mirror) -> (usize, Option<Gap>, Vec<&'static str>) {
        let (mut cursor, mut len, mut gap, mut ends) = (mirror.cursor_after(0), 0, None, Vec::new());
        while let Some(next) = mirror.next(&mut cursor) {
            match next {
                Next::Output { bytes, .. } => len += bytes.len(),
                Next::Gap(found) => gap = Some(found),
                Next::Exited(_) => ends.push("exited"),
                Next::Closed(_) => ends.push("closed"),
            }
        }
        (len, gap, ends)
    }

    fn damaged(from_seq: Seq, bytes: u64) -> Option<Gap> {
        Some(Gap { from_seq, to_seq: 10, bytes: Some(bytes), cause: Some(GapCause::Damaged) })
    }

    #[test]
    fn what_is_missing_at_the_end_of_a_log_is_counted_and_the_end_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let known = closed_log(dir.path());
        let ends = vec!["exited", "closed"];
        let [segment] = fs::read_dir(dir.path())
            .unwrap()
            .map(|file| file.unwrap().path())
            .collect::<Vec<_>>()
            .try_into()
            .unwrap();
        let mut mirror = Mirror::new(dir.path().to_owned(), known.clone());
        assert_eq!(read_all(&mut mirror), (10_000, None, ends.clone()));
        mirror.rest();
        assert!(!mirror.files.get_mut().is_open(), "nobody reads on");

        // A few records less.
        let file = fs::OpenOptions::new().write(true).open(&segment).unwrap();
        file.set_len(256 + 4 * 1048).unwrap();
        let mut mirror = Mirror::new(dir.path().to_owned(), known.clone());
        assert_eq!(read_all(&mut mirror), (4000, damaged(5, 6000), ends.clone()));
        fs::remove_file(&segment).unwrap();
        let mut mirror = Mirror::new(dir.path().to_owned(), known);
        assert_eq!(read_all(&mut mirror), (0, damaged(1, 10_000), ends));
    }
}

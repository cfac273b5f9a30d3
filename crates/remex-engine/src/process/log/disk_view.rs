//! A log on disk, as the server sees it: where it stands, its newest output, and what was read of older output.
//!
//! It is part of the state of a process, so it never reads files itself: output that is not in memory has to be loaded
//! by a [`StoredLog`] on a file thread. Start at [`DiskLogView`].

use std::{
    collections::VecDeque,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use remex_log::Bookmark;
use remex_proto::{
    process::{Produced, SeekTo, Sought},
    state::{
        output::{Hold, Point},
        output_log::{Cursor, Gap, Next, Seq, Snapshot},
    },
};

use super::{
    Block, LogReader, LogState, ProcessLog, ServerLog, Unread, ends::Ends, stored::StoredLog, view::View,
};
use crate::state::keeper_link::message::{ExitRecord, InlineChunk, Progress};

/// How much of the newest output is kept in memory.
const RECENT_BYTES: usize = 64 << 10;

/// How many readers that are behind have their place in the files remembered.
const MAX_BOOKMARKS: usize = 64;

/// A log on disk, as the server sees it.
#[derive(Debug)]
pub struct DiskLogView {
    dir: PathBuf,
    view: View,
    /// The newest output, without a gap, up to the newest event; perhaps none.
    recent: VecDeque<Recent>,
    recent_bytes: usize,
    ends: Ends,
    /// Output that was read for readers that are behind; each stays while its reader has it, too.
    loaded: Vec<Arc<Block>>,
    /// Where the parts that were read end in the files.
    bookmarks: VecDeque<Bookmark>,
}

/// Output in memory.
#[derive(Debug)]
struct Recent {
    chunk: InlineChunk,
    /// Bytes of output up to and including it.
    end: u64,
}

/// Output to be read from the files, on a thread that may wait for the disk.
#[derive(Debug)]
pub(crate) struct Load {
    log: StoredLog,
    cursor: Cursor,
    bookmark: Option<Bookmark>,
}

/// Output that was read from the files.
#[derive(Debug)]
pub struct Loaded {
    pub block: Arc<Block>,
    /// Where it ends in the files.
    bookmark: Option<Bookmark>,
}

impl Load {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// If nothing can be read, for a reason that may pass. What is lost for good is a gap.
    pub(crate) fn run(mut self) -> io::Result<Loaded> {
        let (block, bookmark) = self.log.load(self.cursor, self.bookmark)?;
        Ok(Loaded { block: Arc::new(block), bookmark })
    }
}

impl DiskLogView {
    pub(crate) fn new(dir: PathBuf, known: Progress) -> Self {
        Self {
            dir,
            view: View { known },
            recent: VecDeque::new(),
            recent_bytes: 0,
            ends: Ends::default(),
            loaded: Vec::new(),
            bookmarks: VecDeque::new(),
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the log as it is now, to read its files without holding up anything else.
    pub(crate) fn files(&self) -> StoredLog {
        StoredLog::new(&self.dir, self.view.clone())
    }

    /// Returns the log as it is now, to read it from the event after `seq` on.
    pub(crate) fn stored_after(&self, seq: Seq) -> StoredLog {
        StoredLog::starting(&self.dir, self.view.clone(), self.position_after(seq))
    }

    /// Returns the log as it will be.
    pub(crate) fn stored_at(&self, progress: &Progress) -> StoredLog {
        let known = Progress { inline: Vec::new(), ..progress.clone() };
        StoredLog::new(&self.dir, View { known })
    }

    /// Returns a job that reads the output after `cursor` from the files; pass its result to [`keep`](Self::keep).
    pub(crate) fn load(&self, cursor: Cursor) -> Load {
        let bookmark = self.bookmarks.iter().find(|bookmark| bookmark.seq() == cursor.seq).copied();
        Load { log: self.files(), cursor, bookmark }
    }

    /// Remembers where the loaded output ends, and the bookmark from which its reader continues.
    pub(crate) fn learn(&mut self, loaded: &Loaded) {
        self.learn_ends(loaded.block.ends());
        if let Some(bookmark) = loaded.bookmark {
            self.bookmarks.retain(|known| known.seq() != bookmark.seq());
            if self.bookmarks.len() == MAX_BOOKMARKS {
                self.bookmarks.pop_front();
            }
            self.bookmarks.push_back(bookmark);
        }
    }

    /// Keeps output that was read in memory, as long as its reader keeps it, too.
    pub fn keep(&mut self, loaded: &Loaded) {
        self.learn(loaded);
        self.release();
        self.loaded.push(Arc::clone(&loaded.block));
    }

    /// Returns whether the event after `seq` is not in memory for all readers.
    pub(crate) fn is_on_disk_only(&self, seq: Seq) -> bool {
        let next = seq.saturating_add(1).max(self.view.first_seq());
        next <= self.view.newest() && self.view.end_event(next).is_none() && self.index_of(next).is_none()
    }

    /// Remembers where events end.
    pub(crate) fn learn_ends(&mut self, ends: impl Iterator<Item = (Seq, u64)>) {
        ends.for_each(|(seq, end)| self.ends.add(seq, end));
    }

    /// Records how far the log has come.
    pub(crate) fn advance(&mut self, mut known: Progress) {
        let inline = std::mem::take(&mut known.inline);
        let mut end = self.view.total();
        let len = inline.iter().map(|chunk| chunk.bytes.len() as u64).sum::<u64>();
        let is_seamless = inline.first().is_none_or(|first| first.seq == self.view.newest() + 1);
        let is_complete = is_seamless && known.produced.total() == end + len;
        // Also if the keeper is gone, which knew it.
        known.sync_failure = known.sync_failure.or(self.view.known.sync_failure.take());
        self.view = View { known };
        self.ends.set_first(self.view.first_seq());
        if !is_complete {
            (self.recent, self.recent_bytes) = (VecDeque::new(), 0);
            return self.ends.add(self.view.newest(), self.view.total());
        }
        for chunk in inline {
            end += chunk.bytes.len() as u64;
            self.ends.add(chunk.seq, end);
            self.recent_bytes += chunk.bytes.len();
            self.recent.push_back(Recent { chunk, end });
        }
        while self.recent_bytes > RECENT_BYTES && self.recent.len() > 1 {
            self.recent_bytes -= self.recent.pop_front().map_or(0, |oldest| oldest.chunk.bytes.len());
        }
    }

    /// Returns the newest event and the bytes of output up to it.
    pub(crate) fn newest(&self) -> Point {
        Point { seq: self.view.newest(), offset: self.view.total() }
    }

    /// Returns the bytes of output after such a point.
    pub(crate) fn produced_since(&self, point: Point) -> u64 {
        self.view.total().saturating_sub(point.offset)
    }

    /// Returns the bytes that can no longer be read.
    pub(crate) fn lost(&self) -> u64 {
        self.evicted_bytes()
    }

    /// Returns the newest event up to `seq` whose end is known without reading, and the bytes of output up to it.
    pub(crate) fn known_end_by(&self, seq: Seq) -> Point {
        if seq >= self.view.newest() {
            return self.newest();
        }
        let (seq, offset) = self.ends.by_seq(seq).unwrap_or_default();
        Point { seq, offset }
    }

    /// Returns the position after an exit and a close that are not on disk.
    pub(crate) fn closed_now(&self, exit: ExitRecord) -> Progress {
        self.view.closed_now(exit)
    }

    /// Returns the place of an event in memory.
    fn index_of(&self, seq: Seq) -> Option<usize> {
        let index = self.recent.partition_point(|recent| recent.chunk.seq < seq);
        self.recent.get(index).is_some_and(|recent| recent.chunk.seq == seq).then_some(index)
    }

    fn position_after(&self, seq: Seq) -> Cursor {
        let next = || self.index_of(seq + 1).and_then(|index| self.recent.get(index));
        let offset = self
            .view
            .offset_after(seq)
            .or_else(|| self.ends.by_seq(seq).filter(|(known, _)| *known == seq).map(|(_, end)| end))
            .or_else(|| next().map(|next| next.end - next.chunk.bytes.len() as u64));
        Cursor { seq, offset }
    }

    /// Forgets what is on disk as well, except what readers are about to take.
    fn free_memory(&mut self) {
        (self.recent, self.recent_bytes, self.bookmarks) = (VecDeque::new(), 0, VecDeque::new());
        // While the process runs, what was received is found by the ends.
        if self.view.known.is_closed {
            self.ends = Ends::default();
        }
        self.release();
    }
}

impl LogState for DiskLogView {
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

impl LogReader for DiskLogView {
    fn next(&mut self, cursor: &mut Cursor) -> Result<Option<Next<'_>>, Unread> {
        // Output that was loaded for a reader is not lost to it, even if it was evicted meanwhile.
        if let Some((next, end)) = self.loaded.iter().find_map(|block| block.next(cursor)) {
            *cursor = end;
            return Ok(Some(next));
        }
        if let Some(next) = self.view.next(cursor) {
            return Ok(next);
        }
        let seq = cursor.seq + 1;
        let Some(Recent { chunk, end }) = self.index_of(seq).and_then(|index| self.recent.get(index)) else {
            return Err(Unread::OnDisk);
        };
        *cursor = Cursor { seq, offset: Some(*end) };
        Ok(Some(Next::Output { seq, stream: chunk.stream, at_ms: chunk.at_ms, bytes: &chunk.bytes }))
    }

    fn peek_len(&mut self, cursor: &Cursor) -> Result<Option<usize>, Unread> {
        Ok(self.known_len(cursor))
    }

    fn seek(&mut self, _to: SeekTo) -> Result<Sought, Unread> {
        Err(Unread::OnDisk)
    }

    fn cursor_after(&mut self, seq: Seq) -> Cursor {
        self.position_after(seq)
    }

    /// Returns a little more if the offset is not known exactly.
    fn behind(&self, cursor: &Cursor) -> u64 {
        let offset = cursor.offset.unwrap_or_else(|| self.known_end_by(cursor.seq).offset);
        self.view.behind(&Cursor { offset: Some(offset), ..*cursor })
    }

    fn gap(&self, cursor: &Cursor) -> Option<Gap> {
        let gap = self.view.gap(cursor)?;
        self.loaded.iter().all(|block| block.next(cursor).is_none()).then_some(gap)
    }
}

impl ProcessLog for DiskLogView {
    fn memory(&self) -> usize {
        let loaded = self.loaded.iter().map(|block| block.memory()).sum::<usize>();
        self.recent_bytes + self.recent.capacity() * size_of::<Recent>() + self.ends.memory() + loaded
    }
}

impl ServerLog for DiskLogView {
    fn disk(&mut self) -> Option<&mut DiskLogView> {
        Some(self)
    }

    fn stored(&self) -> Option<StoredLog> {
        Some(self.files())
    }

    fn snapshot(&self, _max_bytes: usize) -> Result<Snapshot, Unread> {
        Err(Unread::OnDisk)
    }

    fn sync_failure(&self) -> Option<&String> {
        self.view.known.sync_failure.as_ref()
    }

    fn known_len(&self, cursor: &Cursor) -> Option<usize> {
        if let Some((next, _)) = self.loaded.iter().find_map(|block| block.next(cursor)) {
            return match next {
                Next::Output { bytes, .. } => Some(bytes.len()),
                Next::Gap(_) | Next::Exited(_) | Next::Closed(_) => None,
            };
        }
        match self.view.next(&mut cursor.clone()) {
            Some(Some(Next::Exited(_) | Next::Closed(_))) => Some(0),
            Some(_) => None,
            None => {
                let recent = self.recent.get(self.index_of(cursor.seq + 1)?)?;
                Some(recent.chunk.bytes.len())
            }
        }
    }

    fn seq_ending_by(&self, offset: u64) -> Seq {
        if offset >= self.view.total() {
            return self.view.newest();
        }
        let Progress { first_seq, first_offset, .. } = self.view.known;
        let oldest = if first_offset <= offset { first_seq - 1 } else { 0 };
        self.ends.by_offset(offset).map_or(oldest, |(seq, _)| seq.max(oldest))
    }

    fn has_output_after(&mut self, seq: Seq) -> bool {
        self.view.has_output_after(seq)
    }

    fn note_end(&mut self, end: Point) {
        self.learn_ends([(end.seq, end.offset)].into_iter());
    }

    fn first_offset(&self) -> u64 {
        self.view.known.first_offset
    }

    fn give_up(&mut self, _hold: Hold) {
        self.free_memory();
    }

    fn release(&mut self) {
        self.loaded.retain(|block| Arc::strong_count(block) > 1);
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io, sync::Arc};

    use remex_log::{Hold, Options, Room, Unlimited, Writer};
    use remex_proto::process::{GapCause, Stream};

    use super::*;

    /// Creates the log of a closed process with ten events of 1000 bytes each.
    fn closed_log(dir: &Path) -> Progress {
        let options = Options { retain_bytes: 1 << 20, segment_bytes: None };
        let mut writer = Writer::create(dir, options, Arc::new(Unlimited)).unwrap();
        for _ in 0..10 {
            let Room::Bytes(room) = writer.room(Hold::Nothing) else { panic!("it is full") };
            writer.append(Stream::Stdout, 1, room, |spare| io::Result::Ok(spare.len().min(1000))).unwrap();
        }
        writer.exited(2, b"{}").unwrap();
        writer.closed(3, &[]).unwrap();
        let mut known = Progress::start();
        (known.newest, known.exited, known.is_closed) = (12, Some(11), true);
        (known.produced.stdout, known.retained) = (10_000, 10_000);
        known
    }

    #[test]
    fn the_end_of_the_last_output_is_known_without_reading() {
        let dir = tempfile::tempdir().unwrap();
        let mut view = DiskLogView::new(dir.path().to_owned(), closed_log(dir.path()));
        assert_eq!([10, 11, 12].map(|seq| view.cursor_after(seq).offset), [Some(10_000); 3]);
        assert_eq!(view.cursor_after(9).offset, None);
    }

    /// Appends events of 1000 bytes each, and returns how far the log has come.
    fn append(writer: &mut Writer, count: usize) -> Progress {
        for _ in 0..count {
            let Room::Bytes(room) = writer.room(Hold::Nothing) else { panic!("it is full") };
            writer.append(Stream::Stdout, 1, room, |spare| io::Result::Ok(spare.len().min(1000))).unwrap();
        }
        writer.flush().unwrap();
        let position = writer.position();
        let mut known = Progress::start();
        (known.first_seq, known.first_offset) = (position.first_seq, position.first_offset);
        (known.newest, known.produced.stdout) = (position.written_seq, position.offset);
        known
    }

    /// Reads what is next: from memory, or else from the files.
    fn read_next(
        view: &mut DiskLogView,
        cursor: &mut Cursor,
        pinned: &mut Option<Arc<Block>>,
    ) -> Option<Step> {
        if let Err(Unread::OnDisk) = view.next(&mut cursor.clone()) {
            let loaded = view.load(*cursor).run().unwrap();
            view.keep(&loaded);
            *pinned = Some(loaded.block);
        }
        Some(match view.next(cursor).unwrap()? {
            Next::Gap(gap) => Step::Gap(gap),
            Next::Output { bytes, .. } => Step::Output(bytes.len() as u64),
            Next::Exited(_) => Step::End("exited"),
            Next::Closed(_) => Step::End("closed"),
        })
    }

    #[derive(Debug)]
    enum Step {
        Gap(Gap),
        Output(u64),
        End(&'static str),
    }

    #[test]
    fn output_evicted_while_it_is_read_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { retain_bytes: 20_000, segment_bytes: Some(4096) };
        let mut writer = Writer::create(dir.path(), options, Arc::new(Unlimited)).unwrap();
        for more in [10, 30, 200] {
            // The server knows of this, and not yet of what follows.
            let known = append(&mut writer, 100);
            assert!(known.first_seq > 1);
            let mut view = DiskLogView::new(dir.path().to_owned(), known);
            let (mut cursor, mut pinned) = (view.cursor_after(0), None);
            let Some(Step::Gap(first)) = read_next(&mut view, &mut cursor, &mut pinned) else {
                panic!("no gap")
            };
            let mut seen = first.bytes.unwrap();
            let newest = append(&mut writer, more);
            let mut is_advanced = false;
            loop {
                match read_next(&mut view, &mut cursor, &mut pinned) {
                    Some(Step::Gap(gap)) => seen += gap.bytes.unwrap_or_else(|| panic!("{gap:?}")),
                    Some(Step::Output(bytes)) => seen += bytes,
                    Some(Step::End(_)) => {}
                    None if is_advanced => break,
                    None => {
                        view.advance(newest.clone());
                        is_advanced = true;
                    }
                }
            }
            assert_eq!(seen, newest.produced.stdout, "{more} more");
        }
    }

    #[test]
    fn output_loaded_for_a_reader_is_retained_until_it_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { retain_bytes: 20_000, segment_bytes: Some(4096) };
        let mut writer = Writer::create(dir.path(), options, Arc::new(Unlimited)).unwrap();
        let mut view = DiskLogView::new(dir.path().to_owned(), append(&mut writer, 10));
        let mut cursor = view.cursor_after(0);
        let loaded = view.load(cursor).run().unwrap();
        view.keep(&loaded);
        view.advance(append(&mut writer, 100));
        view.free_memory();
        assert!(view.first_seq() > 10 && view.gap(&cursor).is_none());
        assert_eq!(view.known_len(&cursor), Some(1000));
        for seq in 1..=10 {
            assert!(
                matches!(view.next(&mut cursor), Ok(Some(Next::Output { seq: read, .. })) if read == seq)
            );
        }
        assert!(matches!(view.next(&mut cursor.clone()), Ok(Some(Next::Gap(_)))));
        assert!(view.memory() > 10_000);
        drop(loaded);
        view.release();
        assert!(view.memory() < 10_000);
    }

    /// Returns the bytes of output, the gap, and the kinds of events after it.
    fn read_all(view: &mut DiskLogView) -> (u64, Option<Gap>, Vec<&'static str>) {
        let (mut cursor, mut len, mut gap, mut ends) = (view.cursor_after(0), 0, None, Vec::new());
        let mut pinned = None;
        while let Some(next) = read_next(view, &mut cursor, &mut pinned) {
            match next {
                Step::Output(bytes) => len += bytes,
                Step::Gap(found) => gap = Some(found),
                Step::End(end) => ends.push(end),
            }
        }
        (len, gap, ends)
    }

    fn damaged(from_seq: Seq, bytes: u64) -> Option<Gap> {
        Some(Gap { from_seq, to_seq: 10, bytes: Some(bytes), cause: Some(GapCause::Damaged) })
    }

    #[test]
    fn output_missing_at_the_end_of_a_log_is_counted_and_the_end_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let known = closed_log(dir.path());
        let ends = vec!["exited", "closed"];
        let [segment] = fs::read_dir(dir.path())
            .unwrap()
            .map(|file| file.unwrap().path())
            .collect::<Vec<_>>()
            .try_into()
            .unwrap();
        let mut view = DiskLogView::new(dir.path().to_owned(), known.clone());
        assert_eq!(read_all(&mut view), (10_000, None, ends.clone()));

        // A few records less.
        let file = fs::OpenOptions::new().write(true).open(&segment).unwrap();
        file.set_len(256 + 4 * 1048).unwrap();
        let mut view = DiskLogView::new(dir.path().to_owned(), known.clone());
        assert_eq!(read_all(&mut view), (4000, damaged(5, 6000), ends.clone()));
        fs::remove_file(&segment).unwrap();
        let mut view = DiskLogView::new(dir.path().to_owned(), known.clone());
        assert_eq!(read_all(&mut view), (0, damaged(1, 10_000), ends.clone()));
        // The same holds if all of it is gone.
        fs::remove_dir(dir.path()).unwrap();
        let mut view = DiskLogView::new(dir.path().to_owned(), known.clone());
        assert_eq!(read_all(&mut view), (0, damaged(1, 10_000), ends.clone()));
        // Or if something else is in its place.
        fs::write(dir.path(), "").unwrap();
        let mut view = DiskLogView::new(dir.path().to_owned(), known);
        assert_eq!(read_all(&mut view), (0, damaged(1, 10_000), ends));
        fs::remove_file(dir.path()).unwrap();
    }
}

//! Writes the log of one process. Start at [`Writer`].
//!
//! It promises that nothing is read from a process before there is certainly a place for it: ask [`Writer::room`]
//! first. It never waits for the disk, except in [`Writer::sync`].

mod empty;
mod ledger;
mod open;
mod retention;
mod tail;
mod unsynced;

use std::{
    cell::Cell,
    collections::VecDeque,
    io, mem,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

pub use empty::EmptyLog;
use ledger::Ledger;
pub use open::Recovered;
use retention::{SealedSegment, may_evict_before};
use tail::Tail;
use unsynced::SyncFailure;
pub use unsynced::Unsynced;

use crate::base::{
    disk::Disk,
    event::{Cause, End, Hold, Point, Produced, Seq, Stream},
    format::{
        DroppedOutput, GAP_RECORD, Kind, MAX_CHUNK, MAX_END_PAYLOAD, MAX_RECORD, RECORD_LEN, RecordHeader,
        push_record,
    },
    names::SegmentName,
    scanner::{Opened, Scanner},
    space::Space,
};

/// The first reservation of a log; later ones double.
const FIRST_STEP: u64 = 64 << 10;
const MAX_STEP: u64 = 1 << 20;
/// Reservations are multiples of this, the usual block size.
const BLOCK: u64 = 4 << 10;
/// With less room than this, more space is reserved.
const MIN_ROOM: u64 = 16 << 10;

/// Held while a log evicts to make room, so that other logs cannot take the freed space first.
static MAKING_ROOM: Mutex<()> = Mutex::new(());

/// How much a log keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes of output to keep at least, and to hold at most.
    pub retain_bytes: u64,
    /// The length at which a segment is full; `None` for an eighth of `retain_bytes`, between 64 KiB and 8 MiB.
    pub segment_bytes: Option<u64>,
}

impl Options {
    fn segment_len(&self) -> u64 {
        self.segment_bytes.unwrap_or_else(|| (self.retain_bytes / 8).clamp(64 << 10, 8 << 20))
    }
}

/// How much may be appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// This many bytes, at least 1.
    Bytes(usize),
    /// Nothing, for this reason.
    Full(Cause),
}

/// An event that was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Its number.
    pub seq: Seq,
    /// Bytes of output in it.
    pub len: usize,
    /// Whether it is in the file. If not, it is kept in memory and written as soon as the file system allows; it must
    /// not be announced to readers before [`Position::written_seq`] has reached it.
    pub is_written: bool,
}

/// The state of a log in numbers. Produced bytes are always the sum of retained, evicted and dropped bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The first event that is not evicted, or the next one.
    pub first_seq: Seq,
    /// Bytes of output before it.
    pub first_offset: u64,
    /// The next event.
    pub next_seq: Seq,
    /// Bytes of output before it, including dropped ones.
    pub offset: u64,
    /// The newest event that readers can read.
    pub written_seq: Seq,
    /// Bytes produced, by stream.
    pub produced: Produced,
    /// Bytes in the log.
    pub retained: u64,
    /// Bytes evicted.
    pub evicted: u64,
    /// Bytes dropped.
    pub dropped: u64,
    /// Bytes counted in the space of the log.
    pub disk_bytes: u64,
}

/// The writer of one log; there must be only one.
///
/// Dropping it releases unused reservations; the bytes of its files stay counted, see [`Writer::close`].
pub struct Writer {
    dir: PathBuf,
    disk: Box<dyn Disk>,
    space: Arc<dyn Space>,
    retain_bytes: u64,
    segment_bytes: u64,
    /// How much to reserve next.
    step: u64,
    sealed: VecDeque<SealedSegment>,
    tail: Tail,
    ledger: Ledger,
    /// Bytes dropped before the first segment.
    first_dropped: u64,
    /// Whether the names of all segments are on the medium.
    is_dir_synced: bool,
    sync_failure: SyncFailure,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer")
            .field("dir", &self.dir)
            .field("position", &self.position())
            .finish_non_exhaustive()
    }
}

thread_local! {
    /// One buffer for all writers of a thread: a keeper has many, but appends to one at a time.
    static RECORD: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl Writer {
    /// Returns how many bytes may be appended now. That much is certain: it is reserved on disk and counted.
    ///
    /// With [`Hold::After`] the log holds at most `retain_bytes` after the hold. Older segments are deleted if that is
    /// needed to make room; with [`Hold::Nothing`], any but the newest. Also writes what could not be written before.
    pub fn room(&mut self, hold: Hold) -> Room {
        self.evict(hold);
        if let Err(cause) = self.flush() {
            return Room::Full(cause);
        }
        let within = match hold {
            Hold::Nothing => MAX_CHUNK as u64,
            Hold::After(Point { offset, .. }) => {
                self.retain_bytes.saturating_sub(self.ledger.held_after(offset))
            }
        };
        if within == 0 {
            return Room::Full(Cause::Retention);
        }
        match self.make_room(within.min(MAX_CHUNK as u64), hold) {
            Ok(bytes) => match self.write_dropped_run() {
                Ok(()) => Room::Bytes(bytes as usize),
                Err(cause) => Room::Full(cause),
            },
            Err(cause) => Room::Full(cause),
        }
    }

    /// Appends up to `max` bytes of `stream` that `fill` writes into the slice it is given, as one event.
    ///
    /// `max` is what [`Writer::room`] has returned, or less. `fill` returns how many bytes it wrote. Returns `None`,
    /// and appends nothing, if that is 0; without room, `fill` is not called.
    ///
    /// # Errors
    ///
    /// The error of `fill`; then nothing is appended.
    pub fn append<E>(
        &mut self,
        stream: Stream,
        at_ms: u64,
        max: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<Option<Appended>, E> {
        debug_assert!(self.ledger.closed.is_none(), "nothing follows the close");
        if self.flush().is_err() {
            return Ok(None);
        }
        let max = max.min(MAX_CHUNK).min(usize::try_from(self.free()).unwrap_or(usize::MAX));
        if max == 0 || self.write_dropped_run().is_err() {
            return Ok(None);
        }
        let mut record = RECORD.take();
        record.resize(MAX_RECORD, 0);
        let filled = fill(&mut record[RECORD_LEN..RECORD_LEN + max]);
        let appended = filled.map(|len| self.append_record(&mut record, stream, at_ms, len.min(max)));
        RECORD.set(record);
        appended
    }

    /// Appends the output in `record`, which has space for the header before it.
    fn append_record(
        &mut self,
        record: &mut [u8],
        stream: Stream,
        at_ms: u64,
        len: usize,
    ) -> Option<Appended> {
        if len == 0 {
            return None;
        }
        let seq = self.ledger.count(at_ms);
        let payload = &record[RECORD_LEN..RECORD_LEN + len];
        let header = RecordHeader::new(Kind::Output(stream), seq, self.ledger.offset, at_ms, payload);
        record[..RECORD_LEN].copy_from_slice(&header.encode(self.tail.header.key()));
        let size = header.size() as usize;
        record[RECORD_LEN + len..size].fill(0);
        self.ledger.produce(stream, len as u64);
        self.tail.append(&*self.disk, &*self.space, &record[..size], seq);
        Some(Appended { seq, len, is_written: self.tail.is_written() })
    }

    /// Records that `len` bytes of `stream` were dropped because there was no room for them.
    ///
    /// Consecutive drops are one event, with the first cause. It is written as soon as there is room, before any later
    /// record.
    pub fn drop_output(&mut self, stream: Stream, len: u64, cause: Cause) {
        if len > 0 {
            self.ledger.drop_output(stream, len, cause);
        }
    }

    /// Returns the run of dropped output that is not in the file yet, for [`Writer::resume_dropped_run`] of the next
    /// writer.
    pub fn unwritten_dropped_run(&self) -> Option<Vec<u8>> {
        self.ledger.unwritten_dropped_run()
    }

    /// Continues a run of dropped output that the previous writer could not write.
    ///
    /// # Errors
    ///
    /// If these bytes are not such a run.
    pub fn resume_dropped_run(&mut self, run: &[u8]) -> io::Result<()> {
        let DroppedOutput { bytes, cause } = DroppedOutput::decode(run).ok_or(io::ErrorKind::InvalidData)?;
        self.drop_output(Stream::Stdout, bytes.stdout, cause);
        self.drop_output(Stream::Stderr, bytes.stderr, cause);
        self.drop_output(Stream::Pty, bytes.pty, cause);
        Ok(())
    }

    /// Records that the direct child has ended. This needs no room: space for it is always reserved.
    ///
    /// # Errors
    ///
    /// If the payload is longer than [`MAX_END_PAYLOAD`], or an exit or close is already recorded.
    pub fn exited(&mut self, at_ms: u64, payload: &[u8]) -> io::Result<Appended> {
        if self.ledger.exited.is_some() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the exit is already recorded"));
        }
        let appended = self.append_end(Kind::Exited, at_ms, payload)?;
        self.ledger.exited = Some(End { seq: appended.seq, at_ms, payload: Some(payload.to_vec()) });
        Ok(appended)
    }

    /// Records that no more events will follow, and gives back what is reserved. This needs no room either.
    ///
    /// # Errors
    ///
    /// If the payload is longer than [`MAX_END_PAYLOAD`], or a close is already recorded.
    pub fn closed(&mut self, at_ms: u64, payload: &[u8]) -> io::Result<Appended> {
        let appended = self.append_end(Kind::Closed, at_ms, payload)?;
        self.ledger.closed = Some(End { seq: appended.seq, at_ms, payload: Some(payload.to_vec()) });
        // What cannot be given back now is given back when the writer is dropped.
        self.tail.trim(&*self.disk, &*self.space).ok();
        self.tail.close_file();
        Ok(appended)
    }

    fn append_end(&mut self, kind: Kind, at_ms: u64, payload: &[u8]) -> io::Result<Appended> {
        if self.ledger.closed.is_some() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the close is already recorded"));
        }
        check_len(payload, MAX_END_PAYLOAD)?;
        let mut records = Vec::new();
        let key = self.tail.header.key();
        self.ledger.push_dropped_run(&mut records, key);
        let seq = self.ledger.count(at_ms);
        let header = RecordHeader::new(kind, seq, self.ledger.offset, at_ms, payload);
        push_record(&mut records, key, &header, payload);
        self.tail.append(&*self.disk, &*self.space, &records, seq);
        Ok(Appended { seq, len: 0, is_written: self.tail.is_written() })
    }

    /// Stores `payload` under `tag`. It is no event, and replaces an earlier note with this tag.
    ///
    /// The newest note of each tag is copied to every new segment, so notes should be few and short.
    ///
    /// # Errors
    ///
    /// If the payload is longer than [`MAX_CHUNK`], or there is no space for it.
    pub fn note(&mut self, tag: u8, payload: &[u8]) -> io::Result<()> {
        check_len(payload, MAX_CHUNK)?;
        self.flush().map_err(full)?;
        if self.tail.end() >= self.segment_bytes.max(2 * self.ledger.head_len()) {
            // In the old segment it is as safe.
            self.roll().ok();
        }
        let SegmentName { first_seq, first_offset } = self.ledger.next_record();
        let header = RecordHeader::new(Kind::Note(tag), first_seq, first_offset, 0, payload);
        let end = self.tail.end() + header.size() + self.ledger.reserve();
        if end > self.tail.reserved {
            self.tail.reserve(&*self.disk, &*self.space, end.next_multiple_of(BLOCK)).map_err(full)?;
        }
        let mut record = Vec::new();
        push_record(&mut record, self.tail.header.key(), &header, payload);
        self.tail.try_append(&*self.disk, &*self.space, &record)?;
        self.ledger.notes.insert(tag, payload.to_vec());
        Ok(())
    }

    /// Deletes the oldest segments as long as the rest holds at least `retain_bytes` and everything after `hold`.
    pub fn evict(&mut self, hold: Hold) {
        while let Some(next) = self.second_segment()
            && may_evict_before(next.first_seq, hold)
            && self.ledger.offset.saturating_sub(next.first_offset) >= self.retain_bytes
        {
            // Only now, because it may read a header.
            let dropped = self.ledger.dropped.saturating_sub(self.dropped_before_second());
            let retained = (self.ledger.offset - next.first_offset).saturating_sub(dropped);
            if retained < self.retain_bytes || self.evict_first().is_err() {
                break;
            }
        }
    }

    /// Writes what could not be written when it was appended.
    ///
    /// # Errors
    ///
    /// Why it still cannot be written.
    pub fn flush(&mut self) -> Result<(), Cause> {
        self.tail.flush(&*self.disk, &*self.space)
    }

    /// Waits until everything written is on the medium, so that it survives a power failure.
    ///
    /// # Errors
    ///
    /// The error of the file system, now or in an earlier sync: data lost by a failed sync stays lost.
    pub fn sync(&mut self) -> io::Result<()> {
        let unsynced = self.unsynced()?;
        unsynced.wait(|file| self.disk.sync(file))?;
        self.synced(&unsynced);
        Ok(())
    }

    /// Returns the files to sync until everything written so far is on the medium; another thread can do that while
    /// this one continues to write. Pass the result to [`Writer::synced`] afterwards.
    ///
    /// # Errors
    ///
    /// The error of the file system.
    pub fn unsynced(&mut self) -> io::Result<Unsynced> {
        self.flush().map_err(full)?;
        let sealed =
            self.sealed.iter().filter(|sealed| !sealed.is_synced).map(|sealed| sealed.name).collect();
        let (tail, name) = (self.tail.clone_file(&self.dir)?, self.tail.header.name);
        let sync_failure = self.sync_failure.clone();
        Ok(Unsynced {
            dir: self.dir.clone(),
            sealed,
            tail,
            name,
            is_dir_synced: self.is_dir_synced,
            sync_failure,
        })
    }

    /// Records that the files that [`Writer::unsynced`] returned are on the medium.
    pub fn synced(&mut self, done: &Unsynced) {
        for sealed in &mut self.sealed {
            sealed.is_synced |= done.sealed.contains(&sealed.name);
        }
        // A segment may have been created since.
        self.is_dir_synced |= self.tail.header.name == done.name;
    }

    /// Returns the state of the log in numbers.
    pub fn position(&self) -> Position {
        let Ledger { next_seq, offset, produced, dropped, .. } = self.ledger;
        let first = self.sealed.front().map_or(self.tail.header.name, |sealed| sealed.name);
        let evicted = first.first_offset.saturating_sub(self.first_dropped);
        Position {
            first_seq: first.first_seq,
            first_offset: first.first_offset,
            next_seq,
            offset,
            written_seq: self.tail.written_seq,
            produced,
            retained: offset.saturating_sub(dropped).saturating_sub(evicted),
            evicted,
            dropped,
            disk_bytes: self.disk_bytes(),
        }
    }

    /// Releases unused reservations, and returns the bytes that stay counted in the space of the log. The caller
    /// releases them when it deletes the directory.
    ///
    /// # Errors
    ///
    /// If something is kept in memory that still cannot be written, or the file system reports an error.
    pub fn close(mut self) -> io::Result<u64> {
        self.flush().map_err(full)?;
        self.tail.trim(&*self.disk, &*self.space)?;
        Ok(self.disk_bytes())
    }

    fn disk_bytes(&self) -> u64 {
        self.tail.reserved + self.sealed.iter().map(|sealed| sealed.bytes).sum::<u64>()
    }

    /// Returns how much output fits into what is reserved.
    fn free(&self) -> u64 {
        let gap = if self.ledger.has_dropped_run() { GAP_RECORD } else { 0 };
        let taken = self.tail.end() + self.ledger.reserve() + gap + RECORD_LEN as u64;
        // Whole words, because of the padding.
        self.tail.reserved.saturating_sub(taken) & !7
    }

    /// Reserves space for up to `want` bytes of output, and returns for how many.
    fn make_room(&mut self, want: u64, hold: Hold) -> Result<u64, Cause> {
        let enough = want.min(MIN_ROOM);
        if !self.is_segment_full() && self.free() >= enough {
            return Ok(self.free().min(want));
        }
        let _turn = MAKING_ROOM.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let refused = match self.reserve_more(want, enough) {
                Ok(()) => return Ok(self.free().min(want)),
                Err(cause) => cause,
            };
            if !refused.is_lack_of_space() || !self.shrink(hold) {
                return Some(self.free().min(want)).filter(|room| *room > 0).ok_or(refused);
            }
        }
    }

    /// Releases the oldest segment if `hold` allows it; returns whether there was one.
    fn shrink(&mut self, hold: Hold) -> bool {
        if let Some(next) = self.second_segment() {
            return may_evict_before(next.first_seq, hold) && self.evict_first().is_ok();
        }
        let is_read = matches!(hold, Hold::After(_)) && may_evict_before(self.ledger.next_seq, hold);
        is_read && self.tail.has_events && self.replace_only_segment().is_ok()
    }

    /// Starts a new segment in the space of the only one: if that were deleted first, other logs could take its space.
    fn replace_only_segment(&mut self) -> Result<(), Cause> {
        let reserved = self.tail.reserved;
        self.tail.trim(&*self.disk, &*self.space).map_err(|error| Cause::of(&error))?;
        if let Err(cause) = self.roll() {
            self.tail.reserve(&*self.disk, &*self.space, reserved).ok();
            return Err(cause);
        }
        self.evict_first().map_err(|error| Cause::of(&error))
    }

    fn is_segment_full(&self) -> bool {
        self.tail.end() >= self.segment_bytes && self.tail.has_events
    }

    fn reserve_more(&mut self, want: u64, enough: u64) -> Result<(), Cause> {
        if self.is_segment_full() {
            self.roll()?;
        }
        if self.free() >= enough {
            return Ok(());
        }
        let need = |bytes: u64| bytes.next_multiple_of(8) + RECORD_LEN as u64 + GAP_RECORD;
        let start = self.tail.end() + self.ledger.reserve();
        let most = self.segment_bytes.max(start + need(want));
        let least = start + need(enough);
        let mut end = (self.tail.reserved + self.step).min(most).max(least).next_multiple_of(BLOCK);
        loop {
            match self.tail.reserve(&*self.disk, &*self.space, end) {
                Ok(()) => break,
                Err(cause) if !cause.is_lack_of_space() || end <= least.next_multiple_of(BLOCK) => {
                    return Err(cause);
                }
                Err(_) => end = least.max(end.midpoint(least)).next_multiple_of(BLOCK).min(end - BLOCK),
            }
        }
        self.step = (2 * self.step).min(MAX_STEP);
        Ok(())
    }

    /// Starts a new segment; with nothing but notes in the old one, replaces that.
    fn roll(&mut self) -> Result<(), Cause> {
        let (header, head) = self.ledger.new_segment().map_err(|error| Cause::of(&error))?;
        let least = self.ledger.next_segment_reserve();
        let reserve = self.step.min(self.segment_bytes).max(least).next_multiple_of(BLOCK);
        let create = |reserve| Tail::create(&*self.disk, &*self.space, &self.dir, header, &head, reserve);
        let mut tail = match create(reserve) {
            Err(cause) if cause.is_lack_of_space() && reserve > least => create(least)?,
            created => created?,
        };
        tail.resume(self.tail.written_seq, false);
        let mut old = mem::replace(&mut self.tail, tail);
        if old.header.name == header.name {
            self.space.release(old.reserved);
        } else {
            // Blocks that are not released stay counted.
            old.trim(&*self.disk, &*self.space).ok();
            self.sealed.push_back(SealedSegment {
                name: old.header.name,
                bytes: old.reserved,
                dropped_before: Some(old.header.dropped),
                is_synced: false,
            });
        }
        self.is_dir_synced = false;
        Ok(())
    }

    /// Writes the run of dropped output, if there is one.
    fn write_dropped_run(&mut self) -> Result<(), Cause> {
        let mut record = Vec::new();
        if self.ledger.push_dropped_run(&mut record, self.tail.header.key()) {
            self.tail.append(&*self.disk, &*self.space, &record, self.ledger.next_seq - 1);
        }
        self.flush()
    }

    /// Returns the segment after the oldest one; `None` if the oldest is the newest.
    fn second_segment(&self) -> Option<SegmentName> {
        self.sealed.front()?;
        Some(self.sealed.get(1).map_or(self.tail.header.name, |sealed| sealed.name))
    }

    /// Returns the bytes dropped before the second segment.
    fn dropped_before_second(&mut self) -> u64 {
        let Some(second) = self.sealed.get_mut(1) else { return self.tail.header.dropped };
        // If its header is damaged, assume that nothing was dropped in the first segment.
        *second.dropped_before.get_or_insert_with(|| match Scanner::default().open(&self.dir, second.name) {
            Ok(Opened::Ready(header)) => header.dropped,
            Ok(Opened::Unreadable(_)) | Err(_) => self.first_dropped,
        })
    }

    /// Deletes the oldest segment.
    fn evict_first(&mut self) -> io::Result<()> {
        let dropped_before_second = self.dropped_before_second();
        let Some(first) = self.sealed.front() else { return Ok(()) };
        match self.disk.remove(&self.dir.join(first.name.file_name())) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        self.space.release(first.bytes);
        self.first_dropped = dropped_before_second;
        self.sealed.pop_front();
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // `Drop` cannot report errors; blocks that are not released now are when the log is opened and closed again.
        self.tail.trim(&*self.disk, &*self.space).ok();
    }
}

fn check_len(payload: &[u8], max: usize) -> io::Result<()> {
    if payload.len() > max {
        let message = format!("a payload of {} bytes is too long: the limit is {max}", payload.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(())
}

fn full(cause: Cause) -> io::Error {
    let kind = match cause {
        Cause::Io(errno) => return io::Error::from_raw_os_error(errno),
        Cause::DiskFull => io::ErrorKind::StorageFull,
        _ => io::ErrorKind::QuotaExceeded,
    };
    io::Error::new(kind, cause.to_string())
}

//! The segment that a writer appends to. Start at [`Tail`].

use std::{fs::File, io, path::Path};

use rustix::io::Errno;

use crate::base::{
    disk::{Disk, write_all},
    event::{Cause, Seq},
    format::SegmentHeader,
    space::Space,
};

/// With this much space on a disk, no blocks are allocated in advance.
const AMPLE: u64 = 1 << 30;

/// A segment gets its name when its head is written, so that there is none without a head.
pub(super) const NEW_SEGMENT: &str = "next.tmp";

/// The newest segment: its file, and the records that are not in it yet.
#[derive(Debug)]
pub(super) struct Tail {
    /// `None` once nothing more will be written.
    file: Option<File>,
    pub(super) header: SegmentHeader,
    /// Where the records in the file end.
    pub(super) written: u64,
    /// Records after `written` that the file system refused.
    unwritten: Vec<u8>,
    /// Bytes of the file that are reserved and counted; at least `written`.
    pub(super) reserved: u64,
    /// Whether blocks are allocated after `written`.
    is_allocated: bool,
    pub(super) has_events: bool,
    /// The last event in `unwritten`, or in the log.
    last_seq: Seq,
    /// The last event that is in a file.
    pub(super) written_seq: Seq,
}

impl Tail {
    /// Creates a segment that begins with `head`, and reserves `reserve` bytes for it.
    ///
    /// Leaves nothing behind if that fails.
    pub(super) fn create(
        disk: &dyn Disk,
        space: &dyn Space,
        dir: &Path,
        header: SegmentHeader,
        head: &[u8],
        reserve: u64,
    ) -> Result<Tail, Cause> {
        let reserved = reserve.max(head.len() as u64);
        space.reserve(reserved)?;
        let mut is_allocated = false;
        let allocate = |file: &File| {
            is_allocated = allocate(disk, file, 0, reserved)?;
            Ok(())
        };
        match build(disk, dir, &header, head, allocate) {
            Ok(file) => Ok(Tail { is_allocated, ..Tail::new(file, header, head.len() as u64, reserved) }),
            Err(error) => {
                space.release(reserved);
                Err(Cause::of(&error))
            }
        }
    }

    /// Creates a segment that begins with `head`, for which nothing is counted or reserved yet.
    pub(super) fn create_unreserved(
        disk: &dyn Disk,
        dir: &Path,
        header: SegmentHeader,
        head: &[u8],
    ) -> io::Result<Tail> {
        let file = build(disk, dir, &header, head, |_| Ok(()))?;
        Ok(Tail::new(file, header, head.len() as u64, 0))
    }

    /// Returns a tail whose records end at `written`.
    pub(super) fn new(file: File, header: SegmentHeader, written: u64, reserved: u64) -> Tail {
        let last_seq = header.name.first_seq - 1;
        let unwritten = Vec::new();
        Tail {
            file: Some(file),
            header,
            written,
            unwritten,
            reserved,
            is_allocated: false,
            has_events: false,
            last_seq,
            written_seq: last_seq,
        }
    }

    /// Records that the log has events up to `seq` on disk.
    pub(super) fn resume(&mut self, seq: Seq, has_events: bool) {
        self.last_seq = seq;
        self.written_seq = seq;
        self.has_events = has_events;
    }

    /// Returns where the next record goes.
    pub(super) fn end(&self) -> u64 {
        self.written + self.unwritten.len() as u64
    }

    /// Returns whether the file has all records.
    pub(super) fn is_written(&self) -> bool {
        self.unwritten.is_empty()
    }

    /// Reserves space up to `end`.
    pub(super) fn reserve(&mut self, disk: &dyn Disk, space: &dyn Space, end: u64) -> Result<(), Cause> {
        let Some(more) = end.checked_sub(self.reserved).filter(|more| *more > 0) else { return Ok(()) };
        space.reserve(more)?;
        // Also what was reserved without blocks.
        let blocks = self.file().and_then(|file| allocate(disk, file, self.written, end - self.written));
        self.is_allocated |= blocks.map_err(|error| {
            space.release(more);
            Cause::of(&error)
        })?;
        self.reserved = end;
        Ok(())
    }

    /// Appends whole records, the last of which is the event `last_seq`. What cannot be written is kept in memory.
    pub(super) fn append(&mut self, disk: &dyn Disk, space: &dyn Space, records: &[u8], last_seq: Seq) {
        if last_seq > self.last_seq {
            self.last_seq = last_seq;
            self.has_events = true;
        }
        let is_direct = self.unwritten.is_empty() && self.write(disk, records).is_ok();
        if is_direct {
            self.wrote(space, records.len());
        } else {
            self.unwritten.extend_from_slice(records);
            self.flush(disk, space).ok();
        }
    }

    /// Writes what is kept in memory.
    pub(super) fn flush(&mut self, disk: &dyn Disk, space: &dyn Space) -> Result<(), Cause> {
        if !self.unwritten.is_empty() {
            self.write(disk, &self.unwritten).map_err(|error| Cause::of(&error))?;
            let len = self.unwritten.len();
            self.unwritten = Vec::new();
            self.wrote(space, len);
        }
        Ok(())
    }

    /// Appends records only if the file takes them now.
    pub(super) fn try_append(
        &mut self,
        disk: &dyn Disk,
        space: &dyn Space,
        records: &[u8],
    ) -> io::Result<()> {
        if let Err(error) = self.write(disk, records) {
            // A partial record must not stay, because the next one may be shorter. The truncation also frees the
            // reservation.
            let reserved = self.reserved - self.written;
            let file = self.file()?;
            disk.truncate(file, self.written).ok();
            allocate(disk, file, self.written, reserved).ok();
            return Err(error);
        }
        self.wrote(space, records.len());
        Ok(())
    }

    fn wrote(&mut self, space: &dyn Space, len: usize) {
        self.written += len as u64;
        self.written_seq = self.last_seq;
        if self.written > self.reserved {
            space.charge(self.written - self.reserved);
            self.reserved = self.written;
        }
    }

    /// Releases the reservation after `end`.
    pub(super) fn trim(&mut self, disk: &dyn Disk, space: &dyn Space) -> io::Result<()> {
        if self.unwritten.is_empty() && self.reserved > self.written {
            if self.is_allocated {
                disk.truncate(self.file()?, self.written)?;
            }
            space.release(self.reserved - self.written);
            self.reserved = self.written;
        }
        Ok(())
    }

    /// Returns another handle on the file.
    pub(super) fn clone_file(&self, dir: &Path) -> io::Result<File> {
        match &self.file {
            Some(file) => file.try_clone(),
            None => File::open(dir.join(self.header.name.file_name())),
        }
    }

    /// Closes the file if it has all records and nothing else is reserved for it; nothing more will be written.
    ///
    /// Keeps the descriptor count low.
    pub(super) fn close_file(&mut self) {
        if self.unwritten.is_empty() && self.reserved == self.written {
            self.file = None;
        }
    }

    fn write(&self, disk: &dyn Disk, records: &[u8]) -> io::Result<()> {
        write_all(disk, self.file()?, records, self.written)
    }

    fn file(&self) -> io::Result<&File> {
        self.file.as_ref().ok_or_else(|| io::Error::other("the log is closed"))
    }
}

/// Creates the file of a segment, and leaves nothing behind if that fails.
fn build(
    disk: &dyn Disk,
    dir: &Path,
    header: &SegmentHeader,
    head: &[u8],
    prepare: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<File> {
    let path = dir.join(NEW_SEGMENT);
    let build = || -> io::Result<File> {
        let file = disk.create(&path)?;
        prepare(&file)?;
        write_all(disk, &file, head, 0)?;
        disk.rename(&path, &dir.join(header.name.file_name()))?;
        Ok(file)
    };
    // A file that cannot be removed is overwritten by the next attempt.
    build().inspect_err(|_| drop(disk.remove(&path)))
}

/// Allocates blocks if space is scarce, and returns whether it did.
///
/// With ample space, or on a file system that cannot allocate, nothing is guaranteed in advance; records that the disk
/// then refuses are kept in memory. Blocks are not allocated needlessly, because freeing them may take milliseconds:
/// some file systems notify the disk and wait for it.
fn allocate(disk: &dyn Disk, file: &File, from: u64, len: u64) -> io::Result<bool> {
    if disk.free(file).is_ok_and(|free| free >= AMPLE) {
        return Ok(false);
    }
    match disk.allocate(file, from, len) {
        Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::OPNOTSUPP | Errno::NOSYS)) => {
            Ok(false)
        }
        allocated => allocated.map(|()| true),
    }
}

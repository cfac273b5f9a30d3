//! The segment that a writer appends to. Start at [`Tail`].

use std::{fs::File, io, path::Path};

use rustix::io::Errno;

use crate::{
    disk::{Disk, write_all},
    event::{Cause, Seq},
    format::SegmentHeader,
    space::Space,
};

/// A segment gets its name when its head is written, so that there is none without a head.
pub(super) const NEW_SEGMENT: &str = "next.tmp";

/// The newest segment: its file, and what is not in it yet.
#[derive(Debug)]
pub(super) struct Tail {
    file: File,
    pub(super) header: SegmentHeader,
    /// Where the records in the file end.
    pub(super) written: u64,
    /// Records after `written` that the file system refused.
    unwritten: Vec<u8>,
    /// Bytes of the file that are reserved and counted; at least `written`.
    pub(super) reserved: u64,
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
        let path = dir.join(NEW_SEGMENT);
        let build = || -> io::Result<File> {
            let file = disk.create(&path)?;
            allocate(disk, &file, 0, reserved)?;
            write_all(disk, &file, head, 0)?;
            disk.rename(&path, &dir.join(header.name.file_name()))?;
            Ok(file)
        };
        match build() {
            Ok(file) => Ok(Tail::new(file, header, head.len() as u64, reserved)),
            Err(error) => {
                // What cannot be removed is overwritten by the next attempt.
                disk.remove(&path).ok();
                space.release(reserved);
                Err(Cause::of(&error))
            }
        }
    }

    /// Returns a tail whose records end at `written`.
    pub(super) fn new(file: File, header: SegmentHeader, written: u64, reserved: u64) -> Tail {
        let last_seq = header.name.first_seq - 1;
        let unwritten = Vec::new();
        Tail {
            file,
            header,
            written,
            unwritten,
            reserved,
            has_events: false,
            last_seq,
            written_seq: last_seq,
        }
    }

    /// Notes that the log has events up to `seq` on disk.
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
        allocate(disk, &self.file, self.reserved, more).map_err(|error| {
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
        let is_direct =
            self.unwritten.is_empty() && write_all(disk, &self.file, records, self.written).is_ok();
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
            write_all(disk, &self.file, &self.unwritten, self.written).map_err(|error| Cause::of(&error))?;
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
        if let Err(error) = write_all(disk, &self.file, records, self.written) {
            // Half a record must not stay, because the next one may be shorter. That also frees what was reserved.
            let reserved = self.reserved - self.written;
            disk.truncate(&self.file, self.written).ok();
            allocate(disk, &self.file, self.written, reserved).ok();
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

    /// Gives back what is reserved after `end`.
    pub(super) fn trim(&mut self, disk: &dyn Disk, space: &dyn Space) -> io::Result<()> {
        if self.unwritten.is_empty() && self.reserved > self.written {
            disk.truncate(&self.file, self.written)?;
            space.release(self.reserved - self.written);
            self.reserved = self.written;
        }
        Ok(())
    }

    /// Returns the file.
    pub(super) fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Waits until the data is on the medium.
    pub(super) fn sync(&self, disk: &dyn Disk) -> io::Result<()> {
        disk.sync(&self.file)
    }
}

/// Allocates blocks; where the file system cannot, space is certain only once it is written.
fn allocate(disk: &dyn Disk, file: &File, from: u64, len: u64) -> io::Result<()> {
    match disk.allocate(file, from, len) {
        Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::OPNOTSUPP | Errno::NOSYS)) => Ok(()),
        allocated => allocated,
    }
}

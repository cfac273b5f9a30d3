//! Reads the records of one segment at a time, in blocks. Start at [`Scanner`].
//!
//! It never trusts a byte: a header counts only if its keyed checksum is right, a payload only if its own is.

use std::{
    fs::{self, File, OpenOptions},
    io,
    ops::RangeInclusive,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::{
    buffer::spare_capacity,
    io::{Errno, pread},
};

use crate::base::{
    disk::SAFE_OPEN,
    event::{GapCause, Seq},
    format::{
        DroppedOutput, HEAD_LEN, HeadError, Kind, MAX_RECORD, RECORD_LEN, RecordHeader, SegmentHeader,
        VersionError,
    },
    names::SegmentName,
};

/// How much one read asks for at least.
const BLOCK: usize = 128 << 10;
/// A block after the beginning of a record that the previous block cut.
const BUFFER: usize = BLOCK + MAX_RECORD;

/// One buffer and at most one open segment.
#[derive(Debug, Default)]
pub(crate) struct Scanner {
    segment: Option<OpenSegment>,
    buffer: Vec<u8>,
    /// Position of the buffer in the file.
    start: u64,
    /// Events up to this one were finished when the buffer was read; later ones may be half written in it.
    finished: Seq,
    /// The position of the last payload that was found right, if the buffer still has it: readers look before they
    /// take.
    checked: Option<u64>,
}

#[derive(Debug)]
struct OpenSegment {
    path: PathBuf,
    file: File,
    header: SegmentHeader,
}

/// What is at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Record(RecordHeader),
    /// Bytes, but no valid header.
    Damage,
    /// Fewer bytes than a header has.
    End,
}

/// The outcome of opening a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opened {
    Ready(SegmentHeader),
    /// Nothing can be read from this segment.
    Unreadable(GapCause),
}

impl Scanner {
    /// Opens the segment `name` in `dir`, unless it is open.
    ///
    /// # Errors
    ///
    /// If the segment has a newer format, or for a reason that may pass, such as too many open files.
    pub(crate) fn open(&mut self, dir: &Path, name: SegmentName) -> io::Result<Opened> {
        if let Some(open) = &self.segment
            && open.header.name == name
        {
            return Ok(Opened::Ready(open.header));
        }
        self.close();
        match self.try_open(dir, name) {
            Err(error) => lasting(&error).map(Opened::Unreadable).ok_or(error),
            opened => opened,
        }
    }

    fn try_open(&mut self, dir: &Path, name: SegmentName) -> io::Result<Opened> {
        let path = dir.join(name.file_name());
        let file = OpenOptions::new().read(true).custom_flags(SAFE_OPEN).open(&path)?;
        self.load(&file, 0, HEAD_LEN, 0)?;
        let head = self.slice(0, HEAD_LEN);
        if head.is_empty() {
            return Ok(Opened::Unreadable(GapCause::Missing));
        }
        match SegmentHeader::decode(head) {
            Ok(header) if header.name == name => {
                self.segment = Some(OpenSegment { path, file, header });
                Ok(Opened::Ready(header))
            }
            Ok(_) | Err(HeadError::Corrupted) => Ok(Opened::Unreadable(GapCause::Corrupted)),
            Err(HeadError::Newer(error)) => Err(error.into()),
        }
    }

    /// Closes the open segment and forgets what was read.
    pub(crate) fn close(&mut self) {
        self.segment = None;
        self.forget();
    }

    /// Returns whether the name of the open segment now belongs to another file.
    pub(crate) fn is_replaced(&self) -> bool {
        let Some(open) = &self.segment else { return false };
        let (Ok(ours), Ok(named)) = (open.file.metadata(), fs::symlink_metadata(&open.path)) else {
            return false;
        };
        (ours.dev(), ours.ino()) != (named.dev(), named.ino())
    }

    /// Returns the salt of the open segment.
    pub(crate) fn salt(&self) -> Option<u64> {
        self.segment.as_ref().map(|open| open.header.salt)
    }

    /// Returns the length of the open segment.
    pub(crate) fn len(&self) -> io::Result<u64> {
        self.segment.as_ref().map_or(Ok(0), |open| open.file.metadata().map(|metadata| metadata.len()))
    }

    /// Returns what is at `at`, given that events up to `finished` are whole.
    pub(crate) fn look(&mut self, at: u64, finished: Seq) -> io::Result<Found> {
        let found = self.look_once(at, finished)?;
        if found == Found::Damage && self.finished < finished {
            // The buffer may have been read in the middle of a write.
            self.forget();
            return self.look_once(at, finished);
        }
        Ok(found)
    }

    fn look_once(&mut self, at: u64, finished: Seq) -> io::Result<Found> {
        let key = self.fill(at, RECORD_LEN, finished)?;
        let bytes = self.slice(at, RECORD_LEN);
        Ok(match RecordHeader::decode(bytes, key) {
            Some(header) => Found::Record(header),
            None if bytes.len() < RECORD_LEN => Found::End,
            None => Found::Damage,
        })
    }

    /// Reads the payload of the record at `at`, and returns whether it is whole and right; then [`Scanner::payload`]
    /// has it.
    pub(crate) fn load_payload(&mut self, at: u64, header: &RecordHeader, finished: Seq) -> io::Result<bool> {
        debug_assert!(header.kind != Kind::Unknown, "only known records have a limited length");
        let len = RECORD_LEN + header.len as usize;
        self.fill(at, len, finished)?;
        if self.check(at, header) {
            return Ok(true);
        }
        if self.finished >= finished {
            return Ok(false);
        }
        self.forget();
        self.fill(at, len, finished)?;
        Ok(self.check(at, header))
    }

    fn check(&mut self, at: u64, header: &RecordHeader) -> bool {
        let is_right = self.checked == Some(at) || header.checks(self.payload(at, header));
        self.checked = is_right.then_some(at);
        is_right
    }

    /// Returns the payload that [`Scanner::load_payload`] has read.
    pub(crate) fn payload(&self, at: u64, header: &RecordHeader) -> &[u8] {
        self.slice(at + RECORD_LEN as u64, header.len as usize)
    }

    /// Returns what the gap record at `at` says, if it is whole.
    pub(crate) fn dropped(
        &mut self,
        at: u64,
        header: &RecordHeader,
        finished: Seq,
    ) -> io::Result<Option<DroppedOutput>> {
        let is_whole = self.load_payload(at, header, finished)?;
        Ok(is_whole.then(|| DroppedOutput::decode(self.payload(at, header))).flatten())
    }

    /// Returns the position of the first record from `at` on whose number is in `seqs`.
    ///
    /// Records start at multiples of 8.
    pub(crate) fn resync(
        &mut self,
        mut at: u64,
        seqs: &RangeInclusive<Seq>,
        finished: Seq,
    ) -> io::Result<Option<u64>> {
        loop {
            let key = self.fill(at, RECORD_LEN, finished)?;
            let bytes = self.slice(at, usize::MAX);
            if bytes.len() < RECORD_LEN {
                return Ok(None);
            }
            let positions = (bytes.len() - RECORD_LEN) / 8 + 1;
            let is_record = |position: &usize| {
                let bytes = &bytes[8 * position..];
                seqs.contains(&RecordHeader::peek_seq(bytes)) && RecordHeader::decode(bytes, key).is_some()
            };
            match (0..positions).find(is_record) {
                Some(position) => return Ok(Some(at + 8 * position as u64)),
                None => at += 8 * positions as u64,
            }
        }
    }

    /// Returns whether everything from `at` to the end of the segment is zero.
    pub(crate) fn is_zero_from(&mut self, mut at: u64) -> io::Result<bool> {
        loop {
            self.fill(at, 1, 0)?;
            let bytes = self.slice(at, usize::MAX);
            if bytes.is_empty() {
                return Ok(true);
            }
            if bytes.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            at += bytes.len() as u64;
        }
    }

    /// Reads the open segment until the buffer has `need` bytes at `at` or the file ends. Returns its key.
    fn fill(&mut self, at: u64, need: usize, finished: Seq) -> io::Result<[u64; 2]> {
        let open = self.segment.take().ok_or(io::ErrorKind::NotFound)?;
        let loaded = self.load(&open.file, at, need, finished);
        let key = open.header.key();
        self.segment = Some(open);
        loaded.map(|()| key)
    }

    fn load(&mut self, file: &File, at: u64, need: usize, finished: Seq) -> io::Result<()> {
        let have = self.slice(at, usize::MAX).len();
        if have >= need {
            return Ok(());
        }
        if have == 0 {
            self.forget();
            self.finished = finished;
        } else {
            let read = self.buffer.len() - have;
            self.buffer.copy_within(read.., 0);
            self.buffer.truncate(have);
            self.finished = self.finished.min(finished);
        }
        self.start = at;
        self.buffer.reserve_exact(BUFFER - self.buffer.len().min(BUFFER));
        while self.buffer.len() < need {
            let Some(from) = at.checked_add(self.buffer.len() as u64).filter(|from| *from <= i64::MAX as u64)
            else {
                return Ok(());
            };
            match pread(file, spare_capacity(&mut self.buffer), from) {
                Ok(0) => return Ok(()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Returns up to `len` bytes at `at`, as far as the buffer has them.
    fn slice(&self, at: u64, len: usize) -> &[u8] {
        let from = at.checked_sub(self.start).and_then(|from| usize::try_from(from).ok());
        let bytes = from.and_then(|from| self.buffer.get(from..)).unwrap_or_default();
        &bytes[..bytes.len().min(len)]
    }

    /// Forgets what was read.
    pub(crate) fn forget(&mut self) {
        self.buffer.clear();
        self.start = 0;
        self.finished = 0;
        self.checked = None;
    }
}

/// Returns whether a log that cannot be read because of `error` will not be readable later either.
///
/// Other errors, such as too many open files, may pass: then it is worth trying again.
pub fn is_lasting(error: &io::Error) -> bool {
    let is_newer = || error.get_ref().is_some_and(|source| source.downcast_ref::<VersionError>().is_some());
    lasting(error).is_some() || is_newer()
}

/// Returns the cause of a gap if `error` says that a file cannot be read, now or later.
///
/// Other errors, such as too many open files, are no reason to give events up.
pub(crate) fn lasting(error: &io::Error) -> Option<GapCause> {
    match Errno::from_io_error(error)? {
        Errno::NOENT => Some(GapCause::Missing),
        errno @ (Errno::ACCESS
        | Errno::PERM
        | Errno::ISDIR
        | Errno::NOTDIR
        | Errno::LOOP
        | Errno::NXIO
        | Errno::NODEV
        | Errno::SPIPE
        | Errno::INVAL
        | Errno::IO) => Some(GapCause::Unreadable(errno.raw_os_error())),
        _ => None,
    }
}

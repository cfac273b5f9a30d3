//! Creates a log, or opens an existing one. Start at [`Writer::open`].

use std::{
    collections::VecDeque,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    BLOCK, EmptyLog, FIRST_STEP, Options, Writer, full,
    ledger::Ledger,
    retention::SealedSegment,
    tail::{NEW_SEGMENT, Tail},
    unsynced::SyncFailure,
};
use crate::{
    base::{
        disk::{Disk, FileSystem},
        format::RECORD_LEN,
        scanner::{Opened, Scanner},
        space::Space,
    },
    scan::{LogScan, Summary, TailState},
};

/// What a writer has found in a log that it continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// What the log holds.
    pub summary: Summary,
    /// Bytes of a torn record that were truncated.
    pub cut_bytes: u64,
}

impl Writer {
    /// Creates a log in an empty directory.
    ///
    /// # Errors
    ///
    /// If the directory has a log, or the file system reports an error.
    pub fn create(dir: impl Into<PathBuf>, options: Options, space: Arc<dyn Space>) -> io::Result<Writer> {
        let dir = dir.into();
        if !crate::base::names::list(&dir)?.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "the directory has a log; open it instead",
            ));
        }
        EmptyLog::create(&dir)?.into_writer(dir, options, space)
    }

    /// Opens the log in `dir`, or creates one if there is none. A torn record at the end is truncated.
    ///
    /// A log that is closed stays so, and costs no descriptor.
    ///
    /// No number is used twice: where records at the end are damaged, the next event has a number that none of them can
    /// have had.
    ///
    /// # Errors
    ///
    /// If the log has a newer format ([`crate::VersionError`]), or the file system reports an error.
    pub fn open(
        dir: impl Into<PathBuf>,
        options: Options,
        space: Arc<dyn Space>,
    ) -> io::Result<(Writer, Recovered)> {
        Writer::open_on(Box::new(FileSystem), dir.into(), options, space)
    }

    /// Opens a log with these file operations.
    pub(crate) fn open_on(
        disk: Box<dyn Disk>,
        dir: PathBuf,
        options: Options,
        space: Arc<dyn Space>,
    ) -> io::Result<(Writer, Recovered)> {
        let mut scan = LogScan::new(&dir)?;
        match disk.remove(&dir.join(NEW_SEGMENT)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut cut_bytes = 0;
        let (ledger, tail) = match scan.tail.filter(|_| scan.damaged == 0) {
            Some(state) => {
                let ledger = Ledger::new(&scan.summary, state.at_ms);
                let path = dir.join(state.header.name.file_name());
                let len = scan.segments.pop().map_or(0, |(_, len)| len);
                cut_bytes = len.saturating_sub(state.end);
                (ledger, reopen(&*disk, &path, &state, len)?)
            }
            None => {
                skip_damage(&mut scan);
                let ledger = Ledger::new(&scan.summary, scan.tail.map_or(0, |tail| tail.at_ms));
                let tail = new_tail(&*disk, &*space, &dir, &ledger, options)?;
                // A segment without a usable head may have had the same name.
                scan.segments.retain(|(name, _)| *name != tail.header.name);
                (ledger, tail)
            }
        };
        let writer = Writer::assemble(disk, dir, options, space, ledger, tail, &scan);
        Ok((writer, Recovered { summary: scan.summary, cut_bytes }))
    }

    pub(super) fn assemble(
        disk: Box<dyn Disk>,
        dir: PathBuf,
        options: Options,
        space: Arc<dyn Space>,
        ledger: Ledger,
        mut tail: Tail,
        scan: &LogScan,
    ) -> Writer {
        let sealed: VecDeque<_> =
            scan.segments.iter().map(|&(name, bytes)| SealedSegment::found(name, bytes)).collect();
        space.charge(sealed.iter().map(|sealed| sealed.bytes).sum());
        if tail.reserved == 0 {
            space.charge(tail.written);
            tail.reserved = tail.written;
            if ledger.closed.is_none() {
                // Without this reservation, a full disk has no space for the exit; but opening the log is more
                // important.
                let end = (tail.written + ledger.reserve()).next_multiple_of(BLOCK);
                tail.reserve(&*disk, &*space, end).ok();
            }
        }
        if ledger.closed.is_some() {
            tail.trim(&*disk, &*space).ok();
            tail.close_file();
        }
        tail.resume(
            ledger.next_seq - 1,
            scan.tail.is_some_and(|state| state.has_events && scan.damaged == 0),
        );
        let first_dropped = match sealed.front() {
            None => tail.header.dropped,
            Some(first) => match Scanner::default().open(&dir, first.name) {
                Ok(Opened::Ready(header)) => header.dropped,
                Ok(Opened::Unreadable(_)) | Err(_) => 0,
            },
        };
        Writer {
            dir,
            disk,
            space,
            retain_bytes: options.retain_bytes,
            segment_bytes: options.segment_len(),
            step: FIRST_STEP,
            sealed,
            tail,
            ledger,
            first_dropped,
            is_dir_synced: false,
            sync_failure: SyncFailure::default(),
        }
    }
}

/// Creates the segment that the next event belongs to, with a reservation for the exit and the close.
pub(super) fn new_tail(
    disk: &dyn Disk,
    space: &dyn Space,
    dir: &Path,
    ledger: &Ledger,
    options: Options,
) -> io::Result<Tail> {
    let (header, head) = ledger.new_segment()?;
    let reserve = first_reserve(ledger, options, head.len() as u64);
    Tail::create(disk, space, dir, header, &head, reserve).map_err(full)
}

/// Returns how much to reserve for a segment that begins with `head_len` bytes.
pub(super) fn first_reserve(ledger: &Ledger, options: Options, head_len: u64) -> u64 {
    let least = head_len + ledger.reserve();
    FIRST_STEP.min(options.segment_len()).max(least).next_multiple_of(BLOCK)
}

/// Opens the last segment and truncates it after its last complete record.
fn reopen(disk: &dyn Disk, path: &Path, state: &TailState, len: u64) -> io::Result<Tail> {
    let file = disk.open(path)?;
    if len > state.end {
        disk.truncate(&file, state.end)?;
    }
    Ok(Tail::new(file, state.header, state.end, 0))
}

/// Skips damaged records at the end: as many events and bytes as they can have held.
fn skip_damage(scan: &mut LogScan) {
    let damaged = scan.damaged;
    if damaged > 0 {
        let Summary { next_seq, offset, .. } = scan.summary;
        let events = (damaged / RECORD_LEN as u64).max(1);
        scan.jump(next_seq.saturating_add(events), offset.saturating_add(damaged));
    }
}

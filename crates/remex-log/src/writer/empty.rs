//! A log that is created before its process is known. Start at [`EmptyLog`].

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{Options, Writer, full, ledger::Ledger, open::first_reserve, tail::Tail};
use crate::{
    base::{disk::FileSystem, space::Space},
    scan::LogScan,
};

/// A log without events, limits and owner.
///
/// Creating its files takes longer than the rest of creating a log, so it can be done in advance. Its directory may be
/// renamed before [`EmptyLog::into_writer`].
pub struct EmptyLog {
    scan: LogScan,
    ledger: Ledger,
    tail: Tail,
}

impl fmt::Debug for EmptyLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmptyLog").finish_non_exhaustive()
    }
}

impl EmptyLog {
    /// Creates a log in a directory that has none.
    ///
    /// # Errors
    ///
    /// The error of the file system.
    pub fn create(dir: &Path) -> io::Result<EmptyLog> {
        let scan = LogScan::of(Vec::new());
        let ledger = Ledger::new(&scan.summary, 0);
        let (header, head) = ledger.new_segment()?;
        let tail = Tail::create_unreserved(&FileSystem, dir, header, &head)?;
        Ok(EmptyLog { scan, ledger, tail })
    }

    /// Returns the writer of the log, whose directory is now `dir`.
    ///
    /// # Errors
    ///
    /// If there is no space for the first events.
    pub fn into_writer(
        self,
        dir: impl Into<PathBuf>,
        options: Options,
        space: Arc<dyn Space>,
    ) -> io::Result<Writer> {
        let EmptyLog { scan, ledger, mut tail } = self;
        let reserve = first_reserve(&ledger, options, tail.written);
        tail.reserve(&FileSystem, &*space, reserve).map_err(full)?;
        Ok(Writer::assemble(Box::new(FileSystem), dir.into(), options, space, ledger, tail, &scan))
    }
}

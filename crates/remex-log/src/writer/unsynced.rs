//! The parts of a log that may not be on the medium yet. Start at [`Unsynced`].

use std::{
    fs::File,
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::base::names::SegmentName;

/// Files of a log that may not be on the medium; see [`crate::Writer::unsynced`].
#[derive(Debug)]
pub struct Unsynced {
    pub(super) dir: PathBuf,
    /// Segments that no longer grow.
    pub(super) sealed: Vec<SegmentName>,
    /// The newest segment when this was made, and its name.
    pub(super) tail: File,
    pub(super) name: SegmentName,
    pub(super) is_dir_synced: bool,
    pub(super) sync_failure: SyncFailure,
}

/// Whether a sync of a log has failed.
///
/// The kernel reports an error once, and may afterwards treat the lost data as written, so no later sync covers it.
#[derive(Clone, Debug, Default)]
pub(super) struct SyncFailure {
    has_failed: Arc<AtomicBool>,
}

impl SyncFailure {
    /// Records the result of a sync.
    pub(super) fn check(&self, synced: io::Result<()>) -> io::Result<()> {
        if synced.is_err() {
            self.has_failed.store(true, Ordering::Relaxed);
        }
        synced
    }

    /// Fails if a sync has failed.
    pub(super) fn result(&self) -> io::Result<()> {
        if self.has_failed.load(Ordering::Relaxed) {
            return Err(io::Error::other("an earlier sync of this log failed, so a part of it may be lost"));
        }
        Ok(())
    }
}

impl Unsynced {
    /// Waits until the files, and their names, are on the medium, as `sync` does for one file or directory; usually
    /// that is [`File::sync_data`].
    ///
    /// # Errors
    ///
    /// The error of the file system, now or in an earlier sync of this log: data lost by a failed sync stays lost.
    pub fn wait(&self, sync: impl Fn(&File) -> io::Result<()>) -> io::Result<()> {
        let sync = |file: &File| self.sync_failure.check(sync(file));
        for name in &self.sealed {
            match File::open(self.dir.join(name.file_name())) {
                Ok(file) => sync(&file)?,
                // It was evicted meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        sync(&self.tail)?;
        if !self.is_dir_synced {
            sync(&File::open(&self.dir)?)?;
        }
        self.sync_failure.result()
    }
}

//! Directories and empty logs, prepared in advance for the next starts.
//!
//! Files take longer to create than anything else that the keeper does for a start, so a few are created in advance.
//! Start at [`PreparedLogs::create_log`].

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use remex_base::lock;
use remex_log::{EmptyLog, Options, Quota, Writer};

use crate::state::durable::DESCRIPTION;

/// How many logs are prepared while nothing starts.
const MAX_PREPARED: usize = 8;

/// With fewer than this, more are created.
const FEW_PREPARED: usize = MAX_PREPARED / 2;

/// Logs whose processes are not known yet.
#[derive(Debug)]
pub(super) struct PreparedLogs {
    dir: PathBuf,
    next: AtomicU64,
    ready: Mutex<Ready>,
}

#[derive(Debug, Default)]
struct Ready {
    prepared: Vec<PreparedLog>,
    /// Whether a refill is in progress.
    is_refilled: bool,
}

#[derive(Debug)]
struct PreparedLog {
    dir: PathBuf,
    description: File,
    log: EmptyLog,
}

impl PreparedLogs {
    /// Creates an empty set, and deletes what an earlier keeper prepared in this directory.
    pub(super) fn new(dir: PathBuf) -> io::Result<Self> {
        match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        DirBuilder::new().mode(0o700).create(&dir)?;
        Ok(PreparedLogs { dir, next: AtomicU64::new(1), ready: Mutex::default() })
    }

    /// Makes a directory with this description and a log; it has its name only once the description is in it.
    ///
    /// Leaves nothing behind if that fails, and another process that has this directory alone.
    pub(super) fn create_log(
        &self,
        dir: &Path,
        description: &[u8],
        options: Options,
        space: Arc<Quota>,
    ) -> io::Result<Writer> {
        let log = self.take(dir, description)?;
        log.into_writer(dir, options, space).inspect_err(|_| drop(fs::remove_dir_all(dir)))
    }

    fn take(&self, dir: &Path, description: &[u8]) -> io::Result<EmptyLog> {
        let ready = self.ready().prepared.pop();
        // It may have been deleted from outside.
        match ready.map(|log| log.place(dir, description)) {
            Some(Ok(log)) => Ok(log),
            Some(Err(_)) | None => self.create()?.place(dir, description),
        }
    }

    /// Returns whether to call [`refill`](Self::refill) and then [`refilled`](Self::refilled).
    pub(super) fn needs_refill(&self) -> bool {
        let mut ready = self.ready();
        ready.prepared.len() < FEW_PREPARED && !std::mem::replace(&mut ready.is_refilled, true)
    }

    /// Creates what is missing. Blocks.
    pub(super) fn refill(&self) {
        while self.ready().prepared.len() < MAX_PREPARED {
            match self.create() {
                Ok(log) => self.ready().prepared.push(log),
                // The next start has the same error, and reports it.
                Err(_) => break,
            }
        }
    }

    /// Notes that [`refill`](Self::refill) is done, or could not be called.
    pub(super) fn refilled(&self) {
        self.ready().is_refilled = false;
    }

    fn create(&self) -> io::Result<PreparedLog> {
        let dir = self.dir.join(self.next.fetch_add(1, Ordering::Relaxed).to_string());
        match DirBuilder::new().mode(0o700).create(&dir) {
            // The directory of all prepared logs was deleted from outside.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let _ = DirBuilder::new().mode(0o700).create(&self.dir);
                DirBuilder::new().mode(0o700).create(&dir)?;
            }
            created => created?,
        }
        let create = || {
            let mut options = OpenOptions::new();
            let description = options.create_new(true).write(true).mode(0o600).open(dir.join(DESCRIPTION))?;
            Ok(PreparedLog { log: EmptyLog::create(&dir)?, description, dir: dir.clone() })
        };
        create().inspect_err(|_| drop(fs::remove_dir_all(&dir)))
    }

    fn ready(&self) -> MutexGuard<'_, Ready> {
        lock(&self.ready)
    }
}

impl PreparedLog {
    fn place(mut self, dir: &Path, description: &[u8]) -> io::Result<EmptyLog> {
        let placed = self.description.write_all(description).and_then(|()| fs::rename(&self.dir, dir));
        match placed {
            Ok(()) => Ok(self.log),
            Err(error) => {
                let _ = fs::remove_dir_all(&self.dir);
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: Options = Options { retain_bytes: 1 << 20, segment_bytes: None };

    #[test]
    fn the_directory_of_another_process_is_not_touched() {
        let state = tempfile::tempdir().unwrap();
        let prepared = PreparedLogs::new(state.path().join("spares")).unwrap();
        let dir = state.path().join("process");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join(DESCRIPTION), "another").unwrap();
        prepared.create_log(&dir, b"new", OPTIONS, Quota::server(u64::MAX)).unwrap_err();
        assert_eq!(fs::read_to_string(dir.join(DESCRIPTION)).unwrap(), "another");
    }

    #[test]
    fn a_log_that_fails_for_lack_of_space_leaves_no_files() {
        let state = tempfile::tempdir().unwrap();
        let prepared = PreparedLogs::new(state.path().join("spares")).unwrap();
        let dir = state.path().join("process");
        let error = prepared.create_log(&dir, b"new", OPTIONS, Quota::server(0)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
        assert!(!dir.exists());
    }

    #[test]
    fn logs_are_created_even_after_the_prepared_ones_were_deleted() {
        let state = tempfile::tempdir().unwrap();
        let prepared = PreparedLogs::new(state.path().join("spares")).unwrap();
        prepared.refill();
        fs::remove_dir_all(&prepared.dir).unwrap();
        for number in 0..2 * MAX_PREPARED {
            let dir = state.path().join(number.to_string());
            prepared.create_log(&dir, b"new", OPTIONS, Quota::server(u64::MAX)).unwrap();
            assert_eq!(fs::read(dir.join(DESCRIPTION)).unwrap(), b"new");
        }
    }
}

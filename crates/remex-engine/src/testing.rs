//! A disk that loses what was not synced, or cannot sync. Start at [`Medium`].

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use std::{
    collections::HashMap,
    ffi::OsString,
    fs::{self, File},
    io,
    os::{
        fd::AsRawFd as _,
        unix::fs::{DirBuilderExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, Weak},
};

use tempfile::TempDir;

pub use crate::process::broken::FAILURE;
use crate::state::state_dir::ON_SYNC;

/// All that are in use.
static MEDIA: Mutex<Vec<Weak<Medium>>> = Mutex::new(Vec::new());

/// Notes that a file or directory is synced; fails if its medium does.
fn on_sync(file: &File) -> io::Result<()> {
    let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let media = MEDIA.lock().unwrap().clone();
    let medium = media.iter().filter_map(Weak::upgrade).find(|medium| path.starts_with(&medium.path));
    medium.map_or(Ok(()), |medium| medium.on_sync(file, &path))
}

/// The files below a directory that are on the disk.
pub struct Medium {
    _root: TempDir,
    path: PathBuf,
    state: Mutex<MediumState>,
}

#[derive(Default)]
struct MediumState {
    /// What was synced, by inode. The open file keeps the inode from being used again.
    synced: HashMap<u64, (File, Synced)>,
    /// Paths that contain this cannot be synced.
    broken: Option<&'static str>,
}

#[derive(Clone)]
enum Synced {
    File(Vec<u8>),
    Directory(Vec<(OsString, u64)>),
}

/// Which names are there after a power failure. Contents are always those that were synced.
#[derive(Clone, Copy, Debug)]
pub enum Names {
    /// Those that were synced.
    Synced,
    /// All: file systems may bring names to the disk early.
    Current,
}

impl Medium {
    /// Creates an empty one.
    pub fn new() -> Arc<Self> {
        ON_SYNC.get_or_init(|| on_sync);
        let root = tempfile::tempdir().unwrap();
        let path = root.path().canonicalize().unwrap();
        let medium = Arc::new(Medium { _root: root, path, state: Mutex::default() });
        MEDIA.lock().unwrap().push(Arc::downgrade(&medium));
        medium
    }

    /// Returns where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a directory that is not there yet, nor is the one that it is in.
    pub fn new_dir(&self) -> PathBuf {
        self.path.join("new/state")
    }

    /// From now on, files whose path contains `part` cannot be synced.
    pub fn break_at(&self, part: &'static str) {
        self.state().broken = Some(part);
    }

    /// From now on, everything can be synced.
    pub fn repair(&self) {
        self.state().broken = None;
    }

    /// Returns another medium with what is left of this one after a power failure.
    pub fn after_power_failure(&self, names: Names) -> Arc<Self> {
        let after = Medium::new();
        self.copy(&self.path, fs::metadata(&self.path).unwrap().ino(), &after.path, names);
        after
    }

    fn copy(&self, from: &Path, inode: u64, to: &Path, names: Names) {
        let synced = self.state().synced.get(&inode).map(|(_, synced)| synced.clone());
        let entries = match (names, synced) {
            (_, Some(Synced::File(content))) => return fs::write(to, content).unwrap(),
            (Names::Current, _) if from.is_dir() => entries(from),
            (Names::Synced, Some(Synced::Directory(entries))) => entries,
            (Names::Synced, None) if from.is_dir() => Vec::new(),
            _ => return fs::write(to, "").unwrap(),
        };
        if !to.exists() {
            fs::DirBuilder::new().mode(0o700).create(to).unwrap();
        }
        for (name, inode) in entries {
            if !name.to_string_lossy().ends_with(".sock") {
                self.copy(&from.join(&name), inode, &to.join(name), names);
            }
        }
    }

    fn on_sync(&self, file: &File, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        if state.broken.is_some_and(|part| path.to_string_lossy().contains(part)) {
            return Err(io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error()));
        }
        let metadata = file.metadata()?;
        let synced = if metadata.is_dir() {
            Synced::Directory(entries(path))
        } else {
            Synced::File(fs::read(format!("/proc/self/fd/{}", file.as_raw_fd()))?)
        };
        state.synced.insert(metadata.ino(), (file.try_clone()?, synced));
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, MediumState> {
        self.state.lock().unwrap()
    }
}

fn entries(dir: &Path) -> Vec<(OsString, u64)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    // Some are just being renamed.
    entries.filter_map(|entry| Some((entry.file_name(), entry.metadata().ok()?.ino()))).collect()
}

//! One writer at a time for each directory entry, across all sessions.
//!
//! `ifMatch` compares without holding the lock, because that may take long, and writes only if the entry was
//! not written in between. The lock is held only for the write. An entry is a name in a directory, so all paths
//! that lead there through links share one lock. Start at [`DirectoryEntry`].

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    os::fd::AsFd,
    sync::{Arc, LazyLock, Mutex, MutexGuard},
};

use remex_base::lock;
use rustix::fs::{CWD, Mode, OFlags, fstat, openat};

use super::{guard::Located, replace};

/// Device and inode of the directory, and the name in it.
type Key = (u64, u64, OsString);

/// Entries that are being compared or written. Keys are unique on the host, so all servers in one process share
/// this map. Held briefly.
static IN_USE: LazyLock<Mutex<HashMap<Key, Arc<Mutex<u64>>>>> = LazyLock::new(Mutex::default);

/// A name in a directory that is about to be compared or written.
#[derive(Debug)]
pub(crate) struct DirectoryEntry {
    key: Key,
    /// Counts the writes while the entry is in use.
    writes: Arc<Mutex<u64>>,
}

impl DirectoryEntry {
    pub(crate) fn new(directory: impl AsFd, name: &OsStr) -> Self {
        // Without a directory, there is nothing to write either.
        let (device, inode) = fstat(directory).map_or((0, 0), |stat| (stat.st_dev, stat.st_ino));
        Self::with_key((device, inode, name.to_owned()))
    }

    /// Finds the entry that a path leads to, after following all links if they are followed.
    ///
    /// If there is none, the operation on the path reports why.
    pub(crate) fn at_end(at: &Located<'_>) -> Self {
        match replace::open_parent(at) {
            Ok((directory, name)) => Self::new(directory, &name),
            Err(_) => Self::with_key((0, 0, at.path().as_os_str().to_owned())),
        }
    }

    /// Finds the entry that a path names itself, even if it is a link.
    pub(crate) fn named(at: &Located<'_>) -> Self {
        if let Some(parent) = at.parent() {
            return Self::new(&parent.directory, &parent.name);
        }
        let path = at.path();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = path.parent().and_then(|parent| openat(CWD, parent, flags, Mode::empty()).ok());
        match (parent, path.file_name()) {
            (Some(directory), Some(name)) => Self::new(directory, name),
            _ => Self::with_key((0, 0, path.as_os_str().to_owned())),
        }
    }

    fn with_key(key: Key) -> Self {
        let writes = Arc::clone(in_use().entry(key.clone()).or_default());
        DirectoryEntry { key, writes }
    }

    /// Returns whether two entries may be one: names in the same directory that differ in case only, or not at all.
    pub(crate) fn may_be(&self, other: &Self) -> bool {
        let ((device, inode, name), (other_device, other_inode, other_name)) = (&self.key, &other.key);
        let lower = |name: &OsStr| name.to_string_lossy().to_lowercase();
        let is_known = *inode != 0 && *other_inode != 0;
        !is_known || ((device, inode) == (other_device, other_inode) && lower(name) == lower(other_name))
    }

    /// Locks the entry. A holder that writes increments the counter.
    pub(crate) fn lock(&self) -> MutexGuard<'_, u64> {
        lock(&self.writes)
    }

    /// Writes the entry under its lock.
    pub(crate) fn write<T>(&self, write: impl FnOnce() -> T) -> T {
        let mut writes = self.lock();
        *writes += 1;
        write()
    }

    /// Writes two entries, locking them in the order of their keys to avoid a deadlock.
    pub(crate) fn write_both<T>(&self, other: &Self, write: impl FnOnce() -> T) -> T {
        match self.key.cmp(&other.key) {
            std::cmp::Ordering::Less => self.write(|| other.write(write)),
            std::cmp::Ordering::Equal => self.write(write),
            std::cmp::Ordering::Greater => other.write(|| self.write(write)),
        }
    }
}

impl Drop for DirectoryEntry {
    fn drop(&mut self) {
        let mut in_use = in_use();
        // One reference is in the map, the other here.
        if Arc::strong_count(&self.writes) == 2 {
            in_use.remove(&self.key);
        }
    }
}

fn in_use() -> MutexGuard<'static, HashMap<Key, Arc<Mutex<u64>>>> {
    lock(&IN_USE)
}

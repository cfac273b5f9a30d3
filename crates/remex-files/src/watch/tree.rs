//! Watches every directory of a tree. Runs on file threads, because any directory may hang.

use std::{
    ffi::OsStr,
    io,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use remex_base::{io_error::io_error, nofollow, trace::LOG_TARGET};
use remex_proto::RpcError;
use rustix::{
    fs::{AtFlags, Dir, FileType, Stat, statat},
    io::Errno,
};

use crate::{
    paths::guard::PathGuard,
    watcher::{Depth, DirectoryId, Rescan, SharedWatcher, Subscription, WatchError, WatchScope},
};

/// Whether entries found during a scan are new to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Discovery {
    /// The client knows them, or is asked to rescan everything.
    Known,
    New,
}

/// Watches all directories of a new watch.
pub fn begin(
    watcher: &SharedWatcher,
    subscription: &Arc<Subscription>,
    guard: &PathGuard,
) -> Result<(), RpcError> {
    let begun = Scan { watcher, subscription, guard }.watch_root(Discovery::Known);
    if begun.is_err() {
        // Done at once, so that there is room again when the client sees the error.
        watcher.unwatch_all(subscription);
    }
    match begun {
        Ok(()) => Ok(()),
        Err(WatchError::NotFound) => {
            let WatchScope::Tree { root, .. } = &subscription.scope else { return Ok(()) };
            Err(io_error(&io::Error::from(Errno::NOENT), root))
        }
        // The client no longer waits for an answer.
        Err(WatchError::Unsubscribed) => Ok(()),
        Err(WatchError::LimitReached(error) | WatchError::Failed(error)) => Err(error),
    }
}

/// Scans what is new, before it is reported.
pub fn scan(watcher: &SharedWatcher, subscription: &Arc<Subscription>, work: Rescan, guard: &PathGuard) {
    let scan = Scan { watcher, subscription, guard };
    let WatchScope::Tree { root, depth } = &subscription.scope else { return };
    let mut result = Ok(());
    if work.is_lost {
        // Names may refer to other directories now, so start over.
        watcher.unwatch_all(subscription);
        result = scan.watch_root(Discovery::Known);
    }
    let reappeared = work
        .removals
        .iter()
        .filter(|removal| nofollow::stat(&removal.path).is_ok() && subscription.on_reappeared(removal));
    let reappeared: Vec<PathBuf> = reappeared.map(|removal| removal.path.clone()).collect();
    subscription.confirm(&work.removals);
    for path in work.fresh.into_iter().chain(reappeared) {
        let found = if root.starts_with(&path) {
            scan.watch_root(Discovery::New)
        } else if *depth == Depth::All {
            scan.watch_tree(&path, Discovery::New)
        } else {
            Ok(())
        };
        result = result.and(found);
    }
    match result {
        Err(WatchError::LimitReached(error) | WatchError::Failed(error)) => {
            tracing::warn!(target: LOG_TARGET, error = %error.message, "a part of a tree is not watched");
            subscription.mark_incomplete();
        }
        Ok(()) | Err(WatchError::NotFound | WatchError::Unsubscribed) => {}
    }
}

/// A search for directories to watch.
struct Scan<'a> {
    watcher: &'a SharedWatcher,
    subscription: &'a Arc<Subscription>,
    /// Paths that the client may not read are not watched.
    guard: &'a PathGuard,
}

impl Scan<'_> {
    /// Watches the ancestors of the root, then the root.
    ///
    /// Ancestors are watched to notice when the root disappears and reappears.
    fn watch_root(&self, discovery: Discovery) -> Result<(), WatchError> {
        let WatchScope::Tree { root, depth } = &self.subscription.scope else { return Ok(()) };
        let ancestors: Vec<&Path> = root.ancestors().skip(1).collect();
        for directory in ancestors.into_iter().rev() {
            let Some(stat) = stat(directory)? else { return Err(WatchError::NotFound) };
            match self.watcher.watch_directory(self.subscription, directory, DirectoryId::from(&stat)) {
                // An ancestor with search permission but no read permission is tolerated.
                Ok(_) | Err(WatchError::Failed(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let Some(stat) = stat(root)? else { return Err(WatchError::NotFound) };
        if discovery == Discovery::New {
            self.subscription.on_found(root);
        }
        if !is_directory(&stat) {
            return Ok(());
        }
        match depth {
            Depth::One => self.watch_and_list(root, discovery).map(drop),
            Depth::All => self.watch_tree(root, discovery),
        }
    }

    /// Watches a directory and all directories below it, without following links.
    fn watch_tree(&self, top: &Path, discovery: Discovery) -> Result<(), WatchError> {
        let mut waiting = vec![top.to_owned()];
        while let Some(directory) = waiting.pop() {
            match self.watch_and_list(&directory, discovery) {
                Ok(below) => waiting.extend(below),
                // It has vanished, or the server may not read it and cannot see changes there.
                Err(WatchError::NotFound | WatchError::Failed(_))
                    if directory != top || discovery == Discovery::New => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Watches one directory, and returns its subdirectories.
    fn watch_and_list(&self, directory: &Path, discovery: Discovery) -> Result<Vec<PathBuf>, WatchError> {
        if !self.guard.may_read(directory) {
            return Ok(Vec::new());
        }
        let Some(stat) = stat(directory)?.filter(is_directory) else { return Ok(Vec::new()) };
        let opened = self.watcher.watch_directory(self.subscription, directory, DirectoryId::from(&stat))?;
        // Listed after it is watched, so that no later change is missed.
        let entries = Dir::read_from(&opened)
            .map_err(|error| WatchError::Failed(io_error(&error.into(), directory)))?;
        let mut directories = Vec::new();
        for entry in entries.flatten() {
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let path = directory.join(OsStr::from_bytes(name.to_bytes()));
            if discovery == Discovery::New {
                self.subscription.on_found(&path);
            }
            let is_directory = match entry.file_type() {
                FileType::Unknown => {
                    statat(&opened, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| is_directory(&stat))
                }
                kind => kind == FileType::Directory,
            };
            if is_directory {
                directories.push(path);
            }
        }
        Ok(directories)
    }
}

/// Returns metadata without following any link; `None` if nothing exists.
pub(super) fn stat(path: &Path) -> Result<Option<Stat>, WatchError> {
    match nofollow::stat(path) {
        Ok(stat) => Ok(Some(stat)),
        Err(error) => match Errno::from_io_error(&error) {
            // A link among its parents has taken the place of a directory.
            Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            _ => Err(WatchError::Failed(io_error(&error, path))),
        },
    }
}

pub(super) fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

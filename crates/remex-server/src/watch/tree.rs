//! Watches every directory of a tree. Runs on file threads, because any directory may hang.

use std::{
    fs::{self, Metadata},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use remex_proto::RpcError;

use crate::{
    io_error::io_error,
    watcher::{Depth, DirectoryId, Refusal, Rescan, SharedWatcher, Subscription, WatchScope},
};

/// What to do with entries found during a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finds {
    /// The client knows them, or is told to rescan everything.
    Known,
    New,
}

/// Watches all directories of a new watch.
pub(super) fn begin(watcher: &SharedWatcher, subscription: &Arc<Subscription>) -> Result<(), RpcError> {
    let begun = approach(watcher, subscription, Finds::Known);
    if begun.is_err() {
        // Done at once, so that there is room again when the client sees the error.
        watcher.unwatch_all(subscription);
    }
    match begun {
        Ok(()) => Ok(()),
        Err(Refusal::Gone) => {
            let WatchScope::Tree { root, .. } = &subscription.scope else { return Ok(()) };
            Err(io_error(&io::Error::from(rustix::io::Errno::NOENT), root))
        }
        // The client no longer waits for an answer.
        Err(Refusal::Left) => Ok(()),
        Err(Refusal::Full(error) | Refusal::Failed(error)) => Err(error),
    }
}

/// Scans what is new, before it is reported.
pub(super) fn look(watcher: &SharedWatcher, subscription: &Arc<Subscription>, work: Rescan) {
    let WatchScope::Tree { root, depth } = &subscription.scope else { return };
    let mut looked = Ok(());
    if work.is_lost {
        // Names may refer to other directories now, so start over.
        watcher.unwatch_all(subscription);
        looked = approach(watcher, subscription, Finds::Known);
    }
    let refuted = work
        .removals
        .iter()
        .filter(|removal| removal.path.symlink_metadata().is_ok() && subscription.refute(removal));
    let refuted: Vec<PathBuf> = refuted.map(|removal| removal.path.clone()).collect();
    subscription.confirm(&work.removals);
    for path in work.fresh.into_iter().chain(refuted) {
        let found = if root.starts_with(&path) {
            approach(watcher, subscription, Finds::New)
        } else if *depth == Depth::All {
            cover(watcher, subscription, &path, Finds::New)
        } else {
            Ok(())
        };
        looked = looked.and(found);
    }
    match looked {
        Err(Refusal::Full(error) | Refusal::Failed(error)) => {
            tracing::warn!(error = %error.message, "a part of a tree is not watched");
            subscription.mark_incomplete();
        }
        Ok(()) | Err(Refusal::Gone | Refusal::Left) => {}
    }
}

/// Watches the ancestors of the root, then the root.
///
/// Ancestors are watched to notice when the root disappears and reappears.
fn approach(watcher: &SharedWatcher, subscription: &Arc<Subscription>, finds: Finds) -> Result<(), Refusal> {
    let WatchScope::Tree { root, depth } = &subscription.scope else { return Ok(()) };
    let way: Vec<&Path> = root.ancestors().skip(1).collect();
    for directory in way.into_iter().rev() {
        let Some(metadata) = metadata(directory)? else { return Err(Refusal::Gone) };
        match watcher.watch_directory(subscription, directory, DirectoryId::from(&metadata)) {
            // An ancestor with search permission but no read permission is tolerated.
            Ok(()) | Err(Refusal::Failed(_)) => {}
            Err(refusal) => return Err(refusal),
        }
    }
    let Some(metadata) = metadata(root)? else { return Err(Refusal::Gone) };
    if finds == Finds::New {
        subscription.find(root);
    }
    if !metadata.is_dir() {
        return Ok(());
    }
    match depth {
        Depth::One => post_and_find(watcher, subscription, root, finds).map(drop),
        Depth::All => cover(watcher, subscription, root, finds),
    }
}

/// Watches a directory and all directories below it, without following links.
fn cover(
    watcher: &SharedWatcher,
    subscription: &Arc<Subscription>,
    top: &Path,
    finds: Finds,
) -> Result<(), Refusal> {
    let mut waiting = vec![top.to_owned()];
    while let Some(directory) = waiting.pop() {
        match post_and_find(watcher, subscription, &directory, finds) {
            Ok(below) => waiting.extend(below),
            // It has vanished, or the server may not read it and cannot see changes there.
            Err(Refusal::Gone | Refusal::Failed(_)) if directory != top || finds == Finds::New => {}
            Err(refusal) => return Err(refusal),
        }
    }
    Ok(())
}

/// Watches one directory, and returns its subdirectories.
fn post_and_find(
    watcher: &SharedWatcher,
    subscription: &Arc<Subscription>,
    directory: &Path,
    finds: Finds,
) -> Result<Vec<PathBuf>, Refusal> {
    let Some(metadata) = metadata(directory)?.filter(Metadata::is_dir) else { return Ok(Vec::new()) };
    watcher.watch_directory(subscription, directory, DirectoryId::from(&metadata))?;
    // Listed after it is watched, so that no later change is missed.
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Refusal::Gone),
        Err(error) => return Err(Refusal::Failed(io_error(&error, directory))),
    };
    let mut directories = Vec::new();
    for entry in entries.flatten() {
        if finds == Finds::New {
            subscription.find(&entry.path());
        }
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            directories.push(entry.path());
        }
    }
    Ok(directories)
}

/// Returns metadata without following a link; `None` if nothing exists.
pub(super) fn metadata(path: &Path) -> Result<Option<Metadata>, Refusal> {
    match path.symlink_metadata() {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(Refusal::Failed(io_error(&error, path))),
    }
}

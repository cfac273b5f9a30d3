//! Going to every directory of a watch. Runs on threads for files, because any directory may hang.

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

/// What becomes of what is found on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finds {
    /// The client knows it, or is told to look at everything.
    Known,
    New,
}

/// Has everything watched that a new watch is about.
pub(super) fn begin(watcher: &SharedWatcher, subscription: &Arc<Subscription>) -> Result<(), RpcError> {
    let begun = approach(watcher, subscription, Finds::Known);
    if begun.is_err() {
        // At once, so that there is room again when the client hears of it.
        watcher.unwatch_all(subscription);
    }
    match begun {
        Ok(()) => Ok(()),
        Err(Refusal::Gone) => {
            let WatchScope::Tree { root, .. } = &subscription.scope else { return Ok(()) };
            Err(io_error(&io::Error::from(rustix::io::Errno::NOENT), root))
        }
        // Nobody is there to be told.
        Err(Refusal::Left) => Ok(()),
        Err(Refusal::Full(error) | Refusal::Failed(error)) => Err(error),
    }
}

/// Looks at what is new, before it is told.
pub(super) fn look(watcher: &SharedWatcher, subscription: &Arc<Subscription>, work: Rescan) {
    let WatchScope::Tree { root, depth } = &subscription.scope else { return };
    let mut looked = Ok(());
    if work.is_lost {
        // Names may mean other directories now: from the beginning.
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

/// Has the directories on the way to the root watched, then the root.
///
/// The way is watched so that the end of the root is noticed, and its return.
fn approach(watcher: &SharedWatcher, subscription: &Arc<Subscription>, finds: Finds) -> Result<(), Refusal> {
    let WatchScope::Tree { root, depth } = &subscription.scope else { return Ok(()) };
    let way: Vec<&Path> = root.ancestors().skip(1).collect();
    for directory in way.into_iter().rev() {
        let Some(metadata) = metadata(directory)? else { return Err(Refusal::Gone) };
        match watcher.watch_directory(subscription, directory, DirectoryId::from(&metadata)) {
            // A way that may be gone through but not looked at will do.
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

/// Has a directory and all below it watched; links are not followed.
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
            // It is gone, or the server may not look into it: then nobody here can see what happens there.
            Err(Refusal::Gone | Refusal::Failed(_)) if directory != top || finds == Finds::New => {}
            Err(refusal) => return Err(refusal),
        }
    }
    Ok(())
}

/// Has one directory watched, and returns the directories in it.
fn post_and_find(
    watcher: &SharedWatcher,
    subscription: &Arc<Subscription>,
    directory: &Path,
    finds: Finds,
) -> Result<Vec<PathBuf>, Refusal> {
    let Some(metadata) = metadata(directory)?.filter(Metadata::is_dir) else { return Ok(Vec::new()) };
    watcher.watch_directory(subscription, directory, DirectoryId::from(&metadata))?;
    // It is watched now, so nothing that comes after this look is missed.
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

/// Looks at a path without following a link; none when nothing is there.
pub(super) fn metadata(path: &Path) -> Result<Option<Metadata>, Refusal> {
    match path.symlink_metadata() {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(Refusal::Failed(io_error(&error, path))),
    }
}

//! What one watch looks at, and what it has seen there.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use remex_proto::fs::ChangeKind;
use tokio::sync::Notify;

use super::pending::{ChangeBatch, PendingChanges, UnverifiedRemoval};

/// New directories that wait to be looked at; beyond it everything is looked at again.
const FRESH: usize = 4096;

/// What a watch is about; none of its paths has a link in it.
#[derive(Debug)]
pub(crate) enum WatchScope {
    Tree {
        root: PathBuf,
        depth: Depth,
    },
    /// Places where anything that happens is told, once.
    Places(BTreeSet<PathBuf>),
}

/// How far below its root a watch looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    /// What is in the directory.
    One,
    All,
}

/// An event of the file system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event<'a> {
    pub(crate) path: &'a Path,
    pub(crate) kind: ChangeKind,
    /// What is new there may be a directory.
    pub(crate) is_fresh: bool,
}

/// One watch, as it is shared by its task, threads for files and the thread that hears of events.
#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) scope: WatchScope,
    /// Held for moments only.
    seen: Mutex<Seen>,
    /// Rings the watch's task.
    bell: Notify,
}

#[derive(Debug, Default)]
struct Seen {
    pending: PendingChanges,
    /// What may be a new directory, in order.
    fresh: Vec<PathBuf>,
    /// Events were lost, so directories may have come that nobody knows.
    is_lost: bool,
    /// A part could not be watched, so what happens there is not seen.
    is_incomplete: bool,
}

/// What has to be looked at before pending can be told.
#[derive(Debug)]
pub(crate) struct Rescan {
    pub(crate) fresh: Vec<PathBuf>,
    pub(crate) removals: Vec<UnverifiedRemoval>,
    pub(crate) is_lost: bool,
}

impl Subscription {
    pub(crate) fn new(scope: WatchScope) -> Self {
        Subscription { scope, seen: Mutex::default(), bell: Notify::new() }
    }

    /// Takes an event, if it is about this watch.
    pub(crate) fn on_event(&self, event: Event<'_>) {
        let mut seen = self.seen();
        match &self.scope {
            WatchScope::Places(places) => {
                let goes_above = event.kind == ChangeKind::Removed
                    && places.iter().any(|place| place.starts_with(event.path));
                if !goes_above && !places.contains(event.path) {
                    return;
                }
                seen.pending.note(event.path, event.kind);
            }
            WatchScope::Tree { root, depth } => {
                if event.path != root && root.starts_with(event.path) {
                    match event.kind {
                        // Whoever takes away a directory takes away what is below it.
                        ChangeKind::Removed => seen.pending.note(root, ChangeKind::Removed),
                        ChangeKind::Created => seen.add_fresh(event.path),
                        ChangeKind::Modified => return,
                    }
                } else if depth.reaches(root, event.path) {
                    seen.pending.note(event.path, event.kind);
                    if event.is_fresh && (event.path == root || *depth == Depth::All) {
                        seen.add_fresh(event.path);
                    }
                } else {
                    return;
                }
            }
        }
        drop(seen);
        self.bell.notify_one();
    }

    /// Notes that events were lost.
    pub(crate) fn on_lost_events(&self) {
        let mut seen = self.seen();
        seen.is_lost = true;
        seen.pending.overflow();
        drop(seen);
        self.bell.notify_one();
    }

    /// Notes that a part cannot be watched: from now on everything told is incomplete.
    pub(crate) fn mark_incomplete(&self) {
        let mut seen = self.seen();
        seen.is_incomplete = true;
        seen.pending.overflow();
    }

    /// Notes what was found in a new directory.
    pub(crate) fn find(&self, path: &Path) {
        self.seen().pending.find(path);
    }

    /// Waits until something may have been seen.
    pub(crate) async fn bell(&self) {
        self.bell.notified().await;
    }

    /// Takes what is to be looked at; none when there is nothing.
    pub(crate) fn work(&self) -> Option<Rescan> {
        let mut seen = self.seen();
        let work = Rescan {
            fresh: std::mem::take(&mut seen.fresh),
            removals: seen.pending.unverified_removals(),
            is_lost: std::mem::take(&mut seen.is_lost),
        };
        (work.is_lost || !work.fresh.is_empty() || !work.removals.is_empty()).then_some(work)
    }

    /// Notes that something is there where a removal was in removal; `false` when that is old pending.
    pub(crate) fn refute(&self, removal: &UnverifiedRemoval) -> bool {
        let mut seen = self.seen();
        let is_current = seen.pending.is_current(removal);
        if is_current {
            seen.pending.note(&removal.path, ChangeKind::Created);
        }
        is_current
    }

    /// Notes that removals were looked at.
    pub(crate) fn confirm(&self, removals: &[UnverifiedRemoval]) {
        self.seen().pending.confirm(removals);
    }

    /// Takes what can be told.
    pub(crate) fn take(&self) -> Option<ChangeBatch> {
        let mut seen = self.seen();
        let is_incomplete = seen.is_incomplete;
        seen.pending.take().map(|told| ChangeBatch { overflow: told.overflow || is_incomplete, ..told })
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    fn add_fresh(&mut self, path: &Path) {
        if self.fresh.len() < FRESH {
            self.fresh.push(path.to_owned());
        } else {
            self.fresh.clear();
            self.is_lost = true;
            self.pending.overflow();
        }
    }
}

impl Depth {
    fn reaches(self, root: &Path, path: &Path) -> bool {
        match self {
            Depth::One => path == root || path.parent() == Some(root),
            Depth::All => path.starts_with(root),
        }
    }
}

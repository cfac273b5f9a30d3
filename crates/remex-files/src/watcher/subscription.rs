//! The directories that one watch covers, and their pending changes.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
};

use remex_access::account::{Account, Charge, Kind};
use remex_base::lock;
use remex_proto::fs::ChangeKind;
use tokio::sync::Notify;

use super::pending::{ChangeBatch, PendingChanges, UnverifiedRemoval};

/// New directories that wait for a scan; beyond it, everything is scanned again.
const FRESH: usize = 4096;

/// Changes may wait although the account is full, up to this many bytes.
const FREE_BYTES: usize = 8 << 10;

/// What a watch covers; its paths contain no links.
#[derive(Debug)]
pub enum WatchScope {
    /// A path, and what is below it.
    Tree {
        /// The path.
        root: PathBuf,
        /// How far below it.
        depth: Depth,
    },
    /// Paths for which any event is reported, once.
    Paths(BTreeSet<PathBuf>),
}

/// How far below its root a watch reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Only the directory's own entries.
    One,
    /// Everything.
    All,
}

/// A file system event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event<'a> {
    pub(crate) path: &'a Path,
    pub(crate) kind: ChangeKind,
    /// The path may be a new directory.
    pub(crate) is_fresh: bool,
}

/// One watch, shared by its task, file threads and the thread that reads events.
#[derive(Debug)]
pub struct Subscription {
    pub(crate) scope: WatchScope,
    /// Held briefly.
    seen: Mutex<Seen>,
    /// The memory of what was seen.
    charge: Charge,
    /// Wakes the watch's task.
    wakeup: Notify,
}

#[derive(Debug, Default)]
struct Seen {
    pending: PendingChanges,
    /// Possibly new directories, in order.
    fresh: Vec<PathBuf>,
    /// Total length of their paths.
    fresh_bytes: usize,
    /// Events were lost, so there may be unknown directories.
    is_lost: bool,
    /// A part cannot be watched, so changes there are missed.
    is_incomplete: bool,
}

/// The paths to scan before changes can be reported.
#[derive(Debug)]
pub struct Rescan {
    pub(crate) fresh: Vec<PathBuf>,
    pub(crate) removals: Vec<UnverifiedRemoval>,
    pub(crate) is_lost: bool,
}

impl Subscription {
    pub(crate) fn new(scope: WatchScope, account: &Arc<Account>) -> Self {
        let charge = account.take(Kind::Handles, 0);
        Subscription { scope, seen: Mutex::default(), charge, wakeup: Notify::new() }
    }

    /// Records an event if the watch covers it.
    pub(crate) fn on_event(&self, event: Event<'_>) {
        let mut seen = self.seen();
        match &self.scope {
            WatchScope::Paths(paths) => {
                let goes_above = event.kind == ChangeKind::Removed
                    && paths.iter().any(|path| path.starts_with(event.path));
                if !goes_above && !paths.contains(event.path) {
                    return;
                }
                seen.pending.note(event.path, event.kind);
            }
            WatchScope::Tree { root, depth } => {
                if event.path != root && root.starts_with(event.path) {
                    match event.kind {
                        // Removing a directory removes everything below it.
                        ChangeKind::Removed => seen.pending.note(root, ChangeKind::Removed),
                        ChangeKind::Created => seen.add_fresh(event.path),
                        _ => return,
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
        self.account_for(&mut seen);
        drop(seen);
        self.wakeup.notify_one();
    }

    /// Records that events were lost.
    pub(crate) fn on_lost_events(&self) {
        let mut seen = self.seen();
        seen.lose();
        self.account_for(&mut seen);
        drop(seen);
        self.wakeup.notify_one();
    }

    /// Records that a part cannot be watched: from now on, every report is incomplete.
    pub fn mark_incomplete(&self) {
        let mut seen = self.seen();
        seen.is_incomplete = true;
        seen.pending.overflow();
        self.account_for(&mut seen);
    }

    /// Records an entry found in a new directory.
    pub(crate) fn on_found(&self, path: &Path) {
        let mut seen = self.seen();
        seen.pending.note_found(path);
        self.account_for(&mut seen);
    }

    /// Waits until there may be changes.
    pub async fn notified(&self) {
        self.wakeup.notified().await;
    }

    /// Takes what must be scanned; `None` if there is nothing.
    pub fn work(&self) -> Option<Rescan> {
        let mut seen = self.seen();
        seen.fresh_bytes = 0;
        let work = Rescan {
            fresh: std::mem::take(&mut seen.fresh),
            removals: seen.pending.unverified_removals(),
            is_lost: std::mem::take(&mut seen.is_lost),
        };
        self.account_for(&mut seen);
        (work.is_lost || !work.fresh.is_empty() || !work.removals.is_empty()).then_some(work)
    }

    /// Records that a removed path exists again; returns `false` if a later event has superseded the removal.
    pub(crate) fn on_reappeared(&self, removal: &UnverifiedRemoval) -> bool {
        let mut seen = self.seen();
        let is_current = seen.pending.is_current(removal);
        if is_current {
            seen.pending.note(&removal.path, ChangeKind::Created);
            self.account_for(&mut seen);
        }
        is_current
    }

    /// Records that removals were verified.
    pub(crate) fn confirm(&self, removals: &[UnverifiedRemoval]) {
        self.seen().pending.confirm(removals);
    }

    /// Takes what can be reported.
    pub fn take(&self) -> Option<ChangeBatch> {
        let mut seen = self.seen();
        let is_incomplete = seen.is_incomplete;
        let batch = seen.pending.take();
        self.account_for(&mut seen);
        batch.map(|batch| ChangeBatch { overflow: batch.overflow || is_incomplete, ..batch })
    }

    /// Charges what was seen; what there is no memory for becomes an overflow.
    fn account_for(&self, seen: &mut Seen) {
        let bytes = seen.memory();
        if bytes > FREE_BYTES && self.charge.account().left(Kind::Handles) == 0 {
            seen.lose();
        }
        self.charge.set(seen.memory());
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.seen)
    }
}

impl Seen {
    fn add_fresh(&mut self, path: &Path) {
        if self.fresh.len() < FRESH {
            self.fresh.push(path.to_owned());
            self.fresh_bytes += path.as_os_str().len();
        } else {
            self.lose();
        }
    }

    /// Discards the collected changes: everything is scanned again, and the next batch is marked as incomplete.
    fn lose(&mut self) {
        (self.fresh, self.fresh_bytes) = (Vec::new(), 0);
        self.is_lost = true;
        self.pending.overflow();
    }

    /// Returns about how many bytes it needs.
    fn memory(&self) -> usize {
        self.pending.memory() + self.fresh_bytes + self.fresh.len() * size_of::<PathBuf>()
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

//! What one watch looks at, and what it has seen there.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use remex_proto::fs::ChangeKind;
use tokio::sync::Notify;

use super::news::{Doubt, News, Told};

/// New directories that wait to be looked at; beyond it everything is looked at again.
const FRESH: usize = 4096;

/// What a watch is about; none of its paths has a link in it.
#[derive(Debug)]
pub(super) enum Scope {
    Tree {
        root: PathBuf,
        depth: Depth,
    },
    /// Places where anything that happens is told, once.
    Places(BTreeSet<PathBuf>),
}

/// How far below its root a watch looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    /// What is in the directory.
    One,
    All,
}

/// An event of the file system.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event<'a> {
    pub(super) path: &'a Path,
    pub(super) kind: ChangeKind,
    /// What is new there may be a directory.
    pub(super) is_fresh: bool,
}

/// One watch, as it is shared by its task, threads for files and the thread that hears of events.
#[derive(Debug)]
pub(super) struct Sight {
    pub(super) scope: Scope,
    /// Held for moments only.
    seen: Mutex<Seen>,
    /// Rings the watch's task.
    bell: Notify,
}

#[derive(Debug, Default)]
struct Seen {
    news: News,
    /// What may be a new directory, in order.
    fresh: Vec<PathBuf>,
    /// Events were lost, so directories may have come that nobody knows.
    is_lost: bool,
    /// A part could not be watched, so what happens there is not seen.
    is_blind: bool,
}

/// What has to be looked at before news can be told.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) fresh: Vec<PathBuf>,
    pub(super) doubts: Vec<Doubt>,
    pub(super) is_lost: bool,
}

impl Sight {
    pub(super) fn new(scope: Scope) -> Self {
        Sight { scope, seen: Mutex::default(), bell: Notify::new() }
    }

    /// Takes an event, if it is about this watch.
    pub(super) fn hear(&self, event: Event<'_>) {
        let mut seen = self.seen();
        match &self.scope {
            Scope::Places(places) => {
                let goes_above = event.kind == ChangeKind::Removed
                    && places.iter().any(|place| place.starts_with(event.path));
                if !goes_above && !places.contains(event.path) {
                    return;
                }
                seen.news.note(event.path, event.kind);
            }
            Scope::Tree { root, depth } => {
                if event.path != root && root.starts_with(event.path) {
                    match event.kind {
                        // Whoever takes away a directory takes away what is below it.
                        ChangeKind::Removed => seen.news.note(root, ChangeKind::Removed),
                        ChangeKind::Created => seen.add_fresh(event.path),
                        ChangeKind::Modified => return,
                    }
                } else if depth.reaches(root, event.path) {
                    seen.news.note(event.path, event.kind);
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
    pub(super) fn lose(&self) {
        let mut seen = self.seen();
        seen.is_lost = true;
        seen.news.overflow();
        drop(seen);
        self.bell.notify_one();
    }

    /// Notes that a part cannot be watched: from now on everything told is incomplete.
    pub(super) fn go_blind(&self) {
        let mut seen = self.seen();
        seen.is_blind = true;
        seen.news.overflow();
    }

    /// Notes what was found in a new directory.
    pub(super) fn find(&self, path: &Path) {
        self.seen().news.find(path);
    }

    /// Waits until something may have been seen.
    pub(super) async fn bell(&self) {
        self.bell.notified().await;
    }

    /// Takes what is to be looked at; none when there is nothing.
    pub(super) fn work(&self) -> Option<Work> {
        let mut seen = self.seen();
        let work = Work {
            fresh: std::mem::take(&mut seen.fresh),
            doubts: seen.news.doubtful(),
            is_lost: std::mem::take(&mut seen.is_lost),
        };
        (work.is_lost || !work.fresh.is_empty() || !work.doubts.is_empty()).then_some(work)
    }

    /// Notes that something is there where a removal was in doubt; `false` when that is old news.
    pub(super) fn refute(&self, doubt: &Doubt) -> bool {
        let mut seen = self.seen();
        let is_current = seen.news.is_current(doubt);
        if is_current {
            seen.news.note(&doubt.path, ChangeKind::Created);
        }
        is_current
    }

    /// Notes that doubts were looked at.
    pub(super) fn be_sure(&self, doubts: &[Doubt]) {
        self.seen().news.be_sure(doubts);
    }

    /// Takes what can be told.
    pub(super) fn take(&self) -> Option<Told> {
        let mut seen = self.seen();
        let is_blind = seen.is_blind;
        seen.news.take().map(|told| Told { overflow: told.overflow || is_blind, ..told })
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
            self.news.overflow();
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

//! Changes since the last report, each path once. Pure: no files, no clock.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    path::{Path, PathBuf},
};

use remex_proto::fs::ChangeKind;

/// Paths that wait to be reported; beyond it, they become one overflow.
const PATHS: usize = 4096;

/// Total length of these paths, in bytes.
const PATH_BYTES: usize = 1 << 20;

/// Changes that were not reported yet.
#[derive(Debug, Default)]
pub(crate) struct PendingChanges {
    changes: BTreeMap<PathBuf, Change>,
    path_bytes: usize,
    overflow: bool,
    /// A counter that distinguishes a change from a later one of the same path.
    now: u64,
    /// Removals up to here have been verified, see [`PendingChanges::unverified_removals`].
    verified: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Change {
    kind: ChangeKind,
    at: u64,
}

/// A path that was removed, unless something exists there again.
#[derive(Debug)]
pub(crate) struct UnverifiedRemoval {
    pub(crate) path: PathBuf,
    at: u64,
}

/// Changes to report.
#[derive(Debug, PartialEq, Eq)]
pub struct ChangeBatch {
    /// Each path, and what happened to it.
    pub changes: Vec<(PathBuf, ChangeKind)>,
    /// Whether some are missing here.
    pub overflow: bool,
}

impl PendingChanges {
    /// Records an event. The creation or removal of a path covers everything below it.
    pub(crate) fn note(&mut self, path: &Path, kind: ChangeKind) {
        if self.overflow {
            return;
        }
        self.now += 1;
        if kind != ChangeKind::Modified {
            self.forget_below(path);
        }
        let change = Change { kind, at: self.now };
        match self.changes.entry(path.to_owned()) {
            Entry::Vacant(entry) => {
                entry.insert(change);
                self.path_bytes += path.as_os_str().len();
                self.check_size();
            }
            // A created path stays created when it is modified.
            Entry::Occupied(entry)
                if kind == ChangeKind::Modified && entry.get().kind == ChangeKind::Created => {}
            Entry::Occupied(mut entry) => {
                entry.insert(change);
            }
        }
    }

    /// Records an entry found in a new directory; a recorded removal takes precedence.
    pub(crate) fn note_found(&mut self, path: &Path) {
        match self.changes.get_mut(path) {
            Some(change) if change.kind == ChangeKind::Modified => change.kind = ChangeKind::Created,
            Some(_) => {}
            None => self.note(path, ChangeKind::Created),
        }
    }

    /// Returns about how many bytes it needs.
    pub(crate) fn memory(&self) -> usize {
        /// A change besides its path.
        const CHANGE_BYTES: usize = 96;

        self.path_bytes + self.changes.len() * CHANGE_BYTES
    }

    /// Records that events were missed.
    pub(crate) fn overflow(&mut self) {
        self.changes.clear();
        self.path_bytes = 0;
        self.overflow = true;
    }

    /// Returns the removals that have not been verified.
    ///
    /// The kernel reports the removal of a directory twice, and the second report may arrive when another one
    /// has replaced it.
    pub(crate) fn unverified_removals(&self) -> Vec<UnverifiedRemoval> {
        self.changes
            .iter()
            .filter(|(_, change)| change.kind == ChangeKind::Removed && change.at > self.verified)
            .map(|(path, change)| UnverifiedRemoval { path: path.clone(), at: change.at })
            .collect()
    }

    /// Returns whether a removal is still the latest event of its path.
    pub(crate) fn is_current(&self, removal: &UnverifiedRemoval) -> bool {
        self.changes.get(&removal.path).is_some_and(|change| change.at == removal.at)
    }

    /// Records that these removals were verified.
    pub(crate) fn confirm(&mut self, removals: &[UnverifiedRemoval]) {
        self.verified = removals.iter().map(|removal| removal.at).max().unwrap_or(0).max(self.verified);
    }

    /// Takes everything that can be reported: all but unverified removals.
    pub(crate) fn take(&mut self) -> Option<ChangeBatch> {
        let verified = self.verified;
        let is_told = |change: &Change| change.kind != ChangeKind::Removed || change.at <= verified;
        let (batch, kept): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.changes).into_iter().partition(|(_, change)| is_told(change));
        self.path_bytes = kept.keys().map(|path| path.as_os_str().len()).sum();
        self.changes = kept;
        let changes: Vec<_> = batch.into_iter().map(|(path, change)| (path, change.kind)).collect();
        let batch = ChangeBatch { changes, overflow: std::mem::take(&mut self.overflow) };
        (batch.overflow || !batch.changes.is_empty()).then_some(batch)
    }

    fn forget_below(&mut self, path: &Path) {
        // Paths are ordered by component, so everything below one follows it.
        let below: Vec<PathBuf> = self
            .changes
            .range::<Path, _>((std::ops::Bound::Excluded(path), std::ops::Bound::Unbounded))
            .map(|(other, _)| other)
            .take_while(|other| other.starts_with(path))
            .cloned()
            .collect();
        for path in below {
            self.changes.remove(&path);
            self.path_bytes -= path.as_os_str().len();
        }
    }

    fn check_size(&mut self) {
        if self.changes.len() > PATHS || self.path_bytes > PATH_BYTES {
            self.overflow();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ChangeKind::{Created, Modified, Removed};

    fn changes(events: &[(&str, ChangeKind)]) -> Vec<(String, ChangeKind)> {
        let mut pending = PendingChanges::default();
        for (path, kind) in events {
            pending.note(Path::new(path), *kind);
        }
        pending.confirm(&pending.unverified_removals());
        let batch = pending.take().expect("something happened");
        assert!(!batch.overflow);
        assert_eq!(pending.take(), None, "nothing is reported twice");
        batch.changes.into_iter().map(|(path, kind)| (path.display().to_string(), kind)).collect()
    }

    #[test]
    fn each_path_is_reported_once_with_its_final_change() {
        let results = [
            (vec![Created, Modified, Modified], Created),
            (vec![Modified, Modified], Modified),
            (vec![Created, Removed], Removed),
            (vec![Modified, Removed], Removed),
            (vec![Removed, Created], Created),
            (vec![Removed, Created, Modified], Created),
            (vec![Created, Removed, Created, Removed], Removed),
        ];
        for (kinds, result) in results {
            let events: Vec<_> = kinds.iter().map(|kind| ("/a", *kind)).collect();
            assert_eq!(changes(&events), [("/a".to_owned(), result)], "{kinds:?}");
        }
    }

    #[test]
    fn a_removal_or_creation_covers_everything_below() {
        let events = [("/d/x", Modified), ("/d/y/z", Created), ("/d-", Modified), ("/d", Removed)];
        assert_eq!(changes(&events), [("/d".to_owned(), Removed), ("/d-".to_owned(), Modified)]);
        let events = [("/d/x", Removed), ("/d", Removed), ("/d", Created), ("/d/y", Created)];
        assert_eq!(changes(&events), [("/d".to_owned(), Created), ("/d/y".to_owned(), Created)]);
    }

    #[test]
    fn found_entries_are_created_unless_already_removed() {
        let mut pending = PendingChanges::default();
        pending.note(Path::new("/gone"), Removed);
        pending.note(Path::new("/new"), Modified);
        for path in ["/gone", "/new", "/quiet"] {
            pending.note_found(Path::new(path));
        }
        pending.confirm(&pending.unverified_removals());
        let changes = vec![("/gone".into(), Removed), ("/new".into(), Created), ("/quiet".into(), Created)];
        assert_eq!(pending.take(), Some(ChangeBatch { changes, overflow: false }));
    }

    #[test]
    fn a_removal_is_reported_only_after_it_is_verified() {
        let mut pending = PendingChanges::default();
        pending.note(Path::new("/a"), Removed);
        let removals = pending.unverified_removals();
        pending.note(Path::new("/b"), Removed);
        pending.note(Path::new("/a"), Removed);
        assert!(!pending.is_current(&removals[0]), "it happened again meanwhile");
        pending.confirm(&removals);
        assert_eq!(pending.take(), None);
        pending.confirm(&pending.unverified_removals());
        assert_eq!(pending.take().map(|batch| batch.changes.len()), Some(2));
    }

    #[test]
    fn too_many_changes_become_an_overflow() {
        let mut pending = PendingChanges::default();
        for number in 0..=PATHS {
            pending.note(Path::new(&format!("/{number}")), Created);
        }
        pending.note(Path::new("/later"), Created);
        assert_eq!(pending.take(), Some(ChangeBatch { changes: Vec::new(), overflow: true }));
        pending.note(Path::new("/later"), Created);
        assert_eq!(pending.take().map(|batch| batch.changes.len()), Some(1));
        pending.note(Path::new(&"x".repeat(PATH_BYTES + 1)), Created);
        assert_eq!(pending.take(), Some(ChangeBatch { changes: Vec::new(), overflow: true }));
    }
}

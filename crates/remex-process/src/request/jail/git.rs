//! Finds git directories below writable directories: git runs what it finds there.
//!
//! Searches a bounded number of directories near the writable directory itself, because it runs at every start. An
//! incomplete search is logged once for each writable directory.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::Mutex,
};

use remex_base::lock;
use remex_sandbox::{Kind, Policy};

/// How far below the root a git directory is found.
const MAX_DEPTH: usize = 3;
/// How many directories are searched for each root; usually they are in the kernel's cache.
const MAX_DIRECTORIES: usize = 500;
/// How many directories are searched for all roots together, each of which has an equal share.
const MAX_DIRECTORIES_OF_ALL: usize = 2_000;
/// How many are protected; each costs two mounts.
const MAX_FOUND: usize = 200;
/// For how many roots a message is logged.
const MAX_LOGGED: usize = 100;

const GIT: &str = ".git";

/// The roots about which a message was logged. Shared by all threads that start processes; held briefly.
static LOGGED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Returns the `.git` of each repository that is found below a writable directory whose own `.git` is protected.
pub(super) fn nested(policy: &Policy) -> Vec<(PathBuf, Kind)> {
    let roots: Vec<_> = policy.git_roots().collect();
    let share = (MAX_DIRECTORIES_OF_ALL / roots.len().max(1)).clamp(1, MAX_DIRECTORIES);
    let mut found = Vec::new();
    for root in roots {
        let mut search = Search { left: share, is_complete: true };
        let repositories = search.repositories(root);
        let room = MAX_FOUND - found.len();
        if (!search.is_complete || repositories.len() > room) && is_first(root) {
            tracing::warn!(
                directory = %root.display(),
                directories = share,
                repositories = repositories.len().min(room),
                "not all repositories below a writable directory are protected from confined processes"
            );
        }
        found.extend(repositories.into_iter().take(room));
    }
    found
}

struct Search {
    /// How many directories may still be searched.
    left: usize,
    /// Whether all directories that are near enough were searched.
    is_complete: bool,
}

impl Search {
    fn repositories(&mut self, root: &Path) -> Vec<(PathBuf, Kind)> {
        let mut found = Vec::new();
        let mut level = vec![root.to_owned()];
        for _ in 0..MAX_DEPTH {
            level = level.iter().flat_map(|directory| self.directories(directory)).collect();
            found.extend(level.iter().filter_map(|directory| repository(directory)));
        }
        found
    }

    /// Returns the directories in a directory, including hidden ones and excluding links.
    fn directories(&mut self, directory: &Path) -> Vec<PathBuf> {
        let Some(now_left) = self.left.checked_sub(1) else {
            self.is_complete = false;
            return Vec::new();
        };
        self.left = now_left;
        // A directory that cannot be read is not a workspace.
        let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
        let is_directory = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
        let mut entries =
            entries.filter_map(Result::ok).filter(is_directory).filter(|entry| entry.file_name() != GIT);
        let first: Vec<_> = entries.by_ref().take(MAX_DIRECTORIES).map(|entry| entry.path()).collect();
        self.is_complete &= entries.next().is_none();
        first
    }
}

fn repository(directory: &Path) -> Option<(PathBuf, Kind)> {
    let path = directory.join(GIT);
    let found = fs::symlink_metadata(&path).ok()?.file_type();
    match (found.is_dir(), found.is_file()) {
        (true, _) => Some((path, Kind::Directory)),
        (_, true) => Some((path, Kind::File)),
        // A link cannot be covered.
        _ => None,
    }
}

/// Returns whether nothing was logged about a root before.
fn is_first(root: &Path) -> bool {
    let mut logged = lock(&LOGGED);
    logged.len() < MAX_LOGGED && logged.insert(root.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_reports_whether_it_was_complete() {
        let directory = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(directory.path()).unwrap();
        for name in ["a/.git", "b/c/.git", "d/e/f/.git", "g/h/i/too/deep/.git"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        // The root, and what is one and two levels below it: `a`, `b`, `d`, `g`, `b/c`, `d/e` and `g/h`.
        let mut search = Search { left: 8, is_complete: true };
        let found: BTreeSet<_> = search.repositories(&root).into_iter().collect();
        let expected = ["a/.git", "b/c/.git", "d/e/f/.git"].map(|name| (root.join(name), Kind::Directory));
        assert_eq!((found, search.is_complete), (expected.into(), true));
        let mut search = Search { left: 7, is_complete: true };
        search.repositories(&root);
        assert!(!search.is_complete);
        assert!(is_first(&root), "it is said");
        assert!(!is_first(&root), "once");
    }
}

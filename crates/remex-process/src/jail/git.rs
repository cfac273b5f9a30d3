//! Finds git directories below the workspace: git runs what it finds there.
//!
//! Looks at a bounded number of directories, because it happens at every start: those near the root of the workspace.

use std::{
    fs,
    path::{Path, PathBuf},
};

use remex_sandbox::{Kind, Policy};

/// How far below the root a git directory is found.
const MAX_DEPTH: usize = 3;
/// How many directories are looked at for each root; usually they are in the cache of the kernel.
const MAX_DIRECTORIES: usize = 500;
/// How many are protected; each costs two mounts.
const MAX_FOUND: usize = 200;

const GIT: &str = ".git";

/// Returns the `.git` of each repository that is found below a writable directory whose own `.git` is protected.
pub(super) fn nested(policy: &Policy) -> Vec<(PathBuf, Kind)> {
    let mut found = Vec::new();
    for root in policy.git_roots() {
        let mut level = vec![root.to_owned()];
        let mut left = MAX_DIRECTORIES;
        for _ in 0..MAX_DEPTH {
            level = level.iter().flat_map(|directory| directories(directory, &mut left)).collect();
            found.extend(level.iter().filter_map(|directory| repository(directory)));
        }
    }
    found.truncate(MAX_FOUND);
    found
}

/// Returns the directories in a directory, without links, and with what is hidden.
fn directories(directory: &Path, left: &mut usize) -> Vec<PathBuf> {
    let Some(now_left) = left.checked_sub(1) else { return Vec::new() };
    *left = now_left;
    // What cannot be read is not a workspace.
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let is_directory = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    let entries =
        entries.filter_map(Result::ok).filter(is_directory).filter(|entry| entry.file_name() != GIT);
    entries.take(MAX_DIRECTORIES).map(|entry| entry.path()).collect()
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

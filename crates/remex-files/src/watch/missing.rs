//! `fs/watchMissing`: which directories to watch to notice that missing paths appear.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use remex_base::trace::LOG_TARGET;

use super::tree::{is_directory, stat};
use crate::watcher::{DirectoryId, SharedWatcher, Subscription, WatchError};

/// Paths in one request; beyond it, the client has to poll.
pub const PATHS: usize = 1024;

/// What to watch for missing paths to appear, or for an existing one to change.
#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    /// The first missing component of each missing path, and the existing path.
    pub paths: BTreeSet<PathBuf>,
    /// The directories that lead to them.
    pub(super) directories: BTreeMap<PathBuf, DirectoryId>,
}

impl Plan {
    /// Inspects the paths; returns `None` if there is nothing to wait for, or no way to notice it.
    pub fn make(missing: &[PathBuf], present: Option<&Path>) -> Option<Self> {
        if missing.is_empty() {
            return None;
        }
        let mut plan = Plan { paths: BTreeSet::new(), directories: BTreeMap::new() };
        for path in missing {
            let reached = plan.approach(path).filter(|reached| matches!(stat(reached), Ok(None)))?;
            plan.paths.insert(reached);
        }
        if let Some(present) = present {
            let reached = plan.approach(present).filter(|reached| reached == present)?;
            stat(&reached).ok()??;
            plan.paths.insert(reached);
        }
        Some(plan)
    }

    /// Watches the directories; returns `false` if a required one cannot be watched.
    pub fn watch_directory(&self, watcher: &SharedWatcher, subscription: &Arc<Subscription>) -> bool {
        let matters = |directory: &Path| self.paths.iter().any(|reached| reached.parent() == Some(directory));
        self.directories.iter().all(|(directory, id)| {
            match watcher.watch_directory(subscription, directory, *id) {
                Ok(_) => true,
                Err(WatchError::NotFound | WatchError::Unsubscribed) => false,
                Err(WatchError::LimitReached(error)) => {
                    tracing::warn!(target: LOG_TARGET, error = %error.message, "missing paths are not watched");
                    false
                }
                Err(WatchError::Failed(_)) => !matters(directory),
            }
        })
    }

    /// Follows a path through plain directories; returns the path, or its first missing component.
    ///
    /// Returns `None` if a file is in the way, or a link, which could point elsewhere later.
    fn approach(&mut self, path: &Path) -> Option<PathBuf> {
        let mut reached = PathBuf::new();
        let mut parts = path.components().peekable();
        while let Some(part) = parts.next() {
            match part {
                Component::RootDir | Component::Normal(_) => reached.push(part),
                Component::CurDir | Component::ParentDir | Component::Prefix(_) => return None,
            }
            if parts.peek().is_none() {
                break;
            }
            match stat(&reached).ok()? {
                Some(stat) if is_directory(&stat) => {
                    self.directories.insert(reached.clone(), DirectoryId::from(&stat));
                }
                Some(_) => return None,
                None => break,
            }
        }
        Some(reached)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    #[test]
    fn the_first_missing_component_of_each_path_is_watched() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().canonicalize().unwrap();
        fs::create_dir(top.join("d")).unwrap();
        fs::write(top.join("f"), "").unwrap();
        symlink("nowhere", top.join("dangling")).unwrap();
        symlink("d", top.join("link")).unwrap();
        let at = |paths: &[&str]| -> Vec<PathBuf> { paths.iter().map(|path| top.join(path)).collect() };

        let plan = Plan::make(&at(&["x/y/z", "d/e", "x"]), Some(&top.join("f"))).unwrap();
        assert_eq!(plan.paths, at(&["d/e", "f", "x"]).into_iter().collect());
        let ways: BTreeSet<PathBuf> = plan.directories.into_keys().collect();
        assert!(ways.contains(Path::new("/")) && ways.contains(&top) && ways.contains(&top.join("d")));

        for there in ["d", "f", "dangling", "f/x", "link/x", "d/../x"] {
            assert_eq!(Plan::make(&at(&["new", there]), None), None, "{there}");
        }
        assert_eq!(Plan::make(&[], Some(&top)), None);
        assert_eq!(Plan::make(&at(&["new"]), Some(&top.join("nowhere"))), None);
    }
}

//! Finds the files that the patterns of a policy deny: mounts can cover only what exists.
//!
//! A directory that cannot be searched is denied as a whole, because a pattern may match in it. Failing instead would
//! let a confined process prevent the next start by creating such a directory.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use remex_sandbox::{Pattern, Policy};

use super::error::JailError;

/// How many files and directories are inspected.
const MAX_INSPECTED: usize = 200_000;
/// How many matches are covered; each costs a mount.
const MAX_MATCHES: usize = 2_000;
/// The longest path that can still be found below the directory in which a jail is built.
const MAX_MOUNTED_LEN: usize = 4_000;

/// Returns the paths that the patterns match, except for those below another match.
pub(super) fn matches(policy: &Policy) -> Result<Vec<PathBuf>, JailError> {
    let mut search = Search { policy, looked_at: 0, found: Vec::new() };
    for pattern in policy.patterns() {
        search.search(&pattern.base, depth(pattern))?;
    }
    let mut found = search.found;
    found.sort();
    found.dedup();
    Ok(found)
}

/// Returns how far below its base a pattern can match.
fn depth(pattern: &Pattern) -> usize {
    let mut components = pattern.rest.split('/').filter(|component| !component.is_empty());
    if components.clone().any(|component| component == "**") {
        usize::MAX
    } else {
        components.by_ref().count()
    }
}

struct Search<'a> {
    policy: &'a Policy,
    looked_at: usize,
    found: Vec<PathBuf>,
}

impl Search<'_> {
    /// Searches a path, and up to `depth` levels below it.
    fn search(&mut self, base: &Path, depth: usize) -> Result<(), JailError> {
        let mut left = vec![(base.to_owned(), depth)];
        while let Some((path, depth)) = left.pop() {
            self.looked_at += 1;
            if self.looked_at > MAX_INSPECTED {
                return Err(JailError::TooMany {
                    what: "files and directories".into(),
                    limit: MAX_INSPECTED,
                });
            }
            let kind = match fs::symlink_metadata(&path) {
                Ok(found) => found.file_type(),
                Err(error) if is_gone(&error) => continue,
                Err(error) => {
                    self.deny_unsearchable(path.parent().unwrap_or(&path), &error)?;
                    continue;
                }
            };
            // A link is judged by where it leads.
            if kind.is_symlink() {
                continue;
            }
            if self.policy.is_denied_by_pattern(&path) {
                self.deny(path)?;
                continue;
            }
            if !kind.is_dir() || depth == 0 || is_own(&path) || !self.can_be_seen(&path) {
                continue;
            }
            let entries = match fs::read_dir(&path) {
                Ok(entries) => entries,
                Err(error) if is_gone(&error) => continue,
                // The process cannot list it either, but it may know a name.
                Err(error) => {
                    self.deny_unsearchable(&path, &error)?;
                    continue;
                }
            };
            for entry in entries {
                let entry = entry.map_err(|error| failed(path.clone(), &error))?;
                left.push((entry.path(), depth.saturating_sub(1)));
            }
        }
        Ok(())
    }

    fn deny(&mut self, path: PathBuf) -> Result<(), JailError> {
        self.found.push(path);
        if self.found.len() > MAX_MATCHES {
            return Err(JailError::TooMany { what: "matching files".into(), limit: MAX_MATCHES });
        }
        Ok(())
    }

    /// Denies a directory in which matches cannot be looked for, unless the policy has rules below it.
    fn deny_unsearchable(&mut self, directory: &Path, error: &io::Error) -> Result<(), JailError> {
        let is_unsearchable = matches!(error.raw_os_error(), Some(libc::EACCES | libc::ENAMETOOLONG));
        let mountable = directory.ancestors().find(|path| path.as_os_str().len() <= MAX_MOUNTED_LEN);
        let closed = mountable.filter(|closed| {
            is_unsearchable && !self.policy.rules().iter().any(|rule| rule.path.starts_with(closed))
        });
        match closed {
            // Usually several consecutive entries are in the same directory.
            Some(closed) if self.found.last().is_some_and(|last| last == closed) => Ok(()),
            Some(closed) => self.deny(closed.to_owned()),
            None => Err(failed(directory.to_owned(), error)),
        }
    }

    fn can_be_seen(&self, path: &Path) -> bool {
        self.policy.access(path) > remex_sandbox::Access::Deny || self.policy.leads_to_grant(path)
    }
}

/// Returns whether a path belongs to the jail itself, which never shows that of the host.
fn is_own(path: &Path) -> bool {
    path == Path::new("/proc") || path == Path::new("/dev")
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn failed(path: PathBuf, error: &io::Error) -> JailError {
    JailError::Search { path, errno: error.raw_os_error().unwrap_or(libc::EIO) }
}

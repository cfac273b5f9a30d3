//! Finds the files that the patterns of a policy deny: mounts can cover only what exists.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use remex_sandbox::{Pattern, Policy};

use super::error::JailError;

/// How many files and directories are looked at.
const MAX_LOOKED_AT: usize = 200_000;
/// How many matches are covered; each costs a mount.
const MAX_MATCHES: usize = 2_000;

/// Returns what the patterns match, without what is below a match.
pub(super) fn matches(policy: &Policy) -> Result<Vec<PathBuf>, JailError> {
    let mut search = Search { policy, looked_at: 0, found: Vec::new() };
    for pattern in policy.patterns() {
        search.look(&pattern.base, depth(pattern))?;
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
    /// Looks at a path, and up to so many levels below it.
    fn look(&mut self, base: &Path, depth: usize) -> Result<(), JailError> {
        let mut left = vec![(base.to_owned(), depth)];
        while let Some((path, depth)) = left.pop() {
            self.looked_at += 1;
            if self.looked_at > MAX_LOOKED_AT {
                return Err(JailError::TooMany { what: "files and directories", limit: MAX_LOOKED_AT });
            }
            let kind = match fs::symlink_metadata(&path) {
                Ok(found) => found.file_type(),
                Err(error) if is_gone(&error) => continue,
                Err(error) => return Err(failed(path, &error)),
            };
            // A link is judged by where it leads.
            if kind.is_symlink() {
                continue;
            }
            if self.policy.is_denied_by_pattern(&path) {
                self.found.push(path);
                if self.found.len() > MAX_MATCHES {
                    return Err(JailError::TooMany { what: "matching files", limit: MAX_MATCHES });
                }
                continue;
            }
            if !kind.is_dir() || depth == 0 || is_own(&path) || !self.can_be_seen(&path) {
                continue;
            }
            let entries = match fs::read_dir(&path) {
                Ok(entries) => entries,
                Err(error) if is_gone(&error) => continue,
                // Neither can the process list it, but it may know a name.
                Err(error) => return Err(failed(path, &error)),
            };
            for entry in entries {
                let entry = entry.map_err(|error| failed(path.clone(), &error))?;
                left.push((entry.path(), depth.saturating_sub(1)));
            }
        }
        Ok(())
    }

    fn can_be_seen(&self, path: &Path) -> bool {
        self.policy.access(path) > remex_sandbox::Access::Deny || self.policy.leads_to_grant(path)
    }
}

/// The jail has its own.
fn is_own(path: &Path) -> bool {
    path == Path::new("/proc") || path == Path::new("/dev")
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn failed(path: PathBuf, error: &io::Error) -> JailError {
    JailError::Search { path, errno: error.raw_os_error().unwrap_or(libc::EIO) }
}

//! Walking a tree breadth-first, within limits.

use std::{
    collections::{HashSet, VecDeque},
    ffi::OsString,
    io,
    path::{Path, PathBuf},
};

use remex_access::scope::FileAccess;
use remex_proto::{ErrorKind, HostPath, RpcError, fs as wire};
use rustix::{
    fs::{AtFlags, FileType, statat},
    io::Errno,
};

use super::{
    AnswerSize, FileWork, LISTING, PathAccess, PathGuard,
    descent::{self, Identity},
    io_error,
    names::{self, Smallest},
    native,
    open::Links,
};

const MAX_DEPTH: u64 = 64;
const MAX_DIRECTORIES: u64 = 10_000;
const MAX_ENTRIES: u64 = 50_000;

/// The limit for paths and messages in one answer, in bytes.
const MAX_ANSWER: usize = 4 * 1024 * 1024;

/// The size of each item besides its path and message.
const ITEM: usize = 64;

impl FileWork for wire::Walk {
    const ANSWER: AnswerSize = AnswerSize::Large(LISTING);

    fn access(&self) -> Result<PathAccess, RpcError> {
        check_limits(&self.options)?;
        PathAccess::looks(&self.path)
    }

    fn run(&self, guard: &PathGuard, _wanted: &super::CancelCheck) -> Result<wire::WalkReply, RpcError> {
        let path = native(&self.path)?;
        let failed = |error: Errno| io_error(&error.into(), path);
        let at = guard.target(path, Links::Follow, FileAccess::Read)?;
        let root = at.stat().map_err(failed)?;
        let kind = if self.options.follow_directory_symlinks {
            FileType::from_raw_mode(root.st_mode)
        } else {
            guard.entry(path, Links::Follow, FileAccess::Read)?.kind().map_err(failed)?
        };
        let mut walker = Walker::new(&self.options, guard);
        if kind == FileType::Directory {
            walker.enqueue(path.to_owned(), 0, (root.st_dev, root.st_ino));
            walker.walk();
        }
        Ok(walker.reply)
    }
}

fn check_limits(options: &wire::WalkOptions) -> Result<(), RpcError> {
    let text = if options.max_directories == 0 || options.max_entries == 0 {
        "filesystem walk limits must be greater than zero".to_owned()
    } else if options.max_depth > MAX_DEPTH
        || options.max_directories > MAX_DIRECTORIES
        || options.max_entries > MAX_ENTRIES
    {
        format!(
            "filesystem walk limits exceed maximums: depth={MAX_DEPTH}, directories={MAX_DIRECTORIES}, \
             entries={MAX_ENTRIES}"
        )
    } else {
        return Ok(());
    };
    Err(RpcError::new(ErrorKind::InvalidInput, text))
}

/// A directory to read.
struct PendingDirectory {
    path: PathBuf,
    depth: u64,
}

/// The kind of an entry.
#[derive(Clone, Copy)]
enum EntryKind {
    Directory(Identity),
    File,
    /// Counted, but not listed.
    Other,
}

/// A walk in progress.
struct Walker<'a> {
    options: &'a wire::WalkOptions,
    guard: &'a PathGuard,
    queue: VecDeque<PendingDirectory>,
    /// Number of directories queued so far.
    directories: u64,
    /// Their identities, if links could lead to one twice.
    seen: HashSet<Identity>,
    /// Number of entries that may still be visited.
    entries_left: u64,
    budget: Budget,
    reply: wire::WalkReply,
}

impl<'a> Walker<'a> {
    fn new(options: &'a wire::WalkOptions, guard: &'a PathGuard) -> Self {
        Self {
            options,
            guard,
            queue: VecDeque::new(),
            directories: 0,
            seen: HashSet::new(),
            entries_left: options.max_entries,
            budget: Budget { left: MAX_ANSWER },
            reply: wire::WalkReply::default(),
        }
    }

    fn walk(&mut self) {
        while let Some(directory) = self.queue.pop_front() {
            let proceeds = match self.read(&directory.path) {
                Ok(found) => self.list(&directory, found),
                Err(error) => self.fail(directory.path, error.message),
            };
            if proceeds.is_none() {
                self.reply.truncated = true;
                return;
            }
        }
    }

    /// Reads a directory; if it has more entries than may be visited, returns the first ones and one more.
    fn read(&self, path: &Path) -> Result<Vec<(OsString, EntryKind)>, RpcError> {
        let failed = |error: io::Error| io_error(&error, path);
        let follow = self.options.follow_directory_symlinks;
        let (at, links) = if follow {
            let at = self.guard.target(path, Links::Follow, FileAccess::Read)?;
            let links = at.links_from_here();
            (at, links)
        } else {
            (self.guard.entry(path, Links::Follow, FileAccess::Read)?, Links::Refuse)
        };
        let directory = descent::open(at.directory(), at.name(), links).map_err(failed)?;
        let limit = usize::try_from(self.entries_left.saturating_add(1)).unwrap_or(usize::MAX);
        let mut found = Smallest::new(limit);
        names::for_each(&directory, |name, kind| {
            let what = match kind {
                FileType::RegularFile => EntryKind::File,
                // Only links can lead to a directory twice.
                FileType::Directory if !follow => EntryKind::Directory((0, 0)),
                FileType::Directory => match statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(found) => EntryKind::Directory((found.st_dev, found.st_ino)),
                    Err(_) => return Ok(()),
                },
                FileType::Symlink if follow => {
                    match self.guard.kind_of_target(&at, &directory, names::os_str(name)) {
                        Some((FileType::Directory, identity)) => EntryKind::Directory(identity),
                        Some(_) => EntryKind::Other,
                        // Broken links are treated as absent.
                        None => return Ok(()),
                    }
                }
                _ => EntryKind::Other,
            };
            found.push(names::os_str(name), what);
            Ok::<_, Errno>(())
        })
        .map_err(|error| failed(error.into()))?;
        Ok(found.into_sorted().0)
    }

    /// Lists the entries of a directory; returns `None` if a limit ends the walk.
    fn list(&mut self, directory: &PendingDirectory, found: Vec<(OsString, EntryKind)>) -> Option<()> {
        for (name, what) in found {
            self.entries_left = self.entries_left.checked_sub(1)?;
            let kind = match what {
                EntryKind::Directory(_) => wire::WalkKind::Directory,
                EntryKind::File => wire::WalkKind::File,
                EntryKind::Other => continue,
            };
            let path = directory.path.join(&name);
            if name.to_str().is_none() {
                self.fail(path, "the name is not UTF-8".to_owned())?;
                continue;
            }
            let entry = wire::WalkEntry::new(HostPath::from(path.clone()), kind);
            self.budget.take(&entry.path, "")?;
            self.reply.entries.push(entry);
            let is_pruned =
                self.options.prune_hidden_directories && name.as_encoded_bytes().starts_with(b".");
            if let EntryKind::Directory(identity) = what
                && directory.depth < self.options.max_depth
                && !is_pruned
            {
                self.enqueue(path, directory.depth + 1, identity);
            }
        }
        Some(())
    }

    fn enqueue(&mut self, path: PathBuf, depth: u64, identity: Identity) {
        if self.options.follow_directory_symlinks && self.seen.contains(&identity) {
            return;
        }
        if self.directories == self.options.max_directories {
            self.reply.truncated = true;
            return;
        }
        self.directories += 1;
        if self.options.follow_directory_symlinks {
            self.seen.insert(identity);
        }
        self.queue.push_back(PendingDirectory { path, depth });
    }

    /// Reports an entry that cannot be read or named; returns `None` if there is no room for that.
    fn fail(&mut self, path: PathBuf, message: String) -> Option<()> {
        let path = match path.to_str() {
            Some(_) => path,
            None => PathBuf::from(path.to_string_lossy().into_owned()),
        };
        let error = wire::WalkError::new(HostPath::from(path), message);
        self.budget.take(&error.path, &error.message)?;
        self.reply.errors.push(error);
        Some(())
    }
}

/// How much the answer may still grow.
struct Budget {
    left: usize,
}

impl Budget {
    /// Reserves the size of an item; returns `None` if it does not fit.
    fn take(&mut self, path: &HostPath, message: &str) -> Option<()> {
        self.left = self.left.checked_sub(path.to_uri().len() + message.len() + ITEM)?;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_costs_its_uri_its_message_and_a_bit() {
        let mut budget = Budget { left: 200 };
        let path = HostPath::from(PathBuf::from("/a b"));
        assert_eq!(budget.take(&path, "why"), Some(()));
        assert_eq!(budget.left, 200 - "file:///a%20b".len() - 3 - 64);
        assert_eq!(budget.take(&path, &"x".repeat(43)), Some(()), "to the last byte");
        assert_eq!(budget.take(&path, ""), None);
    }
}

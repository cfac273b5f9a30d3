//! Removing entries, without ever following a link.

use std::{
    ffi::{CString, OsStr},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
};

use remex_base::nofollow::{self, OpenParent};
use remex_proto::{ErrorKind, RpcError, call::Empty, fs as wire};
use remex_sandbox::Action;
use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, OFlags, openat, statat, unlinkat},
    io::Errno,
};

use super::{
    CancelCheck, FileWork, PathAccess, PathGuard,
    descent::{self, Descent},
    entry_lock::DirectoryEntry,
    guard::{self, Located, TreeGuard},
    io_error, names, native,
    open::{Links, file_type},
};

impl FileWork for wire::Remove {
    fn access(&self) -> Result<PathAccess, RpcError> {
        PathAccess::writes(&self.path)
    }

    fn run(&self, guard: &PathGuard, wanted: &CancelCheck) -> Result<Empty, RpcError> {
        let path = native(&self.path)?;
        let links = Links::from(self.follow_symlinks);
        let recursive = self.recursive.unwrap_or(true);
        if recursive && links == Links::Refuse {
            let text = "recursive no-follow removal is unsupported";
            return Err(RpcError::new(ErrorKind::NotSupported, text).with_hint("ask with `recursive: false`"));
        }
        if path.file_name().is_none() {
            return Err(RpcError::new(ErrorKind::InvalidInput, "path must name an entry")
                .with_hint("the root and `..` cannot be removed; name what is in them"));
        }
        let is_absent = |error: &RpcError| error.kind == ErrorKind::NotFound && self.force.unwrap_or(true);
        let at = match guard.change(path, links, Action::Remove) {
            Err(error) if is_absent(&error) => return Ok(Empty {}),
            at => at?,
        };
        let tree = TreeGuard::new(&at);
        let is_tree = recursive && at.is_confined() && at.kind() == Ok(FileType::Directory);
        if is_tree {
            guard::check_removal(&at)?;
        }
        let found = open_parent(at).and_then(|parent| {
            let stat = statat(&parent.directory, &parent.name, AtFlags::SYMLINK_NOFOLLOW)?;
            Ok((parent, file_type(&stat)))
        });
        let removed = match found {
            Ok((_, FileType::Symlink)) if links == Links::Refuse => return Err(nofollow::refusal(path)),
            Ok((parent, FileType::Directory)) if recursive => remove_tree(&parent, &tree, wanted),
            Ok((parent, FileType::Directory)) => {
                unlinkat(&parent.directory, &parent.name, AtFlags::REMOVEDIR).map_err(io::Error::from)
            }
            Ok((parent, _)) => DirectoryEntry::new(&parent.directory, &parent.name)
                .write(|| unlinkat(&parent.directory, &parent.name, AtFlags::empty()))
                .map_err(io::Error::from),
            Err(error) => Err(error),
        };
        match removed.map_err(|error| io_error(&error, path)) {
            Err(error) if is_absent(&error) => Ok(Empty {}),
            removed => removed.map(|()| Empty {}),
        }
    }
}

/// Opens the directory that contains the entry to remove.
fn open_parent(at: Located<'_>) -> io::Result<OpenParent> {
    let path = match at.into_parent() {
        Ok(parent) => return Ok(parent),
        Err(path) => path,
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory: OwnedFd = openat(CWD, path.parent().unwrap_or(path), flags, Mode::empty())?;
    Ok(OpenParent { directory, name: path.file_name().unwrap_or(OsStr::new(".")).to_owned() })
}

/// A directory on the current path down the tree.
struct Level {
    /// The name of the directory in its parent.
    name: CString,
    /// Subdirectories that are still to be removed.
    directories: Vec<CString>,
}

/// How often the removal of a tree restarts if others change it concurrently.
const ATTEMPTS: usize = 100;

/// Removes a directory and its contents.
fn remove_tree(parent: &OpenParent, tree: &TreeGuard, wanted: &CancelCheck) -> io::Result<()> {
    for _ in 0..ATTEMPTS {
        match try_remove_tree(parent, tree.clone(), wanted) {
            // Another process has removed a part; the next attempt shows whether anything is left.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                statat(&parent.directory, &parent.name, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            removed => return removed,
        }
    }
    Err(Errno::BUSY.into())
}

fn try_remove_tree(parent: &OpenParent, mut tree: TreeGuard, wanted: &CancelCheck) -> io::Result<()> {
    let name = CString::new(parent.name.as_bytes())?;
    let mut descent = Descent::new(descent::open(&parent.directory, &*name, Links::Refuse)?)?;
    let mut levels = vec![Level { name, directories: remove_files(descent.current(), &tree)? }];
    while let Some(level) = levels.last_mut() {
        wanted.check()?;
        if let Some(name) = level.directories.pop() {
            match descent.enter(&name, Links::Refuse) {
                Ok(()) => {
                    tree.enter(&name);
                    levels.push(Level { name, directories: remove_files(descent.current(), &tree)? });
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            continue;
        }
        let Some(emptied) = levels.pop() else { break };
        if levels.is_empty() {
            unlinkat(&parent.directory, &*emptied.name, AtFlags::REMOVEDIR)?;
        } else {
            descent.leave()?;
            tree.leave();
            ignore_missing(unlinkat(descent.current(), &*emptied.name, AtFlags::REMOVEDIR))?;
        }
    }
    Ok(())
}

/// Removes everything except subdirectories, which are returned.
fn remove_files(directory: impl AsFd, tree: &TreeGuard) -> io::Result<Vec<CString>> {
    let mut directories = Vec::new();
    names::for_each(directory.as_fd(), |name, kind| {
        // What was found to be allowed before may have changed.
        if !tree.allows(names::os_str(name), Action::Write) {
            return Err(Errno::ACCESS);
        }
        if kind == FileType::Directory {
            directories.push(name.to_owned());
            return Ok(());
        }
        ignore_missing(unlinkat(directory.as_fd(), name, AtFlags::empty()))
    })?;
    Ok(directories)
}

/// Ignores that an entry has already been removed.
fn ignore_missing(removed: Result<(), Errno>) -> Result<(), Errno> {
    match removed {
        Err(Errno::NOENT) => Ok(()),
        removed => removed,
    }
}

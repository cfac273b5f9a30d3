//! Directories that stand for protected paths that do not exist.
//!
//! A mount needs a mount point, so an empty directory is created on the host and covered in the jail. Its sticky bit
//! distinguishes it from directories of users. Every jail that relies on it holds a shared lock on it, and the last
//! holder removes it: the janitor of a jail (`janitor.rs`), which outlives the server, or this module if no jail was
//! built. Start at [`Placeholder::hold`].

use std::{
    ffi::{CString, OsStr},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
    thread,
    time::Duration,
};

use remex_sandbox::Kind;
use rustix::{
    fs::{
        AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, ResolveFlags, Stat, flock, fstat, mkdirat,
        openat, openat2, statat, unlinkat,
    },
    io::Errno,
    process::geteuid,
};

use super::error::JailError;

/// How often to try a lock that another program may hold for a moment.
const ATTEMPTS: usize = 200;
const PAUSE: Duration = Duration::from_millis(5);

/// An empty directory on the host that is removed when no jail needs it.
#[derive(Debug)]
pub(crate) struct Placeholder {
    parent: OwnedFd,
    name: CString,
    /// Holds the lock. `None` once another process holds it.
    directory: Option<OwnedFd>,
}

/// What is at a protected path.
pub(super) enum Found {
    Held(Placeholder),
    /// Something other than a placeholder; or nothing, and a confined process could not create anything there either.
    Other(Kind),
}

impl Placeholder {
    /// Creates a placeholder, unless something else exists at the path.
    pub(super) fn hold(path: &Path) -> Result<Found, JailError> {
        let failed =
            |errno: Errno| JailError::Unprotected { path: path.to_owned(), errno: errno.raw_os_error() };
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Ok(Found::Other(Kind::Directory));
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = match openat2(CWD, parent, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
            // The parent has changed. The jail mounts every directory above a protected path, and so will be refused.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(Found::Other(Kind::Missing)),
            parent => parent.map_err(failed)?,
        };
        for _ in 0..ATTEMPTS {
            match inspect(parent.as_fd(), name).map_err(failed)? {
                Occupant::Other(kind) => return Ok(Found::Other(kind)),
                Occupant::Missing if is_closed(parent.as_fd()).map_err(failed)? => {
                    return Ok(Found::Other(Kind::Missing));
                }
                Occupant::Missing => match make(parent.as_fd(), name) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(Errno::ROFS) => return Ok(Found::Other(Kind::Missing)),
                    // If we may not create it, a process of our user may not either, unless it can change the mode of
                    // the parent.
                    Err(Errno::ACCESS) if !is_ours(parent.as_fd()).map_err(failed)? => {
                        return Ok(Found::Other(Kind::Missing));
                    }
                    Err(errno) => return Err(failed(errno)),
                },
                Occupant::Placeholder => match lock(parent.as_fd(), name).map_err(failed)? {
                    Some(directory) => {
                        let name = CString::new(name.as_bytes()).map_err(|_| failed(Errno::INVAL))?;
                        return Ok(Found::Held(Self { parent, name, directory: Some(directory) }));
                    }
                    None => thread::sleep(PAUSE),
                },
            }
        }
        Err(failed(Errno::WOULDBLOCK))
    }

    pub(crate) fn parent(&self) -> BorrowedFd<'_> {
        self.parent.as_fd()
    }

    pub(crate) fn name(&self) -> &CString {
        &self.name
    }

    pub(crate) fn directory(&self) -> Option<BorrowedFd<'_>> {
        self.directory.as_ref().map(AsFd::as_fd)
    }

    /// Hands it over to another process that has the same descriptors.
    pub(crate) fn hand_over(mut self) {
        self.directory = None;
    }
}

impl Drop for Placeholder {
    fn drop(&mut self) {
        let Some(directory) = self.directory.take() else { return };
        // Otherwise another holder needs it, and removes it later.
        if flock(&directory, FlockOperation::NonBlockingLockExclusive).is_ok()
            && is_named(self.parent.as_fd(), OsStr::from_bytes(self.name.to_bytes()), &directory)
            && let Err(error) = unlinkat(&self.parent, &*self.name, AtFlags::REMOVEDIR)
        {
            tracing::debug!(%error, "cannot remove a placeholder");
        }
    }
}

/// What exists at the name of a placeholder.
enum Occupant {
    Missing,
    Placeholder,
    Other(Kind),
}

fn inspect(parent: BorrowedFd<'_>, name: &OsStr) -> Result<Occupant, Errno> {
    let found = match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(Occupant::Missing),
        found => found?,
    };
    Ok(match FileType::from_raw_mode(found.st_mode) {
        FileType::Directory if is_marked(&found) && is_empty(parent, name)? => Occupant::Placeholder,
        FileType::Directory => Occupant::Other(Kind::Directory),
        FileType::Symlink => Occupant::Other(Kind::Link),
        _ => Occupant::Other(Kind::File),
    })
}

fn is_marked(found: &Stat) -> bool {
    Mode::from_raw_mode(found.st_mode).contains(Mode::SVTX) && found.st_uid == geteuid().as_raw()
}

fn is_empty(parent: BorrowedFd<'_>, name: &OsStr) -> Result<bool, Errno> {
    let directory = match openat(parent, name, DIRECTORY, Mode::empty()) {
        // Another holder is removing it.
        Err(Errno::NOENT) => return Ok(true),
        directory => directory?,
    };
    let is_content = |entry: Result<rustix::fs::DirEntry, Errno>| {
        entry.map_or(true, |entry| !matches!(entry.file_name().to_bytes(), b"." | b".."))
    };
    Ok(!Dir::new(directory)?.any(is_content))
}

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn make(parent: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
    mkdirat(parent, name, Mode::from_raw_mode(0o1755))
}

/// Returns whether an unprivileged process of our user can neither create anything in a directory nor change its mode.
fn is_closed(parent: BorrowedFd<'_>) -> Result<bool, Errno> {
    let found = fstat(parent)?;
    let is_shared = Mode::from_raw_mode(found.st_mode).intersects(Mode::WGRP | Mode::WOTH);
    Ok(found.st_uid != geteuid().as_raw() && !is_shared)
}

/// Returns whether our user may change the mode of a directory.
fn is_ours(directory: BorrowedFd<'_>) -> Result<bool, Errno> {
    Ok(fstat(directory)?.st_uid == geteuid().as_raw())
}

/// Opens a placeholder with a shared lock, or returns `None` if it is being removed or another process locks it.
fn lock(parent: BorrowedFd<'_>, name: &OsStr) -> Result<Option<OwnedFd>, Errno> {
    let directory = match openat(parent, name, DIRECTORY, Mode::empty()) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
        directory => directory?,
    };
    match flock(&directory, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(errno),
        Ok(()) => Ok(is_named(parent, name, &directory).then_some(directory)),
    }
}

/// Returns whether a name still leads to a directory.
fn is_named(parent: BorrowedFd<'_>, name: &OsStr, directory: &OwnedFd) -> bool {
    let at = |found: Stat| (found.st_dev, found.st_ino);
    let named = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).map(at);
    named.is_ok_and(|named| fstat(directory).map(at) == Ok(named))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn held(path: &Path) -> Placeholder {
        match Placeholder::hold(path) {
            Ok(Found::Held(placeholder)) => placeholder,
            Ok(Found::Other(kind)) => panic!("there is a {kind:?}"),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn the_last_holder_removes_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = fs::canonicalize(directory.path()).unwrap().join(".git");
        let (first, second) = (held(&path), held(&path));
        drop(first);
        assert!(path.is_dir());
        drop(second);
        assert!(!path.exists());
        // A placeholder that a crash has left behind.
        fs::create_dir(&path).unwrap();
        rustix::fs::chmod(&path, Mode::from_raw_mode(0o1755)).unwrap();
        drop(held(&path));
        assert!(!path.exists());
    }

    #[test]
    fn a_directory_of_another_program_stays() {
        let directory = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(directory.path()).unwrap();
        let other = |path: &Path| match Placeholder::hold(path) {
            Ok(Found::Other(kind)) => kind,
            _ => panic!("held {}", path.display()),
        };
        fs::create_dir(base.join("empty")).unwrap();
        fs::write(base.join("file"), "").unwrap();
        std::os::unix::fs::symlink("file", base.join("link")).unwrap();
        for (name, kind) in [("empty", Kind::Directory), ("file", Kind::File), ("link", Kind::Link)] {
            assert_eq!(other(&base.join(name)), kind);
        }
        let path = base.join(".git");
        let placeholder = held(&path);
        fs::write(path.join("config"), "").unwrap();
        assert_eq!(other(&path), Kind::Directory);
        drop(placeholder);
        assert!(path.join("config").exists());
        fs::remove_dir_all(&path).unwrap();
        let placeholder = held(&path);
        fs::remove_dir(&path).unwrap();
        fs::create_dir(&path).unwrap();
        drop(placeholder);
        assert!(path.exists(), "it is another directory");
    }

    #[test]
    fn a_lock_of_another_program_is_awaited_and_then_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = fs::canonicalize(directory.path()).unwrap().join(".git");
        let _first = held(&path);
        let other = fs::File::open(&path).unwrap();
        // It cannot be locked exclusively while it is in use.
        assert_eq!(flock(&other, FlockOperation::NonBlockingLockExclusive), Err(Errno::WOULDBLOCK));
    }
}

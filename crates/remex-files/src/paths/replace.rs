//! Replacing a file atomically: a reader sees the old contents or the new ones, never a mixture.
//!
//! Where the file system supports it, the new contents go into a file without a name, so that nothing is left
//! behind even if the server is killed; elsewhere into a file with a temporary name.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::PathBuf,
};

use remex_proto::RpcError;
use rustix::{
    fs::{
        AtFlags, CWD, Gid, Mode, OFlags, RenameFlags, Uid, fchmod, fchown, linkat, openat, readlinkat,
        renameat, renameat_with, statat, unlinkat,
    },
    io::Errno,
};

use super::{
    create_error,
    entry_lock::DirectoryEntry,
    guard::Located,
    open::{self, PRIVILEGES},
};

/// The kernel's limit on links in a path.
const MAX_LINKS: usize = 40;

/// The new contents of a file that has not been replaced yet.
#[derive(Debug)]
pub(crate) struct Replacement {
    directory: OwnedFd,
    name: OsString,
    file: File,
    /// The temporary name, if it has one.
    temporary: Option<OsString>,
    predecessor: Option<Predecessor>,
}

/// The attributes that a new file inherits from the old one.
#[derive(Clone, Copy, Debug)]
struct Predecessor {
    mode: Mode,
    uid: Uid,
    gid: Gid,
}

impl Replacement {
    /// Starts to replace a regular file, or to create it with `mode`.
    pub(crate) fn begin(at: &Located<'_>, mode: Mode) -> Result<Self, RpcError> {
        at.check_creation()?;
        let failed = |error: io::Error| create_error(&error, at.path());
        let (directory, name) = open_parent(at).map_err(failed)?;
        let predecessor = match statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => {
                open::check_writable(&stat, at.path(), at.links())?;
                Some(Predecessor {
                    mode: Mode::from_raw_mode(stat.st_mode),
                    uid: Uid::from_raw(stat.st_uid),
                    gid: Gid::from_raw(stat.st_gid),
                })
            }
            Err(Errno::NOENT) => None,
            Err(error) => return Err(failed(error.into())),
        };
        let (file, temporary) = create(&directory, mode).map_err(failed)?;
        let replacement = Replacement { directory, name, file, temporary, predecessor };
        let lost = if at.strips_set_id() { PRIVILEGES } else { Mode::empty() };
        replacement.inherit(lost).map_err(failed)?;
        Ok(replacement)
    }

    pub(crate) fn has_predecessor(&self) -> bool {
        self.predecessor.is_some()
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Copies owner and mode of the old file but for `lost`, as far as the user of the server may change the owner.
    fn inherit(&self, lost: Mode) -> io::Result<()> {
        let Some(old) = self.predecessor else { return Ok(()) };
        let mut mode = old.mode - lost;
        if fchown(&self.file, Some(old.uid), Some(old.gid)).is_err() {
            let _ = fchown(&self.file, None, Some(old.gid));
            // A set-user-id or set-group-id file must not start to run as another user or group.
            mode -= PRIVILEGES;
        }
        // Set last, because a change of owner clears set-user-id.
        Ok(fchmod(&self.file, mode)?)
    }

    /// Returns the directory entry that it will replace.
    pub(crate) fn entry(&self) -> DirectoryEntry {
        DirectoryEntry::new(&self.directory, &self.name)
    }

    /// Writes the new contents to disk, so that committing is quick.
    pub(crate) fn flush(&self) -> io::Result<()> {
        // Otherwise, a crash of the host could leave the new name with empty contents.
        self.file.sync_all()
    }

    /// Replaces the old contents, which stay unchanged if this fails.
    pub(crate) fn commit(mut self) -> io::Result<()> {
        if self.temporary.is_none() {
            let name = temporary_name()?;
            self.link(&name)?;
            self.temporary = Some(name);
        }
        if let Some(temporary) = &self.temporary {
            renameat(&self.directory, temporary, &self.directory, &self.name)?;
            self.temporary = None;
        }
        Ok(())
    }

    /// Moves the new contents to a name that must not exist; of all attempts on the host, exactly one succeeds.
    pub(crate) fn commit_new(mut self) -> io::Result<()> {
        let Some(temporary) = &self.temporary else { return self.link(&self.name) };
        let flags = RenameFlags::NOREPLACE;
        match renameat_with(&self.directory, temporary, &self.directory, &self.name, flags) {
            Err(Errno::INVAL | Errno::NOSYS) => {
                // The file system does not support that, but a hard link never replaces anything either.
                // Dropping this value removes the temporary name.
                linkat(&self.directory, temporary, &self.directory, &self.name, AtFlags::empty())?;
            }
            renamed => {
                renamed?;
                self.temporary = None;
            }
        }
        Ok(())
    }

    /// Links the file to a name, unless the name exists.
    fn link(&self, name: &OsStr) -> io::Result<()> {
        let link = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        Ok(linkat(CWD, link, &self.directory, name, AtFlags::SYMLINK_FOLLOW)?)
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = unlinkat(&self.directory, temporary, AtFlags::empty());
        }
    }
}

/// Returns the directory and name of the file to replace, after following all links if they are followed.
pub(crate) fn open_parent(at: &Located<'_>) -> io::Result<(OwnedFd, OsString)> {
    if let Some(parent) = at.parent() {
        return Ok((parent.directory.try_clone()?, parent.name.clone()));
    }
    let mut path = at.path().to_owned();
    for _ in 0..=MAX_LINKS {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Errno::ISDIR.into());
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, parent, flags, Mode::empty())?;
        match readlinkat(&directory, name, Vec::new()) {
            Ok(target) => path = parent.join(PathBuf::from(OsStr::from_bytes(target.as_bytes()))),
            Err(Errno::INVAL | Errno::NOENT) => return Ok((directory, name.to_owned())),
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno::LOOP.into())
}

/// Creates the new file, without a name if possible.
fn create(directory: &OwnedFd, mode: Mode) -> io::Result<(File, Option<OsString>)> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    match openat(directory, ".", flags | OFlags::TMPFILE, mode) {
        Ok(file) => return Ok((File::from(file), None)),
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {}
        Err(error) => return Err(error.into()),
    }
    let name = temporary_name()?;
    let file = openat(directory, &name, flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW, mode)?;
    Ok((File::from(file), Some(name)))
}

fn temporary_name() -> io::Result<OsString> {
    let number = getrandom::u64().map_err(io::Error::other)?;
    Ok(format!(".remex-{number:016x}.tmp").into())
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write as _};

    use super::{super::guard::PathGuard, *};
    use crate::paths::open::Links;
    use remex_access::scope::FileAccess;

    #[test]
    fn a_new_file_never_replaces_an_existing_one() {
        let directory = tempfile::tempdir().unwrap();
        for is_named in [false, true] {
            let path = directory.path().join(format!("new-{is_named}"));
            let begin = || {
                let at = PathGuard::default().target(&path, Links::Follow, FileAccess::Write).unwrap();
                let mut new = Replacement::begin(&at, Mode::from_raw_mode(0o600)).unwrap();
                if is_named && new.temporary.is_none() {
                    let name = temporary_name().unwrap();
                    new.link(&name).unwrap();
                    new.temporary = Some(name);
                }
                new
            };
            let (first, second) = (begin(), begin());
            first.file().write_all(b"first").unwrap();
            first.commit_new().unwrap();
            let error = second.commit_new().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
            assert_eq!(fs::read(&path).unwrap(), b"first");
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "nothing else is left");
    }
}

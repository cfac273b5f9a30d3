//! Replacing a file in one step: whoever opens it sees the old content or the new, never a mixture.
//!
//! The new content goes into a file without a name where the file system can do that, so that not
//! even the death of the server leaves anything behind; elsewhere into one with a name of its own.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
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
    entry_lock::DirectoryEntry,
    io_error, nofollow,
    open::{self, Links},
};

/// As many links as the kernel follows.
const MAX_LINKS: usize = 40;

/// The new content of a file that is still the old one.
#[derive(Debug)]
pub(super) struct Replacement {
    directory: OwnedFd,
    name: OsString,
    file: File,
    /// The name it has meanwhile, if it has one.
    temporary: Option<OsString>,
    predecessor: Option<Predecessor>,
}

/// What a new file takes over from the old one.
#[derive(Clone, Copy, Debug)]
struct Predecessor {
    mode: Mode,
    uid: Uid,
    gid: Gid,
}

impl Replacement {
    /// Begins to replace the regular file at `path`, or to create it with `mode`.
    pub(super) fn begin(path: &Path, links: Links, mode: Mode) -> Result<Self, RpcError> {
        let failed = |error: io::Error| io_error(&error, path);
        let (directory, name) = place(path, links).map_err(failed)?;
        let predecessor = match statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => {
                open::check_writable(&stat, path, links)?;
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
        replacement.inherit().map_err(failed)?;
        Ok(replacement)
    }

    pub(super) fn has_predecessor(&self) -> bool {
        self.predecessor.is_some()
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Takes over the owner and mode of the old file, as far as the user of the server may give files away.
    fn inherit(&self) -> io::Result<()> {
        let Some(old) = self.predecessor else { return Ok(()) };
        let mut mode = old.mode;
        if fchown(&self.file, Some(old.uid), Some(old.gid)).is_err() {
            let _ = fchown(&self.file, None, Some(old.gid));
            // What may run as somebody must not come to run as somebody else.
            mode -= Mode::SUID | Mode::SGID;
        }
        // Last, because a change of owner takes set-user-id away.
        Ok(fchmod(&self.file, mode)?)
    }

    /// Returns the entry that it is put into.
    pub(super) fn entry(&self) -> DirectoryEntry {
        DirectoryEntry::new(&self.directory, &self.name)
    }

    /// Brings the new content to the disk; what is left to do is quick.
    pub(super) fn flush(&self) -> io::Result<()> {
        // Otherwise a crash of the host could leave the new name with nothing in it.
        self.file.sync_all()
    }

    /// Puts the new content in the place of the old, which stays what it is when this fails.
    pub(super) fn commit(mut self) -> io::Result<()> {
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

    /// Puts the new content where nothing is; of all who try, on the whole machine, one succeeds.
    pub(super) fn commit_new(mut self) -> io::Result<()> {
        let Some(temporary) = &self.temporary else { return self.link(&self.name) };
        let flags = RenameFlags::NOREPLACE;
        match renameat_with(&self.directory, temporary, &self.directory, &self.name, flags) {
            Err(Errno::INVAL | Errno::NOSYS) => {
                // The file system cannot do that, but a link never replaces anything. The other name goes
                // with the drop.
                linkat(&self.directory, temporary, &self.directory, &self.name, AtFlags::empty())?;
            }
            renamed => {
                renamed?;
                self.temporary = None;
            }
        }
        Ok(())
    }

    /// Gives the file a name, unless something has it.
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

/// Returns the directory and the name of what is to be replaced: at the end of all links, if they are followed.
pub(super) fn place(path: &Path, links: Links) -> io::Result<(OwnedFd, OsString)> {
    if links == Links::Refuse {
        let place = nofollow::find(path)?;
        return Ok((place.directory, place.name));
    }
    let mut path = path.to_owned();
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

/// Creates the new file, without a name if that is possible.
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

    use super::*;

    #[test]
    fn a_new_file_replaces_nothing_with_and_without_a_name_meanwhile() {
        let directory = tempfile::tempdir().unwrap();
        for is_named in [false, true] {
            let path = directory.path().join(format!("new-{is_named}"));
            let begin = || {
                let mut new = Replacement::begin(&path, Links::Follow, Mode::from_raw_mode(0o600)).unwrap();
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

//! Changing and reading entries: names, permission bits, times, links.

use std::{
    ffi::OsStr,
    os::{
        fd::{AsRawFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

use remex_access::scope::FileAccess;
use remex_base::nofollow;
use remex_proto::{ErrorKind, HostPath, RpcError, call::Empty, fs as wire};
use remex_sandbox::Action;
use rustix::{
    fs::{
        AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_OMIT, chmodat, fstat,
        openat, readlinkat, renameat, renameat_with, statat, symlinkat, unlinkat, utimensat,
    },
    io::Errno,
};

use super::{
    FileWork, PathAccess, PathGuard, copy, create_error,
    entry_lock::DirectoryEntry,
    guard::Located,
    io_error, native,
    open::{Links, PRIVILEGES, file_type},
};

impl FileWork for wire::Canonicalize {
    fn access(&self) -> Result<PathAccess, RpcError> {
        PathAccess::reads(&self.path)
    }

    fn run(
        &self,
        guard: &PathGuard,
        _wanted: &super::CancelCheck,
    ) -> Result<wire::CanonicalizeReply, RpcError> {
        let path = native(&self.path)?;
        Ok(wire::CanonicalizeReply { path: HostPath::from(guard.canonicalize(path)?) })
    }
}

impl FileWork for wire::Rename {
    fn access(&self) -> Result<PathAccess, RpcError> {
        PathAccess::writes(&self.source_path)?.and_writes(&self.destination_path)
    }

    fn run(&self, guard: &PathGuard, _wanted: &super::CancelCheck) -> Result<Empty, RpcError> {
        let source = &guard.change(native(&self.source_path)?, Links::Follow, Action::Remove)?;
        let destination = &guard.change(native(&self.destination_path)?, Links::Follow, Action::Remove)?;
        let entries = (DirectoryEntry::named(source), DirectoryEntry::named(destination));
        let (from, to) = (source.directory(), destination.directory());
        let renamed = entries.0.write_both(&entries.1, || {
            // Under the lock, so that no other request puts something else in the place of what was checked.
            guard.check_move(source, destination)?;
            Ok::<_, RpcError>(if self.overwrite.unwrap_or(true) {
                let renamed = renameat(from, source.name(), to, destination.name());
                match renamed {
                    Ok(()) if !entries.0.may_be(&entries.1) => {
                        remove_other_name((from, source.name()), (to, destination.name()))
                    }
                    renamed => renamed,
                }
            } else {
                renameat_with(from, source.name(), to, destination.name(), RenameFlags::NOREPLACE)
            })
        })?;
        if let Err(Errno::INVAL | Errno::NOSYS) = renamed
            && !self.overwrite.unwrap_or(true)
            && !copy::is_within(destination.path(), source, guard)?
        {
            return Err(cannot_rename_without_replacing(destination));
        }
        renamed.map(|()| Empty {}).map_err(|error| {
            let missing = error == Errno::NOENT && source.kind().is_err();
            if missing {
                io_error(&error.into(), source.path())
            } else {
                create_error(&error.into(), destination.path())
            }
        })
    }
}

/// Removes the source of a rename if the kernel has left it alone, because both are names of the same file.
fn remove_other_name(
    (from, source): (BorrowedFd<'_>, &Path),
    (to, destination): (BorrowedFd<'_>, &Path),
) -> rustix::io::Result<()> {
    let left = match statat(from, source, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(()),
        left => left?,
    };
    let kept = statat(to, destination, AtFlags::SYMLINK_NOFOLLOW)?;
    let is_same = (left.st_dev, left.st_ino) == (kept.st_dev, kept.st_ino) && left.st_nlink > 1;
    if is_same { unlinkat(from, source, AtFlags::empty()) } else { Ok(()) }
}

/// Returns the error for a file system that cannot rename without replacing.
fn cannot_rename_without_replacing(destination: &Located<'_>) -> RpcError {
    if destination.kind().is_ok() {
        return io_error(&Errno::EXIST.into(), destination.path());
    }
    RpcError::new(ErrorKind::NotSupported, "the file system cannot rename without overwriting")
        .with_hint("use `overwrite: true`")
}

impl FileWork for wire::SetPermissions {
    fn access(&self) -> Result<PathAccess, RpcError> {
        PathAccess::writes(&self.path)
    }

    fn run(
        &self,
        guard: &PathGuard,
        _wanted: &super::CancelCheck,
    ) -> Result<wire::SetPermissionsReply, RpcError> {
        let path = native(&self.path)?;
        if self.mode > 0o7777 {
            let text = format!("invalid mode {}: permission bits are 0 to 4095 (octal 7777)", self.mode);
            return Err(RpcError::new(ErrorKind::InvalidInput, text));
        }
        let mode = Mode::from_raw_mode(self.mode);
        let at = guard.target(path, self.follow_symlinks.into(), FileAccess::Write)?;
        if at.is_confined() && mode.intersects(PRIVILEGES) {
            let text =
                format!("a sandbox does not allow set-user-ID and set-group-ID on `{}`", path.display());
            return Err(RpcError::new(ErrorKind::PermissionDenied, text).with_hint(
                "others could run it with the privileges of the server's user; use a mode up to 1777",
            ));
        }
        let strips = at.strips_set_id() && mode.intersects(PRIVILEGES);
        let mut lost = Mode::empty();
        let changed = match at.links_from_here() {
            Links::Follow if !strips => chmodat(CWD, path, mode, AtFlags::empty()),
            links => {
                let (entry, kind) = match links {
                    Links::Follow => entry_at(&at, OFlags::empty())?,
                    Links::Refuse => entry_itself(&at)?,
                };
                if strips {
                    lost = mode & lost_by(kind);
                }
                let link = format!("/proc/self/fd/{}", entry.as_raw_fd());
                chmodat(CWD, link, mode - lost, AtFlags::empty())
            }
        };
        let left_out = (!lost.is_empty()).then(|| lost.as_raw_mode());
        changed
            .map(|()| wire::SetPermissionsReply { left_out })
            .map_err(|error| io_error(&error.into(), path))
    }
}

/// Returns what an entry of this kind may not get without the scope for it.
fn lost_by(kind: FileType) -> Mode {
    match kind {
        // A directory gives its group to what is created in it; nothing runs with the privileges of that.
        FileType::Directory => Mode::SUID,
        _ => PRIVILEGES,
    }
}

/// Opens an entry; refuses a link.
fn entry_itself(at: &Located<'_>) -> Result<(OwnedFd, FileType), RpcError> {
    match entry_at(at, OFlags::NOFOLLOW)? {
        (_, FileType::Symlink) => Err(nofollow::refusal(at.path())),
        found => Ok(found),
    }
}

/// Opens an entry without access to its contents.
fn entry_at(at: &Located<'_>, links: OFlags) -> Result<(OwnedFd, FileType), RpcError> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | links;
    let found = openat(at.directory(), at.name(), flags, Mode::empty()).and_then(|entry| {
        let stat = fstat(&entry)?;
        Ok((entry, file_type(&stat)))
    });
    match found {
        Ok(found) => Ok(found),
        Err(error) => Err(io_error(&error.into(), at.path())),
    }
}

impl FileWork for wire::SetTimes {
    fn access(&self) -> Result<PathAccess, RpcError> {
        PathAccess::writes(&self.path)
    }

    fn run(&self, guard: &PathGuard, _wanted: &super::CancelCheck) -> Result<Empty, RpcError> {
        let path = native(&self.path)?;
        if self.modified_at_ms.is_none() && self.accessed_at_ms.is_none() {
            let text = "no time is given: fs/setTimes needs `modifiedAtMs`, `accessedAtMs` or both";
            return Err(RpcError::new(ErrorKind::InvalidInput, text));
        }
        let times = Timestamps {
            last_access: timespec(self.accessed_at_ms),
            last_modification: timespec(self.modified_at_ms),
        };
        let at = guard.target(path, self.follow_symlinks.into(), FileAccess::Write)?;
        let changed = match at.links_from_here() {
            Links::Follow => utimensat(CWD, path, &times, AtFlags::empty()),
            Links::Refuse => {
                let (entry, _) = entry_itself(&at)?;
                let link = format!("/proc/self/fd/{}", entry.as_raw_fd());
                utimensat(CWD, link, &times, AtFlags::empty())
            }
        };
        changed.map(|()| Empty {}).map_err(|error| io_error(&error.into(), path))
    }
}

/// Converts a time for the kernel; `None` leaves the time unchanged.
fn timespec(milliseconds: Option<i64>) -> Timespec {
    milliseconds.map_or(Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }, |milliseconds| Timespec {
        tv_sec: milliseconds.div_euclid(1000),
        tv_nsec: milliseconds.rem_euclid(1000) * 1_000_000,
    })
}

impl FileWork for wire::Symlink {
    fn access(&self) -> Result<PathAccess, RpcError> {
        PathAccess::writes(&self.path)
    }

    fn run(&self, guard: &PathGuard, _wanted: &super::CancelCheck) -> Result<Empty, RpcError> {
        let path = native(&self.path)?;
        let target = match (&self.target, &self.target_base64) {
            (Some(target), None) => target.as_bytes(),
            (None, Some(target)) => target,
            _ => {
                let text = "fs/symlink requires exactly one of `target` and `targetBase64`";
                return Err(RpcError::new(ErrorKind::InvalidInput, text));
            }
        };
        if target.is_empty() || target.contains(&0) {
            let text = "the target of a symbolic link must not be empty or contain NUL bytes";
            return Err(RpcError::new(ErrorKind::InvalidInput, text));
        }
        let at = guard.change(path, Links::Follow, Action::Create)?;
        symlinkat(OsStr::from_bytes(target), at.directory(), at.name())
            .map(|()| Empty {})
            .map_err(|error| create_error(&error.into(), path))
    }
}

impl FileWork for wire::ReadLink {
    fn access(&self) -> Result<PathAccess, RpcError> {
        PathAccess::reads(&self.path)
    }

    fn run(&self, guard: &PathGuard, _wanted: &super::CancelCheck) -> Result<wire::LinkTarget, RpcError> {
        let path = native(&self.path)?;
        let at = guard.entry(path, Links::Follow, FileAccess::Read)?;
        match readlinkat(at.directory(), at.name(), Vec::new()) {
            Ok(target) => Ok(wire::LinkTarget::new(target.into_bytes())),
            Err(Errno::INVAL) => {
                let text = format!("path `{}` is not a symbolic link", path.display());
                Err(RpcError::new(ErrorKind::InvalidInput, text))
            }
            Err(error) => Err(io_error(&error.into(), path)),
        }
    }
}

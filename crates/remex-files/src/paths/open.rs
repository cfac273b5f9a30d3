//! Opening regular files only.
//!
//! A path is inspected before it is opened: opening a FIFO could block or wake its writer, and opening a device
//! can have any effect.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::Path,
};

use remex_access::scope::FileAccess;
use remex_proto::{ErrorKind, RpcError};
use rustix::{
    fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, Stat, fchmod, flock, fstat, openat, statat},
    io::Errno,
    process::geteuid,
};

use super::{
    create_error,
    guard::{Located, PathGuard},
    io_error,
};

/// How many times a file may be moved away while it is being opened.
const MOVES: usize = 16;

/// The mode bits and attributes that make a program run as another user or group.
pub(crate) const PRIVILEGES: Mode = Mode::SUID.union(Mode::SGID);

/// Whether symbolic links in a path are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Links {
    Follow,
    Refuse,
}

impl Links {
    /// Returns the flag for opening a name.
    pub(crate) fn open_flags(self) -> OFlags {
        match self {
            Links::Follow => OFlags::empty(),
            Links::Refuse => OFlags::NOFOLLOW,
        }
    }
}

impl From<Option<bool>> for Links {
    fn from(follow: Option<bool>) -> Self {
        if follow.unwrap_or(true) { Links::Follow } else { Links::Refuse }
    }
}

/// Opens a regular file for reading; also returns its size.
pub(crate) fn for_reading(at: &Located<'_>) -> Result<(File, u64), RpcError> {
    let found = look(at)?;
    check(&found.stat, at.path(), at.links())?;
    let file = readable(&found.descriptor, &found.stat).map_err(|error| io_error(&error, at.path()))?;
    Ok((file, u64::try_from(found.stat.st_size).unwrap_or(0)))
}

/// Opens a regular file for reading, if the guard lets it be read; also returns its size. Blocks, and may hang.
///
/// # Errors
///
/// If it cannot be read, or is no regular file.
pub fn open_for_reading(
    guard: &PathGuard,
    path: &Path,
    follow_symlinks: Option<bool>,
) -> Result<(File, u64), RpcError> {
    for_reading(&guard.target(path, follow_symlinks.into(), FileAccess::Read)?)
}

/// Returns the permissions for a new file.
pub(crate) fn create_mode(wanted: Option<u32>) -> Result<Mode, RpcError> {
    match wanted {
        None => Ok(Mode::from_raw_mode(0o666)),
        Some(mode @ ..=0o777) => Ok(Mode::from_raw_mode(mode)),
        Some(mode) => {
            let text = format!("invalid createMode {mode}: a file is created with 0 to 511 (octal 777)");
            Err(RpcError::new(ErrorKind::InvalidInput, text))
        }
    }
}

/// Opens a regular file with `access`, or creates it; existing contents stay.
pub(crate) fn for_writing(at: &Located<'_>, access: OFlags, mode: Mode) -> Result<File, RpcError> {
    let found = match look(at) {
        Err(error) if error.kind == ErrorKind::NotFound => return create(at, access, mode),
        found => found?,
    };
    check_writable(&found.stat, at.path(), at.links())?;
    let file = reopen(&found.descriptor, access).map_err(|error| io_error(&error, at.path()))?;
    strip_set_id(at, &file)?;
    Ok(file)
}

/// Removes set-user-ID and set-group-ID of a file that is about to be written, unless they may stay. The kernel does
/// the same, but not for root.
fn strip_set_id(at: &Located<'_>, file: &File) -> Result<(), RpcError> {
    if at.strips_set_id() { remove_set_id(file, at.path()) } else { Ok(()) }
}

/// Removes set-user-ID and set-group-ID of a file.
pub(crate) fn remove_set_id(file: &File, path: &Path) -> Result<(), RpcError> {
    let mode = Mode::from_raw_mode(stat(file, path)?.st_mode);
    if !mode.intersects(PRIVILEGES) {
        return Ok(());
    }
    match fchmod(file, mode - PRIVILEGES) {
        // Not our file: the kernel removes them.
        Ok(()) | Err(Errno::PERM) => Ok(()),
        Err(error) => Err(io_error(&error.into(), path)),
    }
}

/// Creates a file that did not exist a moment ago, or opens one created in the meantime, unless `access`
/// excludes that.
pub(crate) fn create(at: &Located<'_>, access: OFlags, mode: Mode) -> Result<File, RpcError> {
    at.check_creation()?;
    // A FIFO created there in the meantime does not block, and is refused below.
    let flags = access | OFlags::CREATE | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let descriptor = openat(at.directory(), at.name(), flags | at.open_flags(), mode)
        .map_err(|error| create_error(&error.into(), at.path()))?;
    check_writable(&stat(&descriptor, at.path())?, at.path(), at.links())?;
    let file = File::from(descriptor);
    // It may have been created in the meantime.
    strip_set_id(at, &file)?;
    Ok(file)
}

/// Opens or creates a file that belongs to this user alone, and locks it until it is closed.
pub(crate) fn exclusively(at: &Located<'_>, mode: Mode) -> Result<File, RpcError> {
    let path = at.path();
    for _ in 0..MOVES {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match openat(at.directory(), at.name(), flags, Mode::empty()) {
            Ok(found) => {
                check_alone(&stat(&found, path)?, path)?;
                reopen(&found, OFlags::WRONLY).map_err(|error| io_error(&error, path))?
            }
            Err(Errno::NOENT) => match create(at, OFlags::WRONLY | OFlags::EXCL, mode) {
                Err(error) if error.kind == ErrorKind::AlreadyExists => continue,
                created => created?,
            },
            Err(error) => return Err(io_error(&error.into(), path)),
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(in_use(path)),
            Err(error) => return Err(io_error(&error.into(), path)),
        }
        let locked = stat(&file, path)?;
        // Its previous holder may have moved it into place.
        let there = statat(at.directory(), at.name(), AtFlags::SYMLINK_NOFOLLOW);
        if there.is_ok_and(|there| (there.st_dev, there.st_ino) == (locked.st_dev, locked.st_ino)) {
            check_alone(&locked, path)?;
            strip_set_id(at, &file)?;
            return Ok(file);
        }
    }
    Err(in_use(path))
}

fn check_alone(stat: &Stat, path: &Path) -> Result<(), RpcError> {
    let is_open_to_others = stat.st_mode & 0o077 != 0;
    if file_type(stat) == FileType::RegularFile
        && stat.st_uid == geteuid().as_raw()
        && stat.st_nlink == 1
        && !is_open_to_others
    {
        return Ok(());
    }
    let message = format!("`{}` does not belong to the server's user alone", path.display());
    let hint = "an exclusive file has a single name, belongs to the server's user and grants others nothing; choose another file";
    Err(RpcError::new(ErrorKind::NotAFile, message).with_hint(hint))
}

fn in_use(path: &Path) -> RpcError {
    let message = format!("`{}` is already open exclusively", path.display());
    RpcError::new(ErrorKind::AlreadyExists, message).with_hint("name another file, or wait")
}

struct Found {
    /// Opened with `O_PATH`.
    descriptor: OwnedFd,
    stat: Stat,
}

/// Inspects what exists there without opening it.
fn look(at: &Located<'_>) -> Result<Found, RpcError> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | at.open_flags();
    let descriptor = openat(at.directory(), at.name(), flags, Mode::empty())
        .map_err(|error| io_error(&error.into(), at.path()))?;
    let stat = stat(&descriptor, at.path())?;
    Ok(Found { descriptor, stat })
}

pub(crate) fn check_writable(stat: &Stat, path: &Path, links: Links) -> Result<(), RpcError> {
    if file_type(stat) == FileType::Directory {
        return Err(io_error(&Errno::ISDIR.into(), path));
    }
    check(stat, path, links)
}

fn check(stat: &Stat, path: &Path, links: Links) -> Result<(), RpcError> {
    match file_type(stat) {
        FileType::RegularFile => Ok(()),
        FileType::Symlink => Err(io_error(&Errno::LOOP.into(), path)),
        FileType::Socket => Err(io_error(&Errno::NXIO.into(), path)),
        other => Err(not_a_file(path, links, other)),
    }
}

/// Opens what `descriptor` refers to; no other file can have replaced it.
pub(crate) fn reopen(descriptor: &impl AsFd, access: OFlags) -> io::Result<File> {
    let link = format!("/proc/self/fd/{}", descriptor.as_fd().as_raw_fd());
    Ok(File::from(openat(CWD, link, access | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?))
}

/// Opens what `descriptor` refers to for reading.
///
/// Some kernel files, such as `/proc/kmsg`, claim to be empty and never end, so reading all of one would block
/// forever. Here such a read fails with [`io::ErrorKind::WouldBlock`].
pub(crate) fn readable(descriptor: &impl AsFd, stat: &Stat) -> io::Result<File> {
    if stat.st_size == 0 {
        match reopen(descriptor, OFlags::RDONLY | OFlags::NONBLOCK) {
            // Another process holds a lease on it, which the kernel revokes soon.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            opened => return opened,
        }
    }
    reopen(descriptor, OFlags::RDONLY)
}

/// Treats a read without further data as the end of the file, if there was data before.
///
/// # Errors
///
/// Any other failure.
pub fn end_of(read: io::Result<usize>, before: u64) -> io::Result<usize> {
    match read {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock && before > 0 => Ok(0),
        read => read,
    }
}

pub(crate) fn stat(descriptor: &impl AsFd, path: &Path) -> Result<Stat, RpcError> {
    fstat(descriptor).map_err(|error| io_error(&error.into(), path))
}

pub(crate) fn file_type(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

pub(crate) fn not_a_file(path: &Path, links: Links, found: FileType) -> RpcError {
    let message = match links {
        Links::Follow => format!("path `{}` is not a file", path.display()),
        Links::Refuse => "path is not a regular file".to_owned(),
    };
    let kind = match found {
        FileType::Directory => "a directory; list it, or name a regular file",
        FileType::Fifo => "a FIFO; name a regular file",
        FileType::Socket => "a socket; name a regular file",
        FileType::CharacterDevice | FileType::BlockDevice => "a device; name a regular file",
        _ => "a FIFO, socket or device; name a regular file",
    };
    let hint = format!("`{}` is {kind}", path.display());
    RpcError::new(ErrorKind::NotAFile, message).with_hint(hint)
}

//! Copying files, links and whole trees.

use std::{
    ffi::CString,
    fs::File,
    io::{self, Read as _},
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use remex_proto::{ErrorKind, RpcError, call::Empty, fs as wire};
use rustix::{
    fs::{
        AtFlags, CWD, FileType, Mode, OFlags, Stat, fchmod, fstat, ftruncate, mkdirat, openat, readlinkat,
        statat, symlinkat,
    },
    io::Errno,
    path::Arg,
};

use super::{
    CancelCheck, FileWork, PathAccess,
    descent::{self, Descent},
    io_error, names, native,
    open::{Links, file_type, not_a_file, readable, reopen},
};

impl FileWork for wire::Copy {
    fn access(&self) -> Result<PathAccess, RpcError> {
        PathAccess::reads(&self.source_path)?.and_writes(&self.destination_path)
    }

    fn run(&self, wanted: &CancelCheck) -> Result<Empty, RpcError> {
        let (source, destination) = (native(&self.source_path)?, native(&self.destination_path)?);
        let stat = statat(CWD, source, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|error| io_error(&error.into(), source))?;
        let copied = match file_type(&stat) {
            FileType::RegularFile => copy_file((CWD, source), (CWD, destination), wanted),
            FileType::Symlink => copy_link((CWD, source), (CWD, destination)),
            FileType::Directory if self.recursive => copy_tree(source, destination, wanted),
            FileType::Directory => {
                let text = "fs/copy requires recursive: true when sourcePath is a directory";
                return Err(RpcError::new(ErrorKind::InvalidInput, text));
            }
            _ => Err(CopyError::Source),
        };
        copied.map(|()| Empty {}).map_err(|failure| failure.describe(destination))
    }
}

/// After how many bytes a copy checks whether it was cancelled.
const COPY_LEN: u64 = 64 << 20;

/// Why a copy failed.
#[derive(Debug)]
enum CopyError {
    Io(io::Error),
    /// The source cannot be copied.
    Source,
    /// The destination exists, but is neither a file nor a directory.
    Destination,
    IntoItself,
}

impl CopyError {
    fn describe(&self, destination: &Path) -> RpcError {
        match self {
            Self::Io(error) => io_error(error, destination),
            Self::Source => RpcError::new(
                ErrorKind::InvalidInput,
                "fs/copy only supports regular files, directories, and symlinks",
            ),
            Self::Destination => not_a_file(destination, Links::Follow),
            Self::IntoItself => RpcError::new(
                ErrorKind::InvalidInput,
                "fs/copy cannot copy a directory to itself or one of its descendants",
            ),
        }
    }
}

impl From<io::Error> for CopyError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Errno> for CopyError {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

/// Returns whether `path` is `directory` or below it, after resolving links; `path` need not exist.
pub(super) fn is_within(path: &Path, directory: &Path) -> bool {
    let Ok(directory) = directory.canonicalize() else { return false };
    let existing = path.ancestors().find_map(|ancestor| ancestor.canonicalize().ok());
    existing.is_some_and(|existing| existing.starts_with(directory))
}

/// Copies a directory and its contents, except special files.
fn copy_tree(source: &Path, destination: &Path, wanted: &CancelCheck) -> Result<(), CopyError> {
    if is_within(destination, source) {
        return Err(CopyError::IntoItself);
    }
    let mut source = Descent::new(descent::open(CWD, source, Links::Refuse)?)?;
    std::fs::create_dir_all(destination)?;
    let mut destination = Descent::new(descent::open(CWD, destination, Links::Follow)?)?;
    let mut levels = vec![copy_entries(&source, &destination, wanted)?];
    while let Some(directories) = levels.last_mut() {
        let Some(name) = directories.pop() else {
            levels.pop();
            source.leave()?;
            destination.leave()?;
            continue;
        };
        source.enter(&name, Links::Refuse)?;
        match mkdirat(destination.current(), &*name, Mode::from_raw_mode(0o777)) {
            Ok(()) => destination.enter(&name, Links::Follow)?,
            Err(Errno::EXIST) => destination.enter(&name, Links::Follow).map_err(|error| {
                if error.kind() == io::ErrorKind::NotADirectory { Errno::EXIST.into() } else { error }
            })?,
            Err(error) => return Err(error.into()),
        }
        levels.push(copy_entries(&source, &destination, wanted)?);
    }
    Ok(())
}

/// Copies files and links of one directory; returns its subdirectories.
fn copy_entries(
    source: &Descent,
    destination: &Descent,
    wanted: &CancelCheck,
) -> Result<Vec<CString>, CopyError> {
    // A link in the destination may lead back here: the copy would copy itself without end.
    if destination.passed(source.identity()) {
        return Err(CopyError::IntoItself);
    }
    let (from, to) = (source.current(), destination.current());
    let mut directories = Vec::new();
    names::for_each(from, |name, kind| {
        match kind {
            FileType::RegularFile => copy_file((from, name), (to, name), wanted)?,
            FileType::Symlink => copy_link((from, name), (to, name))?,
            FileType::Directory => directories.push(name.to_owned()),
            _ => {}
        }
        Ok::<_, CopyError>(())
    })?;
    Ok(directories)
}

/// Copies contents and mode of a regular file; copying a file onto itself changes nothing.
fn copy_file<P: Arg + Copy>(
    (from, source): (impl AsFd, P),
    (to, destination): (impl AsFd, P),
    wanted: &CancelCheck,
) -> Result<(), CopyError> {
    wanted.check()?;
    let found = openat(from, source, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let stat = fstat(&found)?;
    if file_type(&stat) != FileType::RegularFile {
        return Err(CopyError::Source);
    }
    let mut source = readable(&found, &stat)?;
    let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
    let Some(mut destination) = open_destination(to, destination, mode, &stat)? else { return Ok(()) };
    // Set before the contents are copied, because the old mode may be more permissive.
    fchmod(&destination, mode)?;
    ftruncate(&destination, 0)?;
    loop {
        match io::copy(&mut source.by_ref().take(COPY_LEN), &mut destination) {
            Ok(COPY_LEN) => wanted.check()?,
            Ok(_) => return Ok(()),
            // A kernel file without end: copy what is available.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Opens or creates a regular file for writing; returns `None` if it is the source itself.
fn open_destination<P: Arg + Copy>(
    directory: impl AsFd,
    name: P,
    mode: Mode,
    source: &Stat,
) -> Result<Option<File>, CopyError> {
    let found = match openat(directory.as_fd(), name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        Ok(found) => found,
        Err(Errno::NOENT) => {
            // A FIFO created there in the meantime does not block, and is refused below.
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            let created = openat(directory, name, flags, mode)?;
            return Ok(check_destination(&created, source)?.then(|| File::from(created)));
        }
        Err(error) => return Err(error.into()),
    };
    if check_destination(&found, source)? { Ok(Some(reopen(&found, OFlags::WRONLY)?)) } else { Ok(None) }
}

/// Checks whether a file may be written; returns `false` if it is the source itself.
fn check_destination(found: &OwnedFd, source: &Stat) -> Result<bool, CopyError> {
    let stat = fstat(found)?;
    match file_type(&stat) {
        FileType::RegularFile => Ok((stat.st_dev, stat.st_ino) != (source.st_dev, source.st_ino)),
        FileType::Directory => Err(Errno::ISDIR.into()),
        _ => Err(CopyError::Destination),
    }
}

fn copy_link<P: Arg + Copy>(
    (from, source): (impl AsFd, P),
    (to, destination): (impl AsFd, P),
) -> Result<(), CopyError> {
    let target = readlinkat(from, source, Vec::new())?;
    symlinkat(&*target, to, destination)?;
    Ok(())
}

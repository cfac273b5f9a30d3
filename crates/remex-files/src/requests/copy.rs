//! Copying files, links and whole trees.

use std::{
    ffi::{CStr, CString},
    fs::File,
    io::{self, Read as _},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use remex_access::scope::FileAccess;
use remex_proto::{ErrorKind, RpcError, call::Empty, fs as wire};
use remex_sandbox::Action;
use rustix::{
    fs::{FileType, Mode, OFlags, Stat, fchmod, fstat, ftruncate, mkdirat, openat, readlinkat, symlinkat},
    io::Errno,
    path::Arg,
};

use super::{
    CancelCheck, FileWork, PathAccess, PathGuard,
    descent::{self, Descent},
    directory,
    guard::{Located, TreeGuard},
    io_error, names, native,
    open::{Links, PRIVILEGES, file_type, not_a_file, readable, reopen},
};

impl FileWork for wire::Copy {
    fn access(&self) -> Result<PathAccess, RpcError> {
        PathAccess::reads(&self.source_path)?.and_writes(&self.destination_path)
    }

    fn run(&self, guard: &PathGuard, wanted: &CancelCheck) -> Result<Empty, RpcError> {
        let (source, destination) = (native(&self.source_path)?, native(&self.destination_path)?);
        let from = &guard.entry(source, Links::Follow, FileAccess::Read)?;
        let kind = from.kind().map_err(|error| io_error(&error.into(), source))?;
        let source = (from.directory(), from.name());
        let copied = match kind {
            FileType::RegularFile => {
                let to = guard.target(destination, Links::Follow, FileAccess::Write)?;
                let rules = CopyRules {
                    links: to.links_from_here(),
                    strips_set_id: to.strips_set_id(),
                    check_creation: &|| to.check_creation(),
                };
                copy_file(source, (to.directory(), to.name()), &rules, wanted)
            }
            FileType::Symlink => {
                let to = guard.change(destination, Links::Follow, Action::Create)?;
                copy_link(source, (to.directory(), to.name()))
            }
            FileType::Directory if self.recursive => copy_tree(from, destination, guard, wanted),
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
    Described(RpcError),
    /// The source cannot be copied.
    Source,
    /// The destination exists, but is neither a file nor a directory.
    Destination,
    IntoItself,
}

impl CopyError {
    fn describe(self, destination: &Path) -> RpcError {
        match self {
            Self::Io(error) => io_error(&error, destination),
            Self::Described(error) => error,
            Self::Source => RpcError::new(
                ErrorKind::InvalidInput,
                "fs/copy only supports regular files, directories, and symlinks",
            ),
            Self::Destination => not_a_file(destination, Links::Follow, FileType::Unknown),
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

impl From<RpcError> for CopyError {
    fn from(error: RpcError) -> Self {
        Self::Described(error)
    }
}

impl From<Errno> for CopyError {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

/// Returns whether `path` is `directory` or below it, after resolving links; `path` need not exist.
pub(super) fn is_within(path: &Path, directory: &Located<'_>, guard: &PathGuard) -> Result<bool, RpcError> {
    let Some(directory) = directory.real() else {
        let Ok(directory) = directory.path().canonicalize() else { return Ok(false) };
        let existing = path.ancestors().find_map(|ancestor| ancestor.canonicalize().ok());
        return Ok(existing.is_some_and(|existing| existing.starts_with(directory)));
    };
    let mut ancestors = path.ancestors();
    loop {
        let Some(ancestor) = ancestors.next() else { return Ok(false) };
        match guard.target(ancestor, Links::Follow, FileAccess::Write) {
            Ok(found) => return Ok(found.real().is_some_and(|real| real.starts_with(directory))),
            Err(error) if error.kind == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
}

/// Copies a directory and its contents, except special files.
fn copy_tree(
    source: &Located<'_>,
    destination: &Path,
    guard: &PathGuard,
    wanted: &CancelCheck,
) -> Result<(), CopyError> {
    if is_within(destination, source, guard)? {
        return Err(CopyError::IntoItself);
    }
    let from = TreeGuard::new(source);
    let mut source = Descent::new(descent::open(source.directory(), source.name(), Links::Refuse)?)?;
    directory::create_all(guard, destination, Links::Follow)?;
    let to = guard.target(destination, Links::Follow, FileAccess::Write)?;
    let links = to.links_from_here();
    let mut guards = TreeGuards { from, to: TreeGuard::new(&to) };
    let mut destination = Descent::new(descent::open(to.directory(), to.name(), links)?)?;
    let mut levels = vec![copy_entries(&source, &destination, links, &guards, wanted)?];
    while let Some(directories) = levels.last_mut() {
        let Some(name) = directories.pop() else {
            levels.pop();
            source.leave()?;
            destination.leave()?;
            guards.from.leave();
            guards.to.leave();
            continue;
        };
        source.enter(&name, Links::Refuse)?;
        enter_copy(&mut destination, &name, links, &guards)?;
        guards.from.enter(&name);
        guards.to.enter(&name);
        levels.push(copy_entries(&source, &destination, links, &guards, wanted)?);
    }
    Ok(())
}

/// Decides what may be read and written during the copy of a tree.
struct TreeGuards {
    from: TreeGuard,
    to: TreeGuard,
}

/// Enters a directory in the destination, and creates it if it is missing.
fn enter_copy(
    destination: &mut Descent,
    name: &CStr,
    links: Links,
    guards: &TreeGuards,
) -> Result<(), CopyError> {
    let created = match guards.to.check(names::os_str(name), Action::Create) {
        Ok(()) => mkdirat(destination.current(), name, Mode::from_raw_mode(0o777)),
        // It may be there; what is copied into it is checked by itself.
        Err(refusal) if !destination.has(name) => return Err(refusal.into()),
        Err(_) => Err(Errno::EXIST),
    };
    match created {
        Ok(()) => destination.enter(name, links)?,
        Err(Errno::EXIST) => destination.enter(name, links).map_err(|error| {
            if error.kind() == io::ErrorKind::NotADirectory { Errno::EXIST.into() } else { error }
        })?,
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Copies files and links of one directory; returns its subdirectories.
fn copy_entries(
    source: &Descent,
    destination: &Descent,
    links: Links,
    guards: &TreeGuards,
    wanted: &CancelCheck,
) -> Result<Vec<CString>, CopyError> {
    // A link in the destination may lead back here: the copy would copy itself without end.
    if destination.passed(source.identity()) {
        return Err(CopyError::IntoItself);
    }
    let (from, to) = (source.current(), destination.current());
    let mut directories = Vec::new();
    names::for_each(from, |name, kind| {
        let path = names::os_str(name);
        if matches!(kind, FileType::RegularFile | FileType::Symlink | FileType::Directory) {
            guards.from.check(path, Action::Read)?;
        }
        match kind {
            FileType::RegularFile => {
                guards.to.check(path, Action::Write)?;
                let check_creation = &|| guards.to.check(path, Action::Create);
                let strips_set_id = guards.to.strips_set_id();
                let rules = CopyRules { links, strips_set_id, check_creation };
                copy_file((from, name), (to, name), &rules, wanted)?;
            }
            FileType::Symlink => {
                guards.to.check(path, Action::Create)?;
                copy_link((from, name), (to, name))?;
            }
            FileType::Directory => directories.push(name.to_owned()),
            _ => {}
        }
        Ok::<_, CopyError>(())
    })?;
    Ok(directories)
}

/// The precondition on the destination of a file.
struct CopyRules<'a> {
    links: Links,
    /// A copy in a sandbox, or without the scope for it, does not run as another user or group.
    strips_set_id: bool,
    /// Called if the destination is missing.
    check_creation: &'a dyn Fn() -> Result<(), RpcError>,
}

/// Copies contents and mode of a regular file; copying a file onto itself changes nothing.
fn copy_file<P: Arg + Copy>(
    (from, source): (impl AsFd, P),
    (to, destination): (impl AsFd, P),
    rules: &CopyRules<'_>,
    wanted: &CancelCheck,
) -> Result<(), CopyError> {
    wanted.check()?;
    let found = openat(from, source, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let stat = fstat(&found)?;
    if file_type(&stat) != FileType::RegularFile {
        return Err(CopyError::Source);
    }
    let mut source = readable(&found, &stat)?;
    let mut mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
    if rules.strips_set_id {
        mode -= PRIVILEGES;
    }
    let opened = open_destination((to.as_fd(), destination), rules, mode, &stat)?;
    let Some(mut destination) = opened else { return Ok(()) };
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
    (directory, name): (BorrowedFd<'_>, P),
    rules: &CopyRules<'_>,
    mode: Mode,
    source: &Stat,
) -> Result<Option<File>, CopyError> {
    let links = rules.links.open_flags();
    let found = match openat(directory, name, OFlags::PATH | OFlags::CLOEXEC | links, Mode::empty()) {
        Ok(found) => found,
        Err(Errno::NOENT) => {
            (rules.check_creation)()?;
            // A FIFO created there in the meantime does not block, and is refused below.
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            let created = openat(directory, name, flags | links, mode)?;
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
        // Only where links are not followed.
        FileType::Symlink => Err(Errno::LOOP.into()),
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

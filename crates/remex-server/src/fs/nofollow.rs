//! Paths in which no symbolic link is followed, not even one that somebody puts there meanwhile.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::fd::OwnedFd,
    path::{Component, Path},
};

use remex_proto::{ErrorKind, RpcError};
use rustix::fs::{CWD, Mode, OFlags, openat};

/// The place of a path: the directory that holds it, held open, and its name there.
#[derive(Debug)]
pub(super) struct OpenParent {
    pub(super) directory: OwnedFd,
    /// `.` for the root.
    pub(super) name: OsString,
}

/// Goes to the directory that holds the last component of `path`.
///
/// Search permission on the way is enough. A link on the way is "not a directory", as is any other
/// thing that is none.
pub(super) fn find(path: &Path) -> io::Result<OpenParent> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut directory = openat(CWD, "/", flags, Mode::empty())?;
    let mut names = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name),
        Component::ParentDir => Some(OsStr::new("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    let mut name = names.next().unwrap_or(OsStr::new("."));
    for next in names {
        directory = openat(&directory, name, flags, Mode::empty())?;
        name = next;
    }
    Ok(OpenParent { directory, name: name.to_owned() })
}

/// The error for a link as the last component, where the base dialect has words of its own for it.
pub(super) fn refusal(path: &Path) -> RpcError {
    RpcError::new(ErrorKind::SymbolicLink, "path contains a symbolic link")
        .with_code(ErrorKind::InvalidInput.code())
        .with_hint(format!("`{}` is a symbolic link; name its target, or follow links", path.display()))
}

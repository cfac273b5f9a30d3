//! Resolving paths without following symbolic links, not even ones created in the meantime.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::fd::OwnedFd,
    path::{Component, Path},
};

use remex_proto::{ErrorKind, RpcError};
use rustix::fs::{CWD, Mode, OFlags, openat};

/// An open parent directory and the name of an entry in it.
#[derive(Debug)]
pub(super) struct OpenParent {
    pub(super) directory: OwnedFd,
    /// `.` for the root.
    pub(super) name: OsString,
}

/// Opens the directory that contains the last component of `path`.
///
/// Search permission on the parents suffices. A link among them fails with "not a directory", like anything
/// else that is not a directory.
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

/// Returns the error for a link as the last component, for which the base dialect has its own message.
pub(super) fn refusal(path: &Path) -> RpcError {
    RpcError::new(ErrorKind::SymbolicLink, "path contains a symbolic link")
        .with_code(ErrorKind::InvalidInput.code())
        .with_hint(format!("`{}` is a symbolic link; name its target, or follow links", path.display()))
}

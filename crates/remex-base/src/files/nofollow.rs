//! Resolving paths without following symbolic links, not even ones created in the meantime.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::fd::OwnedFd,
    path::{Component, Path},
};

use remex_proto::{ErrorKind, RpcError};
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Stat, openat, openat2, statat},
    io::Errno,
};

/// An open parent directory and the name of an entry in it.
#[derive(Debug)]
pub struct OpenParent {
    /// The directory.
    pub directory: OwnedFd,
    /// `.` for the root.
    pub name: OsString,
}

/// Opens the directory that contains the last component of `path`.
///
/// Search permission on the parents suffices. A link among them fails with "not a directory", like anything
/// else that is not a directory.
pub fn find(path: &Path) -> io::Result<OpenParent> {
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

/// Opens what `path` names; a link anywhere in it fails with "too many levels of symbolic links" or "not a
/// directory".
pub fn open(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
        // The kernel is older than `openat2`, or a filter of system calls does not know it.
        Err(Errno::NOSYS | Errno::PERM) => {
            let place = find(path)?;
            Ok(openat(&place.directory, &place.name, flags, Mode::empty())?)
        }
        opened => Ok(opened?),
    }
}

/// Returns the metadata of what `path` names, which may itself be a link; links among its parents are not
/// followed.
pub fn stat(path: &Path) -> io::Result<Stat> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?);
    };
    let directory = open(parent, OFlags::PATH | OFlags::DIRECTORY)?;
    Ok(statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Returns the error for a link as the last component, for which the base dialect has its own message.
pub fn refusal(path: &Path) -> RpcError {
    RpcError::new(ErrorKind::SymbolicLink, "path contains a symbolic link")
        .with_code(ErrorKind::InvalidInput.code())
        .with_hint(format!("`{}` is a symbolic link; name its target, or follow links", path.display()))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use rustix::fs::FileType;

    use super::*;

    #[test]
    fn a_link_anywhere_in_a_path_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let top = place.path().canonicalize().unwrap();
        fs::create_dir(top.join("real")).unwrap();
        fs::write(top.join("real/f"), "").unwrap();
        symlink("real", top.join("link")).unwrap();
        symlink("f", top.join("real/near")).unwrap();
        assert!(open(&top.join("real/f"), OFlags::RDONLY).is_ok());
        for path in ["link/f", "link", "real/near"] {
            assert!(open(&top.join(path), OFlags::RDONLY).is_err(), "{path}");
        }
        let kind = |path: &str| stat(&top.join(path)).map(|stat| FileType::from_raw_mode(stat.st_mode));
        assert_eq!(kind("real").unwrap(), FileType::Directory);
        assert_eq!(kind("link").unwrap(), FileType::Symlink, "the link itself is found");
        assert!(kind("link/f").is_err() && kind("real/missing").is_err());
        assert_eq!(
            stat(Path::new("/")).map(|stat| FileType::from_raw_mode(stat.st_mode)).unwrap(),
            FileType::Directory
        );
    }
}

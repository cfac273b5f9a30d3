//! Converts I/O errors on files to wire errors.

use std::{io, path::Path};

use remex_proto::{ErrorKind, RpcError};
use rustix::io::Errno;

/// Converts the error of an operation on `path`: the message is the system's own, and the path is in the hint.
pub fn io_error(error: &io::Error, path: &Path) -> RpcError {
    let errno = Errno::from_io_error(error);
    let kind = match errno {
        Some(Errno::NOENT) => ErrorKind::NotFound,
        Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => ErrorKind::PermissionDenied,
        Some(Errno::INVAL | Errno::NAMETOOLONG) => ErrorKind::InvalidInput,
        Some(Errno::EXIST) => ErrorKind::AlreadyExists,
        Some(Errno::ISDIR) => ErrorKind::IsADirectory,
        Some(Errno::NOTDIR) => ErrorKind::NotADirectory,
        Some(Errno::NOTEMPTY) => ErrorKind::NotEmpty,
        Some(Errno::LOOP) => ErrorKind::SymbolicLink,
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => ErrorKind::NoSpace,
        Some(Errno::XDEV) => ErrorKind::CrossDevice,
        Some(_) => ErrorKind::Io,
        None if error.kind() == io::ErrorKind::InvalidInput => ErrorKind::InvalidInput,
        None => ErrorKind::Io,
    };
    let code = match errno {
        // The base dialect distinguishes refusals by the system from failures by std's error kind.
        Some(Errno::ROFS | Errno::NAMETOOLONG) => ErrorKind::Io.code(),
        _ => kind.code(),
    };
    let path = path.display();
    let hint = match kind {
        ErrorKind::NotFound => format!("check the spelling of `{path}`"),
        _ if errno == Some(Errno::ROFS) => {
            format!("the file system of `{path}` is read-only; choose another path, or remount it writable")
        }
        ErrorKind::PermissionDenied => {
            format!(
                "change the permissions of `{path}` or its directories, or use an account that has access"
            )
        }
        _ if errno == Some(Errno::NAMETOOLONG) => "choose a shorter name".to_owned(),
        ErrorKind::InvalidInput => format!("check that `{path}` and its file system support that operation"),
        ErrorKind::AlreadyExists => format!("remove `{path}` first, or choose another name"),
        ErrorKind::IsADirectory => format!("`{path}` is a directory; list it, or name a file"),
        ErrorKind::NotADirectory => format!("check the path: a parent of `{path}` is not a directory"),
        ErrorKind::NotEmpty => format!("empty `{path}` first, or remove it with everything in it"),
        ErrorKind::SymbolicLink => {
            format!("`{path}` contains a symbolic link that is not followed here, or a loop of links")
        }
        ErrorKind::NoSpace => format!("no space is left for `{path}`; free some, then try again"),
        _ if errno == Some(Errno::AGAIN) => {
            format!("`{path}` never ends and has no data now; run a program that waits for it, such as `cat`")
        }
        _ if errno == Some(Errno::NXIO) => {
            format!("`{path}` is a socket, or a device that does not exist; name a regular file")
        }
        ErrorKind::CrossDevice => format!("`{path}` is on another file system; copy, then remove"),
        _ => format!("check the file system of `{path}`; the kernel log of its host may say more"),
    };
    RpcError::new(kind, error.to_string()).with_code(code).with_hint(hint)
}

/// Converts the error of an operation that creates `path`: if something is missing, it is the parent directory.
pub fn create_error(error: &io::Error, path: &Path) -> RpcError {
    let converted = io_error(error, path);
    match converted.kind {
        ErrorKind::NotFound => {
            let hint =
                format!("create the parent directory of `{}` first, or check its spelling", path.display());
            converted.with_hint(hint)
        }
        _ => converted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_created_needs_its_parent_directory() {
        let error = io::Error::from_raw_os_error(Errno::NOENT.raw_os_error());
        let hint = |error: RpcError| error.hint.unwrap_or_default();
        assert_eq!(hint(io_error(&error, Path::new("/a/b"))), "check the spelling of `/a/b`");
        assert_eq!(
            hint(create_error(&error, Path::new("/a/b"))),
            "create the parent directory of `/a/b` first, or check its spelling"
        );
    }

    #[test]
    fn a_read_only_file_system_is_not_blamed_on_the_user() {
        let error = io::Error::from_raw_os_error(Errno::ROFS.raw_os_error());
        let hint = io_error(&error, Path::new("/mnt/a")).hint.unwrap_or_default();
        assert!(hint.starts_with("the file system of `/mnt/a` is read-only;"), "{hint}");
    }
}

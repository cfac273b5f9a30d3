//! Writes files so that they survive: the end of this process always, a power failure if they are synced.
//!
//! Start at [`replace`] and [`sync`].

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use rustix::{fs::OFlags, io::Errno};

/// Opens a file of the state directory as `options` say, if it is a regular one.
///
/// Whatever else has its name is refused at once: a FIFO would be waited for, and a link leads elsewhere.
pub(crate) fn open_regular(options: &OpenOptions, path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
    let opened = options.clone().custom_flags(flags.bits().cast_signed()).open(path);
    let is_other = match &opened {
        Ok(file) => !file.metadata()?.is_file(),
        // A link, a FIFO without a reader, or a socket.
        Err(error) => matches!(Errno::from_io_error(error), Some(Errno::LOOP | Errno::NXIO)),
    };
    if is_other {
        let message = "it is not a regular file, but a link, a FIFO or the like";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    opened
}

/// Reads a file of the state directory; never waits for the other end of a FIFO.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    open_regular(OpenOptions::new().read(true), path)?.read_to_end(&mut content)?;
    Ok(content)
}

/// What a file has to survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Survival {
    /// The end of this process: it is in the page cache.
    Process,
    /// A power failure: it is on the disk.
    PowerFailure,
}

/// Writes a file atomically.
///
/// A file that survives a power failure is on the disk, under its name, when this returns; after an error, the old one
/// still is.
pub(crate) fn replace(path: &Path, content: &[u8], survival: Survival) -> io::Result<()> {
    let mut temporary = path.to_owned().into_os_string();
    temporary.push(".new");
    let mut options = OpenOptions::new();
    options.create(true).write(true).truncate(true).mode(0o600);
    let mut file = open_regular(&options, Path::new(&temporary))?;
    file.write_all(content)?;
    if survival == Survival::PowerFailure {
        // Before it has its name: a file system may bring the name to the disk before the content.
        sync(&file)?;
    }
    drop(file);
    fs::rename(&temporary, path)?;
    match (survival, path.parent()) {
        (Survival::PowerFailure, Some(dir)) => sync_dir(dir),
        _ => Ok(()),
    }
}

/// Waits until the names in a directory are on the disk.
pub(crate) fn sync_dir(path: &Path) -> io::Result<()> {
    match sync(&File::open(path)?) {
        // There are file systems without anything to sync in directories.
        Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::INVAL | Errno::OPNOTSUPP)) => Ok(()),
        synced => synced,
    }
}

/// Called with every file that is synced: a test that cuts the power notes what survives.
#[cfg(any(test, feature = "testing"))]
pub(crate) static ON_SYNC: std::sync::OnceLock<fn(&File) -> io::Result<()>> = std::sync::OnceLock::new();

/// Waits until a file is on the disk.
///
/// After an error, what was written before may be lost even if a later call succeeds: the kernel reports an error once.
pub(crate) fn sync(file: &File) -> io::Result<()> {
    #[cfg(any(test, feature = "testing"))]
    if let Some(on_sync) = ON_SYNC.get() {
        on_sync(file)?;
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    #[test]
    fn only_regular_files_are_opened_and_others_are_refused_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        fs::write(place.join("file"), "content").unwrap();
        mkfifoat(CWD, place.join("fifo"), Mode::RUSR | Mode::WUSR).unwrap();
        symlink(place.join("file"), place.join("link")).unwrap();
        symlink("/dev/zero", place.join("device")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(place.join("socket")).unwrap();
        assert_eq!(read(&place.join("file")).unwrap(), b"content");
        for name in ["fifo", "link", "device", "socket"] {
            let error = read(&place.join(name)).unwrap_err();
            assert!(error.to_string().starts_with("it is not a regular file"), "{name}: {error}");
            fs::rename(place.join(name), place.join(format!("{name}.new"))).unwrap();
            let error = replace(&place.join(name), b"new", Survival::Process).unwrap_err();
            assert!(error.to_string().starts_with("it is not a regular file"), "{name}: {error}");
        }
        assert_eq!(fs::read(place.join("file")).unwrap(), b"content");
    }
}

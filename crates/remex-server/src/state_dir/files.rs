//! Writes files so that they survive: the end of this process always, a power failure if they are synced.
//!
//! Start at [`replace`] and [`sync`].

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use rustix::io::Errno;

/// What a file has to survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Survival {
    /// The end of this process: it is in the page cache.
    Process,
    /// A power failure: it is on the disk.
    PowerFailure,
}

/// Writes a file so that it is there with all its content or not at all.
///
/// A file that survives a power failure is on the disk, under its name, when this returns; after an error, the old one
/// still is.
pub(crate) fn replace(path: &Path, content: &[u8], survival: Survival) -> io::Result<()> {
    let mut temporary = path.to_owned().into_os_string();
    temporary.push(".new");
    let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&temporary)?;
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
#[cfg(test)]
pub(crate) static ON_SYNC: std::sync::OnceLock<fn(&File) -> io::Result<()>> = std::sync::OnceLock::new();

/// Waits until a file is on the disk.
///
/// After an error, what was written before may be lost even if a later call succeeds: the kernel reports an error once.
pub(crate) fn sync(file: &File) -> io::Result<()> {
    #[cfg(test)]
    if let Some(on_sync) = ON_SYNC.get() {
        on_sync(file)?;
    }
    file.sync_all()
}

//! The file operations of a writer, behind a trait so that tests can fail each of them. Start at [`Disk`].

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::Path,
};

use rustix::fs::{FallocateFlags, OFlags, fallocate, fstatvfs};

/// Never follow a link, never wait for the other end of a FIFO.
pub(crate) const SAFE_OPEN: i32 = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits().cast_signed();

/// What a writer does to files.
pub(crate) trait Disk: Send {
    /// Creates an empty file, or empties the one that is there.
    fn create(&self, path: &Path) -> io::Result<File>;
    /// Opens a file for writing.
    fn open(&self, path: &Path) -> io::Result<File>;
    /// Returns how much space is left where a file is.
    fn free(&self, file: &File) -> io::Result<u64>;
    /// Allocates blocks for a range without changing the length of the file.
    fn allocate(&self, file: &File, from: u64, len: u64) -> io::Result<()>;
    /// Writes at a position; may write less than all.
    fn write_at(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<usize>;
    /// Sets the length and frees blocks after it.
    fn truncate(&self, file: &File, len: u64) -> io::Result<()>;
    /// Replaces `to` by `from`.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Deletes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Waits until the data of a file, or the entries of a directory, are on the medium.
    fn sync(&self, file: &File) -> io::Result<()>;
}

/// The file system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileSystem;

impl Disk for FileSystem {
    fn create(&self, path: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600).custom_flags(SAFE_OPEN).open(path)
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        OpenOptions::new().write(true).custom_flags(SAFE_OPEN).open(path)
    }

    fn free(&self, file: &File) -> io::Result<u64> {
        let system = fstatvfs(file)?;
        Ok(system.f_bavail.saturating_mul(system.f_frsize))
    }

    fn allocate(&self, file: &File, from: u64, len: u64) -> io::Result<()> {
        Ok(fallocate(file, FallocateFlags::KEEP_SIZE, from, len)?)
    }

    fn write_at(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<usize> {
        file.write_at(bytes, at)
    }

    fn truncate(&self, file: &File, len: u64) -> io::Result<()> {
        file.set_len(len)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }
}

/// Writes all of `bytes`.
pub(crate) fn write_all(disk: &dyn Disk, file: &File, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match disk.write_at(file, bytes, at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(len) => {
                bytes = &bytes[len..];
                at += len as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

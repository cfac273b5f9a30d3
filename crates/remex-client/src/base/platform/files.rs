//! Local files, as tree copies need them.

#[cfg(unix)]
pub(crate) use unix::{
    create_with_mode, mode, open_without_links, set_file_mode, set_mode, set_modified, symlink,
};
#[cfg(windows)]
pub(crate) use windows::{
    create_with_mode, mode, open_without_links, set_file_mode, set_mode, set_modified, symlink,
};

#[cfg(unix)]
mod unix {
    use std::{
        fs::{self, File, Metadata, OpenOptions, Permissions},
        io,
        os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
        path::Path,
        time::SystemTime,
    };

    use remex_proto::path::from_bytes;
    use rustix::fs::OFlags;

    /// Opens a file to read; never follows a link and never waits for the writer of a pipe.
    pub(crate) fn open_without_links(path: &Path) -> io::Result<File> {
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
        OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(path)
    }

    /// Returns the permissions of a local file.
    pub(crate) fn mode(metadata: &Metadata) -> u32 {
        metadata.permissions().mode() & 0o7777
    }

    /// Sets the permissions of a local file or directory.
    pub(crate) fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
        fs::set_permissions(path, Permissions::from_mode(mode))
    }

    /// Sets the permissions of an open file.
    pub(crate) fn set_file_mode(file: &File, mode: u32) -> io::Result<()> {
        file.set_permissions(Permissions::from_mode(mode))
    }

    /// Sets the permissions that a new local file gets, less those of the umask.
    pub(crate) fn create_with_mode(options: &mut OpenOptions, mode: u32) {
        options.mode(mode);
    }

    /// Sets when a local file or directory was modified.
    pub(crate) fn set_modified(path: &Path, time: SystemTime) -> io::Result<()> {
        File::open(path)?.set_modified(time)
    }

    /// Creates a local symbolic link.
    pub(crate) fn symlink(target: &[u8], path: &Path) -> io::Result<()> {
        let target = from_bytes(target).ok_or(io::ErrorKind::InvalidFilename)?;
        std::os::unix::fs::symlink(target, path)
    }
}

#[cfg(windows)]
mod windows {
    use std::{
        fs::{self, File, Metadata, OpenOptions},
        io,
        os::windows::fs::OpenOptionsExt as _,
        path::Path,
        time::SystemTime,
    };

    /// The right to set times, `FILE_WRITE_ATTRIBUTES`.
    const WRITE_ATTRIBUTES: u32 = 0x100;

    /// Opens directories, too: `FILE_FLAG_BACKUP_SEMANTICS`.
    const BACKUP_SEMANTICS: u32 = 0x0200_0000;

    /// Opens a file to read, unless it is a link.
    pub(crate) fn open_without_links(path: &Path) -> io::Result<File> {
        if fs::symlink_metadata(path)?.is_symlink() {
            return Err(io::Error::other("it is a symbolic link"));
        }
        File::open(path)
    }

    /// Returns the permissions that a file from here gets elsewhere.
    pub(crate) fn mode(metadata: &Metadata) -> u32 {
        if metadata.is_dir() { 0o755 } else { 0o644 }
    }

    /// Does nothing: permissions have no equivalent here.
    pub(crate) fn set_mode(_: &Path, _: u32) -> io::Result<()> {
        Ok(())
    }

    pub(crate) fn set_file_mode(_: &File, _: u32) -> io::Result<()> {
        Ok(())
    }

    pub(crate) fn create_with_mode(_: &mut OpenOptions, _: u32) {}

    pub(crate) fn set_modified(path: &Path, time: SystemTime) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.access_mode(WRITE_ATTRIBUTES).custom_flags(BACKUP_SEMANTICS).open(path)?.set_modified(time)
    }

    pub(crate) fn symlink(_: &[u8], _: &Path) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "this platform has no such symbolic links"))
    }
}

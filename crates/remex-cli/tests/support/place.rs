//! A directory for one test.

use std::{
    fs,
    os::unix::{ffi::OsStrExt as _, fs::symlink},
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;

/// A directory that vanishes with the test, and the URIs of what is in it.
pub(crate) struct Place(TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("there is room for a directory"))
    }

    /// Takes memory instead of a disk where that can be had, for very many entries.
    pub(crate) fn in_memory() -> Self {
        tempfile::tempdir_in("/dev/shm").map_or_else(|_| Self::new(), Self)
    }

    /// Returns the native path of `name`.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns the URI of `name`, which may have escapes.
    pub(crate) fn uri(&self, name: &str) -> String {
        format!("{}/{name}", uri(self.0.path()))
    }

    /// Writes a file, with the directories on the way to it.
    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a name is below the directory")).expect("directories");
        fs::write(&path, content).expect("there is room for a file");
        path
    }

    /// Makes directories.
    pub(crate) fn make(&self, names: &[&str]) {
        for name in names {
            fs::create_dir_all(self.path(name)).expect("there is room for directories");
        }
    }

    /// Makes a symbolic link.
    pub(crate) fn link(&self, target: &str, name: &str) {
        symlink(target, self.path(name)).expect("there is room for a link");
    }

    /// Makes a named pipe.
    pub(crate) fn fifo(&self, name: &str) {
        let mode = Mode::from_raw_mode(0o600);
        mknodat(CWD, self.path(name), FileType::Fifo, mode, 0).expect("a FIFO can be made");
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("`{name}`: {error}"))
    }

    /// Returns the sorted names in a directory.
    pub(crate) fn names(&self, name: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(name)).expect("a directory");
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

/// Returns the URI of a native path.
pub(crate) fn uri(path: &Path) -> String {
    let mut uri = "file://".to_owned();
    for &byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            uri += &format!("%{byte:02X}");
        }
    }
    uri
}

//! The audit file on disk: appended to, rotated by size, never left with half a line.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::PathBuf,
};

use remex_base::{quote::shell_word, trace::LOG_TARGET};
use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::Errno,
};

use super::AuditConfig;

/// The open file.
#[derive(Debug)]
pub(super) struct AuditFile {
    config: AuditConfig,
    file: File,
    len: u64,
    /// Whether it is a file on a disk, not a device or a pipe such as `/dev/stdout`.
    is_rotated: bool,
    /// Whether the last write failed, so that a failure is logged once.
    is_failing: bool,
}

impl AuditFile {
    pub(super) fn open(config: &AuditConfig) -> Result<Self, NotOpened> {
        let file = append_to(config)?;
        let metadata = file.metadata()?;
        let (len, is_rotated) = (metadata.len(), metadata.is_file());
        Ok(AuditFile { config: config.clone(), file, len, is_rotated, is_failing: false })
    }

    /// Appends a line, which ends with a line feed, completely or not at all.
    pub(super) fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if self.is_rotated && self.len > 0 && self.len + line.len() as u64 > self.config.max_bytes {
            self.rotate();
        }
        let written = self.file.write_all(line);
        match &written {
            Ok(()) => {
                self.len += line.len() as u64;
                if std::mem::take(&mut self.is_failing) {
                    tracing::warn!(target: LOG_TARGET, path = %self.config.path.display(), "the audit file can be written again");
                }
            }
            Err(error) => {
                // A part of the line may have been written.
                let _ = self.file.set_len(self.len);
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::error!(target: LOG_TARGET, path = %self.config.path.display(), %error, "cannot write the audit file");
                }
            }
        }
        written
    }

    /// Opens the file by its name again; a failure keeps the old one.
    pub(super) fn reopen(&mut self) {
        match append_to(&self.config).and_then(|file| Ok((file.metadata()?.len(), file))) {
            Ok((len, file)) => (self.len, self.file) = (len, file),
            Err(error) => {
                tracing::error!(target: LOG_TARGET, path = %self.config.path.display(), %error, "cannot reopen the audit file");
            }
        }
    }

    /// Renames `audit` to `audit.1`, that one to `audit.2`, and so on; the oldest is removed.
    fn rotate(&mut self) {
        let older = |number| self.config.older(number);
        for number in (1..self.config.keep).rev() {
            // Not all of them exist yet.
            let _ = fs::rename(older(number), older(number + 1));
        }
        let moved = if self.config.keep == 0 {
            fs::remove_file(&self.config.path)
        } else {
            fs::rename(&self.config.path, older(1))
        };
        match moved {
            Ok(()) => self.reopen(),
            Err(error) => {
                tracing::error!(target: LOG_TARGET, path = %self.config.path.display(), %error, "cannot rotate the audit file");
            }
        }
    }
}

/// Why an audit file is not used.
#[derive(Debug, thiserror::Error)]
pub enum NotOpened {
    /// The file cannot be opened or created.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Other users can write to it.
    #[error("other users can write to it, and could forge or remove lines")]
    Writable {
        /// The file.
        path: PathBuf,
    },
    /// It belongs to another user.
    #[error("it belongs to the user {uid}, who could forge or remove lines")]
    OtherOwner {
        /// The file.
        path: PathBuf,
        /// Its owner.
        uid: u32,
        /// The user of the server.
        own_uid: u32,
    },
}

impl NotOpened {
    /// Returns what to do about it.
    pub fn hint(&self) -> String {
        match self {
            NotOpened::Io(_) => "create the directory, or check the path and its permissions".to_owned(),
            NotOpened::Writable { path } => {
                format!("run `chmod go-w {}`, or name another file", shell_word(&path.to_string_lossy()))
            }
            NotOpened::OtherOwner { path, own_uid, .. } => {
                format!("run `chown {own_uid} {}`, or name another file", shell_word(&path.to_string_lossy()))
            }
        }
    }
}

/// Refuses a file that others than this user and root can change. Devices such as `/dev/stderr` are taken as they are.
fn check_access(config: &AuditConfig, file: &File) -> Result<(), NotOpened> {
    let metadata = file.metadata()?;
    let (uid, own_uid) = (metadata.uid(), rustix::process::geteuid().as_raw());
    // The pipe of a supervisor may belong to the supervisor's user.
    if metadata.is_file() && uid != own_uid && uid != 0 {
        return Err(NotOpened::OtherOwner { path: config.path.clone(), uid, own_uid });
    }
    if (metadata.is_file() || metadata.file_type().is_fifo()) && metadata.mode() & 0o022 != 0 {
        return Err(NotOpened::Writable { path: config.path.clone() });
    }
    Ok(())
}

fn append_to(config: &AuditConfig) -> Result<File, NotOpened> {
    // Opening a FIFO without a reader must not block.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let opened =
        OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags).open(&config.path);
    let file = opened.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::NXIO) => io::Error::other("it is a socket, or a pipe that nobody reads"),
        _ => error,
    })?;
    check_access(config, &file)?;
    let flags = fcntl_getfl(&file).map_err(io::Error::from)?;
    fcntl_setfl(&file, flags - OFlags::NONBLOCK).map_err(io::Error::from)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_rotated_by_size_and_the_oldest_goes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit");
        let config = AuditConfig { max_bytes: 8, keep: 2, ..AuditConfig::new(path.clone()) };
        let mut file = AuditFile::open(&config).unwrap();
        for line in ["one\n", "two\n", "three\n", "four\n", "a line that is longer than a file\n", "six\n"] {
            file.write(line.as_bytes()).unwrap();
        }
        let read = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
        assert_eq!(read("audit"), "six\n");
        assert_eq!(read("audit.1"), "a line that is longer than a file\n");
        assert_eq!(read("audit.2"), "four\n");
        let mut found: Vec<_> =
            fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        found.sort();
        assert_eq!(config.files().collect::<Vec<_>>(), found);
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn a_moved_file_is_recreated_on_request() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit");
        let mut file = AuditFile::open(&AuditConfig::new(path.clone())).unwrap();
        file.write(b"one\n").unwrap();
        fs::rename(&path, directory.path().join("moved")).unwrap();
        file.write(b"two\n").unwrap();
        file.reopen();
        file.write(b"three\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "three\n");
        assert_eq!(fs::read_to_string(directory.path().join("moved")).unwrap(), "one\ntwo\n");
    }

    #[test]
    fn a_file_writable_by_others_is_refused_with_the_command_that_fixes_it() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("it's an audit");
        fs::write(&path, "").unwrap();
        for mode in [0o666, 0o622, 0o660] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = AuditFile::open(&AuditConfig::new(path.clone())).unwrap_err();
            assert!(error.to_string().contains("other users can write to it"), "{mode:o}: {error}");
            let mended = std::process::Command::new("sh")
                .args(["-c", error.hint().split('`').nth(1).unwrap().trim_start_matches("run ")])
                .status();
            assert!(mended.unwrap().success(), "{}", error.hint());
            AuditFile::open(&AuditConfig::new(path.clone())).unwrap();
        }
    }

    #[test]
    fn a_file_of_another_user_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit");
        fs::write(&path, "").unwrap();
        // Only root can give files away.
        if std::os::unix::fs::chown(&path, Some(12_345), None).is_err() {
            return;
        }
        let error = AuditFile::open(&AuditConfig::new(path)).unwrap_err();
        assert_eq!(error.to_string(), "it belongs to the user 12345, who could forge or remove lines");
        assert!(error.hint().starts_with("run `chown 0 /"), "{}", error.hint());
    }

    #[test]
    fn a_file_that_becomes_writable_by_others_is_not_opened_again() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit");
        let mut file = AuditFile::open(&AuditConfig::new(path.clone())).unwrap();
        fs::rename(&path, directory.path().join("moved")).unwrap();
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        file.reopen();
        file.write(b"one\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "");
        assert_eq!(fs::read_to_string(directory.path().join("moved")).unwrap(), "one\n");
    }
}

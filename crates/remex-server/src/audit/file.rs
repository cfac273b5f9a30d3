//! The audit file on disk: appended to, rotated by size, never left with half a line.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
};

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
    pub(super) fn open(config: &AuditConfig) -> io::Result<Self> {
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
                    tracing::warn!(path = %self.config.path.display(), "the audit file can be written again");
                }
            }
            Err(error) => {
                // A part of the line may have been written.
                let _ = self.file.set_len(self.len);
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::error!(path = %self.config.path.display(), %error, "cannot write the audit file");
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
                tracing::error!(path = %self.config.path.display(), %error, "cannot reopen the audit file");
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
                tracing::error!(path = %self.config.path.display(), %error, "cannot rotate the audit file");
            }
        }
    }
}

fn append_to(config: &AuditConfig) -> io::Result<File> {
    // Opening a pipe that nobody reads must not block.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let opened =
        OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags).open(&config.path);
    let file = opened.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::NXIO) => io::Error::other("it is a socket, or a pipe that nobody reads"),
        _ => error,
    })?;
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
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
    fn a_file_that_was_moved_is_made_anew_when_asked() {
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
}

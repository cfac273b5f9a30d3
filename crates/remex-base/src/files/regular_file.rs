//! Opens files without blocking on FIFOs and devices.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use rustix::fs::OFlags;

/// Opens a regular file for reading; never waits for the other end of a FIFO.
///
/// # Errors
///
/// If the file cannot be opened, or is a FIFO, a device or anything else that could block a reader.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
    }
}

/// Opens a file that a program was given when it started: a regular one, or one of its descriptors such as a pipe of
/// the shell. Never waits for the other end of a FIFO that has a name.
///
/// # Errors
///
/// As those of [`open_regular`].
pub fn open_given(path: &Path) -> io::Result<File> {
    let descriptors = ["/dev/fd", "/dev/stdin", "/proc/self/fd"];
    if descriptors.iter().any(|place| path.starts_with(place)) {
        File::open(path)
    } else {
        open_regular(path)
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write as _, os::fd::AsRawFd as _};

    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    #[test]
    fn a_fifo_is_refused_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fifo");
        mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
        assert_eq!(open_regular(&path).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(open_given(&path).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(open_regular(directory.path()).is_err(), "a directory");
        let (reader, writer) = io::pipe().unwrap();
        (&writer).write_all(b"piped").unwrap();
        drop(writer);
        let given = open_given(format!("/dev/fd/{}", reader.as_raw_fd()).as_ref()).unwrap();
        assert_eq!(io::read_to_string(given).unwrap(), "piped");
        let file = directory.path().join("file");
        std::fs::write(&file, "text").unwrap();
        assert_eq!(io::read_to_string(open_regular(&file).unwrap()).unwrap(), "text");
    }
}

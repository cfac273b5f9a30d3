//! Frees the space of a log that is only kept for its notes. Start at [`discard_output`].

use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use crate::base::{
    disk::SAFE_OPEN,
    format::{HEAD_LEN, Kind},
    names,
    scanner::{Found, Opened, Scanner},
};

/// Deletes everything in a log except its newest notes, which [`inspect`](crate::inspect) still finds. The log must
/// have no writer.
///
/// Works on a full disk, because it only shortens and deletes files. Notes are not lost if it is interrupted.
///
/// # Errors
///
/// If the last segment is damaged, or the file system reports an error; then nothing is deleted, or not everything.
pub fn discard_output(dir: &Path) -> io::Result<()> {
    let names = names::list(dir)?;
    let Some((last, older)) = names.split_last() else { return Ok(()) };
    let mut scanner = Scanner::default();
    let Opened::Ready(_) = scanner.open(dir, *last)? else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the last segment is damaged"));
    };
    // Every segment begins with copies of earlier notes.
    let (mut at, mut end) = (HEAD_LEN as u64, HEAD_LEN as u64);
    while let Found::Record(record) = scanner.look(at, 0)? {
        at = at.saturating_add(record.size());
        if matches!(record.kind, Kind::Note(_)) {
            end = at;
        }
    }
    scanner.close();
    let path = dir.join(last.file_name());
    let file = OpenOptions::new().write(true).custom_flags(SAFE_OPEN).open(path)?;
    if file.metadata()?.len() > end {
        file.set_len(end)?;
    }
    older.iter().try_for_each(|name| fs::remove_file(dir.join(name.file_name())))
}

//! Leftovers of a killed copy at its destination: marking new directories, and resuming them.

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

use remex_proto::path::from_bytes;

use super::{CopyMarker, CopyPath, OWNER, PERMISSIONS, STICKY};
use crate::{
    Error, ErrorKind,
    api::fs::{
        Metadata, entry_name,
        path::{hidden, join, split},
    },
};

/// The permissions of a marker, which no other user needs to read.
const PRIVATE: u32 = 0o600;

/// Creates a directory together with its marker, atomically.
pub(super) async fn make_marked(to: &CopyPath, marker: &CopyMarker) -> Result<(), Error> {
    let fs = &to.fs;
    let new = beside(&to.path, ".remex-new");
    let path = join(&new, CopyMarker::NAME);
    let made = async {
        // It may already exist, left by a killed copy.
        fs.create_dir_all(&new).without_links().await?;
        fs.write(&path, &marker.text).await?;
        fs.set_permissions(&path, PRIVATE).await?;
        fs.rename(&new, &to.path).keep_existing().await
    };
    let Err(error) = made.await else { return Ok(()) };
    // Never recursive, so that foreign files are kept.
    let _ = fs.remove(&path).await;
    let _ = fs.remove(&new).await;
    // Another copy of the same source may have created it, or this one before a disconnect.
    if marker.is_in(to).await { Ok(()) } else { Err(error) }
}

/// Prepares a directory of an earlier copy: removes the leftovers of a killed one, and makes it writable.
pub(super) async fn resume_directory(
    from: &CopyPath,
    to: &CopyPath,
    there: Option<&Metadata>,
) -> Result<(), Error> {
    let fs = &to.fs;
    if let Some(mode) = there.and_then(|there| there.mode).filter(|mode| mode & OWNER != OWNER) {
        fs.set_permissions(&to.path, mode & (PERMISSIONS | STICKY) | OWNER).without_links().await?;
    }
    let mut pages = fs.read_dir_pages(&to.path)?;
    let mut leftovers = Vec::new();
    while let Some(page) = pages.next().await? {
        for entry in page {
            let is_file = |there: &Metadata| there.is_file && !there.is_symlink;
            let name = entry_name(&to.path, &entry)?;
            if let Some(leftover) = Leftover::parse(&name)
                && entry.metadata.as_deref().is_some_and(is_file)
            {
                leftovers.push((leftover, name));
            }
        }
    }
    for (leftover, name) in leftovers {
        let is_needed = match leftover {
            Leftover::Part { of } => has_entry(from, &of).await? || has_entry(from, &name).await?,
            Leftover::Whole => has_entry(from, &name).await?,
        };
        if !is_needed {
            match fs.remove(join(&to.path, &name)).await {
                Err(error) if error.kind() != Some(ErrorKind::NotFound) => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

async fn has_entry(directory: &CopyPath, name: &OsStr) -> Result<bool, Error> {
    let path = join(&directory.path, name);
    // A dangling link is an entry, too.
    Ok(directory.fs.exists(&path).await? || directory.fs.read_link(&path).await.is_ok())
}

/// A file that a killed transfer left beside its destination.
#[derive(Debug, PartialEq, Eq)]
enum Leftover {
    /// `.NAME.remex-0123456789abcdef`: a small file, which is never resumed.
    Whole,
    /// `.NAME.remex-part`: a large file, which the next transfer resumes.
    Part { of: OsString },
}

impl Leftover {
    fn parse(name: &OsStr) -> Option<Self> {
        const WORD: &[u8] = b".remex-";
        let rest = name.as_encoded_bytes().strip_prefix(b".")?;
        let at = rest.windows(WORD.len()).rposition(|window| window == WORD).filter(|at| *at > 0)?;
        let (of, ending) = (&rest[..at], &rest[at + WORD.len()..]);
        let is_random = |ending: &[u8]| ending.len() == 16 && ending.iter().all(u8::is_ascii_hexdigit);
        match ending {
            b"part" => Some(Self::Part { of: from_bytes(of)?.into() }),
            ending if is_random(ending) => Some(Self::Whole),
            _ => None,
        }
    }
}

/// Returns a hidden name beside a path.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let (directory, name) = split(path).unwrap_or((path, OsStr::new("")));
    join(directory, hidden(name, ending.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_temporary_files_of_transfers_are_leftovers() {
        let parse = |name: &str| Leftover::parse(OsStr::new(name));
        assert_eq!(parse(".a.remex-0123456789abcdef"), Some(Leftover::Whole));
        assert_eq!(parse(".a.remex-b.remex-part"), Some(Leftover::Part { of: "a.remex-b".into() }));
        for name in [".remex-part", "..remex-part", "a.remex-part", ".a.remex-0123", ".a.remex-parts", ".a"] {
            assert_eq!(parse(name), None, "{name}");
        }
    }
}

//! The local side of a copy: listings, reads that notice changes, and atomic writes.

use std::{
    fs::{self, File, OpenOptions, ReadDir},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    vec,
};

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::{
    PERMISSIONS, SMALL, is_same,
    listing::Listed,
    modified,
    rules::{GITIGNORE, MAX_GITIGNORE_LEN, check_len},
    time,
};
use crate::{
    Error,
    api::fs::{ContentHash, Metadata, entry::milliseconds, path::local_sibling},
    base::platform::files,
    core::shared::random_word,
};

/// How many entries of a directory are read at once. A directory with fewer is closed while those below are read.
const PAGE: usize = 1024;

/// The permissions of a temporary file until it gets its final ones.
const PRIVATE: u32 = 0o600;

/// Runs blocking calls on a thread for them.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

pub(super) fn unreadable(path: &Path) -> impl Fn(io::Error) -> Error {
    move |error| Error::local(format!("read `{}`", path.display()), error)
}

pub(super) fn unwritable(path: &Path) -> impl Fn(io::Error) -> Error {
    move |error| Error::local(format!("write `{}`", path.display()), error)
}

/// The entries of a local directory, read one page at a time.
pub(super) struct Entries {
    directory: PathBuf,
    /// `None` after the last page.
    entries: Option<ReadDir>,
    page: vec::IntoIter<Listed>,
}

impl Entries {
    /// Reads the first page.
    pub(super) async fn open(directory: &Path) -> Result<Self, Error> {
        let path = directory.to_owned();
        let first = blocking(move || fs::read_dir(path).and_then(read_page)).await;
        let (entries, page) = first.map_err(unreadable(directory))?;
        Ok(Self { directory: directory.to_owned(), entries, page: page.into_iter() })
    }

    pub(super) async fn next(&mut self) -> Result<Option<Listed>, Error> {
        loop {
            if let Some(listed) = self.page.next() {
                return Ok(Some(listed));
            }
            let Some(entries) = self.entries.take() else { return Ok(None) };
            let read = blocking(move || read_page(entries)).await;
            let (entries, page) = read.map_err(unreadable(&self.directory))?;
            (self.entries, self.page) = (entries, page.into_iter());
        }
    }
}

fn read_page(mut entries: ReadDir) -> io::Result<(Option<ReadDir>, Vec<Listed>)> {
    let mut page = Vec::new();
    while page.len() < PAGE {
        let Some(entry) = entries.next() else { return Ok((None, page)) };
        let entry = entry?;
        let metadata = match entry.metadata() {
            Ok(metadata) => Ok(of_local(&metadata)),
            // The entry vanished after it was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => Err(unreadable(&entry.path())(error)),
        };
        page.push(Listed { name: entry.file_name(), metadata });
    }
    Ok((Some(entries), page))
}

/// Returns the metadata of a file, directory or link in the form of remote ones.
fn of_local(local: &fs::Metadata) -> Metadata {
    let kind = local.file_type();
    let mut metadata = Metadata::default();
    (metadata.is_directory, metadata.is_file, metadata.is_symlink) =
        (kind.is_dir(), kind.is_file(), kind.is_symlink());
    metadata.size = local.len();
    metadata.modified_at_ms = local.modified().map_or(0, milliseconds);
    metadata.mode = Some(files::mode(local));
    metadata
}

/// Returns the metadata of a path, without following a link; `None` if it does not exist.
pub(super) async fn find(path: &Path) -> Result<Option<Metadata>, Error> {
    let own = path.to_owned();
    match blocking(move || fs::symlink_metadata(own)).await {
        Ok(metadata) => Ok(Some(of_local(&metadata))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(path)(error)),
    }
}

/// Returns the metadata of a path, following links.
pub(super) async fn root_metadata(path: &Path) -> Result<Metadata, Error> {
    let metadata = tokio::fs::metadata(path).await.map_err(unreadable(path))?;
    Ok(of_local(&metadata))
}

/// Returns the `.gitignore` file of a directory; `None` without one. As in git, a link is not followed.
pub(super) async fn gitignore(directory: &Path) -> Result<Option<Bytes>, Error> {
    let path = directory.join(GITIGNORE);
    let own = path.clone();
    let read = blocking(move || {
        let mut content = Vec::new();
        match fs::symlink_metadata(&own) {
            Ok(metadata) if metadata.is_file() => {
                open(&own)?.take(MAX_GITIGNORE_LEN as u64 + 1).read_to_end(&mut content)?;
                Ok(Some(Bytes::from(content)))
            }
            Ok(_) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    });
    read.await.map_err(unreadable(&path))?.map(|content| check_len(&path, content)).transpose()
}

/// Opens a file that was listed as regular; never follows a link and never waits for the writer of a pipe.
fn open(path: &Path) -> io::Result<File> {
    let file = files::open_without_links(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no longer a regular file"));
    }
    Ok(file)
}

/// A local file that is being copied.
pub(super) struct Source {
    pub(super) metadata: Metadata,
    /// The content up to one byte more than [`SMALL`].
    pub(super) start: Vec<u8>,
    /// What follows the start; `None` for a small file.
    pub(super) file: Option<File>,
}

impl Source {
    /// Opens a file and reads its beginning; fails with [`Error::Changed`] if a small file changes while it is read.
    pub(super) async fn open(path: &Path) -> Result<Self, Error> {
        let own = path.to_owned();
        let opened = blocking(move || {
            let mut file = open(&own)?;
            let (metadata, mut start) = (of_local(&file.metadata()?), Vec::new());
            (&mut file).take(SMALL as u64 + 1).read_to_end(&mut start)?;
            let after = of_local(&file.metadata()?);
            let is_small = start.len() <= SMALL;
            let is_torn =
                is_small && (!is_same(&metadata, &after) || is_other_length(&metadata, start.len()));
            Ok((Self { metadata, start, file: (!is_small).then_some(file) }, is_torn))
        });
        match opened.await.map_err(unreadable(path))? {
            (_, true) => Err(Error::Changed { path: path.display().to_string() }),
            (source, false) => Ok(source),
        }
    }
}

/// Files of the kernel, as in `/proc`, have content although their size is 0.
fn is_other_length(metadata: &Metadata, len: usize) -> bool {
    metadata.size != len as u64 && metadata.size != 0
}

/// Returns the hash of a file.
pub(super) async fn hash(path: &Path) -> Result<ContentHash, Error> {
    /// How much is read at once, in bytes.
    const BUFFER: usize = 128 << 10;
    let own = path.to_owned();
    let hashed = blocking(move || {
        let (mut file, mut hasher, mut buffer) = (open(&own)?, Sha256::new(), vec![0; BUFFER]);
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(ContentHash(hasher.finalize().into())),
                read => hasher.update(&buffer[..read]),
            }
        }
    });
    hashed.await.map_err(unreadable(path))
}

/// Sets the permissions of a directory or file.
pub(super) async fn set_mode(path: &Path, mode: u32) -> Result<(), Error> {
    let own = path.to_owned();
    blocking(move || files::set_mode(&own, mode)).await.map_err(unwritable(path))
}

/// Sets when a directory or file was modified.
pub(super) async fn set_modified(path: &Path, ms: i64) -> Result<(), Error> {
    let own = path.to_owned();
    blocking(move || match time(ms) {
        Some(time) => files::set_modified(&own, time),
        None => Ok(()),
    })
    .await
    .map_err(unwritable(path))
}

/// Writes a file beside `path` and renames it.
pub(super) async fn write(path: &Path, content: Bytes, metadata: &Metadata) -> Result<(), Error> {
    let (own, metadata) = (path.to_owned(), metadata.clone());
    let written = blocking(move || {
        let (temporary, mut file) = Temporary::file(&own, &metadata)?;
        file.write_all(&content)?;
        temporary.complete(&file, &metadata, &own)
    });
    written.await.map_err(unwritable(path))
}

/// Creates a link beside `path` and renames it, so that it replaces a file or link.
pub(super) async fn write_link(path: &Path, target: Bytes) -> Result<(), Error> {
    let own = path.to_owned();
    let written = blocking(move || {
        let temporary = Temporary::beside(&own);
        files::symlink(&target, &temporary.0)?;
        temporary.rename(&own)
    });
    written.await.map_err(unwritable(path))
}

/// A local temporary file, removed on drop unless it was renamed.
pub(super) struct Temporary(PathBuf);

impl Temporary {
    fn beside(path: &Path) -> Self {
        Self(local_sibling(path, &random_word()).expect("entry names are single path components"))
    }

    /// Creates a file beside `path`.
    pub(super) fn file(path: &Path, metadata: &Metadata) -> io::Result<(Self, File)> {
        let temporary = Self::beside(path);
        let mode = if metadata.mode.is_some() { PRIVATE } else { 0o666 };
        let mut options = OpenOptions::new();
        files::create_with_mode(&mut options, mode);
        // Never follows a link.
        let file = options.write(true).create_new(true).open(&temporary.0)?;
        Ok((temporary, file))
    }

    /// Sets the permissions and the time of the file, and renames it.
    pub(super) fn complete(self, file: &File, metadata: &Metadata, path: &Path) -> io::Result<()> {
        if let Some(mode) = metadata.mode {
            files::set_file_mode(file, mode & PERMISSIONS)?;
        }
        if let Some(time) = modified(metadata).and_then(time) {
            file.set_modified(time)?;
        }
        self.rename(path)
    }

    fn rename(mut self, path: &Path) -> io::Result<()> {
        fs::rename(&self.0, path)?;
        self.0 = PathBuf::new();
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            // The caller already receives the error that caused this.
            let _ = fs::remove_file(&self.0);
        }
    }
}

//! Files on the remote host: typed calls, transfers that survive disconnects, directory trees, and watches.
//!
//! Start at [`Fs`]; [`Fs::open`] and [`Fs::upload`] are for content of any size, [`Fs::upload_tree`] and
//! [`Fs::download_tree`] for directories. [`Transfer`] and [`copy_trees`] are what `remex cp` consists of: files and
//! directories from any host to any other, resumable. Paths are those of the remote host.

mod destination;
mod directory;
mod download;
mod entry;
mod handle;
mod path;
mod progress;
mod search;
mod transfer;
#[cfg(feature = "trees")]
mod tree;
#[cfg(feature = "trees")]
mod tree_copy;
mod upload;
mod watch;

use bytes::Bytes;
pub use remex_proto::{
    HostPath,
    fs::{
        Change, ChangeKind, ContentHash, DirectoryEntry, FileHash, FoundFile, FoundLine, IfMatch, LinkTarget,
        Metadata, MetadataKind, SearchLimit, SearchOptions, SearchReply, SearchReport, WalkEntry, WalkError,
        WalkKind, WalkOptions, WalkReply,
    },
};
use remex_proto::{error::NOT_FOUND, fs as wire, sandbox::Sandbox};

pub use self::{
    directory::Pages,
    download::Download,
    entry::Times,
    path::{AsHostPath, entry_name},
    progress::Progress,
    transfer::{Transfer, Transferred},
    upload::Permissions,
    watch::{Changes, Depth, Watch},
};
#[cfg(feature = "trees")]
pub use self::{
    tree::{SkipUnchanged, TreeCopy, TreeEntry, TreeFailure, TreeReport, TreeRules},
    tree_copy::{
        CopyAction, CopyFailure, CopyMarker, CopyObserver, CopyPath, CopyProblem, CopyTask, Extraneous,
        copy_trees,
    },
};
use crate::{Client, Error};

/// Access to the files of the remote host.
///
/// A cheap clone of its client, which lives at least as long. Paths are absolute, or `file:` URIs.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// let directory = tempfile::tempdir()?;
/// let path = directory.path().join("greeting");
///
/// let fs = client.fs();
/// fs.write(&path, "hello\n").await?;
/// assert_eq!(fs.read(&path).await?, "hello\n");
/// fs.remove(&path).await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Fs {
    client: Client,
}

impl Client {
    /// Returns access to the files of the remote host.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// assert!(client.fs().exists("/").await?);
    /// # Ok(()) }
    /// ```
    pub fn fs(&self) -> Fs {
        Fs { client: self.clone() }
    }
}

/// How a whole file is written.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
/// use remex_client::fs::{IfMatch, Write};
///
/// let path = directory.path().join("list");
/// fs.write_if(&path, "one\n", IfMatch::Absent, Write::Atomic).await?;
/// assert_eq!(fs.read(&path).await?, "one\n");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Write {
    /// In place: the file keeps its links and permissions, but concurrent readers may see partial content.
    #[default]
    InPlace,
    /// Atomically, through a temporary file: readers see either the old content or the new.
    Atomic,
}

impl Fs {
    /// Returns the content of a file of up to 512 MiB; [`Fs::open`] reads any file in constant memory.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] when it cannot be read, and those of [`Client::call`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// let path = directory.path().join("greeting");
    /// fs.write(&path, "hello\n").await?;
    /// assert_eq!(fs.read(&path).await?, "hello\n");
    /// # Ok(()) }
    /// ```
    pub async fn read(&self, path: impl AsHostPath) -> Result<Bytes, Error> {
        let path = path.as_host_path()?;
        let request = wire::ReadFile { path, follow_symlinks: None, sandbox: Sandbox::default() };
        Ok(self.client.call(request).await?.data_base64.0)
    }

    /// Writes a file in place, or creates it; [`Fs::upload`] writes content of any size.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] when it cannot be written, and those of [`Client::call`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// let path = directory.path().join("greeting");
    /// fs.write(&path, "hello\n").await?;
    /// assert_eq!(fs.metadata(&path).await?.size, 6);
    /// # Ok(()) }
    /// ```
    pub async fn write(&self, path: impl AsHostPath, content: impl AsRef<[u8]>) -> Result<(), Error> {
        self.client
            .call(write_file(path.as_host_path()?, Bytes::copy_from_slice(content.as_ref()), Write::InPlace))
            .await?;
        Ok(())
    }

    /// Writes a file atomically.
    ///
    /// # Errors
    ///
    /// As [`Fs::write`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// let path = directory.path().join("settings");
    /// fs.write(&path, "old").await?;
    /// fs.write_atomic(&path, "new").await?;
    /// assert_eq!(fs.read(&path).await?, "new");
    /// # Ok(()) }
    /// ```
    pub async fn write_atomic(&self, path: impl AsHostPath, content: impl AsRef<[u8]>) -> Result<(), Error> {
        self.client
            .call(write_file(path.as_host_path()?, Bytes::copy_from_slice(content.as_ref()), Write::Atomic))
            .await?;
        Ok(())
    }

    /// Writes a file if its current content matches the condition; returns the hash of the new content.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] with [`ErrorKind::ContentChanged`](crate::ErrorKind::ContentChanged) when it does
    /// not match, [`Error::Interrupted`] when it is unknown after a disconnect whether the file was written.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// use remex_client::{ErrorKind, fs::{IfMatch, Write}};
    ///
    /// let path = directory.path().join("list");
    /// let hash = fs.write_if(&path, "one\n", IfMatch::Absent, Write::Atomic).await?;
    /// fs.write_if(&path, "one\ntwo\n", IfMatch::Content(hash), Write::Atomic).await?;
    ///
    /// let late = fs.write_if(&path, "one\nthree\n", IfMatch::Content(hash), Write::Atomic).await;
    /// assert_eq!(late.unwrap_err().kind(), Some(ErrorKind::ContentChanged));
    /// # Ok(()) }
    /// ```
    pub async fn write_if(
        &self,
        path: impl AsHostPath,
        content: impl AsRef<[u8]>,
        expected: IfMatch,
        how: Write,
    ) -> Result<ContentHash, Error> {
        let mut request = write_file(path.as_host_path()?, Bytes::copy_from_slice(content.as_ref()), how);
        request.if_match = Some(expected);
        let reply = self.client.call(request).await?;
        reply.hash.ok_or_else(|| Error::Protocol {
            what:
                "the reply to a conditional write has no hash, so the server may have ignored the condition"
                    .to_owned(),
        })
    }

    /// Returns the hash of a file.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] when it cannot be read, and those of [`Client::call`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// let (one, two) = (directory.path().join("one"), directory.path().join("two"));
    /// fs.write(&one, "hello\n").await?;
    /// fs.copy(&one, &two).await?;
    /// assert_eq!(fs.hash(&one).await?, fs.hash(&two).await?);
    /// # Ok(()) }
    /// ```
    pub async fn hash(&self, path: impl AsHostPath) -> Result<FileHash, Error> {
        self.client.call(hash_file(path.as_host_path()?)).await
    }

    /// Returns the hash of a part of a file.
    ///
    /// # Errors
    ///
    /// As [`Fs::hash`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// let path = directory.path().join("log");
    /// fs.write(&path, "one\ntwo\n").await?;
    /// let part = fs.hash_part(&path, 0, 4).await?;
    /// assert_eq!((part.bytes, part.size), (4, 8));
    /// # Ok(()) }
    /// ```
    pub async fn hash_part(&self, path: impl AsHostPath, offset: u64, len: u64) -> Result<FileHash, Error> {
        let whole = hash_file(path.as_host_path()?);
        self.client.call(wire::HashFile { offset, len: Some(len), ..whole }).await
    }

    /// Returns whether the server speaks the base dialect, which has no renames, links or permissions.
    fn is_base(&self) -> bool {
        self.client.welcome().server.name.is_empty()
    }
}

impl Fs {
    /// Returns whether files can be opened; in the oldest dialect they are only read and written as a whole.
    fn has_handles(&self) -> bool {
        self.client.welcome().has_sessions()
    }
}

fn write_file(path: HostPath, content: Bytes, how: Write) -> wire::WriteFile {
    wire::WriteFile {
        path,
        data_base64: content.into(),
        follow_symlinks: None,
        atomic: how == Write::Atomic,
        if_match: None,
        create_mode: None,
        sandbox: Sandbox::default(),
    }
}

fn hash_file(path: HostPath) -> wire::HashFile {
    wire::HashFile { path, offset: 0, len: None, follow_symlinks: None, sandbox: Sandbox::default() }
}

/// Returns whether a file does not exist, in any dialect.
fn is_not_found(error: &Error) -> bool {
    matches!(error, Error::Refused(refusal) if refusal.code == NOT_FOUND)
}

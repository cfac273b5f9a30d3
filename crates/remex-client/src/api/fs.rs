//! Files on the remote host: typed calls, transfers that survive disconnects, directory trees, and watches.
//!
//! Start at [`Fs`]; [`Fs::open`] and [`Fs::upload`] are for content of any size, [`Fs::upload_tree`] and
//! [`Fs::download_tree`] for directories. [`Transfer`] and [`copy_trees`] are what `remex cp` consists of: files and
//! directories from any host to any other, resumable. Paths are those of the remote host.

mod call;
mod destination;
mod directory;
mod download;
mod entry;
mod handle;
pub(crate) mod path;
mod progress;
mod search;
mod transfer;
#[cfg(feature = "trees")]
mod tree;
#[cfg(feature = "trees")]
mod tree_copy;
mod upload;
mod watch;

use bytes::{Bytes, BytesMut};
pub use remex_proto::{
    HostPath,
    fs::{
        Change, ChangeKind, ContentHash, DirectoryEntry, FileHash, FoundFile, FoundLine, IfMatch, LinkTarget,
        Metadata, MetadataKind, SearchLimit, SearchOptions, SearchReply, SearchReport, WalkEntry, WalkError,
        WalkKind, WalkOptions, WalkReply,
    },
};
use remex_proto::{call::Request as _, error::NOT_FOUND, fs as wire, sandbox::Sandbox};

pub use self::{
    call::FileCall,
    directory::Pages,
    download::{Download, DownloadTo},
    entry::Times,
    path::{AsHostPath, entry_name},
    progress::Progress,
    transfer::{Transfer, TransferRun, Transferred},
    upload::Upload,
    watch::{Changes, Depth, Watch},
};
#[cfg(feature = "trees")]
pub use self::{
    tree::{TreeCopy, TreeEntry, TreeFailure, TreeReport},
    tree_copy::{
        CopyAction, CopyFailure, CopyMarker, CopyObserver, CopyPath, CopyProblem, CopyTask, Extraneous,
        SkipUnchanged, TreeRules, copy_trees,
    },
};
use crate::{Client, Error};

/// The largest file that is read as a whole.
const MAX_READ_BYTES: u64 = 512 << 20;

/// Access to the files of the remote host.
///
/// A cheap clone of its client, which lives at least as long. Paths are those of [`AsHostPath`].
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

impl Fs {
    /// Returns the content of a file of up to 512 MiB; [`Fs::open`] reads any file in constant memory.
    ///
    /// After a disconnect it continues where it was.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] when it cannot be read, [`Error::Changed`] when it changed during a disconnect, and those of
    /// [`Client::call`].
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
        self.client.within_limit(wire::ReadFile::METHOD, self.read_whole(&path)).await
    }

    /// Writes a file, or creates it, and returns the hash of the content; [`Fs::upload`] writes content of any size.
    ///
    /// It is written in place: the file keeps its links and permissions, but concurrent readers may see partial content.
    /// [`FileCall::atomic`] and [`FileCall::if_match`] change that.
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
    /// let hash = fs.write(&path, "hello\n").await?;
    /// assert_eq!(hash, fs.hash(&path).await?.hash);
    /// # Ok(()) }
    /// ```
    pub fn write(&self, path: impl AsHostPath, content: impl AsRef<[u8]>) -> FileCall<wire::WriteFile> {
        let content = Bytes::copy_from_slice(content.as_ref());
        FileCall::new(self, path.as_host_path().map(|path| write_file(path, content)))
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
    /// Reads a file in one message, which takes one round trip; after a disconnect in blocks, because a long message may
    /// not get through at all.
    async fn read_whole(&self, path: &HostPath) -> Result<Bytes, Error> {
        if !self.has_handles() {
            return self.read_in_one_message(path).await;
        }
        match self.client.core().call_once(read_file(path.clone()).into()).await {
            Ok(reply) => {
                let reply: wire::ReadFileReply = reply.decode(wire::ReadFile::METHOD)?;
                Ok(reply.data_base64.0)
            }
            Err(Error::Interrupted { .. }) => match self.read_in_blocks(path).await {
                // Too many disconnects in a row; this call waits for as long as it takes.
                Err(Error::Interrupted { .. }) => self.read_in_one_message(path).await,
                read => read,
            },
            Err(error) => Err(error),
        }
    }

    async fn read_in_one_message(&self, path: &HostPath) -> Result<Bytes, Error> {
        Ok(self.client.call_without_limit(read_file(path.clone())).await?.data_base64.0)
    }

    async fn read_in_blocks(&self, path: &HostPath) -> Result<Bytes, Error> {
        let mut file = self.open_at(path.clone(), 0).await?;
        let size = file.metadata().size;
        if size > MAX_READ_BYTES {
            // Refused in the words of the server.
            return self.read_in_one_message(path).await;
        }
        let mut content = BytesMut::with_capacity(usize::try_from(size).unwrap_or_default());
        while let Some(chunk) = file.chunk().await? {
            content.extend_from_slice(&chunk);
        }
        Ok(content.freeze())
    }

    /// Returns whether files can be opened; in the oldest dialect they are only read and written as a whole.
    fn has_handles(&self) -> bool {
        self.client.welcome().has_sessions()
    }
}

/// Writes a file in place.
fn write_file(path: HostPath, content: Bytes) -> wire::WriteFile {
    wire::WriteFile {
        path,
        data_base64: content.into(),
        follow_symlinks: None,
        atomic: false,
        if_match: None,
        create_mode: None,
        sandbox: Sandbox::default(),
    }
}

fn read_file(path: HostPath) -> wire::ReadFile {
    wire::ReadFile { path, follow_symlinks: None, sandbox: Sandbox::default() }
}

fn hash_file(path: HostPath) -> wire::HashFile {
    wire::HashFile { path, offset: 0, len: None, follow_symlinks: None, sandbox: Sandbox::default() }
}

/// Returns whether a file does not exist, in any dialect.
fn is_not_found(error: &Error) -> bool {
    matches!(error, Error::Refused(refusal) if refusal.code == NOT_FOUND)
}

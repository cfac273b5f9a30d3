//! File requests with options, which are sent when they are awaited.
//!
//! Start at [`FileCall`].

use std::{fmt, pin::Pin};

use bytes::Bytes;
use remex_proto::fs as wire;
use sha2::{Digest as _, Sha256};

use super::{ContentHash, Fs, IfMatch, Metadata};
use crate::{Error, base::error::usage};

/// Content up to this length is hashed inline; hashing more would block other tasks.
const HASHED_INLINE_BYTES: usize = 256 << 10;

/// A file request, from a method of [`Fs`]; its own methods are options, and it is sent when it is awaited.
///
/// Paths that are invalid fail it when it is awaited.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
/// let tree = directory.path().join("tree");
/// fs.create_dir_all(tree.join("a/b")).await?;
/// fs.write(tree.join("list"), "one\n").atomic().await?;
/// fs.remove(&tree).recursive().await?;
/// fs.remove(&tree).missing_ok().await?;
/// # Ok(()) }
/// ```
#[must_use = "a file request is sent when it is awaited"]
pub struct FileCall<R> {
    fs: Fs,
    request: Result<R, Error>,
}

/// A request that [`FileCall`] sends; its module is private, so only this crate implements it.
pub trait FileRequest: Send + 'static {
    /// What its answer becomes.
    type Output;

    /// Sends it.
    fn send(self, fs: &Fs) -> impl Future<Output = Result<Self::Output, Error>> + Send;
}

impl<R> FileCall<R> {
    pub(super) fn new(fs: &Fs, request: Result<R, Error>) -> Self {
        Self { fs: fs.clone(), request }
    }

    fn with(mut self, change: impl FnOnce(&mut R)) -> Self {
        if let Ok(request) = &mut self.request {
            change(request);
        }
        self
    }
}

impl<R: FileRequest> IntoFuture for FileCall<R> {
    type Output = Result<R::Output, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.request?.send(&self.fs).await })
    }
}

impl<R: fmt::Debug> fmt::Debug for FileCall<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileCall").field("request", &self.request).finish_non_exhaustive()
    }
}

/// Options of [`Fs::write`].
impl FileCall<wire::WriteFile> {
    /// Writes through a temporary file: readers see either the old content or the new, but the file loses its hard links.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// let path = directory.path().join("settings");
    /// fs.write(&path, "old").await?;
    /// fs.write(&path, "new").atomic().await?;
    /// assert_eq!(fs.read(&path).await?, "new");
    /// # Ok(()) }
    /// ```
    pub fn atomic(self) -> Self {
        self.with(|request| request.atomic = true)
    }

    /// Writes only if the current content matches this condition.
    ///
    /// Otherwise it fails with [`ErrorKind::ContentChanged`](crate::ErrorKind::ContentChanged), and with
    /// [`Error::Interrupted`] when it is unknown after a disconnect whether the file was written.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// use remex_client::{ErrorKind, fs::IfMatch};
    ///
    /// let path = directory.path().join("list");
    /// let hash = fs.write(&path, "one\n").if_match(IfMatch::Absent).await?;
    /// fs.write(&path, "one\ntwo\n").if_match(IfMatch::Content(hash)).atomic().await?;
    ///
    /// let late = fs.write(&path, "one\nthree\n").if_match(IfMatch::Content(hash)).await;
    /// assert_eq!(late.unwrap_err().kind(), Some(ErrorKind::ContentChanged));
    /// # Ok(()) }
    /// ```
    pub fn if_match(self, expected: IfMatch) -> Self {
        self.with(|request| request.if_match = Some(expected))
    }
}

/// Options of [`Fs::metadata`].
impl FileCall<wire::GetMetadata> {
    /// Refuses symbolic links anywhere in the path, with [`ErrorKind::SymbolicLink`](crate::ErrorKind::SymbolicLink) or
    /// [`ErrorKind::NotADirectory`](crate::ErrorKind::NotADirectory).
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// let link = directory.path().join("link");
    /// fs.symlink("/", &link).await?;
    /// assert!(fs.metadata(&link).await?.is_directory);
    /// assert!(fs.metadata(&link).without_links().await.is_err());
    /// # Ok(()) }
    /// ```
    pub fn without_links(self) -> Self {
        self.with(|request| request.follow_symlinks = Some(false))
    }
}

/// Options of [`Fs::create_dir`] and [`Fs::create_dir_all`].
impl FileCall<wire::CreateDirectory> {
    /// Refuses symbolic links anywhere in the path.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// let link = directory.path().join("link");
    /// fs.symlink("/", &link).await?;
    /// fs.create_dir_all(&link).await?;
    /// assert!(fs.create_dir_all(&link).without_links().await.is_err());
    /// # Ok(()) }
    /// ```
    pub fn without_links(self) -> Self {
        self.with(|request| request.follow_symlinks = Some(false))
    }
}

/// Options of [`Fs::set_permissions`].
impl FileCall<wire::SetPermissions> {
    /// Refuses symbolic links anywhere in the path.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// let link = directory.path().join("link");
    /// fs.symlink(".", &link).await?;
    /// assert!(fs.set_permissions(&link, 0o700).without_links().await.is_err());
    /// # Ok(()) }
    /// ```
    pub fn without_links(self) -> Self {
        self.with(|request| request.follow_symlinks = Some(false))
    }
}

/// Options of [`Fs::remove`].
impl FileCall<wire::Remove> {
    /// Removes a directory with everything in it.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// let tree = directory.path().join("tree");
    /// fs.create_dir_all(tree.join("a/b")).await?;
    /// assert!(fs.remove(&tree).await.is_err());
    /// fs.remove(&tree).recursive().await?;
    /// assert!(!fs.exists(&tree).await?);
    /// # Ok(()) }
    /// ```
    pub fn recursive(self) -> Self {
        self.with(|request| request.recursive = Some(true))
    }

    /// Does nothing if the path does not exist.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// let nothing = directory.path().join("nothing");
    /// assert!(fs.remove(&nothing).await.is_err());
    /// fs.remove(&nothing).missing_ok().await?;
    /// # Ok(()) }
    /// ```
    pub fn missing_ok(self) -> Self {
        self.with(|request| request.force = Some(true))
    }

    /// Refuses symbolic links in the path before its last part.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// let link = directory.path().join("link");
    /// fs.symlink(".", &link).await?;
    /// fs.write(directory.path().join("file"), "").await?;
    /// assert!(fs.remove(link.join("file")).without_links().await.is_err());
    /// # Ok(()) }
    /// ```
    pub fn without_links(self) -> Self {
        self.with(|request| request.follow_symlinks = Some(false))
    }
}

/// Options of [`Fs::copy`].
impl FileCall<wire::Copy> {
    /// Copies a directory with everything in it; into itself it is refused.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// let (from, to) = (directory.path().join("from"), directory.path().join("to"));
    /// fs.create_dir(&from).await?;
    /// fs.write(from.join("greeting"), "hello\n").await?;
    /// fs.copy(&from, &to).recursive().await?;
    /// assert_eq!(fs.read(to.join("greeting")).await?, "hello\n");
    /// # Ok(()) }
    /// ```
    pub fn recursive(self) -> Self {
        self.with(|request| request.recursive = true)
    }
}

/// Options of [`Fs::rename`].
impl FileCall<wire::Rename> {
    /// Never replaces an existing file, but fails with [`ErrorKind::AlreadyExists`](crate::ErrorKind::AlreadyExists).
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// use remex_client::ErrorKind;
    ///
    /// let (from, to) = (directory.path().join("from"), directory.path().join("to"));
    /// fs.write(&from, "new").await?;
    /// fs.write(&to, "old").await?;
    /// let error = fs.rename(&from, &to).keep_existing().await.unwrap_err();
    /// assert_eq!(error.kind(), Some(ErrorKind::AlreadyExists));
    /// # Ok(()) }
    /// ```
    pub fn keep_existing(self) -> Self {
        self.with(|request| request.overwrite = Some(false))
    }
}

impl FileRequest for wire::WriteFile {
    type Output = ContentHash;

    async fn send(self, fs: &Fs) -> Result<ContentHash, Error> {
        if self.if_match.is_some() {
            return fs.client.call(self).await?.hash.ok_or_else(|| Error::Protocol {
                what: "the reply to a conditional write has no hash, so the server may have ignored the condition"
                    .to_owned(),
            });
        }
        let content = self.data_base64.decode().map_err(|error| usage(error.to_string(), "send bytes"))?.0;
        let (written, hash) = tokio::join!(fs.client.call(self), hash(content));
        written.map(|_| hash)
    }
}

/// Returns the hash of content, without blocking other tasks if it is long.
async fn hash(content: Bytes) -> ContentHash {
    let is_long = content.len() > HASHED_INLINE_BYTES;
    let hash = move || ContentHash(Sha256::digest(&content).into());
    if !is_long {
        return hash();
    }
    tokio::task::spawn_blocking(hash.clone()).await.unwrap_or_else(|_| hash())
}

impl FileRequest for wire::GetMetadata {
    type Output = Metadata;

    async fn send(self, fs: &Fs) -> Result<Metadata, Error> {
        fs.client.call(self).await
    }
}

impl FileRequest for wire::Copy {
    type Output = ();

    async fn send(self, fs: &Fs) -> Result<(), Error> {
        // It may take as long as it does.
        fs.client.call_without_limit(self).await.map(drop)
    }
}

/// Implements requests that are answered with nothing.
macro_rules! answered_with_nothing {
    ($($request:ty)*) => {$(
        impl FileRequest for $request {
            type Output = ();

            async fn send(self, fs: &Fs) -> Result<(), Error> {
                fs.client.call(self).await.map(drop)
            }
        }
    )*};
}

answered_with_nothing! { wire::CreateDirectory wire::SetPermissions wire::Remove wire::Rename }

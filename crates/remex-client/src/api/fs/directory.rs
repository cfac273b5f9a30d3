//! Creating, listing and walking directories.

use remex_proto::{HostPath, fs as wire, sandbox::Sandbox};

use super::{AsHostPath, DirectoryEntry, FileCall, Fs, WalkOptions, WalkReply};
use crate::Error;

/// The most entries of the first page.
const FIRST_PAGE: u64 = 1000;

/// The most entries of a page: the server reads the whole directory for each, so a large one is listed in large pages.
const LARGEST_PAGE: u64 = 16_000;

impl Fs {
    /// Creates a directory; the path must not exist, and its parent must.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] when the path exists, and those of [`Client::call`](crate::Client::call).
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// let path = directory.path().join("new");
    /// fs.create_dir(&path).await?;
    /// assert!(fs.create_dir(&path).await.is_err());
    /// # Ok(()) }
    /// ```
    pub fn create_dir(&self, path: impl AsHostPath) -> FileCall<wire::CreateDirectory> {
        let request = path.as_host_path().map(create_directory);
        FileCall::new(self, request.map(|all| wire::CreateDirectory { recursive: Some(false), ..all }))
    }

    /// Creates a directory with all its parents; it may already exist.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] when the path is not a directory, and those of [`Client::call`](crate::Client::call).
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// let path = directory.path().join("a/b/c");
    /// fs.create_dir_all(&path).await?;
    /// assert!(fs.metadata(&path).await?.is_directory);
    /// # Ok(()) }
    /// ```
    pub fn create_dir_all(&self, path: impl AsHostPath) -> FileCall<wire::CreateDirectory> {
        FileCall::new(self, path.as_host_path().map(create_directory))
    }

    /// Returns the entries of a directory, sorted by name, with their metadata.
    ///
    /// A server of the base dialect neither sorts nor returns metadata or broken links.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] when it cannot be read, and those of [`Client::call`](crate::Client::call).
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// fs.write(directory.path().join("a"), "").await?;
    /// fs.create_dir(directory.path().join("b")).await?;
    /// let entries = fs.read_dir(directory.path()).await?;
    /// assert_eq!(entries.iter().map(|entry| entry.file_name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    /// assert!(entries[1].is_directory);
    /// # Ok(()) }
    /// ```
    pub async fn read_dir(&self, path: impl AsHostPath) -> Result<Vec<DirectoryEntry>, Error> {
        let mut pages = self.read_dir_pages(path)?;
        let mut entries = Vec::new();
        while let Some(page) = pages.next().await? {
            entries.extend(page);
        }
        Ok(entries)
    }

    /// Returns the entries of a directory in pages, for directories of any size.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] for an invalid path.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// fs.write(directory.path().join("a"), "").await?;
    /// let (mut pages, mut names) = (fs.read_dir_pages(directory.path())?, Vec::new());
    /// while let Some(page) = pages.next().await? {
    ///     names.extend(page.into_iter().map(|entry| entry.file_name));
    /// }
    /// assert_eq!(names, ["a"]);
    /// # Ok(()) }
    /// ```
    pub fn read_dir_pages(&self, path: impl AsHostPath) -> Result<Pages, Error> {
        Ok(Pages { fs: self.clone(), path: path.as_host_path()?, next: Next::First, limit: FIRST_PAGE })
    }

    /// Returns the tree below a directory, within limits.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] when the directory cannot be read or a limit is out of range, and those of
    /// [`Client::call`](crate::Client::call).
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// use remex_client::fs::WalkOptions;
    ///
    /// fs.create_dir_all(directory.path().join("a/b")).await?;
    /// let options = WalkOptions::default().max_depth(10).prune_hidden_directories();
    /// let found = fs.walk(directory.path(), options).await?;
    /// assert!(found.entries.iter().any(|entry| entry.path.to_string().ends_with("a/b")) && !found.truncated);
    /// # Ok(()) }
    /// ```
    pub async fn walk(&self, path: impl AsHostPath, options: WalkOptions) -> Result<WalkReply, Error> {
        let path = path.as_host_path()?;
        self.client.call(wire::Walk { path, options, sandbox: Sandbox::default() }).await
    }
}

/// The pages of a directory.
///
/// Each page is a separate request, so dropping this leaves nothing open on the server.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
/// let mut pages = fs.read_dir_pages(directory.path())?;
/// while let Some(page) = pages.next().await? {
///     assert!(page.is_empty());
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Pages {
    fs: Fs,
    path: HostPath,
    next: Next,
    limit: u64,
}

#[derive(Debug)]
enum Next {
    First,
    From(String),
    Nothing,
}

impl Pages {
    /// Returns the next page, `None` after the last. Cancel-safe.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] when it cannot be read, and those of [`Client::call`](crate::Client::call).
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// let mut pages = fs.read_dir_pages(directory.path())?;
    /// assert_eq!(pages.next().await?, Some(Vec::new()));
    /// assert_eq!(pages.next().await?, None);
    /// # Ok(()) }
    /// ```
    pub async fn next(&mut self) -> Result<Option<Vec<DirectoryEntry>>, Error> {
        let cursor = match &self.next {
            Next::First => None,
            Next::From(cursor) => Some(cursor.clone()),
            Next::Nothing => return Ok(None),
        };
        let request = wire::ReadDirectory {
            path: self.path.clone(),
            limit: Some(self.limit),
            cursor,
            details: true,
            sandbox: Sandbox::default(),
        };
        let listing = self.fs.client.call(request).await?;
        self.next = listing.next_cursor.map_or(Next::Nothing, Next::From);
        self.limit = (self.limit * 2).min(LARGEST_PAGE);
        Ok(Some(listing.entries))
    }
}

pub(super) fn create_directory(path: HostPath) -> wire::CreateDirectory {
    wire::CreateDirectory { path, recursive: None, follow_symlinks: None, sandbox: Sandbox::default() }
}

//! Directories: making, listing and walking them.

use remex_proto::{HostPath, fs as wire, sandbox::Sandbox};

use super::{AsHostPath, DirectoryEntry, Fs, WalkOptions, WalkReply};
use crate::Error;

/// The most entries of one page.
const PAGE: u64 = 1000;

impl Fs {
    /// Makes a directory, where nothing may be yet; its parent must exist.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] when something is there, and those of [`Client::call`](crate::Client::call).
    pub async fn create_dir(&self, path: impl AsHostPath) -> Result<(), Error> {
        let request = create_directory(path.as_host_path()?);
        self.client.call(wire::CreateDirectory { recursive: Some(false), ..request }).await?;
        Ok(())
    }

    /// Makes a directory with all its parents; it may be there already.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] when something else is there, and those of [`Client::call`](crate::Client::call).
    pub async fn create_dir_all(&self, path: impl AsHostPath) -> Result<(), Error> {
        self.client.call(create_directory(path.as_host_path()?)).await?;
        Ok(())
    }

    /// Returns what is in a directory, in the order of the names, with the metadata of each entry.
    ///
    /// A server of the base dialect tells neither order nor metadata nor broken links.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] when it cannot be read, and those of [`Client::call`](crate::Client::call).
    pub async fn read_dir(&self, path: impl AsHostPath) -> Result<Vec<DirectoryEntry>, Error> {
        let mut pages = self.read_dir_pages(path)?;
        let mut entries = Vec::new();
        while let Some(page) = pages.next().await? {
            entries.extend(page);
        }
        Ok(entries)
    }

    /// Returns what is in a directory page by page, for directories of any size.
    ///
    /// ```no_run
    /// # use remex_client::{Client, Error};
    /// async fn example(client: &Client) -> Result<(), Error> {
    ///     let mut pages = client.fs().read_dir_pages("/var/spool")?;
    ///     while let Some(page) = pages.next().await? {
    ///         println!("{} more", page.len());
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] for a path that is none.
    pub fn read_dir_pages(&self, path: impl AsHostPath) -> Result<Pages, Error> {
        Ok(Pages { fs: self.clone(), path: path.as_host_path()?, next: Next::First })
    }

    /// Returns what is below a directory, within limits.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] when the directory cannot be read or a limit is out of range, and those of
    /// [`Client::call`](crate::Client::call).
    pub async fn walk(&self, path: impl AsHostPath, options: WalkOptions) -> Result<WalkReply, Error> {
        let path = path.as_host_path()?;
        self.client.call(wire::Walk { path, options, sandbox: Sandbox::default() }).await
    }
}

/// The pages of a directory.
#[derive(Debug)]
pub struct Pages {
    fs: Fs,
    path: HostPath,
    next: Next,
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
    pub async fn next(&mut self) -> Result<Option<Vec<DirectoryEntry>>, Error> {
        let cursor = match &self.next {
            Next::First => None,
            Next::From(cursor) => Some(cursor.clone()),
            Next::Nothing => return Ok(None),
        };
        let request = wire::ReadDirectory {
            path: self.path.clone(),
            limit: Some(PAGE),
            cursor,
            details: true,
            sandbox: Sandbox::default(),
        };
        let listing = self.fs.client.call(request).await?;
        self.next = listing.next_cursor.map_or(Next::Nothing, Next::From);
        Ok(Some(listing.entries))
    }
}

pub(super) fn create_directory(path: HostPath) -> wire::CreateDirectory {
    wire::CreateDirectory { path, recursive: None, follow_symlinks: None, sandbox: Sandbox::default() }
}

//! Metadata, removal, copies, renames, links, permissions and times.

use std::{
    ffi::OsStr,
    time::{SystemTime, UNIX_EPOCH},
};

use remex_proto::{Blob, ErrorKind, HostPath, fs as wire, sandbox::Sandbox};

use super::{AsHostPath, FileCall, Fs, LinkTarget, handle::RetryBudget, is_not_found};
use crate::Error;

/// Which times of a file to change; absent ones stay.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
/// use std::time::{Duration, SystemTime};
/// use remex_client::fs::Times;
///
/// let yesterday = SystemTime::now() - Duration::from_secs(24 * 60 * 60);
/// let times = Times::default().modified(yesterday);
/// fs.set_times(directory.path(), times).await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Times {
    /// When the content changed last.
    pub modified: Option<SystemTime>,
    /// When it was read last.
    pub accessed: Option<SystemTime>,
}

impl Times {
    /// Sets when the content changed last.
    ///
    /// See [`Times`] for an example.
    #[must_use]
    pub fn modified(mut self, time: SystemTime) -> Self {
        self.modified = Some(time);
        self
    }

    /// Sets when it was read last.
    ///
    /// ```
    /// use std::time::SystemTime;
    /// use remex_client::fs::Times;
    ///
    /// let times = Times::default().accessed(SystemTime::UNIX_EPOCH);
    /// assert_eq!((times.accessed, times.modified), (Some(SystemTime::UNIX_EPOCH), None));
    /// ```
    #[must_use]
    pub fn accessed(mut self, time: SystemTime) -> Self {
        self.accessed = Some(time);
        self
    }
}

/// All of these fail with [`Error::Refused`] when the operation fails on the remote host, and with the errors of
/// [`Client::call`](crate::Client::call).
impl Fs {
    /// Returns the metadata of a path; follows a link, and sets `is_symlink` if the path itself is one.
    ///
    /// # Errors
    ///
    /// A dangling link is not found; use [`Fs::read_link`] for the link itself.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// let path = directory.path().join("greeting");
    /// fs.write(&path, "hello\n").await?;
    /// let metadata = fs.metadata(&path).await?;
    /// assert!(metadata.is_file && metadata.size == 6);
    /// # Ok(()) }
    /// ```
    pub fn metadata(&self, path: impl AsHostPath) -> FileCall<wire::GetMetadata> {
        FileCall::new(self, path.as_host_path().map(get_metadata))
    }

    /// Returns whether a path exists; a dangling link does not.
    ///
    /// # Errors
    ///
    /// When that cannot be determined, for example because a parent directory is not searchable.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// assert!(fs.exists(directory.path()).await?);
    /// assert!(!fs.exists(directory.path().join("nothing")).await?);
    /// # Ok(()) }
    /// ```
    pub async fn exists(&self, path: impl AsHostPath) -> Result<bool, Error> {
        match self.metadata(path).await {
            Ok(_) => Ok(true),
            Err(error) if is_not_found(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the path without symbolic links; it must exist.
    ///
    /// # Errors
    ///
    /// When it does not exist.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// let link = directory.path().join("link");
    /// fs.symlink("/", &link).await?;
    /// assert_eq!(fs.canonicalize(&link).await?.to_string(), "/");
    /// # Ok(()) }
    /// ```
    pub async fn canonicalize(&self, path: impl AsHostPath) -> Result<HostPath, Error> {
        let path = path.as_host_path()?;
        let request = wire::Canonicalize { path, sandbox: Sandbox::default() };
        Ok(self.client.call(request).await?.path)
    }

    /// Removes an existing file, link or empty directory; see [`FileCall::missing_ok`] and [`recursive`](FileCall#method.recursive) for the options.
    ///
    /// # Errors
    ///
    /// When it does not exist, or is a directory that is not empty, unless an option allows it.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// let path = directory.path().join("greeting");
    /// fs.write(&path, "hello\n").await?;
    /// fs.remove(&path).await?;
    /// assert!(!fs.exists(&path).await?);
    /// # Ok(()) }
    /// ```
    pub fn remove(&self, path: impl AsHostPath) -> FileCall<wire::Remove> {
        FileCall::new(self, path.as_host_path().map(remove))
    }

    /// Copies a file with its permissions, or a link as a link, on the remote host.
    ///
    /// # Errors
    ///
    /// When the source is a directory, unless the copy is `recursive`.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// let (from, to) = (directory.path().join("from"), directory.path().join("to"));
    /// fs.write(&from, "hello\n").await?;
    /// fs.copy(&from, &to).await?;
    /// assert_eq!(fs.read(&to).await?, "hello\n");
    /// # Ok(()) }
    /// ```
    pub fn copy(&self, from: impl AsHostPath, to: impl AsHostPath) -> FileCall<wire::Copy> {
        FileCall::new(self, copy(from, to))
    }

    /// Renames atomically within one file system, and replaces an existing file.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::CrossDevice`] between file systems, [`Error::Interrupted`] when it is unknown after a disconnect
    /// whether it took effect.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// let (from, to) = (directory.path().join("from"), directory.path().join("to"));
    /// fs.write(&from, "hello\n").await?;
    /// fs.rename(&from, &to).await?;
    /// assert!(fs.exists(&to).await? && !fs.exists(&from).await?);
    /// # Ok(()) }
    /// ```
    pub fn rename(&self, from: impl AsHostPath, to: impl AsHostPath) -> FileCall<wire::Rename> {
        let paths = from.as_host_path().and_then(|from| Ok((from, to.as_host_path()?)));
        FileCall::new(self, paths.map(|(from, to)| rename(from, to)))
    }

    /// Creates a symbolic link at `path`; a relative `target` is relative to its directory.
    ///
    /// # Errors
    ///
    /// When the path already exists.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// let link = directory.path().join("current");
    /// fs.symlink("release-7", &link).await?;
    /// assert_eq!(fs.read_link(&link).await?.target, "release-7");
    /// # Ok(()) }
    /// ```
    pub async fn symlink(&self, target: impl AsRef<OsStr>, path: impl AsHostPath) -> Result<(), Error> {
        self.client.call(symlink(target.as_ref().as_encoded_bytes(), path.as_host_path()?)).await?;
        Ok(())
    }

    /// Creates a symbolic link, and replaces an existing file or link; fails if the path is a directory.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] when it cannot be created, and those of [`Client::call`](crate::Client::call).
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// let path = directory.path().join("current");
    /// fs.write(&path, "a file").await?;
    /// fs.replace_with_symlink("release-7", &path).await?;
    /// assert_eq!(fs.read_link(&path).await?.target, "release-7");
    /// # Ok(()) }
    /// ```
    pub async fn replace_with_symlink(
        &self,
        target: impl AsRef<OsStr>,
        path: impl AsHostPath,
    ) -> Result<(), Error> {
        self.replace_with_link(target.as_ref().as_encoded_bytes(), &path.as_host_path()?).await
    }

    /// As [`Fs::replace_with_symlink`], with the target in bytes.
    pub(super) async fn replace_with_link(&self, target: &[u8], path: &HostPath) -> Result<(), Error> {
        let mut retries = RetryBudget::default();
        loop {
            match self.client.call_without_limit(symlink(target, path.clone())).await {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == Some(ErrorKind::AlreadyExists) => {
                    match self.read_link(path).await {
                        Ok(there) if there.target_base64[..] == *target => return Ok(()),
                        Err(gone) if is_not_found(&gone) => {}
                        Ok(_) | Err(_) => self.remove_for_link(path, error).await?,
                    }
                }
                Err(error) => retries.note(error)?,
            }
        }
    }

    /// Removes an existing file or link so that a link can be created.
    async fn remove_for_link(&self, path: &HostPath, exists: Error) -> Result<(), Error> {
        if self.metadata(path).await.is_ok_and(|there| there.is_directory && !there.is_symlink) {
            return Err(exists);
        }
        self.remove_if_there(path).await
    }

    /// Removes a file or link, if it exists.
    pub(super) async fn remove_if_there(&self, path: &HostPath) -> Result<(), Error> {
        let mut retries = RetryBudget::default();
        loop {
            match self.remove(path).await {
                Err(error) if !is_not_found(&error) => retries.note(error)?,
                _ => return Ok(()),
            }
        }
    }

    /// Returns the target of a symbolic link, whether it exists or not.
    ///
    /// # Errors
    ///
    /// When the path is not a link.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// let link = directory.path().join("dangling");
    /// fs.symlink("nowhere", &link).await?;
    /// assert_eq!(fs.read_link(&link).await?.target, "nowhere");
    /// assert!(!fs.exists(&link).await?);
    /// # Ok(()) }
    /// ```
    pub async fn read_link(&self, path: impl AsHostPath) -> Result<LinkTarget, Error> {
        let path = path.as_host_path()?;
        self.client.call(wire::ReadLink { path, sandbox: Sandbox::default() }).await
    }

    /// Sets the permission bits: 0 to octal 7777.
    ///
    /// A server leaves set-user-ID and set-group-ID of files out for a credential without the scope `files:setid`;
    /// [`Fs::metadata`] has the mode that resulted.
    ///
    /// # Errors
    ///
    /// When the user of the server lacks the permission.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// let script = directory.path().join("script");
    /// fs.write(&script, "#!/bin/sh\n").await?;
    /// fs.set_permissions(&script, 0o755).await?;
    /// assert_eq!(fs.metadata(&script).await?.mode.map(|mode| mode & 0o777), Some(0o755));
    /// # Ok(()) }
    /// ```
    pub fn set_permissions(&self, path: impl AsHostPath, mode: u32) -> FileCall<wire::SetPermissions> {
        FileCall::new(self, path.as_host_path().map(|path| set_permissions(path, mode)))
    }

    /// Sets the times of a file, with millisecond precision.
    ///
    /// # Errors
    ///
    /// When no time is given, or the user of the server lacks the permission.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// use std::time::SystemTime;
    /// use remex_client::fs::Times;
    ///
    /// let times = Times::default().modified(SystemTime::UNIX_EPOCH);
    /// fs.set_times(directory.path(), times).await?;
    /// assert_eq!(fs.metadata(directory.path()).await?.modified_at_ms, 0);
    /// # Ok(()) }
    /// ```
    pub async fn set_times(&self, path: impl AsHostPath, times: Times) -> Result<(), Error> {
        let request = wire::SetTimes {
            path: path.as_host_path()?,
            modified_at_ms: times.modified.map(milliseconds),
            accessed_at_ms: times.accessed.map(milliseconds),
            follow_symlinks: None,
            sandbox: Sandbox::default(),
        };
        self.client.call(request).await?;
        Ok(())
    }
}

pub(super) fn get_metadata(path: HostPath) -> wire::GetMetadata {
    wire::GetMetadata { path, follow_symlinks: None, sandbox: Sandbox::default() }
}

/// Removes an existing entry that is no directory with entries.
pub(super) fn remove(path: HostPath) -> wire::Remove {
    let (recursive, force) = (Some(false), Some(false));
    wire::Remove { path, recursive, force, follow_symlinks: None, sandbox: Sandbox::default() }
}

pub(super) fn rename(source_path: HostPath, destination_path: HostPath) -> wire::Rename {
    wire::Rename { source_path, destination_path, overwrite: None, sandbox: Sandbox::default() }
}

pub(super) fn set_permissions(path: HostPath, mode: u32) -> wire::SetPermissions {
    wire::SetPermissions { path, mode, follow_symlinks: None, sandbox: Sandbox::default() }
}

pub(super) fn symlink(target: &[u8], path: HostPath) -> wire::Symlink {
    let target_base64 = Some(Blob::from(target.to_vec()));
    wire::Symlink { path, target: None, target_base64, sandbox: Sandbox::default() }
}

pub(super) fn set_times(path: HostPath, modified_at_ms: i64) -> wire::SetTimes {
    wire::SetTimes {
        path,
        modified_at_ms: Some(modified_at_ms),
        accessed_at_ms: None,
        follow_symlinks: None,
        sandbox: Sandbox::default(),
    }
}

fn copy(from: impl AsHostPath, to: impl AsHostPath) -> Result<wire::Copy, Error> {
    Ok(wire::Copy {
        source_path: from.as_host_path()?,
        destination_path: to.as_host_path()?,
        recursive: false,
        sandbox: Sandbox::default(),
    })
}

pub(super) fn milliseconds(time: SystemTime) -> i64 {
    let clamp = |millis: u128| i64::try_from(millis).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => clamp(since.as_millis()),
        Err(before) => -clamp(before.duration().as_millis()),
    }
}

//! What paths name, and how that is changed.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt as _,
    time::{SystemTime, UNIX_EPOCH},
};

use remex_proto::{Blob, HostPath, fs as wire, sandbox::Sandbox};

use super::{AsHostPath, Fs, LinkTarget, Metadata, is_not_found};
use crate::Error;

/// Which times of a file to change; what is absent stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Times {
    /// When the content changed last.
    pub modified: Option<SystemTime>,
    /// When it was read last.
    pub accessed: Option<SystemTime>,
}

/// All of these fail with [`Error::Refused`] when the server's host does, and as [`Client::call`](crate::Client::call)
/// does.
impl Fs {
    /// Returns what a path names: the target of a link, with `is_symlink` telling that the path itself is one.
    ///
    /// # Errors
    ///
    /// A dangling link is not found; [`Fs::read_link`] looks at the link itself.
    pub async fn metadata(&self, path: impl AsHostPath) -> Result<Metadata, Error> {
        self.client.call(get_metadata(path.as_host_path()?)).await
    }

    /// Returns what a path names, and refuses symbolic links anywhere in it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::SymbolicLink`](crate::ErrorKind::SymbolicLink) or
    /// [`ErrorKind::NotADirectory`](crate::ErrorKind::NotADirectory) for a link.
    pub async fn metadata_without_links(&self, path: impl AsHostPath) -> Result<Metadata, Error> {
        let request = get_metadata(path.as_host_path()?);
        self.client.call(wire::GetMetadata { follow_symlinks: Some(false), ..request }).await
    }

    /// Tells whether a path names something; a dangling link names nothing.
    ///
    /// # Errors
    ///
    /// When it cannot be known, for example because a directory on the way may not be searched.
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
    pub async fn canonicalize(&self, path: impl AsHostPath) -> Result<HostPath, Error> {
        let path = path.as_host_path()?;
        let request = wire::Canonicalize { path, sandbox: Sandbox::default() };
        Ok(self.client.call(request).await?.path)
    }

    /// Removes a file, a link or an empty directory, which must be there.
    ///
    /// # Errors
    ///
    /// When it is not there, or a directory with something in it.
    pub async fn remove(&self, path: impl AsHostPath) -> Result<(), Error> {
        let (path, recursive, force) = (path.as_host_path()?, Some(false), Some(false));
        self.client.call(wire::Remove { recursive, force, ..remove(path) }).await?;
        Ok(())
    }

    /// Removes whatever is there, directories with all that is in them; nothing there is fine.
    ///
    /// # Errors
    ///
    /// When something of it cannot be removed.
    pub async fn remove_all(&self, path: impl AsHostPath) -> Result<(), Error> {
        self.client.call(remove(path.as_host_path()?)).await?;
        Ok(())
    }

    /// Copies a file with its permissions, or a link as a link, on the server's host.
    ///
    /// # Errors
    ///
    /// When the source is a directory; [`Fs::copy_all`] copies those.
    pub async fn copy(&self, from: impl AsHostPath, to: impl AsHostPath) -> Result<(), Error> {
        self.client.call_without_limit(copy(from, to)?).await?;
        Ok(())
    }

    /// Copies whatever is there, directories with all that is in them, on the server's host.
    ///
    /// # Errors
    ///
    /// When a directory is to be copied into itself, and whatever the host says.
    pub async fn copy_all(&self, from: impl AsHostPath, to: impl AsHostPath) -> Result<(), Error> {
        self.client.call_without_limit(wire::Copy { recursive: true, ..copy(from, to)? }).await?;
        Ok(())
    }

    /// Moves within one file system in one step, over a file that is there.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::CrossDevice`](crate::ErrorKind::CrossDevice) between file systems, [`Error::Interrupted`] when
    /// a cut leaves open whether it happened.
    pub async fn rename(&self, from: impl AsHostPath, to: impl AsHostPath) -> Result<(), Error> {
        self.client.call(rename(from.as_host_path()?, to.as_host_path()?)).await?;
        Ok(())
    }

    /// Moves as [`Fs::rename`], but not over something that is there.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AlreadyExists`](crate::ErrorKind::AlreadyExists), and those of [`Fs::rename`].
    pub async fn rename_new(&self, from: impl AsHostPath, to: impl AsHostPath) -> Result<(), Error> {
        let request = rename(from.as_host_path()?, to.as_host_path()?);
        self.client.call(wire::Rename { overwrite: Some(false), ..request }).await?;
        Ok(())
    }

    /// Makes a symbolic link at `path`; a relative `target` starts from there.
    ///
    /// # Errors
    ///
    /// When something is there already.
    pub async fn symlink(&self, target: impl AsRef<OsStr>, path: impl AsHostPath) -> Result<(), Error> {
        self.client.call(symlink(target.as_ref().as_bytes(), path.as_host_path()?)).await?;
        Ok(())
    }

    /// Returns where a symbolic link points, whether that exists or not.
    ///
    /// # Errors
    ///
    /// When the path is not a link.
    pub async fn read_link(&self, path: impl AsHostPath) -> Result<LinkTarget, Error> {
        let path = path.as_host_path()?;
        self.client.call(wire::ReadLink { path, sandbox: Sandbox::default() }).await
    }

    /// Sets the permission bits: 0 to octal 7777.
    ///
    /// # Errors
    ///
    /// When the server's user may not.
    pub async fn set_permissions(&self, path: impl AsHostPath, mode: u32) -> Result<(), Error> {
        self.client.call(set_permissions(path.as_host_path()?, mode)).await?;
        Ok(())
    }

    /// Sets times, to the millisecond.
    ///
    /// # Errors
    ///
    /// When no time is given, or the server's user may not.
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

/// Removes whatever is there.
pub(super) fn remove(path: HostPath) -> wire::Remove {
    wire::Remove { path, recursive: None, force: None, follow_symlinks: None, sandbox: Sandbox::default() }
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

fn copy(from: impl AsHostPath, to: impl AsHostPath) -> Result<wire::Copy, Error> {
    Ok(wire::Copy {
        source_path: from.as_host_path()?,
        destination_path: to.as_host_path()?,
        recursive: false,
        sandbox: Sandbox::default(),
    })
}

fn milliseconds(time: SystemTime) -> i64 {
    let clamp = |millis: u128| i64::try_from(millis).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => clamp(since.as_millis()),
        Err(before) => -clamp(before.duration().as_millis()),
    }
}

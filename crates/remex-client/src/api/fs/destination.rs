//! The destination of an upload, and the temporary file beside it.

use std::fmt;

use remex_proto::{ErrorKind, HostPath, RpcError, fs as wire};

use super::{
    Fs, Metadata,
    entry::{remove, rename},
    handle::RetryBudget,
    is_not_found, path,
};
use crate::{Client, Error, base::error::usage, core::shared::random_word};

const NAME_THE_FILE: &str = "name the file";

/// The number of links that the kernel follows.
const MAX_LINKS: usize = 40;

/// The destination of an upload.
#[derive(Debug)]
pub(super) struct Destination {
    /// The path as given by the caller.
    pub(super) asked: HostPath,
    /// The path after following links.
    pub(super) path: HostPath,
    /// The permissions of the file, if known.
    pub(super) mode: Option<u32>,
    /// When the content changed last, for a copy that preserves times.
    pub(super) modified_at_ms: Option<i64>,
}

impl Destination {
    /// Checks that an existing entry may be replaced by a file.
    fn check(path: &HostPath, there: &Metadata) -> Result<(), Error> {
        if there.is_directory {
            return Err(usage(format!("cannot upload to `{path}`: it is a directory"), NAME_THE_FILE));
        }
        if there.is_file {
            return Ok(());
        }
        Err(not_a_file(path))
    }
}

/// Refuses to replace a pipe, a socket or a device.
pub(super) fn not_a_file(path: impl fmt::Display) -> Error {
    let refusal = RpcError::new(ErrorKind::NotAFile, format!("path `{path}` is not a file"));
    refusal.with_hint(format!("`{path}` is a FIFO, socket or device; name a regular file")).into()
}

impl Fs {
    /// Finds the file to create or replace, following links.
    pub(super) async fn destination(
        &self,
        asked: HostPath,
        permissions: Option<u32>,
    ) -> Result<Destination, Error> {
        let asked = self.client.core().resolve(asked).await?;
        let text = asked.to_string();
        if text.ends_with('/') || text.ends_with("/.") {
            return Err(usage(format!("cannot upload to `{asked}`: it names a directory"), NAME_THE_FILE));
        }
        let mut path = asked.clone();
        for _ in 0..=MAX_LINKS {
            match self.metadata(&path).await {
                Ok(there) => {
                    Destination::check(&path, &there)?;
                    let path = if there.is_symlink { self.canonicalize(&path).await? } else { path };
                    return Ok(Destination {
                        asked,
                        path,
                        mode: permissions.or(there.mode),
                        modified_at_ms: None,
                    });
                }
                Err(error) if !is_not_found(&error) => return Err(error),
                Err(_) => {}
            }
            match self.dangling(&path).await? {
                Some(target) => path = target,
                None => return Ok(Destination { asked, path, mode: permissions, modified_at_ms: None }),
            }
        }
        Err(usage(format!("cannot upload to `{asked}`: too many levels of symbolic links"), NAME_THE_FILE))
    }

    /// Returns the target of a dangling link.
    async fn dangling(&self, path: &HostPath) -> Result<Option<HostPath>, Error> {
        // A server of the base dialect follows links itself.
        if self.is_base() {
            return Ok(None);
        }
        match self.read_link(path).await {
            Ok(link) => {
                let target = remex_proto::path::from_bytes(&link.target_base64);
                let directory = path::split(path::native(path)?).map(|(directory, _)| directory);
                Ok(directory.zip(target).map(|(directory, target)| path::join(directory, target).into()))
            }
            Err(Error::Refused(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// A temporary file on the remote host, removed on drop unless it was renamed.
pub(super) struct Temporary {
    client: Client,
    pub(super) path: HostPath,
    is_moved: bool,
}

impl Temporary {
    pub(super) fn beside(client: &Client, destination: &HostPath) -> Result<Self, Error> {
        let path = path::sibling(path::native(destination)?, &random_word()).ok_or_else(|| {
            usage(format!("cannot upload to `{destination}`: it has no file name"), NAME_THE_FILE)
        })?;
        Ok(Self { client: client.clone(), path: path.into(), is_moved: false })
    }

    /// Keeps the file: it was renamed.
    pub(super) fn was_moved(mut self) {
        self.is_moved = true;
    }

    /// Renames it to its destination atomically.
    pub(super) async fn put_in_place(&mut self, destination: &HostPath, size: u64) -> Result<(), Error> {
        let fs = self.client.fs();
        let mut retries = RetryBudget::default();
        loop {
            let request = rename(self.path.clone(), destination.clone());
            match self.client.call_without_limit(request).await {
                Ok(_) => break,
                Err(error) => retries.note(error)?,
            }
            // No one else knows the name: if the file is missing, it was renamed before the disconnect.
            if !fs.exists(&self.path).await? {
                if fs.metadata(destination).await?.size != size {
                    return Err(Error::Changed { path: destination.to_string() });
                }
                break;
            }
        }
        self.is_moved = true;
        Ok(())
    }
}

/// Replaces the temporary path in an error with the destination, which is what the caller knows.
pub(super) fn hide(own: &HostPath, error: Error, asked: &HostPath) -> Error {
    let (own, asked) = (own.to_string(), asked.to_string());
    match error {
        Error::Refused(mut refusal) => {
            refusal.message = refusal.message.replace(&own, &asked);
            refusal.hint = refusal.hint.map(|hint| hint.replace(&own, &asked));
            Error::Refused(refusal)
        }
        Error::Changed { path } => Error::Changed { path: path.replace(&own, &asked) },
        error => error,
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.is_moved {
            let remove = wire::Remove { force: None, ..remove(self.path.clone()) };
            self.client.core().enqueue_unbounded(remove.into());
        }
    }
}

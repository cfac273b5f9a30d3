//! Writing files of any size in constant memory.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use remex_proto::{Blob, HostPath, fs as wire};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use super::{
    AsHostPath, Fs, Progress,
    entry::{remove, rename},
    handle::{BLOCK, Handle, Setbacks, WINDOW},
    is_not_found, path,
};
use crate::{
    Client, Error,
    core::{Ticket, random_word},
};

/// Which permissions an uploaded file gets.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
/// use remex_client::fs::Permissions;
///
/// let path = directory.path().join("key");
/// fs.upload_with(&b"s3cret"[..], &path, Permissions::Set(0o600), |_| ()).await?;
/// assert_eq!(fs.metadata(&path).await?.mode.map(|mode| mode & 0o777), Some(0o600));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Permissions {
    /// Those of the file whose place it takes; the usual ones of the server where there is none.
    #[default]
    Keep,
    /// These bits: 0 to octal 7777.
    Set(u32),
}

impl Fs {
    /// Writes everything that `reader` has into a file, and returns how much that is.
    ///
    /// It is written into a temporary file beside the destination, which then takes its place in one step: whoever
    /// reads finds the old content or the new. A link is followed to the file it names. After a cut it goes on where
    /// it was. When it fails or is dropped, the temporary file is removed and the old content stays.
    ///
    /// A server of the base dialect cannot do that: there the destination is written in place, and a cut ends it.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] when the file cannot be written, [`Error::Local`] when `reader` fails,
    /// [`Error::Changed`] when somebody else touched the temporary file.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// let path = directory.path().join("image");
    /// let image = &b"any reader will do"[..];
    /// let bytes = fs.upload(image, &path, |progress| println!("{} bytes", progress.bytes)).await?;
    /// assert_eq!((bytes, fs.read(&path).await?), (18, image.into()));
    /// # Ok(()) }
    /// ```
    pub async fn upload(
        &self,
        reader: impl AsyncRead + Unpin,
        path: impl AsHostPath,
        progress: impl FnMut(&Progress),
    ) -> Result<u64, Error> {
        self.upload_with(reader, path, Permissions::Keep, progress).await
    }

    /// Writes as [`Fs::upload`], with these permissions.
    ///
    /// # Errors
    ///
    /// As [`Fs::upload`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// use remex_client::fs::Permissions;
    ///
    /// let script = directory.path().join("script");
    /// fs.upload_with(&b"#!/bin/sh\nexit 3\n"[..], &script, Permissions::Set(0o755), |_| ()).await?;
    /// let output = client.command(script.display().to_string()).output().await?;
    /// assert_eq!(output.exit.code, 3);
    /// # Ok(()) }
    /// ```
    pub async fn upload_with(
        &self,
        mut reader: impl AsyncRead + Unpin,
        path: impl AsHostPath,
        permissions: Permissions,
        mut progress: impl FnMut(&Progress),
    ) -> Result<u64, Error> {
        let path = path.as_host_path()?;
        let destination = self.destination(&path).await?;
        let mode = match permissions {
            Permissions::Set(mode) => Some(mode),
            Permissions::Keep => destination.mode,
        };
        let way = if self.is_base() { Way::InPlace } else { Way::Beside };
        let temporary = match way {
            Way::InPlace => None,
            Way::Beside => Some(Temporary::beside(&self.client, &destination.path)?),
        };
        let place = temporary.as_ref().map_or(&destination.path, |temporary| &temporary.path);
        let mut blocks = Blocks::open(&self.client, place.clone(), way).await?;
        let mut so_far = Progress { files: 0, bytes: 0, total: None, current: path.to_string() };
        loop {
            let chunk = read_block(&mut reader)
                .await
                .map_err(|error| Error::local(format!("read what is to be written to `{path}`"), &error))?;
            if chunk.is_empty() {
                break;
            }
            blocks.push(chunk).await?;
            if blocks.done > so_far.bytes {
                so_far.bytes = blocks.done;
                progress(&so_far);
            }
        }
        so_far.bytes = blocks.finish().await?;
        progress(&so_far);
        if let Some(temporary) = temporary {
            self.put_in_place(temporary, destination.path, so_far.bytes, mode).await?;
        }
        so_far.files = 1;
        progress(&so_far);
        Ok(so_far.bytes)
    }

    /// Finds the file that is to be replaced.
    async fn destination(&self, path: &HostPath) -> Result<Destination, Error> {
        match self.metadata(path).await {
            Ok(there) if there.is_directory => {
                Err(Error::Usage(format!("cannot upload to `{path}`: it is a directory; name the file")))
            }
            Ok(there) => {
                let path = if there.is_symlink { self.canonicalize(path).await? } else { path.clone() };
                Ok(Destination { path, mode: there.mode })
            }
            Err(error) if is_not_found(&error) => Ok(Destination { path: path.clone(), mode: None }),
            Err(error) => Err(error),
        }
    }

    async fn put_in_place(
        &self,
        mut temporary: Temporary,
        destination: HostPath,
        size: u64,
        mode: Option<u32>,
    ) -> Result<(), Error> {
        let changed = || Error::Changed { path: temporary.path.to_string() };
        let written = self.metadata(&temporary.path).await;
        if written.as_ref().is_ok_and(|written| written.size != size) {
            return Err(changed());
        }
        written?;
        if let Some(mode) = mode {
            self.set_permissions(&temporary.path, mode).await?;
        }
        let mut setbacks = Setbacks::default();
        loop {
            let request = rename(temporary.path.clone(), destination.clone());
            match self.client.call_without_limit(request).await {
                Ok(_) => break,
                Err(error) => setbacks.note(error)?,
            }
            // Nobody else knows the name: if it is gone, it was moved before the cut.
            if !self.exists(&temporary.path).await? {
                if self.metadata(&destination).await?.size != size {
                    return Err(Error::Changed { path: destination.to_string() });
                }
                break;
            }
        }
        temporary.is_moved = true;
        Ok(())
    }
}

/// Where an upload is to end.
struct Destination {
    path: HostPath,
    /// Of what is there.
    mode: Option<u32>,
}

/// How an upload gets to its destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Over a temporary file, which can be opened again after a cut.
    Beside,
    /// Directly; opened again it would be empty.
    InPlace,
}

/// A file that is removed unless it was moved.
struct Temporary {
    client: Client,
    path: HostPath,
    is_moved: bool,
}

impl Temporary {
    fn beside(client: &Client, destination: &HostPath) -> Result<Self, Error> {
        let path = path::sibling(path::native(destination)?, &random_word()).ok_or_else(|| {
            Error::Usage(format!("cannot upload to `{destination}`: it has no name; name the file"))
        })?;
        Ok(Self { client: client.clone(), path: path.into(), is_moved: false })
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.is_moved {
            let remove = wire::Remove { recursive: Some(false), ..remove(self.path.clone()) };
            self.client.core().order_now(remove.into());
        }
    }
}

/// The blocks of a file that is written, a few of them under way.
struct Blocks {
    client: Client,
    path: HostPath,
    way: Way,
    handle: Handle,
    /// In order; kept until they are answered, because a cut may have swallowed them.
    unanswered: VecDeque<Unanswered>,
    /// Where the next block begins.
    offset: u64,
    /// Everything before is written; `done <= offset`.
    done: u64,
    setbacks: Setbacks,
}

struct Unanswered {
    offset: u64,
    chunk: Bytes,
    ticket: Ticket,
}

impl Blocks {
    async fn open(client: &Client, path: HostPath, way: Way) -> Result<Self, Error> {
        let mut setbacks = Setbacks::default();
        let handle = open(client, &path, way, &mut setbacks).await?;
        Ok(Self {
            client: client.clone(),
            path,
            way,
            handle,
            unanswered: VecDeque::new(),
            offset: 0,
            done: 0,
            setbacks,
        })
    }

    /// Writes the next block, when there is room for one more under way.
    async fn push(&mut self, chunk: Bytes) -> Result<(), Error> {
        while self.unanswered.len() >= WINDOW {
            self.settle().await?;
        }
        let offset = self.offset;
        self.offset += chunk.len() as u64;
        let ticket = self.send(offset, &chunk).await?;
        self.unanswered.push_back(Unanswered { offset, chunk, ticket });
        Ok(())
    }

    /// Waits until everything is written, and returns how much that is.
    async fn finish(mut self) -> Result<u64, Error> {
        while !self.unanswered.is_empty() {
            self.settle().await?;
        }
        Ok(self.done)
    }

    /// Waits for the oldest answer.
    async fn settle(&mut self) -> Result<(), Error> {
        let Some(oldest) = self.unanswered.front_mut() else { return Ok(()) };
        match (&mut oldest.ticket).await {
            Ok(_) => {
                self.setbacks.progress();
                self.done = oldest.offset + oldest.chunk.len() as u64;
                self.unanswered.pop_front();
                Ok(())
            }
            Err(error) if self.way == Way::InPlace => Err(error),
            Err(error) => {
                self.setbacks.note(error)?;
                self.reopen().await
            }
        }
    }

    /// Opens the file again after a cut, and writes again what was not answered.
    async fn reopen(&mut self) -> Result<(), Error> {
        self.handle = open(&self.client, &self.path, self.way, &mut self.setbacks).await?;
        for (offset, chunk) in std::mem::take(&mut self.unanswered).into_iter().map(|u| (u.offset, u.chunk)) {
            let ticket = self.send(offset, &chunk).await?;
            self.unanswered.push_back(Unanswered { offset, chunk, ticket });
        }
        Ok(())
    }

    async fn send(&self, offset: u64, chunk: &Bytes) -> Result<Ticket, Error> {
        let (handle_id, chunk) = (self.handle.id.clone(), Blob(chunk.clone()));
        self.client.core().order(wire::WriteBlock { handle_id, offset, chunk }.into()).await
    }
}

async fn open(client: &Client, path: &HostPath, way: Way, setbacks: &mut Setbacks) -> Result<Handle, Error> {
    let mode = match way {
        Way::Beside => wire::OpenMode::Write,
        Way::InPlace => wire::OpenMode::Replace,
    };
    loop {
        let (handle, opened) = Handle::open(client, path.clone(), mode).await?;
        match opened.await {
            Ok(_) => return Ok(handle),
            Err(error) => setbacks.note(error)?,
        }
    }
}

/// Reads until a block is full, or to the end.
async fn read_block(reader: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Bytes> {
    let mut block = BytesMut::with_capacity(BLOCK);
    let mut reader = reader.take(BLOCK as u64);
    while reader.read_buf(&mut block).await? > 0 {}
    Ok(block.freeze())
}

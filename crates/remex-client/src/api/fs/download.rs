//! Reading files of any size in constant memory.

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use remex_proto::{HostPath, fs as wire};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf},
    sync::OwnedSemaphorePermit,
};

use super::{
    AsHostPath, Fs, Metadata, Progress,
    entry::get_metadata,
    handle::{Access, Handle, RetryBudget},
};
use crate::{Client, Error, core::shared::PendingReply};

impl Fs {
    /// Opens a file for reading.
    ///
    /// A few blocks are read ahead. After a disconnect the file is reopened and reading continues if its size and time are
    /// unchanged; otherwise it fails with [`Error::Changed`].
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] when it is not a regular file, or may not be read, or too many files are open.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// use tokio::io::AsyncReadExt as _;
    ///
    /// # let path = directory.path().join("greeting");
    /// # fs.write(&path, "hello\n").await?;
    /// let mut file = fs.open(&path).await?;
    /// let mut text = String::new();
    /// file.read_to_string(&mut text).await?;
    /// assert_eq!((text.as_str(), file.metadata().size), ("hello\n", 6));
    /// # Ok(()) }
    /// ```
    pub async fn open(&self, path: impl AsHostPath) -> Result<Download, Error> {
        // An open file may be held for long, so this does not wait for a permit.
        let room = Arc::clone(&self.client.core().files().fetched).try_acquire_owned().ok();
        self.open_in(path.as_host_path()?, 0, room).await
    }

    /// Opens a file at an offset, once the limit of open files permits it.
    pub(super) async fn open_at(&self, path: HostPath, offset: u64) -> Result<Download, Error> {
        let room = Arc::clone(&self.client.core().files().fetched).acquire_owned().await.ok();
        self.open_in(path, offset, room).await
    }

    async fn open_in(
        &self,
        path: HostPath,
        offset: u64,
        room: Option<OwnedSemaphorePermit>,
    ) -> Result<Download, Error> {
        if !self.has_handles() {
            let (metadata, content) = (self.metadata(&path).await?, self.read_in_one_message(&path).await?);
            let start = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
            return Ok(Download { metadata, state: DownloadState::Ended, rest: content.slice(start..) });
        }
        let mut retries = RetryBudget::default();
        let Opened { handle, before: metadata, .. } = open(&self.client, &path, &mut retries).await?;
        let blocks = Blocks {
            client: self.client.clone(),
            path,
            metadata: metadata.clone(),
            handle,
            _room: room,
            in_flight: VecDeque::new(),
            asked: offset,
            got: offset,
            has_ended: false,
            retries,
        };
        Ok(Download { metadata, state: DownloadState::Idle(Box::new(blocks)), rest: Bytes::new() })
    }

    /// Writes the content of a file into `writer`, and returns its size; starts when it is awaited.
    ///
    /// Any number may run concurrently; those beyond the server's limit of open files wait, including for files opened with
    /// [`Fs::open`].
    ///
    /// # Errors
    ///
    /// As [`Fs::open`]; [`Error::Changed`] when the file changed during the download, so that the written content is
    /// inconsistent; [`Error::Local`] when `writer` fails.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// # let path = directory.path().join("greeting");
    /// # fs.write(&path, "hello\n").await?;
    /// let mut here = Vec::new();
    /// let bytes = fs.download(&path, &mut here).progress(|progress| println!("{} bytes", progress.bytes)).await?;
    /// assert_eq!((bytes, &here[..]), (6, &b"hello\n"[..]));
    /// # Ok(()) }
    /// ```
    pub fn download<'a, W: AsyncWrite + Unpin>(&self, path: impl AsHostPath, writer: W) -> DownloadTo<'a, W> {
        DownloadTo { fs: self.clone(), path: path.as_host_path(), writer, progress: Box::new(|_| ()) }
    }

    pub(super) async fn receive(
        &self,
        path: HostPath,
        mut writer: impl AsyncWrite + Unpin,
        mut progress: impl FnMut(&Progress),
    ) -> Result<u64, Error> {
        let failed = |error| Error::local(format!("write the content of `{path}`"), error);
        let mut file = self.open_at(path.clone(), 0).await?;
        let mut so_far = Progress::of_file(path.to_string(), Some(file.metadata.size));
        while let Some(chunk) = file.chunk().await? {
            writer.write_all(&chunk).await.map_err(failed)?;
            so_far.bytes += chunk.len() as u64;
            progress(&so_far);
        }
        writer.flush().await.map_err(failed)?;
        // Files of the kernel, as in `/proc`, have no size, and their time is meaningless.
        if file.metadata.size > 0 && !is_same(&file.metadata, &self.metadata(&path).await?) {
            return Err(Error::Changed { path: path.to_string() });
        }
        so_far.files = 1;
        progress(&so_far);
        Ok(so_far.bytes)
    }
}

/// A download, from [`Fs::download`]; starts when it is awaited.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
/// # let path = directory.path().join("greeting");
/// # fs.write(&path, "hello\n").await?;
/// let mut here = tokio::fs::File::create(directory.path().join("here")).await?;
/// assert_eq!(fs.download(&path, &mut here).await?, 6);
/// # Ok(()) }
/// ```
#[must_use = "a download starts when it is awaited"]
pub struct DownloadTo<'a, W> {
    fs: Fs,
    path: Result<HostPath, Error>,
    writer: W,
    progress: Box<dyn FnMut(&Progress) + Send + 'a>,
}

impl<'a, W> DownloadTo<'a, W> {
    /// Calls `progress` after each block, and once at the end.
    ///
    /// See [`Fs::download`] for an example.
    pub fn progress(mut self, progress: impl FnMut(&Progress) + Send + 'a) -> Self {
        self.progress = Box::new(progress);
        self
    }
}

impl<'a, W: AsyncWrite + Unpin + Send + 'a> IntoFuture for DownloadTo<'a, W> {
    type Output = Result<u64, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { fs, path, writer, progress } = self;
        Box::pin(async move { fs.receive(path?, writer, progress).await })
    }
}

impl<W> std::fmt::Debug for DownloadTo<'_, W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DownloadTo").field("path", &self.path).finish_non_exhaustive()
    }
}

/// A file on the remote host, opened for reading.
///
/// Dropping it closes the file.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
/// # let path = directory.path().join("greeting");
/// # fs.write(&path, "hello\n").await?;
/// let mut file = fs.open(&path).await?;
/// while let Some(chunk) = file.chunk().await? {
///     assert_eq!(chunk, "hello\n");
/// }
/// # Ok(()) }
/// ```
pub struct Download {
    metadata: Metadata,
    state: DownloadState,
    rest: Bytes,
}

enum DownloadState {
    Idle(Box<Blocks>),
    /// The future owns the blocks, so that a cancelled call loses nothing.
    Reading(Pin<Box<dyn Future<Output = Read> + Send>>),
    Ended,
    Failed(Error),
}

type Read = (Box<Blocks>, Result<Option<Bytes>, Error>);

impl Download {
    /// Returns the metadata of the file when it was opened.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// # let path = directory.path().join("greeting");
    /// # fs.write(&path, "hello\n").await?;
    /// let file = fs.open(&path).await?;
    /// assert!(file.metadata().is_file);
    /// # Ok(()) }
    /// ```
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Returns the next chunk, `None` at the end. Cancel-safe.
    ///
    /// # Errors
    ///
    /// [`Error::Changed`] when the file changed during a disconnect, [`Error::Refused`] when reading fails, and
    /// [`Error::Lost`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// # let path = directory.path().join("greeting");
    /// # fs.write(&path, "hello\n").await?;
    /// let mut file = fs.open(&path).await?;
    /// assert_eq!(file.chunk().await?.as_deref(), Some(&b"hello\n"[..]));
    /// assert_eq!(file.chunk().await?, None);
    /// # Ok(()) }
    /// ```
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Error> {
        std::future::poll_fn(|context| self.poll_chunk(context)).await
    }

    fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Error>> {
        if !self.rest.is_empty() {
            return Poll::Ready(Ok(Some(std::mem::take(&mut self.rest))));
        }
        loop {
            match std::mem::replace(&mut self.state, DownloadState::Ended) {
                DownloadState::Idle(mut blocks) => {
                    self.state = DownloadState::Reading(Box::pin(async move {
                        let read = blocks.next().await;
                        (blocks, read)
                    }));
                }
                DownloadState::Reading(mut reading) => {
                    let Poll::Ready((blocks, read)) = reading.as_mut().poll(context) else {
                        self.state = DownloadState::Reading(reading);
                        return Poll::Pending;
                    };
                    match &read {
                        Ok(Some(_)) => self.state = DownloadState::Idle(blocks),
                        Ok(None) => {}
                        Err(error) => self.state = DownloadState::Failed(error.clone()),
                    }
                    return Poll::Ready(read);
                }
                DownloadState::Ended => return Poll::Ready(Ok(None)),
                DownloadState::Failed(error) => {
                    self.state = DownloadState::Failed(error.clone());
                    return Poll::Ready(Err(error));
                }
            }
        }
    }
}

impl AsyncRead for Download {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        if let Some(mut chunk) = ready!(self.poll_chunk(context))? {
            buffer.put_slice(&chunk.split_to(chunk.len().min(buffer.remaining())));
            self.rest = chunk;
        }
        Poll::Ready(Ok(()))
    }
}

impl std::fmt::Debug for Download {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Download").field("metadata", &self.metadata).finish_non_exhaustive()
    }
}

/// The blocks of a file, a few of them in flight.
struct Blocks {
    client: Client,
    path: HostPath,
    /// The metadata when the file was first opened.
    metadata: Metadata,
    handle: Handle,
    /// The permit of the open file, released after the file is closed.
    _room: Option<OwnedSemaphorePermit>,
    /// The blocks on their way, each with its length.
    in_flight: VecDeque<(usize, PendingReply)>,
    /// The offset of the next block to request; `got <= asked`.
    asked: u64,
    /// Everything before this offset has been returned.
    got: u64,
    has_ended: bool,
    retries: RetryBudget,
}

impl Blocks {
    /// Returns the next block, `None` at the end of the file.
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        while !self.has_ended {
            match self.next_block().await {
                Ok(block) => {
                    self.retries.progress();
                    self.got += block.chunk.len() as u64;
                    return Ok(Some(block.chunk.0).filter(|chunk| !chunk.is_empty()));
                }
                Err(error) => self.retries.note(error)?,
            }
            self.reopen().await?;
        }
        Ok(None)
    }

    async fn next_block(&mut self) -> Result<wire::Block, Error> {
        // Beyond the original size, one block at a time: usually there is nothing.
        while self.in_flight.is_empty()
            || self.in_flight.len() < self.retries.window() && self.asked <= self.metadata.size
        {
            let (handle_id, len) = (self.handle.id.clone(), self.retries.block_len());
            let ask = wire::ReadBlock { handle_id, offset: self.asked, len: len as u64 };
            self.in_flight.push_back((len, self.client.core().enqueue(ask.into()).await?));
            self.asked += len as u64;
        }
        let Some((len, first)) = self.in_flight.front_mut() else {
            unreachable!("a block was just requested")
        };
        let (len, arrived) = (*len, first.await);
        self.in_flight.pop_front();
        let block: wire::Block = arrived?.decode("fs/readBlock")?;
        if block.chunk.len() > len || !block.eof && block.chunk.len() < len {
            let what = format!("a block has {} bytes instead of at most {len}", block.chunk.len());
            return Err(Error::Protocol { what });
        }
        self.has_ended = block.eof;
        Ok(block)
    }

    /// Reopens the file after a disconnect, if it is unchanged.
    async fn reopen(&mut self) -> Result<(), Error> {
        self.in_flight.clear();
        let Opened { handle, before, after } = open(&self.client, &self.path, &mut self.retries).await?;
        if !is_same(&self.metadata, &before) || !is_same(&self.metadata, &after) {
            return Err(Error::Changed { path: self.path.to_string() });
        }
        self.handle = handle;
        self.asked = self.got;
        Ok(())
    }
}

/// An open file, and the metadata of its path before and after it was opened.
struct Opened {
    handle: Handle,
    before: Metadata,
    after: Metadata,
}

async fn open(client: &Client, path: &HostPath, retries: &mut RetryBudget) -> Result<Opened, Error> {
    const METHOD: &str = "fs/getMetadata";
    loop {
        let opening = async {
            // Sent together: the server handles them in order.
            let look = || client.core().enqueue(get_metadata(path.clone()).into());
            let before = look().await?;
            let (handle, opened) = Handle::open(client, path.clone(), Access::default()).await?;
            let after = look().await?;
            opened.await?;
            let (before, after) = (before.await?.decode(METHOD)?, after.await?.decode(METHOD)?);
            Ok(Opened { handle, before, after })
        };
        match opening.await {
            Ok(opened) => return Ok(opened),
            Err(error) => retries.note(error)?,
        }
    }
}

/// Returns whether a file is unchanged, judging by size and time.
pub(super) fn is_same(before: &Metadata, now: &Metadata) -> bool {
    (before.size, before.modified_at_ms) == (now.size, now.modified_at_ms)
}

//! Writing files of any size in constant memory.

use std::{collections::VecDeque, fmt, pin::Pin};

use bytes::{Bytes, BytesMut};
use remex_proto::{Blob, ErrorKind, HostPath, fs as wire};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    time::{Duration, Instant},
};

use super::{
    AsHostPath, Fs, Progress,
    destination::{Destination, Temporary, hide},
    entry::set_times,
    handle::{Access, BLOCK, Handle, RetryBudget},
    write_file,
};
use crate::{Client, Error, core::shared::PendingReply};

/// The permissions of a temporary file until it gets its final ones.
pub(super) const PRIVATE: u32 = 0o600;

/// How long to wait for a file lock before it counts as foreign: the server may not have noticed yet that an earlier
/// connection of this client has ended.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// There is no notification when a file is unlocked, so it is polled.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(50);

impl Fs {
    /// Writes everything from `reader` to a file, and returns the number of bytes; starts when it is awaited.
    ///
    /// The content is written to a temporary file beside the destination, which then replaces it atomically: readers see
    /// either the old content or the new. If the permissions are known, the temporary file is private. A link is
    /// followed, even if its target does not exist yet. After a disconnect the upload resumes. If it fails or is dropped,
    /// the temporary file is removed and the old content stays.
    ///
    /// On a server of the base dialect the destination is written in place, and a disconnect fails the upload.
    ///
    /// Any number may run concurrently; those beyond the server's limit of open files wait.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] when the file cannot be written, or is a pipe, socket or device; [`Error::Usage`] when the
    /// path names a directory, or ends in a slash; [`Error::Local`] when `reader` fails; [`Error::Changed`] when
    /// another process modified the temporary file.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// let path = directory.path().join("image");
    /// let image = &b"any reader will do"[..];
    /// let bytes = fs.upload(image, &path).progress(|progress| println!("{} bytes", progress.bytes)).await?;
    /// assert_eq!((bytes, fs.read(&path).await?), (18, image.into()));
    /// # Ok(()) }
    /// ```
    pub fn upload<'a, R: AsyncRead + Unpin>(&self, reader: R, path: impl AsHostPath) -> Upload<'a, R> {
        Upload {
            fs: self.clone(),
            path: path.as_host_path(),
            reader,
            permissions: None,
            progress: Box::new(|_| ()),
        }
    }

    /// Writes all data from `reader` to its destination, if `check` succeeds once everything is read.
    pub(super) async fn send(
        &self,
        reader: impl AsyncRead + Unpin,
        check: impl Future<Output = Result<(), Error>>,
        destination: Destination,
        progress: impl FnMut(&Progress),
    ) -> Result<u64, Error> {
        // Held as long as the file is open.
        let _room = self.client.core().files().sent.acquire().await;
        let current = destination.asked.to_string();
        let mut reporter = ProgressReporter { so_far: Progress::of_file(current, None), progress };
        if !self.has_handles() {
            reporter.so_far.bytes = self.send_whole(reader, check, destination.path).await?;
        } else if self.is_base() {
            Blocks::open(&self.client, destination.path, WriteMode::InPlace)
                .await?
                .fill(reader, &mut reporter)
                .await?;
            check.await?;
        } else {
            let mut temporary = Temporary::beside(&self.client, &destination.path)?;
            let sent = self.send_beside(reader, check, &mut temporary, &destination, &mut reporter).await;
            sent.map_err(|error| hide(&temporary.path, error, &destination.asked))?;
        }
        reporter.so_far.files = 1;
        reporter.report();
        Ok(reporter.so_far.bytes)
    }

    /// Writes a whole file in one message, as the oldest dialect does.
    async fn send_whole(
        &self,
        mut reader: impl AsyncRead + Unpin,
        check: impl Future<Output = Result<(), Error>>,
        path: HostPath,
    ) -> Result<u64, Error> {
        let mut content = Vec::new();
        let read = reader.read_to_end(&mut content).await;
        read.map_err(|error| Error::local(format!("read the new content of `{path}`"), error))?;
        check.await?;
        let len = content.len() as u64;
        self.client.call(write_file(path, content.into())).await?;
        Ok(len)
    }

    async fn send_beside(
        &self,
        reader: impl AsyncRead + Unpin,
        check: impl Future<Output = Result<(), Error>>,
        temporary: &mut Temporary,
        destination: &Destination,
        reporter: &mut ProgressReporter<impl FnMut(&Progress)>,
    ) -> Result<(), Error> {
        let write_mode = WriteMode::Temporary { is_private: destination.mode.is_some() };
        Blocks::open(&self.client, temporary.path.clone(), write_mode).await?.fill(reader, reporter).await?;
        check.await?;
        if self.metadata(&temporary.path).await?.size != reporter.so_far.bytes {
            return Err(Error::Changed { path: temporary.path.to_string() });
        }
        if let Some(mode) = destination.mode {
            self.set_permissions(&temporary.path, mode).await?;
        }
        if let Some(ms) = destination.modified_at_ms {
            self.client.call(set_times(temporary.path.clone(), ms)).await?;
        }
        temporary.put_in_place(&destination.path, reporter.so_far.bytes).await
    }
}

/// An upload, from [`Fs::upload`]; starts when it is awaited.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
/// use remex_client::Command;
///
/// let script = directory.path().join("script");
/// fs.upload(&b"#!/bin/sh\nexit 3\n"[..], &script).permissions(0o755).await?;
/// let output = Command::new(script.display().to_string()).output(&client).await?;
/// assert_eq!(output.exit.code, 3);
/// # Ok(()) }
/// ```
#[must_use = "an upload starts when it is awaited"]
pub struct Upload<'a, R> {
    fs: Fs,
    path: Result<HostPath, Error>,
    reader: R,
    permissions: Option<u32>,
    progress: Box<dyn FnMut(&Progress) + Send + 'a>,
}

impl<'a, R> Upload<'a, R> {
    /// Sets the permission bits of the file, 0 to octal 7777; otherwise it has those of the file that it replaces, and a new
    /// file the server's default.
    ///
    /// See [`Upload`] for an example.
    pub fn permissions(mut self, mode: u32) -> Self {
        self.permissions = Some(mode);
        self
    }

    /// Calls `progress` from time to time, and once at the end.
    ///
    /// See [`Fs::upload`] for an example.
    pub fn progress(mut self, progress: impl FnMut(&Progress) + Send + 'a) -> Self {
        self.progress = Box::new(progress);
        self
    }
}

impl<'a, R: AsyncRead + Unpin + Send + 'a> IntoFuture for Upload<'a, R> {
    type Output = Result<u64, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { fs, path, reader, permissions, progress } = self;
        Box::pin(async move {
            let destination = fs.destination(path?, permissions).await?;
            fs.send(reader, std::future::ready(Ok(())), destination, progress).await
        })
    }
}

impl<R> fmt::Debug for Upload<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Reports the progress of an upload.
struct ProgressReporter<P> {
    so_far: Progress,
    progress: P,
}

impl<P: FnMut(&Progress)> ProgressReporter<P> {
    fn report(&mut self) {
        (self.progress)(&self.so_far);
    }
}

/// How an upload is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteMode {
    /// To a temporary file, which can be reopened after a disconnect.
    Temporary {
        /// Whether it is private until it gets its final permissions.
        is_private: bool,
    },
    /// To a private, locked file.
    Exclusive,
    /// In place; reopening would truncate it.
    InPlace,
}

/// The blocks of a file being written, a few of them in flight.
pub(super) struct Blocks {
    client: Client,
    path: HostPath,
    write_mode: WriteMode,
    handle: Handle,
    /// In order; kept until they are acknowledged, because a disconnect may have lost them.
    unanswered: VecDeque<UnansweredWrite>,
    /// What follows them, in order: the next block, and those that a disconnect may have lost.
    unsent: VecDeque<(u64, Bytes)>,
    /// The offset of the next block.
    offset: u64,
    /// Everything before this offset is written; `done <= offset`.
    done: u64,
    retries: RetryBudget,
}

struct UnansweredWrite {
    offset: u64,
    chunk: Bytes,
    reply: PendingReply,
}

impl Blocks {
    /// Opens a file for writing from its beginning.
    pub(super) async fn open(client: &Client, path: HostPath, write_mode: WriteMode) -> Result<Self, Error> {
        let mut retries = RetryBudget::default();
        let handle = open(client, &path, write_mode, &mut retries).await?;
        Ok(Self {
            client: client.clone(),
            path,
            write_mode,
            handle,
            unanswered: VecDeque::new(),
            unsent: VecDeque::new(),
            offset: 0,
            done: 0,
            retries,
        })
    }

    /// Continues after existing content; must be called before anything is written.
    pub(super) fn skip_to(&mut self, offset: u64) {
        (self.offset, self.done) = (offset, offset);
    }

    /// Writes all data from `reader`, and returns its length.
    async fn fill(
        mut self,
        mut reader: impl AsyncRead + Unpin,
        reporter: &mut ProgressReporter<impl FnMut(&Progress)>,
    ) -> Result<(), Error> {
        loop {
            let chunk = read_block(&mut reader).await.map_err(|error| {
                Error::local(format!("read the new content of `{}`", reporter.so_far.current), error)
            })?;
            if chunk.is_empty() {
                break;
            }
            self.push(chunk).await?;
            if self.done > reporter.so_far.bytes {
                reporter.so_far.bytes = self.done;
                reporter.report();
            }
        }
        reporter.so_far.bytes = self.finish().await?;
        reporter.report();
        Ok(())
    }

    /// Writes the next block, once there is room for it on its way.
    pub(super) async fn push(&mut self, chunk: Bytes) -> Result<(), Error> {
        let offset = self.offset;
        self.offset += chunk.len() as u64;
        self.unsent.push_back((offset, chunk));
        loop {
            self.send_some().await?;
            if self.unsent.is_empty() {
                return Ok(());
            }
            self.settle().await?;
        }
    }

    /// Returns the offset up to which everything is written.
    pub(super) fn done(&self) -> u64 {
        self.done
    }

    /// Waits until everything is written, and returns the length; the file stays open.
    pub(super) async fn finish(&mut self) -> Result<u64, Error> {
        loop {
            self.send_some().await?;
            if self.unanswered.is_empty() {
                return Ok(self.done);
            }
            self.settle().await?;
        }
    }

    /// Waits for the oldest reply.
    async fn settle(&mut self) -> Result<(), Error> {
        let Some(oldest) = self.unanswered.front_mut() else { return Ok(()) };
        match (&mut oldest.reply).await {
            Ok(_) => {
                self.retries.progress();
                self.done = oldest.offset + oldest.chunk.len() as u64;
                self.unanswered.pop_front();
                Ok(())
            }
            Err(error) if self.write_mode == WriteMode::InPlace => Err(error),
            Err(error) => {
                self.retries.note(error)?;
                self.reopen().await
            }
        }
    }

    /// Reopens the file after a disconnect, to resend what is not acknowledged.
    async fn reopen(&mut self) -> Result<(), Error> {
        self.handle = open(&self.client, &self.path, self.write_mode, &mut self.retries).await?;
        if self.write_mode == WriteMode::Exclusive
            && self.client.fs().metadata(&self.path).await?.size < self.done
        {
            // Another transfer completed the part and renamed it; this is a new file.
            return Err(Error::Interrupted { method: "fs/writeBlock" });
        }
        for UnansweredWrite { offset, chunk, .. } in self.unanswered.drain(..).rev() {
            self.unsent.push_front((offset, chunk));
        }
        Ok(())
    }

    /// Sends as much as may be on its way.
    async fn send_some(&mut self) -> Result<(), Error> {
        while self.unanswered.len() < self.retries.window()
            && let Some((offset, chunk)) = self.unsent.front_mut()
        {
            let (at, block) = (*offset, chunk.slice(..chunk.len().min(self.retries.block_len())));
            let write = wire::WriteBlock {
                handle_id: self.handle.id.clone(),
                offset: at,
                chunk: Blob(block.clone()),
            };
            let reply = self.client.core().enqueue(write.into()).await?;
            if block.len() == chunk.len() {
                self.unsent.pop_front();
            } else {
                (*offset, *chunk) = (at + block.len() as u64, chunk.slice(block.len()..));
            }
            self.unanswered.push_back(UnansweredWrite { offset: at, chunk: block, reply });
        }
        Ok(())
    }
}

async fn open(
    client: &Client,
    path: &HostPath,
    write_mode: WriteMode,
    retries: &mut RetryBudget,
) -> Result<Handle, Error> {
    let (mode, create_mode) = match write_mode {
        WriteMode::Temporary { is_private } => (wire::OpenMode::Write, is_private.then_some(PRIVATE)),
        WriteMode::Exclusive => (wire::OpenMode::Write, Some(PRIVATE)),
        WriteMode::InPlace => (wire::OpenMode::Replace, None),
    };
    let access = Access { mode, create_mode, exclusive: write_mode == WriteMode::Exclusive };
    let patient_until = Instant::now() + LOCK_TIMEOUT;
    loop {
        let opening = async {
            let (handle, opened) = Handle::open(client, path.clone(), access).await?;
            opened.await?;
            Ok::<_, Error>(handle)
        };
        match opening.await {
            Ok(handle) => return Ok(handle),
            Err(error)
                if error.kind() == Some(ErrorKind::AlreadyExists) && Instant::now() < patient_until =>
            {
                tokio::time::sleep(LOCK_POLL_INTERVAL).await;
            }
            Err(error) => retries.note(error)?,
        }
    }
}

/// Reads a full block, or less at the end.
async fn read_block(reader: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Bytes> {
    let mut block = BytesMut::with_capacity(BLOCK);
    let mut reader = reader.take(BLOCK as u64);
    while reader.read_buf(&mut block).await? > 0 {}
    Ok(block.freeze())
}

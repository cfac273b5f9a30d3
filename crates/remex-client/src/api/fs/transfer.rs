//! Copies one file between hosts, or within one: resumable and verified.
//!
//! Start at [`Transfer`].

use std::{fmt, pin::Pin};

use remex_proto::{ErrorKind, HostPath};
use sha2::{Digest as _, Sha256};

use super::{
    ContentHash, Fs, IfMatch, Metadata,
    destination::{Temporary, hide},
    download::is_same,
    entry::{rename, set_permissions, set_times},
    handle::{BLOCK, RetryBudget},
    is_not_found, path,
    upload::{Blocks, PRIVATE, WriteMode},
    write_file,
};
use crate::{Error, base::error::usage};

/// Set-user-id, set-group-id and sticky bits are not copied from another host.
const PERMISSIONS: u32 = 0o777;

/// How often a small file that changes meanwhile is read again, or a partial file that another process modifies is
/// restarted.
const TRIES: u32 = 3;

/// A copy of one file from one host to another, or within one host.
///
/// The content is collected beside the destination in a private file, which replaces the destination atomically once its
/// hash matches the source. For a large file that is `.NAME.remex-part`, unless another user owns it or another transfer
/// is using it. Permissions (except set-user-id, set-group-id and sticky) and the modification time are preserved. The
/// transfer survives disconnects on either side. After other failures the partial file of a large file stays, and the
/// next transfer to the same destination resumes it if it is still a prefix of the source.
///
/// Both servers must be remex.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
/// use remex_client::fs::{AsHostPath as _, Transfer};
///
/// let (source, destination) = (directory.path().join("a"), directory.path().join("b"));
/// fs.write(&source, "hello\n").await?;
/// let transfer = Transfer {
///     metadata: fs.metadata(&source).await?,
///     from: fs.clone(),
///     source: source.as_host_path()?,
///     to: fs.clone(),
///     destination: destination.as_host_path()?,
/// };
/// let done = transfer.run().progress(|bytes| println!("{bytes} bytes are there")).await?;
/// assert_eq!((done.bytes, fs.read(&destination).await?), (6, "hello\n".into()));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Transfer {
    /// The host of the source.
    pub from: Fs,
    /// The path of the source.
    pub source: HostPath,
    /// Its metadata when the transfer was planned.
    pub metadata: Metadata,
    /// The host of the destination.
    pub to: Fs,
    /// The path of the destination; an existing link is replaced.
    pub destination: HostPath,
}

/// The result of a [`Transfer`].
///
/// ```
/// use remex_client::fs::Transferred;
///
/// assert_eq!(Transferred::default().bytes, 0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Transferred {
    /// The size of the file.
    pub bytes: u64,
    /// How many bytes of it an earlier transfer had already copied.
    pub found: u64,
}

impl Transfer {
    /// Copies the file, and calls `progress` with the number of bytes at the destination so far.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] when it cannot be read or written; [`Error::Changed`] when the source keeps changing, or another
    /// process keeps modifying the partial file; [`Error::Usage`] for a destination without a file name. In all cases the
    /// destination is unchanged.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// use remex_client::fs::{AsHostPath as _, Transfer};
    ///
    /// let (source, destination) = (directory.path().join("a"), directory.path().join("b"));
    /// fs.write(&source, vec![7; 1 << 20]).await?;
    /// // An earlier attempt copied this much.
    /// let part = directory.path().join(".b.remex-part");
    /// fs.write(&part, vec![7; 1000]).await?;
    /// fs.set_permissions(&part, 0o600).await?;
    /// let transfer = Transfer {
    ///     metadata: fs.metadata(&source).await?,
    ///     from: fs.clone(),
    ///     source: source.as_host_path()?,
    ///     to: fs.clone(),
    ///     destination: destination.as_host_path()?,
    /// };
    /// assert_eq!(transfer.run().await?.found, 1000);
    /// assert_eq!(fs.hash(&source).await?, fs.hash(&destination).await?);
    /// # Ok(()) }
    /// ```
    pub fn run(&self) -> TransferRun<'_> {
        TransferRun { transfer: self, small_file: SmallFile::OneMessage, progress: Box::new(|_| ()) }
    }

    /// Returns the partial file, which holds the content until it is complete and stays behind after a failure.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] for a destination without a file name.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// use remex_client::fs::{AsHostPath as _, Transfer};
    ///
    /// let source = directory.path().join("a");
    /// fs.write(&source, "hello\n").await?;
    /// let transfer = Transfer {
    ///     metadata: fs.metadata(&source).await?,
    ///     from: fs.clone(),
    ///     source: source.as_host_path()?,
    ///     to: fs.clone(),
    ///     destination: "/srv/image".as_host_path()?,
    /// };
    /// assert_eq!(transfer.part()?.to_string(), "/srv/.image.remex-part");
    /// # Ok(()) }
    /// ```
    pub fn part(&self) -> Result<HostPath, Error> {
        let destination = path::absolute(self.destination.clone())?;
        let part = path::part(path::native(&destination)?).ok_or_else(|| {
            usage(format!("cannot copy to `{}`: it has no file name", self.destination), "name the file")
        })?;
        Ok(part.into())
    }

    async fn run_through(
        &self,
        small_file: SmallFile,
        mut progress: impl FnMut(u64),
    ) -> Result<Transferred, Error> {
        let mut running = RunningTransfer {
            transfer: self,
            metadata: self.metadata.clone(),
            part: self.part()?,
            is_reclaimed: false,
            own: None,
        };
        let (mut retries, mut tries) = (RetryBudget::default(), TRIES);
        loop {
            let size = running.metadata.size;
            let is_small = size <= BLOCK as u64;
            // An empty file needs no resuming.
            let is_one_message = is_small && (small_file == SmallFile::OneMessage || size == 0);
            let tried = if is_one_message {
                Box::pin(running.in_one_message(&mut progress)).await
            } else {
                Box::pin(running.in_blocks(&mut progress)).await
            };
            let error = match tried {
                Ok(done) => return Ok(done),
                Err(error) => hide(running.part(), error, &self.destination),
            };
            let is_of_others = matches!(
                error.kind(),
                Some(ErrorKind::AlreadyExists | ErrorKind::NotAFile | ErrorKind::PermissionDenied)
            );
            match error {
                // Reading a small file again is cheap, and another transfer that wrote to the part now uses its own file.
                Error::Changed { path } if tries > 0 && (is_small || path != self.source.to_string()) => {
                    tries -= 1;
                    running.metadata = self.from.metadata(&self.source).await?;
                }
                error if is_of_others && !is_one_message && Box::pin(running.reclaim(&error)).await => {}
                // The part belongs to another user, or another transfer is using it.
                _ if is_of_others && running.own.is_none() && !is_one_message => {
                    running.own = Some(Temporary::beside(&self.to.client, &self.destination)?);
                }
                // A request sent before a disconnect may take effect after it, and interfere with this attempt.
                error => retries.note(error)?,
            }
        }
    }
}

/// A transfer that starts when it is awaited, from [`Transfer::run`].
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
/// use remex_client::fs::{AsHostPath as _, Transfer};
///
/// let (source, destination) = (directory.path().join("a"), directory.path().join("b"));
/// fs.write(&source, "hello\n").await?;
/// let transfer = Transfer {
///     metadata: fs.metadata(&source).await?,
///     from: fs.clone(),
///     source: source.as_host_path()?,
///     to: fs.clone(),
///     destination: destination.as_host_path()?,
/// };
/// let mut copied = 0;
/// transfer.run().with_part().progress(|bytes| copied = bytes).await?;
/// assert_eq!(copied, 6);
/// assert!(!fs.exists(transfer.part()?).await?);
/// # Ok(()) }
/// ```
#[must_use = "a transfer starts when it is awaited"]
pub struct TransferRun<'a> {
    transfer: &'a Transfer,
    small_file: SmallFile,
    progress: Box<dyn FnMut(u64) + Send + 'a>,
}

impl<'a> TransferRun<'a> {
    /// Uses the [`part`](Transfer::part) file for small files as well.
    ///
    /// That takes more round trips, but if this process is killed, it leaves only a file that the next transfer to the same
    /// destination resumes.
    ///
    /// See [`TransferRun`] for an example.
    pub fn with_part(mut self) -> Self {
        self.small_file = SmallFile::Part;
        self
    }

    /// Calls `progress` with the number of bytes at the destination.
    ///
    /// See [`TransferRun`] for an example.
    pub fn progress(mut self, progress: impl FnMut(u64) + Send + 'a) -> Self {
        self.progress = Box::new(progress);
        self
    }
}

impl<'a> IntoFuture for TransferRun<'a> {
    type Output = Result<Transferred, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.transfer.run_through(self.small_file, self.progress))
    }
}

impl fmt::Debug for TransferRun<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransferRun").field("transfer", self.transfer).finish_non_exhaustive()
    }
}

/// How a small file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SmallFile {
    /// In one message, to a file with a random name.
    OneMessage,
    /// To the partial file, like a large one.
    Part,
}

/// A transfer in progress, with its temporary file.
struct RunningTransfer<'a> {
    transfer: &'a Transfer,
    /// The latest metadata of the source.
    metadata: Metadata,
    /// The partial file, which another transfer can resume.
    part: HostPath,
    /// Whether the partial file was made private again, which is tried once.
    is_reclaimed: bool,
    /// A file with a random name, used if the partial file is unavailable, and for small files, which are never resumed.
    own: Option<Temporary>,
}

impl RunningTransfer<'_> {
    fn part(&self) -> &HostPath {
        self.own.as_ref().map_or(&self.part, |own| &own.path)
    }

    async fn in_one_message(&mut self, progress: &mut impl FnMut(u64)) -> Result<Transferred, Error> {
        let Transfer { from, source, to, destination, .. } = self.transfer;
        let part = self.own.insert(Temporary::beside(&to.client, destination)?).path.clone();
        let content = from.read(source).await?;
        let (size, read) = (content.len() as u64, ContentHash(Sha256::digest(&content).into()));
        // Files of the kernel, as in `/proc`, have content although their size is 0.
        if size != self.metadata.size && self.metadata.size != 0 {
            return self.changed();
        }
        let mut write = write_file(part, content);
        (write.if_match, write.create_mode) = (Some(IfMatch::Absent), Some(PRIVATE));
        let (written, now) = tokio::try_join!(to.client.call_without_limit(write), from.metadata(source))?;
        if !is_same(&self.metadata, &now) {
            return self.changed();
        }
        if written.hash != Some(read) {
            return Err(Error::Changed { path: self.part().to_string() });
        }
        self.put_in_place(size).await?;
        progress(size);
        Ok(Transferred { bytes: size, found: 0 })
    }

    async fn in_blocks(&mut self, progress: &mut impl FnMut(u64)) -> Result<Transferred, Error> {
        let to = &self.transfer.to;
        // Held as long as the file is open.
        let _room = to.client.core().files().sent.acquire().await;
        let (mut writing, found) = Box::pin(self.resume_partial()).await?;
        let filled = self.fill(&mut writing, found, progress).await;
        if matches!(filled, Err(Error::Refused(_))) && writing.done() == 0 {
            // Nothing to resume, so remove it, while it is still locked so that no other transfer resumes it.
            let _ = to.remove_if_there(self.part()).await;
        }
        filled
    }

    /// Writes the missing content, verifies the hash and renames the file to its destination.
    async fn fill(
        &mut self,
        writing: &mut Blocks,
        found: u64,
        progress: &mut impl FnMut(u64),
    ) -> Result<Transferred, Error> {
        let Transfer { from, source, to, .. } = self.transfer;
        progress(found);
        let mut reading = from.open_at(source.clone(), found).await?;
        let mut hasher = Sha256::new();
        while let Some(chunk) = reading.chunk().await? {
            hasher.update(&chunk);
            writing.push(chunk).await?;
            progress(writing.done());
        }
        let (size, read) = (writing.finish().await?, ContentHash(hasher.finalize().into()));
        progress(size);
        let (written, now) =
            tokio::try_join!(to.hash_part(self.part(), found, size - found), from.metadata(source))?;
        let is_source_same = is_same(&self.metadata, &now);
        if is_source_same && (written.hash, written.size) == (read, size) {
            self.put_in_place(size).await?;
            return Ok(Transferred { bytes: size, found });
        }
        to.remove_if_there(self.part()).await?;
        if is_source_same { Err(Error::Changed { path: self.part().to_string() }) } else { self.changed() }
    }

    /// Opens the partial file, and returns how much of the content it has; removes it if its content does not match.
    async fn resume_partial(&self) -> Result<(Blocks, u64), Error> {
        let Transfer { from, source, to, .. } = self.transfer;
        for _ in 0..TRIES {
            let mut writing = Blocks::open(&to.client, self.part().clone(), WriteMode::Exclusive).await?;
            let len = match to.metadata(self.part()).await {
                Err(error) if is_not_found(&error) => continue,
                found => found?.size,
            };
            if len == 0 {
                return Ok((writing, 0));
            }
            if len <= self.metadata.size {
                let (here, there) =
                    tokio::try_join!(from.hash_part(source, 0, len), to.hash_part(self.part(), 0, len))?;
                if (here.hash, here.bytes) == (there.hash, there.bytes) {
                    writing.skip_to(len);
                    return Ok((writing, len));
                }
            }
            // While it is still locked, so that no other transfer resumes it.
            to.remove_if_there(self.part()).await?;
        }
        Err(Error::Changed { path: self.part().to_string() })
    }

    /// Makes a partial file private again whose transfer was killed between setting its permissions and renaming it.
    ///
    /// Only its owner can do that; an incomplete file with other permissions is not ours.
    async fn reclaim(&mut self, error: &Error) -> bool {
        let Transfer { from, source, to, .. } = self.transfer;
        let is_open = error.kind() == Some(ErrorKind::NotAFile);
        if !is_open || self.own.is_some() || std::mem::replace(&mut self.is_reclaimed, true) {
            return false;
        }
        let is_complete = to.metadata(&self.part).without_links().await.is_ok_and(|part| {
            part.is_file && part.size == self.metadata.size && part.mode.is_some_and(|mode| mode & 0o077 != 0)
        });
        if !is_complete {
            return false;
        }
        let hashes = tokio::join!(from.hash(source), to.hash(&self.part));
        matches!(hashes, (Ok(here), Ok(there)) if here.hash == there.hash)
            && to.set_permissions(&self.part, PRIVATE).without_links().await.is_ok()
    }

    fn changed<T>(&self) -> Result<T, Error> {
        Err(Error::Changed { path: self.transfer.source.to_string() })
    }

    /// Sets the permissions and the time of the partial file, and renames it to the destination.
    async fn put_in_place(&mut self, size: u64) -> Result<(), Error> {
        let Transfer { to, destination, .. } = self.transfer;
        let (metadata, part) = (&self.metadata, self.part());
        let mode = metadata.mode.unwrap_or(0o644) & PERMISSIONS;
        let core = to.client.core();
        // The server handles requests for one path in order, so one round trip is enough.
        let permitted = core.enqueue(set_permissions(part.clone(), mode).into()).await?;
        let timed = core.enqueue(set_times(part.clone(), metadata.modified_at_ms).into()).await?;
        let renamed = core.enqueue(rename(part.clone(), destination.clone()).into()).await?;
        let earlier = [permitted.await, timed.await];
        match renamed.await {
            Ok(_) => {
                for done in earlier {
                    // Repeated after a disconnect they find no file, because they took effect before the rename.
                    done.map(drop).or_else(|error| if is_not_found(&error) { Ok(()) } else { Err(error) })?;
                }
            }
            Err(cut @ Error::Interrupted { .. }) => {
                let there = to.metadata(destination).await;
                let is_done = there.is_ok_and(|there| {
                    !there.is_symlink && (there.size, there.modified_at_ms) == (size, metadata.modified_at_ms)
                });
                if !is_done || to.exists(part).await? {
                    return Err(cut);
                }
            }
            // Another copy of the same tree removed it as a leftover.
            Err(error) if is_not_found(&error) && self.own.is_some() => {
                return Err(Error::Changed { path: part.to_string() });
            }
            Err(error) => {
                // Leave what blocks the destination, but remove the part, which the next attempt could not resume.
                let _ = to.remove_if_there(part).await;
                return Err(error);
            }
        }
        if let Some(own) = self.own.take() {
            own.was_moved();
        }
        Ok(())
    }
}

//! Copies one file between hosts, or within one: resumable and verified.
//!
//! Start at [`Transfer`].

use remex_proto::{ErrorKind, HostPath, fs as wire};
use sha2::{Digest as _, Sha256};

use super::{
    ContentHash, Fs, IfMatch, Metadata, Write,
    destination::{Temporary, hide},
    download::is_same,
    entry::{rename, set_permissions, set_times},
    handle::{BLOCK, RetryBudget},
    is_not_found, path,
    upload::{Blocks, PRIVATE, WriteMode},
    write_file,
};
use crate::Error;

/// Set-user-id and its like do not come from elsewhere.
const PERMISSIONS: u32 = 0o777;

/// How often a small file is read again that changes meanwhile, and a part is begun anew that somebody else writes to.
const TRIES: u32 = 3;

/// A file that is to be copied from one server's host to another's, or within one.
///
/// The content is collected beside the destination in a private file, which replaces the destination atomically once its
/// hash matches the source. For a large file that is `.NAME.remex-part`, unless another user owns it or another transfer
/// is using it. Permissions (but for set-user-id, set-group-id and sticky) and the
/// time of the last change are kept. Cuts of either connection are survived; after anything worse the part of a large
/// file stays, and the next transfer to the same destination goes on from there, if the source still begins with it.
///
/// Both servers have to be remex.
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
/// let done = transfer.run(|bytes| println!("{bytes} bytes are there")).await?;
/// assert_eq!((done.bytes, fs.read(&destination).await?), (6, "hello\n".into()));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Transfer {
    /// The files among which the source is.
    pub from: Fs,
    /// The file.
    pub source: HostPath,
    /// Its metadata when the transfer was planned.
    pub metadata: Metadata,
    /// The files among which it is to be.
    pub to: Fs,
    /// Where it is to be; a link there is replaced.
    pub destination: HostPath,
}

/// The result of a [`Transfer`].
///
/// ```
/// use remex_client::fs::Transferred;
///
/// assert_eq!(Transferred::default(), Transferred { bytes: 0, found: 0 });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Transferred {
    /// The size of the file.
    pub bytes: u64,
    /// How much of it an earlier transfer had left there.
    pub found: u64,
}

impl Transfer {
    /// Copies the file, and tells again and again how many bytes of it are there.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] when it cannot be read or written; [`Error::Changed`] when the source changes meanwhile, or
    /// somebody else writes to the part, again and again; [`Error::Usage`] for a destination without a name. The destination is then
    /// what it was.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// use remex_client::fs::{AsHostPath as _, Transfer};
    ///
    /// let (source, destination) = (directory.path().join("a"), directory.path().join("b"));
    /// fs.write(&source, vec![7; 1 << 20]).await?;
    /// // An earlier try got as far as this.
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
    /// assert_eq!(transfer.run(|_| ()).await?.found, 1000);
    /// assert_eq!(fs.hash(&source).await?, fs.hash(&destination).await?);
    /// # Ok(()) }
    /// ```
    pub async fn run(&self, progress: impl FnMut(u64)) -> Result<Transferred, Error> {
        self.run_through(SmallFile::OneMessage, progress).await
    }

    /// Copies the file as [`run`](Self::run) does, and lets a small one gather in [`part`](Self::part), too.
    ///
    /// That takes more round trips, but whatever ends this process, nothing is left under a name that the next transfer
    /// does not know.
    ///
    /// # Errors
    ///
    /// Those of [`run`](Self::run).
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
    /// transfer.run_with_part(|_| ()).await?;
    /// assert_eq!(fs.read(&destination).await?, "hello\n");
    /// assert!(!fs.exists(transfer.part()?).await?);
    /// # Ok(()) }
    /// ```
    pub async fn run_with_part(&self, progress: impl FnMut(u64)) -> Result<Transferred, Error> {
        self.run_through(SmallFile::Part, progress).await
    }

    /// Returns where the content gathers until it is complete, and where a failed transfer leaves what has arrived.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] for a destination without a name.
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
        let part = path::part(path::native(&self.destination)?).ok_or_else(|| {
            Error::Usage(format!("cannot copy to `{}`: it has no name; name the file", self.destination))
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
            // There is nothing in an empty file to continue.
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
                error.refusal(),
                Some(ErrorKind::AlreadyExists | ErrorKind::NotAFile | ErrorKind::PermissionDenied)
            );
            match error {
                // A small file is soon read again; and whoever else wrote to the part has gone on with another.
                Error::Changed { path } if tries > 0 && (is_small || path != self.source.to_string()) => {
                    tries -= 1;
                    running.metadata = self.from.metadata(&self.source).await?;
                }
                error if is_of_others && !is_one_message && running.reclaim(&error).await => {}
                // The part belongs to another user, or another transfer is using it.
                _ if is_of_others && running.own.is_none() && !is_one_message => {
                    running.own = Some(Temporary::beside(&self.to.client, &self.destination)?);
                }
                // What was asked before a cut may take effect after it, and is then in the way of this try.
                error => retries.note(error)?,
            }
        }
    }
}

/// How a small file gets to its destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SmallFile {
    /// In one message, under a name of its own.
    OneMessage,
    /// In the part, like a large one.
    Part,
}

/// A transfer, and where its content gathers.
struct RunningTransfer<'a> {
    transfer: &'a Transfer,
    /// What the source was when it was looked at last.
    metadata: Metadata,
    /// Where another transfer finds what this one leaves.
    part: HostPath,
    /// It was made private again, which is tried once.
    is_reclaimed: bool,
    /// Where it gathers when that is not to be had; and always for a small file, which nobody continues.
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
        let mut write = write_file(part, content, Write::InPlace);
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
        // Held to the end, as long as the file is open.
        let _room = to.client.core().files().sent.acquire().await;
        let (mut writing, found) = self.take_up().await?;
        let filled = self.fill(&mut writing, found, progress).await;
        if matches!(filled, Err(Error::Refused(_))) && writing.done() == 0 {
            // Nothing to continue, so nothing to leave; while it is held, so that nobody else takes it up.
            let _ = to.remove_if_there(self.part()).await;
        }
        filled
    }

    /// Writes what is not in the part yet, checks it and puts it in place.
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

    /// Opens the part, and tells how much of the content is in it; what is no part of it is removed.
    async fn take_up(&self) -> Result<(Blocks, u64), Error> {
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
                if here == (wire::FileHash { size: here.size, ..there }) {
                    writing.skip_to(len);
                    return Ok((writing, len));
                }
            }
            // While it is held, so that nobody else takes it up.
            to.remove_if_there(self.part()).await?;
        }
        Err(Error::Changed { path: self.part().to_string() })
    }

    /// Makes a part private again whose transfer was killed when it had its permissions, but not its name yet.
    ///
    /// Only the owner can; and a part that is not complete is none of ours.
    async fn reclaim(&mut self, error: &Error) -> bool {
        let Transfer { from, source, to, .. } = self.transfer;
        let is_open = error.refusal() == Some(ErrorKind::NotAFile);
        if !is_open || self.own.is_some() || std::mem::replace(&mut self.is_reclaimed, true) {
            return false;
        }
        let is_complete = to.metadata_without_links(&self.part).await.is_ok_and(|part| {
            part.is_file && part.size == self.metadata.size && part.mode.is_some_and(|mode| mode & 0o077 != 0)
        });
        if !is_complete {
            return false;
        }
        let hashes = tokio::join!(from.hash(source), to.hash(&self.part));
        matches!(hashes, (Ok(here), Ok(there)) if here.hash == there.hash)
            && to.set_permissions_without_links(&self.part, PRIVATE).await.is_ok()
    }

    fn changed<T>(&self) -> Result<T, Error> {
        Err(Error::Changed { path: self.transfer.source.to_string() })
    }

    /// Gives the part its permissions, its time and its name.
    async fn put_in_place(&mut self, size: u64) -> Result<(), Error> {
        let Transfer { to, destination, .. } = self.transfer;
        let (metadata, part) = (&self.metadata, self.part());
        let mode = metadata.mode.unwrap_or(0o644) & PERMISSIONS;
        let core = to.client.core();
        // The server takes requests for one path in order, so one trip is enough.
        let permitted = core.enqueue(set_permissions(part.clone(), mode).into()).await?;
        let timed = core.enqueue(set_times(part.clone(), metadata.modified_at_ms).into()).await?;
        let renamed = core.enqueue(rename(part.clone(), destination.clone()).into()).await?;
        let earlier = [permitted.await, timed.await];
        match renamed.await {
            Ok(_) => {
                for done in earlier {
                    // Repeated after a cut, they find nothing: they were done before the rename.
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
            // Another copy of the same tree has cleaned up, and taken it for a leftover.
            Err(error) if is_not_found(&error) && self.own.is_some() => {
                return Err(Error::Changed { path: part.to_string() });
            }
            Err(error) => {
                // Whatever is in the way stays there; the part must not, which the next try could not continue.
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

//! One file from one host to another, or to the same: it can be continued, and is checked.
//!
//! Start at [`Transfer`].

use remex_proto::{ErrorKind, HostPath, fs as wire};
use sha2::{Digest as _, Sha256};

use super::{
    ContentHash, Fs, IfMatch, Metadata, Write,
    destination::hide,
    download::is_same,
    entry::{rename, set_permissions, set_times},
    handle::{BLOCK, Setbacks},
    is_not_found, path,
    upload::{Blocks, PRIVATE, Way},
    write_file,
};
use crate::Error;

/// Set-user-id and its like do not come from elsewhere.
const PERMISSIONS: u32 = 0o777;

/// A file that is to be copied from one server's host to another's, or within one.
///
/// The content gathers in `.NAME.remex-part` beside the destination, which nobody else can read, and takes its place in
/// one step when its hash is that of what was read. Permissions (but for set-user-id, set-group-id and sticky) and the
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
    /// What it was when somebody looked.
    pub metadata: Metadata,
    /// The files among which it is to be.
    pub to: Fs,
    /// Where it is to be; a link there is replaced.
    pub destination: HostPath,
}

/// What a [`Transfer`] has brought.
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
    /// [`Error::Refused`] when it cannot be read or written; [`Error::Changed`] when the source changed meanwhile, or
    /// somebody else wrote to the part; [`Error::Usage`] for a destination without a name. The destination is then
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
    pub async fn run(&self, mut progress: impl FnMut(u64)) -> Result<Transferred, Error> {
        let part = path::part(path::native(&self.destination)?).ok_or_else(|| {
            Error::Usage(format!("cannot copy to `{}`: it has no name; name the file", self.destination))
        })?;
        let under_way = UnderWay { transfer: self, part: part.into() };
        let mut setbacks = Setbacks::default();
        loop {
            let tried = if self.metadata.size <= BLOCK as u64 {
                Box::pin(under_way.in_one_message(&mut progress)).await
            } else {
                Box::pin(under_way.in_blocks(&mut progress)).await
            };
            match tried {
                Ok(done) => return Ok(done),
                // What was asked before a cut may take effect after it, and is then in the way of this try.
                Err(error) => {
                    setbacks.note(error).map_err(|error| hide(&under_way.part, error, &self.destination))?;
                }
            }
        }
    }
}

/// A transfer, and where its content gathers.
struct UnderWay<'a> {
    transfer: &'a Transfer,
    part: HostPath,
}

impl UnderWay<'_> {
    async fn in_one_message(&self, progress: &mut impl FnMut(u64)) -> Result<Transferred, Error> {
        let Transfer { from, source, to, .. } = self.transfer;
        let content = from.read(source).await?;
        let (size, read) = (content.len() as u64, ContentHash(Sha256::digest(&content).into()));
        let mut write = write_file(self.part.clone(), content, Write::InPlace);
        // Whatever is there, a link of somebody else's perhaps, is not written to.
        (write.if_match, write.create_mode) = (Some(IfMatch::Absent), Some(PRIVATE));
        let written = match to.client.call_without_limit(write).await {
            Ok(written) => written.hash,
            Err(error) => {
                let is_in_the_way = error.refusal() == Some(ErrorKind::ContentChanged);
                if is_in_the_way || matches!(error, Error::Interrupted { .. }) {
                    to.remove_if_there(&self.part).await?;
                    return Err(Error::Interrupted { method: "fs/writeFile" });
                }
                return Err(error);
            }
        };
        if written != Some(read) {
            return self.give_up().await;
        }
        self.put_in_place(size).await?;
        progress(size);
        Ok(Transferred { bytes: size, found: 0 })
    }

    async fn in_blocks(&self, progress: &mut impl FnMut(u64)) -> Result<Transferred, Error> {
        let Transfer { from, source, to, metadata, .. } = self.transfer;
        let found = self.found().await?;
        progress(found);
        let (size, read) = self.copy_from(found, progress).await?;
        let (written, now) =
            tokio::try_join!(to.hash_part(&self.part, found, size - found), from.metadata(source))?;
        if (written.hash, written.size) != (read, size) || !is_same(metadata, &now) {
            return self.give_up().await;
        }
        self.put_in_place(size).await?;
        Ok(Transferred { bytes: size, found })
    }

    /// Returns how much of the content is there; what is no part of it is removed.
    async fn found(&self) -> Result<u64, Error> {
        let Transfer { from, source, to, metadata, .. } = self.transfer;
        let len = match to.metadata(&self.part).await {
            Ok(there) if is_ours(&there) => there.size,
            Err(error) if is_not_found(&error) => 0,
            Ok(_) => u64::MAX,
            Err(error) => return Err(error),
        };
        if (1..=metadata.size).contains(&len) {
            let (here, there) =
                tokio::try_join!(from.hash_part(source, 0, len), to.hash_part(&self.part, 0, len))?;
            if here == (wire::FileHash { size: here.size, ..there }) {
                return Ok(len);
            }
        }
        if len > 0 {
            to.remove_if_there(&self.part).await?;
        }
        Ok(0)
    }

    /// Copies what follows `found`; returns the size of all and the hash of what was copied.
    async fn copy_from(
        &self,
        found: u64,
        progress: &mut impl FnMut(u64),
    ) -> Result<(u64, ContentHash), Error> {
        let Transfer { from, source, to, .. } = self.transfer;
        let mut reading = from.open_at(source.clone(), found).await?;
        // Held to the end, as long as the file is open.
        let _room = to.client.core().files().sent.acquire().await;
        let way = Way::Beside { is_private: true };
        let mut writing = Blocks::open(&to.client, self.part.clone(), way, found).await?;
        let mut hasher = Sha256::new();
        while let Some(chunk) = reading.chunk().await? {
            hasher.update(&chunk);
            writing.push(chunk).await?;
            progress(writing.done());
        }
        let size = writing.finish().await?;
        progress(size);
        Ok((size, ContentHash(hasher.finalize().into())))
    }

    /// Gives the part its permissions, its time and its name.
    async fn put_in_place(&self, size: u64) -> Result<(), Error> {
        let Transfer { metadata, to, destination, .. } = self.transfer;
        let mode = metadata.mode.unwrap_or(0o644) & PERMISSIONS;
        let core = to.client.core();
        // The server takes requests for one path in order, so one trip is enough.
        let permitted = core.order(set_permissions(self.part.clone(), mode).into()).await?;
        let timed = core.order(set_times(self.part.clone(), metadata.modified_at_ms).into()).await?;
        let renamed = core.order(rename(self.part.clone(), destination.clone()).into()).await?;
        let earlier = [permitted.await, timed.await];
        match renamed.await {
            Ok(_) => {
                for done in earlier {
                    // Repeated after a cut, they find nothing: they were done before the rename.
                    done.map(drop).or_else(|error| if is_not_found(&error) { Ok(()) } else { Err(error) })?;
                }
                Ok(())
            }
            Err(cut @ Error::Interrupted { .. }) => {
                let there = to.metadata(destination).await;
                let is_done = there.is_ok_and(|there| {
                    !there.is_symlink && (there.size, there.modified_at_ms) == (size, metadata.modified_at_ms)
                });
                if is_done && !to.exists(&self.part).await? { Ok(()) } else { Err(cut) }
            }
            Err(error) => {
                // Whatever is in the way stays there; the part must not, which the next try could not continue.
                let _ = to.remove_if_there(&self.part).await;
                Err(error)
            }
        }
    }

    /// Removes what is not the content of the source.
    async fn give_up<T>(&self) -> Result<T, Error> {
        self.transfer.to.remove_if_there(&self.part).await?;
        Err(Error::Changed { path: self.transfer.source.to_string() })
    }
}

/// Tells whether a part can be of an earlier transfer, and not of somebody who wants to read along.
fn is_ours(part: &Metadata) -> bool {
    part.is_file && !part.is_symlink && part.mode == Some(PRIVATE)
}

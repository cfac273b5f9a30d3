//! Downloads a directory tree from the remote host.

use std::{
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
    vec,
};

use bytes::Bytes;
use tokio::io::AsyncWriteExt as _;

use super::{
    OWNER, SMALL, SkipUnchanged, TRIES,
    counters::Meter,
    direction::{Attributes, Direction, DirectoryState, Item, Listed, Outcome, Root},
    local::{self, Temporary, blocking, unwritable},
};
use crate::{
    Error,
    api::fs::{
        DirectoryEntry, Fs, Metadata, Pages, is_not_found,
        path::{entry_name, join},
    },
    base::error::usage,
};

/// From the remote host to this one.
///
/// The server is not trusted: nothing is written outside of the destination.
#[derive(Debug, Clone)]
pub(super) struct Download {
    pub(super) fs: Fs,
}

/// The entries of a remote directory, read one page at a time.
pub(super) struct Listing {
    directory: PathBuf,
    pages: Pages,
    page: vec::IntoIter<DirectoryEntry>,
}

impl Direction for Download {
    type Listing = Listing;

    fn join_source(directory: &Path, name: &OsStr) -> PathBuf {
        join(directory, name)
    }

    fn join_destination(directory: &Path, name: &OsStr) -> PathBuf {
        directory.join(name)
    }

    async fn root(&self, from: &Path, to: &Path) -> Result<Root<Listing>, Error> {
        let metadata = self.fs.metadata(from).await?;
        if !metadata.is_directory {
            let message = format!("`{}` is not a directory", from.display());
            return Err(usage(message, "download it as a file"));
        }
        let (attributes, listing) = (of_remote(&metadata), self.list(from).await?);
        if tokio::fs::metadata(to).await.is_ok_and(|there| there.is_dir()) {
            return Ok(Root { listing, to: to.to_owned(), attributes, state: DirectoryState::Existing });
        }
        if let Some(parent) = to.parent() {
            tokio::fs::create_dir_all(parent).await.map_err(unwritable(parent))?;
        }
        let state = self.make_directory(to, &attributes, DirectoryState::Existing).await?;
        Ok(Root { listing, to: to.to_owned(), attributes, state })
    }

    async fn list(&self, directory: &Path) -> Result<Listing, Error> {
        let mut pages = self.fs.read_dir_pages(directory)?;
        let page = pages.next().await?.unwrap_or_default().into_iter();
        Ok(Listing { directory: directory.to_owned(), pages, page })
    }

    async fn next(&self, listing: &mut Listing) -> Result<Option<Listed>, Error> {
        loop {
            let Some(entry) = listing.page.next() else {
                let Some(page) = listing.pages.next().await? else { return Ok(None) };
                listing.page = page.into_iter();
                continue;
            };
            let name = entry_name(&listing.directory, &entry)?;
            let attributes = match entry.metadata {
                Some(metadata) => Ok(of_remote(&metadata)),
                None => match self.fs.metadata(join(&listing.directory, &name)).await {
                    Ok(metadata) => Ok(of_remote(&metadata)),
                    // The entry vanished after it was listed.
                    Err(error) if is_not_found(&error) => continue,
                    Err(error) => Err(error),
                },
            };
            return Ok(Some(Listed { name, attributes }));
        }
    }

    async fn gitignore(&self, directory: &Path) -> Result<Option<Bytes>, Error> {
        self.fs.gitignore(directory).await
    }

    async fn make_directory(
        &self,
        to: &Path,
        source: &Attributes,
        _: DirectoryState,
    ) -> Result<DirectoryState, Error> {
        let state = match tokio::fs::create_dir(to).await {
            Ok(()) => DirectoryState::New,
            Err(error) => {
                // A link could point outside of the tree.
                let is_directory = tokio::fs::symlink_metadata(to).await.is_ok_and(|there| there.is_dir());
                if error.kind() != io::ErrorKind::AlreadyExists || !is_directory {
                    return Err(unwritable(to)(error));
                }
                DirectoryState::Existing
            }
        };
        if let Some(mode) = source.mode {
            local::set_mode(to, mode | OWNER).await?;
        }
        Ok(state)
    }

    async fn finish_directory(&self, to: &Path, source: &Attributes) -> Result<(), Error> {
        if let Some(ms) = source.modified_at_ms {
            local::set_modified(to, ms).await?;
        }
        match source.mode {
            Some(mode) if mode & OWNER != OWNER => local::set_mode(to, mode).await,
            _ => Ok(()),
        }
    }

    async fn copy_file(&self, item: &Item, skip: SkipUnchanged, meter: &mut Meter) -> Result<Outcome, Error> {
        if item.directory == DirectoryState::Existing && self.is_unchanged(item, skip).await? {
            return Ok(Outcome::Unchanged);
        }
        let bytes = if item.attributes.size <= SMALL as u64 {
            self.small_file(item).await?
        } else {
            self.large_file(item, meter).await?
        };
        meter.note(bytes);
        Ok(Outcome::File { bytes })
    }

    async fn copy_link(&self, item: &Item) -> Result<Outcome, Error> {
        let link = self.fs.read_link(&item.from).await?;
        let target = link.target_base64.0;
        if item.directory == DirectoryState::Existing
            && tokio::fs::read_link(&item.to)
                .await
                .is_ok_and(|there| there.as_os_str().as_encoded_bytes() == target)
        {
            return Ok(Outcome::Unchanged);
        }
        local::write_link(&item.to, target).await?;
        Ok(Outcome::Link)
    }

    fn has_links(&self) -> bool {
        !self.fs.is_base()
    }
}

impl Download {
    /// Returns whether a file is unchanged, and then updates its permissions and time.
    async fn is_unchanged(&self, item: &Item, skip: SkipUnchanged) -> Result<bool, Error> {
        let Item { from, to, attributes: source, .. } = item;
        if skip == SkipUnchanged::Never {
            return Ok(false);
        }
        let Some(there) = local::find(to).await? else { return Ok(false) };
        let is_unchanged = match skip {
            SkipUnchanged::ByContent if there.is_file() && there.size == source.size => {
                match self.fs.hash(from).await {
                    Ok(source) => source.hash == local::hash(to).await?,
                    // A server of the base dialect has no hashes.
                    Err(Error::Refused(_)) => false,
                    Err(error) => return Err(error),
                }
            }
            SkipUnchanged::BySizeAndTime => source.is_same(&there),
            _ => false,
        };
        if is_unchanged {
            if let Some(ms) = source.modified_at_ms.filter(|_| source.modified_at_ms != there.modified_at_ms)
            {
                local::set_modified(to, ms).await?;
            }
            if let Some(mode) = source.mode.filter(|_| source.mode != there.mode) {
                local::set_mode(to, mode).await?;
            }
        }
        Ok(is_unchanged)
    }

    /// Copies a file in one message; reads it again if it changes meanwhile.
    async fn small_file(&self, item: &Item) -> Result<u64, Error> {
        let mut attributes = item.attributes.clone();
        for _ in 0..=TRIES {
            // The server handles requests for one path in order.
            let (content, now) = tokio::try_join!(self.fs.read(&item.from), self.fs.metadata(&item.from))?;
            let now = of_remote(&now);
            // Files of the kernel, as in `/proc`, have content although their size is 0, and their time is meaningless.
            let is_same = attributes.size == 0
                || attributes.modified_at_ms.is_none()
                || now.is_same(&attributes) && content.len() as u64 == now.size;
            if is_same {
                let len = content.len() as u64;
                local::write(&item.to, content, &attributes).await?;
                return Ok(len);
            }
            attributes = now;
        }
        Err(Error::Changed { path: item.from.display().to_string() })
    }

    async fn large_file(&self, item: &Item, meter: &mut Meter) -> Result<u64, Error> {
        let (to, attributes) = (item.to.clone(), item.attributes.clone());
        let failed = unwritable(&item.to);
        // Created in one step with what removes it, so that a cancelled copy leaves nothing behind.
        let made = blocking(move || Temporary::file(&to, &attributes)).await;
        let (temporary, file) = made.map_err(&failed)?;
        let mut file = tokio::fs::File::from_std(file);
        let bytes = self
            .fs
            .receive(item.from.clone().into(), &mut file, |progress| meter.note(progress.bytes))
            .await?;
        file.flush().await.map_err(&failed)?;
        // If the file changed after it was listed, its time tells the next copy that it is outdated.
        let (to, attributes) = (item.to.clone(), item.attributes.clone());
        let file = file.into_std().await;
        blocking(move || temporary.complete(&file, &attributes, &to)).await.map_err(&failed)?;
        Ok(bytes)
    }
}

/// Returns the attributes of a remote entry without the permissions that are not copied.
fn of_remote(metadata: &Metadata) -> Attributes {
    Attributes::of_remote(metadata).without_special_bits()
}

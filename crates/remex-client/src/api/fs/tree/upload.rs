//! Uploads a directory tree to the remote host.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use remex_proto::{Call, HostPath};
use tokio::io::AsyncReadExt as _;

use super::{
    OWNER, SkipUnchanged, TRIES,
    counters::Meter,
    direction::{Attributes, Direction, DirectoryState, Item, Listed, Outcome, Root},
    local::{self, Listing, Source, unreadable},
};
use crate::{
    Error,
    api::fs::{
        Fs, Metadata,
        destination::{Destination, Temporary, hide},
        entry::{set_permissions, set_times},
        is_not_found,
        path::{join, native},
        upload::PRIVATE,
        write_file,
    },
    base::error::usage,
};

/// From this host to the remote one.
#[derive(Debug, Clone)]
pub(super) struct Upload {
    pub(super) fs: Fs,
}

impl Direction for Upload {
    type Listing = Listing;

    fn join_source(directory: &Path, name: &OsStr) -> PathBuf {
        directory.join(name)
    }

    fn join_destination(directory: &Path, name: &OsStr) -> PathBuf {
        join(directory, name)
    }

    async fn root(&self, from: &Path, to: &Path) -> Result<Root<Listing>, Error> {
        let listing = Listing::open(from).await?;
        let metadata = tokio::fs::metadata(from).await.map_err(unreadable(from))?;
        let attributes = local::attributes(&metadata).without_special_bits();
        let state = match self.fs.metadata(to).await {
            Ok(there) if there.is_directory => DirectoryState::Existing,
            Ok(_) => return Err(not_a_directory(to)),
            Err(error) if is_not_found(&error) => DirectoryState::New,
            Err(error) => return Err(error),
        };
        if state == DirectoryState::New {
            self.fs.create_dir_all(to).await?;
        }
        // The path given by the caller may contain links; below it none is followed.
        let to = if self.fs.is_base() {
            to.to_owned()
        } else {
            native(&self.fs.canonicalize(to).await?)?.to_owned()
        };
        if state == DirectoryState::New {
            self.open_permissions(&to, &attributes, None).await?;
        }
        Ok(Root { listing, to, attributes, state })
    }

    async fn list(&self, directory: &Path) -> Result<Listing, Error> {
        Listing::open(directory).await
    }

    async fn next(&self, listing: &mut Listing) -> Result<Option<Listed>, Error> {
        let next = listing.next().await?;
        Ok(next.map(|Listed { name, attributes }| {
            let attributes = attributes.map(Attributes::without_special_bits);
            Listed { name, attributes }
        }))
    }

    async fn gitignore(&self, directory: &Path) -> Result<Option<Bytes>, Error> {
        local::gitignore(directory).await
    }

    async fn make_directory(
        &self,
        to: &Path,
        source: &Attributes,
        parent: DirectoryState,
    ) -> Result<DirectoryState, Error> {
        if self.fs.is_base() {
            self.fs.create_dir_all(to).await?;
            return Ok(DirectoryState::Existing);
        }
        let there = match parent {
            DirectoryState::New => None,
            DirectoryState::Existing => match self.fs.metadata(to).await {
                Ok(there) => Some(there),
                Err(error) if is_not_found(&error) => None,
                Err(error) => return Err(error),
            },
        };
        match &there {
            Some(there) if there.is_symlink => {
                let message = format!(
                    "cannot upload into `{}`: it is a symbolic link, which could point outside of the tree",
                    to.display()
                );
                return Err(usage(message, "remove it"));
            }
            Some(there) if !there.is_directory => return Err(not_a_directory(to)),
            Some(_) => {}
            None => self.fs.create_dir_all(to).without_links().await?,
        }
        self.open_permissions(to, source, there.as_ref()).await?;
        Ok(if there.is_some() { DirectoryState::Existing } else { DirectoryState::New })
    }

    async fn finish_directory(&self, to: &Path, source: &Attributes) -> Result<(), Error> {
        if self.fs.is_base() {
            return Ok(());
        }
        if let Some(ms) = source.modified_at_ms {
            self.fs.client.call(set_times(to.to_owned().into(), ms)).await?;
        }
        match source.mode {
            Some(mode) if mode & OWNER != OWNER => self.fs.set_permissions(to, mode).without_links().await,
            _ => Ok(()),
        }
    }

    async fn copy_file(&self, item: &Item, skip: SkipUnchanged, meter: &mut Meter) -> Result<Outcome, Error> {
        let to = HostPath::from(item.to.clone());
        let there = match item.directory {
            DirectoryState::New => None,
            DirectoryState::Existing => self.fs.find_in_tree(&to).await?,
        };
        if let Some(there) = &there
            && self.is_unchanged(item, there, skip).await?
        {
            self.update(item, there).await?;
            return Ok(Outcome::Unchanged);
        }
        let mut tries = TRIES;
        let source = loop {
            match Source::open(&item.from).await {
                // Reading a small file again is cheap.
                Err(Error::Changed { .. }) if tries > 0 => tries -= 1,
                opened => break opened?,
            }
        };
        let Attributes { mode, modified_at_ms, .. } = source.attributes.clone().without_special_bits();
        let modified_at_ms = modified_at_ms.filter(|_| !self.fs.is_base());
        let destination = Destination { asked: to.clone(), path: to, mode, modified_at_ms };
        let bytes = if source.is_small() {
            let len = source.start.len() as u64;
            self.send_small(source.start.into(), &destination).await?;
            meter.note(len);
            len
        } else {
            let Source { file, attributes, start } = source;
            let check = async {
                let now = local::find(&item.from).await?;
                match now {
                    Some(now) if now.is_same(&attributes) => Ok(()),
                    _ => Err(Error::Changed { path: item.from.display().to_string() }),
                }
            };
            let whole = start.as_slice().chain(tokio::fs::File::from_std(file));
            self.fs.send(whole, check, destination, |progress| meter.note(progress.bytes)).await?
        };
        Ok(Outcome::File { bytes })
    }

    async fn copy_link(&self, item: &Item) -> Result<Outcome, Error> {
        let target = tokio::fs::read_link(&item.from).await.map_err(unreadable(&item.from))?;
        if item.directory == DirectoryState::Existing
            && let Ok(there) = self.fs.read_link(&item.to).await
            && there.target_base64[..] == *target.as_os_str().as_encoded_bytes()
        {
            return Ok(Outcome::Unchanged);
        }
        self.fs.replace_with_symlink(target, &item.to).await?;
        Ok(Outcome::Link)
    }

    fn has_links(&self) -> bool {
        !self.fs.is_base()
    }
}

impl Upload {
    /// Gives a directory the permissions of its source, and those that its owner needs to write to it.
    async fn open_permissions(
        &self,
        to: &Path,
        source: &Attributes,
        there: Option<&Metadata>,
    ) -> Result<(), Error> {
        let Some(mode) = source.mode.map(|mode| mode | OWNER) else { return Ok(()) };
        if self.fs.is_base() || there.is_some_and(|there| there.mode == Some(mode)) {
            return Ok(());
        }
        self.fs.set_permissions(to, mode).without_links().await
    }

    /// Writes a file in one message.
    async fn send_small(&self, content: Bytes, destination: &Destination) -> Result<(), Error> {
        let client = &self.fs.client;
        if self.fs.is_base() {
            let write = write_file(destination.path.clone(), content);
            client.call_without_limit(write).await?;
            return Ok(());
        }
        let mut temporary = Temporary::beside(client, &destination.path)?;
        let sent = self.send_small_beside(content, &mut temporary, destination).await;
        sent.map_err(|error| hide(&temporary.path, error, &destination.asked))
    }

    async fn send_small_beside(
        &self,
        content: Bytes,
        temporary: &mut Temporary,
        destination: &Destination,
    ) -> Result<(), Error> {
        let (size, path) = (content.len() as u64, &temporary.path);
        let mut write = write_file(path.clone(), content);
        write.create_mode = destination.mode.map(|_| PRIVATE);
        let mut steps = vec![Call::from(write)];
        steps.extend(destination.mode.map(|mode| set_permissions(path.clone(), mode).into()));
        steps.extend(destination.modified_at_ms.map(|ms| set_times(path.clone(), ms).into()));
        let core = self.fs.client.core();
        let disconnects = core.disconnects();
        // The server handles requests for one path in order, so one round trip is enough.
        let mut replies = Vec::new();
        for step in steps {
            replies.push(core.enqueue(step).await?);
        }
        for reply in replies {
            reply.await?;
        }
        // Answers come in any order: a write whose answer alone was lost was repeated after the time was set.
        if core.disconnects() != disconnects
            && let Some(ms) = destination.modified_at_ms
        {
            self.fs.client.call(set_times(path.clone(), ms)).await?;
        }
        temporary.put_in_place(&destination.path, size).await
    }

    async fn is_unchanged(&self, item: &Item, there: &Metadata, skip: SkipUnchanged) -> Result<bool, Error> {
        let there = Attributes::of_remote(there);
        match skip {
            SkipUnchanged::Never => Ok(false),
            SkipUnchanged::BySizeAndTime => Ok(item.attributes.is_same(&there)),
            SkipUnchanged::ByContent if !there.is_file() || there.size != item.attributes.size => Ok(false),
            SkipUnchanged::ByContent => match self.fs.hash(&item.to).await {
                Ok(there) => Ok(there.hash == local::hash(&item.from).await?),
                // A server of the base dialect has no hashes.
                Err(Error::Refused(_)) => Ok(false),
                Err(error) => Err(error),
            },
        }
    }

    /// Updates the permissions and the time of an unchanged file.
    async fn update(&self, item: &Item, there: &Metadata) -> Result<(), Error> {
        let (source, there) = (&item.attributes, Attributes::of_remote(there));
        if self.fs.is_base() {
            return Ok(());
        }
        if let Some(ms) = source.modified_at_ms.filter(|_| source.modified_at_ms != there.modified_at_ms) {
            self.fs.client.call(set_times(PathBuf::from(&item.to).into(), ms)).await?;
        }
        match source.mode {
            Some(mode) if there.mode != Some(mode) => {
                self.fs.set_permissions(&item.to, mode).without_links().await
            }
            _ => Ok(()),
        }
    }
}

fn not_a_directory(to: &Path) -> Error {
    usage(
        format!("cannot upload into `{}`: it is not a directory", to.display()),
        "remove it, or choose another destination",
    )
}

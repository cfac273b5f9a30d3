//! Copies one entry that is not a directory.
//!
//! Start at [`Item::copy`].

use std::{ffi::OsStr, sync::Arc};

use bytes::Bytes;
use tokio::sync::Semaphore;

use super::{
    CopyAction, CopyObserver, CopyPath, CopyProblem, Failure, PERMISSIONS, SMALL, SkipUnchanged,
    copier::{Directory, StepError, did},
    counters::{Counters, Meter, Outcome},
    download::download,
    endpoint::{CopyEndpoint, Occupant},
    failed, is_directory, is_same, is_special, kind, modified,
    upload::upload,
};
use crate::{
    Error,
    api::fs::{Metadata, MetadataKind, Transfer, path::split},
    base::error::usage,
};

/// One entry to copy.
pub(super) struct Item {
    pub(super) from: CopyEndpoint,
    pub(super) metadata: Metadata,
    pub(super) to: CopyEndpoint,
    pub(super) there: Occupant,
    pub(super) skip: SkipUnchanged,
    /// Whether it was named explicitly, so that its directory may be reached through links.
    pub(super) is_named: bool,
    /// `None` for an entry that was named explicitly, and in a directory that keeps its permissions and times.
    pub(super) directory: Option<Arc<Directory>>,
}

impl Item {
    pub(super) async fn copy<O: CopyObserver>(
        &mut self,
        observer: &O,
        large: &Semaphore,
        counters: &Arc<Counters>,
    ) -> Result<(), StepError<O::Stop>> {
        observer.on_started(&self.from.label());
        counters.begin(self.from.path());
        let kind = kind(&self.metadata);
        // Most links are as they were, so that of these only the targets are compared.
        if kind != Some(MetadataKind::Symlink) {
            self.look().await?;
        }
        self.check_replaceable()?;
        match kind {
            Some(MetadataKind::Symlink) => self.link(observer, counters).await,
            Some(MetadataKind::File) => {
                if Box::pin(self.is_unchanged()).await {
                    return self.skip(observer, counters).await;
                }
                let is_large = self.metadata.size > SMALL as u64;
                let _room = if is_large { large.acquire().await.ok() } else { None };
                self.file(observer, counters).await
            }
            _ => Err(Failure::new(&self.from, CopyProblem::Special).into()),
        }
    }

    /// Looks up what is at the destination, unless that is known.
    async fn look(&mut self) -> Result<(), Failure> {
        if matches!(self.there, Occupant::Unknown) {
            self.there = self.to.find().await.map_err(|error| failed(&self.from, error))?.into();
        }
        Ok(())
    }

    /// Checks that the destination is no directory, pipe, socket or device, as far as that is known.
    fn check_replaceable<S>(&self) -> Result<(), StepError<S>> {
        let to = || self.to.label();
        let problem = match self.there.metadata() {
            Some(there) if is_directory(there) => CopyProblem::DirectoryExists { to: to() },
            Some(there) if is_special(there) => CopyProblem::SpecialExists { to: to() },
            _ => return Ok(()),
        };
        Err(Failure::new(&self.from, problem).into())
    }

    async fn file<O: CopyObserver>(
        &self,
        observer: &O,
        counters: &Arc<Counters>,
    ) -> Result<(), StepError<O::Stop>> {
        let Self { from, metadata, to, .. } = self;
        if !observer.is_dry_run() {
            let mut meter = Meter::new(counters);
            // The first report of a large file between hosts is what an earlier copy left.
            let mut is_found =
                metadata.size > SMALL as u64 && from.remote().is_some() && to.remote().is_some();
            let mut note = |bytes: u64| {
                let more = meter.note(bytes);
                if std::mem::take(&mut is_found) {
                    observer.on_existing(more);
                } else {
                    observer.on_copied(more);
                }
            };
            let copied = match (from, to) {
                (CopyEndpoint::Remote(from), CopyEndpoint::Remote(to)) => {
                    self.transfer(from, to, observer, &mut note).await
                }
                (CopyEndpoint::Local(from), CopyEndpoint::Remote(to)) => upload(from, to, &mut note).await,
                (CopyEndpoint::Remote(from), CopyEndpoint::Local(to)) => {
                    download(from, metadata, to, &mut note).await
                }
                (CopyEndpoint::Local(_), CopyEndpoint::Local(_)) => {
                    Err(usage("cannot copy from this host to itself", "connect to a server in this process"))
                }
            };
            let bytes = copied.map_err(|error| failed(from, error))?;
            note(bytes);
            counters.arrive();
            counters.finish(Outcome::File { bytes });
        }
        did(observer, CopyAction::Copy, from, to)
    }

    /// Copies the file from one server to another; reports the partial file that a failure leaves.
    async fn transfer(
        &self,
        from: &CopyPath,
        to: &CopyPath,
        observer: &impl CopyObserver,
        note: impl FnMut(u64) + Send,
    ) -> Result<u64, Error> {
        let transfer = Transfer {
            from: from.fs.clone(),
            source: from.path.clone().into(),
            metadata: self.metadata.clone(),
            to: to.fs.clone(),
            destination: to.path.clone().into(),
        };
        let run = transfer.run().progress(note);
        // The next copy of a tree cleans up after a killed one; a file that was named explicitly has no such cleanup.
        let done = if self.directory.is_some() { run.await } else { run.with_part().await };
        match done {
            Ok(done) => Ok(done.bytes),
            Err(error) => {
                if let Ok(part) = transfer.part()
                    && let Some((_, name)) = part.native().ok().and_then(split)
                    && to.fs.exists(&part).await.unwrap_or_default()
                {
                    observer.on_leftover(sibling_of(&to.label, name));
                }
                Err(error)
            }
        }
    }

    async fn link<O: CopyObserver>(
        &mut self,
        observer: &O,
        counters: &Counters,
    ) -> Result<(), StepError<O::Stop>> {
        let target = self.from.read_link().await.map_err(|error| failed(&self.from, error))?;
        if self.has_target(&target).await {
            counters.finish(Outcome::Unchanged);
            return did(observer, CopyAction::Skip, &self.from, &self.to);
        }
        self.look().await?;
        self.check_replaceable()?;
        let Self { from, to, .. } = self;
        if !observer.is_dry_run() {
            to.write_link(target).await.map_err(|error| failed(from, error))?;
            counters.finish(Outcome::Link);
        }
        did(observer, CopyAction::Link, from, to)
    }

    /// Returns whether the destination is a link with this target.
    async fn has_target(&self, target: &Bytes) -> bool {
        match &self.there {
            Occupant::Nothing => false,
            Occupant::Entry(there) => {
                there.is_symlink && there.link_target.as_deref().map(str::as_bytes) == Some(&target[..])
            }
            Occupant::Unknown => self.to.read_link().await.is_ok_and(|there| there == target),
        }
    }

    async fn is_unchanged(&self) -> bool {
        let Self { from, metadata, to, .. } = self;
        let Some(there) = self.there.metadata() else { return false };
        match self.skip {
            SkipUnchanged::Never => false,
            SkipUnchanged::BySizeAndTime => is_same(metadata, there),
            SkipUnchanged::ByContent => {
                let is_likely = kind(there) == Some(MetadataKind::File) && there.size == metadata.size;
                is_likely && Box::pin(has_same_content(from, to)).await
            }
        }
    }

    /// Skips an identical file, but updates its permissions and time.
    async fn skip<O: CopyObserver>(
        &self,
        observer: &O,
        counters: &Arc<Counters>,
    ) -> Result<(), StepError<O::Stop>> {
        let Self { from, metadata, to, .. } = self;
        if !observer.is_dry_run() && !to.is_base() {
            self.update().await.map_err(|error| failed(from, error))?;
        }
        observer.on_existing(metadata.size);
        Meter::new(counters).note(metadata.size);
        counters.arrive();
        counters.finish(Outcome::Unchanged);
        did(observer, CopyAction::Skip, from, to)
    }

    async fn update(&self) -> Result<(), Error> {
        let Self { metadata, to, .. } = self;
        let there = self.there.metadata();
        // The time first: the permissions of the source may keep its owner from opening the copy.
        let is_other = there.is_some_and(|there| there.modified_at_ms != metadata.modified_at_ms);
        if let Some(ms) = modified(metadata).filter(|_| is_other) {
            to.set_modified(ms).await?;
        }
        let mode = metadata.mode.map(|mode| mode & PERMISSIONS);
        let Some(mode) = mode.filter(|_| there.is_some_and(|there| there.mode != mode)) else {
            return Ok(());
        };
        match to.remote().filter(|_| self.is_named) {
            Some(to) => Ok(to.fs.set_permissions(&to.path, mode).await?),
            None => to.set_mode(mode).await,
        }
    }
}

/// Returns whether two files have the same content.
pub(super) async fn has_same_content(from: &CopyEndpoint, to: &CopyEndpoint) -> bool {
    let hashes = tokio::join!(from.hash(), to.hash());
    matches!(hashes, (Ok(from), Ok(to)) if from == to)
}

/// Returns the label of a sibling.
fn sibling_of(label: &str, name: &OsStr) -> String {
    let name = name.to_string_lossy();
    let label = label.trim_end_matches('/');
    // A host name ends with a colon, but after a slash a colon is part of a file name.
    let directory = label.rfind('/').or_else(|| label.rfind(':')).map_or("", |at| &label[..=at]);
    format!("{directory}{name}")
}

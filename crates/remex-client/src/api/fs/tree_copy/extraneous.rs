//! Deletes the entries of a destination that its source does not have, after everything was copied.
//!
//! The names come from the same walk that copied the tree, so only entries that it did not find in the source are
//! deleted. No symbolic link is followed, even one created meanwhile. Start at [`Deletion`].

use std::{
    ffi::OsString,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use tokio::{sync::Semaphore, task::JoinSet};

use super::{
    CopyFailure, CopyMarker, CopyObserver, CopyPath, CopyProblem,
    copier::{JOBS, StepError},
    endpoint::CopyEndpoint,
    failed, is_directory, kind,
    listing::{Listed, Listing, add_gitignore},
    rules::DirectoryRules,
    time,
};
use crate::{
    Error,
    api::fs::{Metadata, MetadataKind, Times, handle::RetryBudget, is_not_found},
    base::error::usage,
};

/// How many names are remembered: about 100 MB. A repeated copy deletes the rest.
const MOST: usize = 1_000_000;

/// How many directories are read concurrently.
const DIRECTORIES: usize = 8;

/// What to delete.
#[derive(Debug, Default)]
pub(super) struct Deletion {
    directories: Vec<ExtraneousEntries>,
    count: usize,
    /// Whether there is more than can be remembered.
    has_more: bool,
}

/// The entries of one directory that the source does not have.
#[derive(Debug)]
pub(super) struct ExtraneousEntries {
    directory: CopyPath,
    /// The rules for the entries; set with the first of them.
    rules: Option<DirectoryRules>,
    names: Vec<(OsString, EntryKind)>,
    /// The modification time that the directory has to keep.
    modified_at_ms: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryKind {
    Directory,
    Link,
    Other,
}

impl ExtraneousEntries {
    pub(super) fn of(directory: CopyPath, modified_at_ms: i64) -> Self {
        Self { directory, rules: None, names: Vec::new(), modified_at_ms: Some(modified_at_ms) }
    }

    /// Lets the modification time of the directory change.
    pub(super) fn leave_time(&mut self) {
        self.modified_at_ms = None;
    }

    /// Adds an entry, unless the rules exclude it or it is the marker of the copy.
    pub(super) fn note(&mut self, name: OsString, metadata: &Metadata, rules: &DirectoryRules) {
        if name == CopyMarker::NAME || rules.exclude(&name, is_directory(metadata)) || self.names.len() > MOST
        {
            return;
        }
        self.rules.get_or_insert_with(|| rules.clone());
        self.names.push((name, EntryKind::of(metadata)));
    }
}

impl EntryKind {
    fn of(metadata: &Metadata) -> Self {
        match kind(metadata) {
            Some(MetadataKind::Symlink) => Self::Link,
            Some(MetadataKind::Directory) => Self::Directory,
            _ => Self::Other,
        }
    }
}

impl Deletion {
    /// Adds the entries of a directory that was read completely.
    pub(super) fn extend(&mut self, entries: Option<ExtraneousEntries>) {
        let Some(entries) = entries.filter(|entries| !entries.names.is_empty()) else { return };
        self.has_more |= self.count + entries.names.len() > MOST;
        if !self.has_more {
            self.count += entries.names.len();
            self.directories.push(entries);
        }
    }

    /// Deletes everything; reports entries that fail, and continues with the others.
    pub(super) async fn run<O: CopyObserver>(self, observer: &Arc<O>) -> Result<(), O::Stop> {
        let work = Work {
            observer: Arc::clone(observer),
            calls: Arc::new(Semaphore::new(JOBS)),
            directories: Arc::new(Semaphore::new(DIRECTORIES)),
        };
        for ExtraneousEntries { directory, rules, names, modified_at_ms } in self.directories {
            let mut pending = Pending::default();
            for (name, kind) in names {
                let rules = rules.clone().unwrap_or_else(|| DirectoryRules::root(Default::default()));
                work.delete(&mut pending, directory.join(&name), kind, rules.enter(&name)).await?;
            }
            pending.finish().await?;
            if let Some(modified) = modified_at_ms.and_then(time)
                && !observer.is_dry_run()
            {
                let times = Times::default().modified(modified);
                if let Err(error) = directory.fs.set_times(&directory.path, times).await {
                    observer.on_failure(failed(&CopyEndpoint::Remote(directory), error).without_path())?;
                }
            }
        }
        if self.has_more {
            let why = usage(
                format!("there are more than {MOST} entries to delete"),
                "repeat the copy to delete the rest",
            );
            let problem = CopyProblem::NotDeleted(why);
            observer.on_failure(CopyFailure { label: "the rest".to_owned(), problem })?;
        }
        Ok(())
    }
}

/// What all deletions share.
struct Work<O> {
    observer: Arc<O>,
    /// Bounds concurrent calls.
    calls: Arc<Semaphore>,
    /// Bounds concurrent directories; further ones are read one after the other.
    directories: Arc<Semaphore>,
}

impl<O> Clone for Work<O> {
    fn clone(&self) -> Self {
        let Self { observer, calls, directories } = self;
        Self {
            observer: Arc::clone(observer),
            calls: Arc::clone(calls),
            directories: Arc::clone(directories),
        }
    }
}

/// The deletions of one directory that are not finished.
struct Pending<S> {
    jobs: JoinSet<Result<(), S>>,
    /// Whether an entry stays, so that the directory cannot be removed.
    keeps_something: Arc<AtomicBool>,
}

impl<S: Send + 'static> Default for Pending<S> {
    fn default() -> Self {
        Self { jobs: JoinSet::new(), keeps_something: Arc::default() }
    }
}

impl<S: Send + 'static> Pending<S> {
    /// Waits for all deletions, and returns whether the directory is empty now.
    async fn finish(mut self) -> Result<bool, S> {
        while let Some(ended) = self.jobs.join_next().await {
            ended.unwrap_or_else(|failed| match failed.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // Jobs are aborted only by dropping the set.
                Err(_) => Ok(()),
            })?;
        }
        Ok(!self.keeps_something.load(Relaxed))
    }
}

type Deleting<S> = Pin<Box<dyn Future<Output = Result<(), S>> + Send>>;

impl<O: CopyObserver> Work<O> {
    /// Starts to delete an entry; `rules` are those for the entries of a directory.
    async fn delete(
        &self,
        pending: &mut Pending<O::Stop>,
        path: CopyPath,
        kind: EntryKind,
        rules: DirectoryRules,
    ) -> Result<(), O::Stop> {
        let (work, keeps) = (self.clone(), Arc::clone(&pending.keeps_something));
        if kind == EntryKind::Directory {
            match Arc::clone(&self.directories).try_acquire_owned() {
                Ok(permit) => {
                    pending.jobs.spawn(async move {
                        let _permit = permit;
                        work.delete_tree(path, rules, keeps).await
                    });
                }
                Err(_) => work.delete_tree(path, rules, keeps).await?,
            }
            return Ok(());
        }
        // The semaphore is never closed.
        let permit = Arc::clone(&self.calls).acquire_owned().await.ok();
        pending.jobs.spawn(async move {
            let _permit = permit;
            work.remove(&path, kind, &keeps).await
        });
        Ok(())
    }

    /// Deletes the entries of a directory that are not excluded, and then the directory if it is empty.
    fn delete_tree(
        self,
        path: CopyPath,
        mut rules: DirectoryRules,
        keeps: Arc<AtomicBool>,
    ) -> Deleting<O::Stop> {
        Box::pin(async move {
            let mut pending = Pending::default();
            let walk = async {
                // What these files exclude was excluded while the source had the directory.
                let place = CopyEndpoint::Remote(path.clone());
                add_gitignore(&place, &mut rules).await?;
                let mut listing = Listing::sorted(place).await?;
                while let Some(Listed { name, metadata }) = listing.next().await? {
                    let metadata =
                        metadata.map_err(|error| failed(&CopyEndpoint::Remote(path.join(&name)), error))?;
                    if rules.exclude(&name, is_directory(&metadata)) {
                        pending.keeps_something.store(true, Relaxed);
                        continue;
                    }
                    let (entry, kind) = (path.join(&name), EntryKind::of(&metadata));
                    self.delete(&mut pending, entry, kind, rules.enter(&name))
                        .await
                        .map_err(StepError::Stop)?;
                }
                Ok(())
            };
            match walk.await {
                Ok(()) => {}
                Err(StepError::Stop(stop)) => return Err(stop),
                Err(StepError::Failure(failure)) => {
                    pending.keeps_something.store(true, Relaxed);
                    let problem = match failure.problem {
                        CopyProblem::Failed(error) => CopyProblem::NotDeleted(error),
                        other => other,
                    };
                    self.observer.on_failure(CopyFailure { label: failure.label, problem })?;
                }
            }
            if pending.finish().await? {
                return self.remove(&path, EntryKind::Directory, &keeps).await;
            }
            keeps.store(true, Relaxed);
            Ok(())
        })
    }

    /// Removes a file, a link or an empty directory, and reports that.
    async fn remove(&self, path: &CopyPath, kind: EntryKind, keeps: &AtomicBool) -> Result<(), O::Stop> {
        let removed = match self.observer.is_dry_run() {
            true => Ok(()),
            false => remove(path, kind).await,
        };
        match removed {
            Ok(()) => self.observer.on_deleted(&path.label),
            Err(error) if is_not_found(&error) => Ok(()),
            Err(error) => {
                keeps.store(true, Relaxed);
                let (label, problem) = (path.label.clone(), CopyProblem::NotDeleted(error));
                self.observer.on_failure(CopyFailure { label, problem })
            }
        }
    }
}

async fn remove(path: &CopyPath, kind: EntryKind) -> Result<(), Error> {
    let mut retries = RetryBudget::default();
    loop {
        let removed = match kind {
            // A request that follows no links refuses this one too; a link is never followed to be removed.
            EntryKind::Link => path.fs.remove(&path.path).await,
            EntryKind::Directory | EntryKind::Other => path.fs.remove(&path.path).without_links().await,
        };
        match removed {
            Ok(()) => return Ok(()),
            Err(error) => retries.note(error)?,
        }
    }
}

//! Walks the source of a tree copy: one directory after the other, many files at once.
//!
//! Memory does not grow with the tree: each level keeps a page of entries, and the walk pauses while enough files are in
//! progress. Only failures are collected. Start at [`Walk`].

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    sync::Arc,
};

use remex_proto::fs::MetadataKind;
use tokio::{sync::Semaphore, task::JoinSet};

use super::{
    OnFailure, Predicate, SMALL, SkipUnchanged, TreeEntry, TreeFailure,
    counters::{Counters, Meter, Total},
    direction::{Attributes, Direction, DirectoryState, Item, Outcome},
    rules::{DirectoryRules, TreeRules},
};
use crate::{Error, base::error::usage};

/// How many files are copied concurrently, to hide the latency of the connection.
const JOBS: usize = 32;

/// How many of the concurrent files may be large: each keeps some blocks in memory.
const LARGE_JOBS: usize = 4;

/// The maximum depth of directories: more than fits into a path.
const DEEPEST: usize = 2048;

/// Which entries are copied, and how.
pub(super) struct Settings<'a> {
    pub(super) rules: TreeRules,
    pub(super) predicate: Option<Predicate<'a>>,
    pub(super) skip: SkipUnchanged,
    pub(super) on_failure: OnFailure,
}

impl Settings<'_> {
    fn excludes(&self, rules: &DirectoryRules, name: &OsStr, attributes: &Attributes) -> bool {
        let is_directory = attributes.is_directory();
        rules.exclude(name, is_directory)
            || self.predicate.as_ref().is_some_and(|wants| {
                let path = &rules.path_of(name);
                !wants(&TreeEntry { path, is_directory, size: attributes.size })
            })
    }
}

/// A copy in progress.
pub(super) struct Walk<'a, D> {
    direction: D,
    settings: &'a Settings<'a>,
    counters: Arc<Counters>,
    /// What the walk itself has seen.
    total: Total,
    /// Dropping it aborts the jobs, which removes their temporary files.
    jobs: JoinSet<Ended>,
    large: Arc<Semaphore>,
    failures: Vec<TreeFailure>,
}

/// The result of a job.
struct Ended {
    /// Relative to the root.
    path: PathBuf,
    directory: Option<Arc<Directory>>,
    outcome: Result<(), Error>,
}

/// A destination directory; each job in it holds a reference, and it is finished after the last one.
struct Directory {
    /// Relative to the root.
    path: PathBuf,
    to: PathBuf,
    source: Attributes,
    parent: Option<Arc<Directory>>,
}

/// A directory that is being read.
struct Frame<L> {
    from: PathBuf,
    to: PathBuf,
    listing: L,
    rules: DirectoryRules,
    state: DirectoryState,
    /// `None` for an existing root, which keeps its permissions and time.
    directory: Option<Arc<Directory>>,
}

impl<'a, D: Direction> Walk<'a, D> {
    pub(super) fn new(direction: D, settings: &'a Settings<'a>, counters: &Arc<Counters>) -> Self {
        Self {
            direction,
            settings,
            counters: Arc::clone(counters),
            total: Total::default(),
            jobs: JoinSet::new(),
            large: Arc::new(Semaphore::new(LARGE_JOBS)),
            failures: Vec::new(),
        }
    }

    /// Copies the tree, and returns what could not be copied.
    pub(super) async fn run(mut self, from: PathBuf, to: PathBuf) -> Result<Vec<TreeFailure>, Error> {
        let mut frames = vec![self.root(from, to).await?];
        while let Some(frame) = frames.last_mut() {
            match self.direction.next(&mut frame.listing).await {
                Ok(Some(listed)) => {
                    let path = frame.rules.path_of(&listed.name);
                    let done = match listed.attributes {
                        Ok(attributes) => self.entry(&mut frames, &listed.name, attributes).await,
                        Err(error) => Err(error),
                    };
                    if let Err(error) = done {
                        self.fail(path, error)?;
                    }
                }
                Ok(None) => self.leave(frames.pop()),
                Err(error) => {
                    self.fail(frame.rules.directory().to_owned(), error)?;
                    self.leave(frames.pop());
                }
            }
        }
        while !self.jobs.is_empty() {
            self.join_one().await?;
        }
        self.counters.know(&self.total);
        Ok(self.failures)
    }

    async fn root(&mut self, from: PathBuf, to: PathBuf) -> Result<Frame<D::Listing>, Error> {
        let mut rules = DirectoryRules::root(self.settings.rules.clone());
        // Before the destination is created: a tree whose rules cannot be read must not create one.
        add_gitignore(&self.direction, &mut rules, &from).await?;
        let root = self.direction.root(&from, &to).await?;
        let directory = (root.state == DirectoryState::New).then(|| {
            let to = root.to.clone();
            Arc::new(Directory { path: PathBuf::new(), to, source: root.attributes, parent: None })
        });
        Ok(Frame { from, to: root.to, listing: root.listing, rules, state: root.state, directory })
    }

    /// Copies an entry of the innermost directory, or starts to.
    async fn entry(
        &mut self,
        frames: &mut Vec<Frame<D::Listing>>,
        name: &OsStr,
        attributes: Attributes,
    ) -> Result<(), Error> {
        let depth = frames.len();
        let Some(frame) = frames.last() else { return Ok(()) };
        if self.settings.excludes(&frame.rules, name, &attributes) {
            self.counters.add(&self.counters.excluded, 1);
            return Ok(());
        }
        match attributes.kind {
            Some(MetadataKind::Directory) => {
                if depth >= DEEPEST {
                    return Err(too_deep(&D::join_source(&frame.from, name)));
                }
                let entered = self.enter(frame, name, attributes).await?;
                frames.push(entered);
            }
            Some(MetadataKind::File) => {
                self.total.add_file(attributes.size);
                self.start(frame, name, attributes).await?;
            }
            Some(MetadataKind::Symlink) if self.direction.has_links() => {
                self.start(frame, name, attributes).await?;
            }
            _ => self.counters.add(&self.counters.special, 1),
        }
        Ok(())
    }

    /// Creates a directory at the destination; reads its source first, because one that cannot be read creates nothing.
    async fn enter(
        &self,
        parent: &Frame<D::Listing>,
        name: &OsStr,
        source: Attributes,
    ) -> Result<Frame<D::Listing>, Error> {
        let (from, to) = (D::join_source(&parent.from, name), D::join_destination(&parent.to, name));
        let mut rules = parent.rules.enter(name);
        let listing = self.direction.list(&from).await?;
        add_gitignore(&self.direction, &mut rules, &from).await?;
        let state = self.direction.make_directory(&to, &source, parent.state).await?;
        self.counters.add(&self.counters.directories, 1);
        let path = rules.directory().to_owned();
        let directory = Directory { path, to: to.clone(), source, parent: parent.directory.clone() };
        Ok(Frame { from, to, listing, rules, state, directory: Some(Arc::new(directory)) })
    }

    /// Starts to copy a file or link, once fewer than [`JOBS`] are running.
    async fn start(
        &mut self,
        frame: &Frame<D::Listing>,
        name: &OsStr,
        attributes: Attributes,
    ) -> Result<(), Error> {
        let (path, directory) = (frame.rules.path_of(name), frame.directory.clone());
        let (from, to) = (D::join_source(&frame.from, name), D::join_destination(&frame.to, name));
        let item = Item { from, to, attributes, directory: frame.state };
        while self.jobs.len() >= JOBS {
            self.join_one().await?;
        }
        let (direction, counters) = (self.direction.clone(), Arc::clone(&self.counters));
        let (large, skip) = (Arc::clone(&self.large), self.settings.skip);
        self.jobs.spawn(async move {
            counters.begin(&item.from);
            let outcome = Box::pin(copy(&direction, &item, skip, &large, &counters)).await;
            Ended { path, directory, outcome: outcome.map(|outcome| counters.finish(outcome)) }
        });
        Ok(())
    }

    fn leave(&mut self, frame: Option<Frame<D::Listing>>) {
        self.release(frame.and_then(|frame| frame.directory));
    }

    /// Drops a reference to a directory; the last one sets its permissions and time.
    fn release(&mut self, directory: Option<Arc<Directory>>) {
        let Some(directory) = directory.and_then(Arc::into_inner) else { return };
        let direction = self.direction.clone();
        self.jobs.spawn(async move {
            let Directory { path, to, source, parent } = directory;
            let outcome = direction.finish_directory(&to, &source).await;
            Ended { path, directory: parent, outcome }
        });
    }

    async fn join_one(&mut self) -> Result<(), Error> {
        match self.jobs.join_next().await {
            None => Ok(()),
            Some(Ok(Ended { path, directory, outcome })) => {
                self.release(directory);
                outcome.or_else(|error| self.fail(path, error))
            }
            Some(Err(failed)) => match failed.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // Jobs are aborted only by dropping the set.
                Err(_) => Ok(()),
            },
        }
    }

    /// Records a failure; returns the error if the copy cannot or should not continue.
    fn fail(&mut self, path: PathBuf, error: Error) -> Result<(), Error> {
        // Neither a lost session nor a server that sends nonsense gets better with the next file.
        let is_final = matches!(error, Error::Lost(_) | Error::Protocol { .. });
        if is_final || self.settings.on_failure == OnFailure::Stop {
            return Err(error);
        }
        self.failures.push(TreeFailure { path, error });
        Ok(())
    }
}

async fn copy<D: Direction>(
    direction: &D,
    item: &Item,
    skip: SkipUnchanged,
    large: &Semaphore,
    counters: &Arc<Counters>,
) -> Result<Outcome, Error> {
    if !item.attributes.is_file() {
        return direction.copy_link(item).await;
    }
    let is_large = item.attributes.size > SMALL as u64;
    let _room = if is_large { large.acquire().await.ok() } else { None };
    let mut meter = Meter::new(counters);
    let outcome = direction.copy_file(item, skip, &mut meter).await?;
    if outcome == Outcome::Unchanged {
        meter.note(item.attributes.size);
    }
    counters.arrive();
    Ok(outcome)
}

async fn add_gitignore<D: Direction>(
    direction: &D,
    rules: &mut DirectoryRules,
    directory: &Path,
) -> Result<(), Error> {
    if rules.use_gitignore_files()
        && let Some(content) = direction.gitignore(directory).await?
    {
        rules.add_gitignore(&content);
    }
    Ok(())
}

fn too_deep(path: &Path) -> Error {
    usage(
        format!("cannot copy `{}`: directories are nested more than {DEEPEST} levels deep", path.display()),
        "copy that directory separately",
    )
}

/// Counts the files to copy and their bytes. Errors are ignored: the copy itself reports them.
pub(super) async fn count<D: Direction>(direction: D, settings: &Settings<'_>, from: PathBuf) -> Total {
    let total = Total::default();
    let mut frames = Vec::new();
    let rules = DirectoryRules::root(settings.rules.clone());
    frames.extend(open(&direction, from, rules).await.ok());
    while let Some((directory, rules, listing)) = frames.last_mut() {
        let Ok(Some(listed)) = direction.next(listing).await else {
            frames.pop();
            continue;
        };
        let Ok(attributes) = listed.attributes else { continue };
        if settings.excludes(rules, &listed.name, &attributes) {
            continue;
        }
        if attributes.is_file() {
            total.add_file(attributes.size);
        } else if attributes.is_directory() {
            let (directory, rules) = (D::join_source(directory, &listed.name), rules.enter(&listed.name));
            if frames.len() < DEEPEST {
                frames.extend(open(&direction, directory, rules).await.ok());
            }
        }
    }
    total
}

async fn open<D: Direction>(
    direction: &D,
    directory: PathBuf,
    mut rules: DirectoryRules,
) -> Result<(PathBuf, DirectoryRules, D::Listing), Error> {
    let listing = direction.list(&directory).await?;
    add_gitignore(direction, &mut rules, &directory).await?;
    Ok((directory, rules, listing))
}

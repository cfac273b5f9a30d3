//! Performs a copy: one walk in pages, many files concurrently.
//!
//! Start at [`Copier::task`] for trees between hosts, and at [`Copier::root`] for those between this host and another.

use std::{
    ffi::OsStr,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use tokio::{sync::Semaphore, task::JoinSet};

use super::{
    CopyAction, CopyMarker, CopyObserver, CopyProblem, CopyTask, DEEPEST, Extraneous, Failure, Filter, OWNER,
    PERMISSIONS, STICKY, SkipUnchanged, TreeRules,
    counters::{Counters, Total},
    endpoint::{CopyEndpoint, Occupant},
    extraneous::{Deletion, ExtraneousEntries},
    failed, is_directory, is_same, is_special,
    item::{Item, has_same_content},
    joined, kind,
    leftovers::{make_marked, resume_directory},
    listing::{Listed, Listing, add_gitignore},
    modified,
    rules::DirectoryRules,
};
use crate::api::fs::{Metadata, MetadataKind, path::join};

/// How many files are copied or deleted concurrently, to hide the latency of the connection.
pub(super) const JOBS: usize = 32;

/// How many of the concurrent files may be large: each keeps some blocks in memory.
const LARGE_JOBS: usize = 4;

/// A copy in progress.
pub(in crate::api::fs) struct Copier<'a, O: CopyObserver> {
    observer: Arc<O>,
    counters: Arc<Counters>,
    /// What the walk itself has seen.
    total: Total,
    /// Dropping it aborts the jobs, which removes their temporary files.
    jobs: JoinSet<Ended<O::Stop>>,
    large: Arc<Semaphore>,
    report: Report<O>,
    filter: Option<Filter<'a>>,
    existing: ExistingDirectories,
    /// The bits of the permissions of a directory that are copied.
    directory_bits: u32,
    /// Whether an entry of the current tree could not be copied.
    has_failed: Arc<AtomicBool>,
    /// Whether an entry of any tree could not be copied, so that nothing may be deleted.
    is_incomplete: bool,
    /// What to delete at the end.
    deletion: Deletion,
}

/// Reports an entry that could not be copied, and decides whether to continue.
pub(in crate::api::fs) type Report<O> = fn(&O, Failure) -> Result<(), <O as CopyObserver>::Stop>;

/// What becomes of directories that exist at the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExistingDirectories {
    /// They keep their permissions.
    Keep,
    /// They get the permissions of the source.
    Update,
    /// An earlier copy started this tree, so they belong to the copy, and so do the files that it left in them.
    Resume,
}

/// Why a step failed.
pub(super) enum StepError<S> {
    Failure(Box<Failure>),
    Stop(S),
}

impl<S> From<Failure> for StepError<S> {
    fn from(failure: Failure) -> Self {
        StepError::Failure(Box::new(failure))
    }
}

/// The result of a job, with the directory that it worked in.
struct Ended<S> {
    directory: Option<Arc<Directory>>,
    outcome: Result<(), StepError<S>>,
}

/// A directory at the destination; each job in it holds a reference, and its times are set after the last one.
pub(super) struct Directory {
    from: PathBuf,
    to: CopyEndpoint,
    /// When it was modified at the source.
    modified_at_ms: Option<i64>,
    /// The permissions that it has to get, if it does not have them yet.
    mode: Option<u32>,
    /// Whether it has the marker of an unfinished copy, which is removed once everything is copied.
    is_marked: bool,
    /// Whether an entry of the tree could not be copied.
    has_failed: Arc<AtomicBool>,
    parent: Option<Arc<Directory>>,
}

/// A directory that is being read.
pub(in crate::api::fs) struct Frame {
    from: Listing,
    to: CopyEndpoint,
    there: Entries,
    is_marked: bool,
    rules: DirectoryRules,
    skip: SkipUnchanged,
    /// `None` if it keeps its permissions and times.
    directory: Option<Arc<Directory>>,
    /// The entries of the destination that the source does not have, if they are to be deleted.
    extraneous: Option<ExtraneousEntries>,
}

/// The entries of a directory at the destination.
enum Entries {
    /// It is new.
    None,
    /// It is read along with the source, by name.
    Listed(Box<Listing>),
    /// Each has to be looked up: the source is not sorted.
    Unknown,
}

impl<'a, O: CopyObserver> Copier<'a, O> {
    /// Creates a copy between servers, for [`Copier::task`].
    pub(super) fn between_hosts(observer: &Arc<O>) -> Self {
        Copier {
            directory_bits: PERMISSIONS | STICKY,
            existing: ExistingDirectories::Keep,
            ..Self::new(
                observer,
                |observer, failure| observer.on_failure(failure.without_path()),
                &Arc::default(),
                None,
            )
        }
    }

    /// Creates a copy between this host and a server, for [`Copier::root`].
    pub(in crate::api::fs) fn new(
        observer: &Arc<O>,
        report: Report<O>,
        counters: &Arc<Counters>,
        filter: Option<Filter<'a>>,
    ) -> Self {
        Copier {
            observer: Arc::clone(observer),
            counters: Arc::clone(counters),
            total: Total::default(),
            jobs: JoinSet::new(),
            large: Arc::new(Semaphore::new(LARGE_JOBS)),
            report,
            filter,
            existing: ExistingDirectories::Update,
            directory_bits: PERMISSIONS,
            has_failed: Arc::default(),
            is_incomplete: false,
            deletion: Deletion::default(),
        }
    }

    pub(super) async fn task(&mut self, task: CopyTask) -> Result<(), O::Stop> {
        let CopyTask {
            from,
            mut metadata,
            to,
            there,
            contents_only,
            marker,
            rules,
            skip_unchanged: skip,
            extraneous,
        } = task;
        let (from, to) = (CopyEndpoint::Remote(from), CopyEndpoint::Remote(to));
        metadata.is_symlink = false;
        if !metadata.is_directory {
            let is_named = skip == SkipUnchanged::BySizeAndTime
                && there.as_ref().is_some_and(|there| is_same(&metadata, there));
            // For a file that was named explicitly, compare the content, not only size and time.
            let there = if is_named && !Box::pin(has_same_content(&from, &to)).await { None } else { there };
            let there = there.into();
            let item = Item { from, metadata, to, there, skip, is_named: true, directory: None };
            return self.item(item).await;
        }
        let keeps_root = contents_only && !marker.is_continued;
        self.existing =
            if marker.is_continued { ExistingDirectories::Resume } else { ExistingDirectories::Keep };
        self.has_failed = Arc::default();
        let marker = (marker.is_continued || there.is_none() && !keeps_root).then_some(marker);
        let there = there.into();
        let item = Item { from, metadata, to, there, skip, is_named: true, directory: None };
        match Box::pin(self.enter(item, DirectoryRules::root(rules), marker, extraneous)).await {
            Ok(mut frame) => {
                if keeps_root {
                    frame.directory = None;
                    frame.extraneous.iter_mut().for_each(ExtraneousEntries::leave_time);
                }
                self.walk(frame, extraneous).await
            }
            Err(error) => self.on_step_error(error),
        }
    }

    /// Prepares the root of a copy between this host and a server; an existing one keeps its permissions and time.
    pub(in crate::api::fs) async fn root(
        &self,
        from: CopyEndpoint,
        to: CopyEndpoint,
        rules: TreeRules,
        skip: SkipUnchanged,
    ) -> Result<Frame, Failure> {
        let mut rules = DirectoryRules::root(rules);
        // Before the destination is created: a tree that cannot be read must not create one.
        add_gitignore(&from, &mut rules).await?;
        let metadata = from.root_metadata().await.map_err(|error| failed(&from, error))?;
        let listing = Listing::new(from.clone()).await?;
        let mode = self.directory_mode(&metadata);
        let (to, is_new) = to.make_root(mode).await.map_err(|error| failed(&from, error))?;
        let directory = is_new.then(|| Arc::new(self.directory(&from, &to, &metadata, closed_mode(mode))));
        let there = if is_new { Entries::None } else { Entries::Unknown };
        Ok(Frame { from: listing, to, there, is_marked: false, rules, skip, directory, extraneous: None })
    }

    /// Copies the entries of a directory and of those below it.
    pub(in crate::api::fs) async fn walk(
        &mut self,
        root: Frame,
        extraneous: Extraneous,
    ) -> Result<(), O::Stop> {
        let mut frames = vec![root];
        loop {
            let depth = frames.len();
            let Some(frame) = frames.last_mut() else { return Ok(()) };
            match self.next(frame).await {
                Ok(Some(item)) if is_directory(&item.metadata) && depth >= DEEPEST => {
                    let problem = CopyProblem::TooDeep { limit: DEEPEST };
                    self.failure(Failure::new(&item.from, problem))?;
                }
                Ok(Some(item)) if is_directory(&item.metadata) => {
                    let rules = frame.rules.enter(item.from.path().file_name().unwrap_or_default());
                    match Box::pin(self.enter(item, rules, None, extraneous)).await {
                        Ok(frame) => {
                            self.counters.add(&self.counters.directories, 1);
                            frames.push(frame);
                        }
                        Err(error) => self.on_step_error(error)?,
                    }
                }
                Ok(Some(item)) => self.item(item).await?,
                Ok(None) => {
                    if let Some(mut frame) = frames.pop() {
                        self.deletion.extend(frame.extraneous.take());
                        self.release(frame.directory);
                    }
                }
                Err(error) => {
                    self.on_step_error(error)?;
                    let directory = frames.pop().and_then(|frame| frame.directory);
                    self.release(directory);
                }
            }
        }
    }

    /// Reports a failed entry of the current tree.
    fn failure(&mut self, failure: Failure) -> Result<(), O::Stop> {
        self.has_failed.store(true, Relaxed);
        self.is_incomplete = true;
        (self.report)(&self.observer, failure)
    }

    fn on_step_error(&mut self, error: StepError<O::Stop>) -> Result<(), O::Stop> {
        match error {
            StepError::Failure(failure) => self.failure(*failure),
            StepError::Stop(stop) => Err(stop),
        }
    }

    /// Returns the next entry of a directory that can be copied and that the rules do not exclude.
    async fn next(&mut self, frame: &mut Frame) -> Result<Option<Item>, StepError<O::Stop>> {
        loop {
            let Some(Listed { name, metadata }) = frame.from.next().await? else {
                while let (Some(extraneous), Entries::Listed(there)) =
                    (&mut frame.extraneous, &mut frame.there)
                    && let Some(Listed { name, metadata }) = there.next().await?
                {
                    let metadata = metadata.map_err(|error| failed(&frame.to.join(&name), error))?;
                    extraneous.note(name, &metadata, &frame.rules);
                }
                return Ok(None);
            };
            if frame.is_marked && name == CopyMarker::NAME {
                // The source is itself an unfinished copy; its marker is not content.
                continue;
            }
            let from = frame.from.directory.join(&name);
            let (extraneous, rules) = (&mut frame.extraneous, &frame.rules);
            let passed = |name, metadata: &Metadata| {
                if let Some(extraneous) = extraneous {
                    extraneous.note(name, metadata, rules);
                }
            };
            // Also for what is not copied, so that nothing of this name counts as extraneous.
            let there = match &mut frame.there {
                Entries::None => Occupant::Nothing,
                Entries::Listed(there) => there.find(&name, passed).await?.into(),
                Entries::Unknown => Occupant::Unknown,
            };
            let metadata = match metadata {
                Ok(metadata) => metadata,
                Err(error) => {
                    self.failure(failed(&from, error)).map_err(StepError::Stop)?;
                    continue;
                }
            };
            if self.excludes(&frame.rules, &name, &metadata) {
                self.counters.add(&self.counters.excluded, 1);
                self.observer.on_excluded(&from.label());
                continue;
            }
            let is_link = kind(&metadata) == Some(MetadataKind::Symlink);
            if is_special(&metadata) || is_link && (from.is_base() || frame.to.is_base()) {
                self.counters.add(&self.counters.special, 1);
                self.observer.on_special(&from.label()).map_err(StepError::Stop)?;
                continue;
            }
            if kind(&metadata) == Some(MetadataKind::File) {
                self.total.add_file(metadata.size);
            }
            let (to, skip, directory) = (frame.to.join(&name), frame.skip, frame.directory.clone());
            return Ok(Some(Item { from, metadata, to, there, skip, is_named: false, directory }));
        }
    }

    fn excludes(&self, rules: &DirectoryRules, name: &OsStr, metadata: &Metadata) -> bool {
        rules.exclude(name, is_directory(metadata))
            || self.filter.is_some_and(|wants| !wants(&rules.path_of(name), metadata))
    }

    /// Creates a directory, and starts to read its source.
    async fn enter(
        &self,
        item: Item,
        mut rules: DirectoryRules,
        marker: Option<CopyMarker>,
        extraneous: Extraneous,
    ) -> Result<Frame, StepError<O::Stop>> {
        let Item { from, metadata, to, there, skip, directory: parent, .. } = item;
        let is_there = there.metadata().is_some_and(is_directory);
        if there.metadata().is_some() && !is_there {
            return Err(Failure::new(&from, CopyProblem::NotADirectory { to: to.label() }).into());
        }
        add_gitignore(&from, &mut rules).await?;
        let remote = from.remote().zip(to.remote());
        let is_sorted = remote.is_some();
        let list = |directory: &CopyEndpoint| {
            let directory = directory.clone();
            async move { if is_sorted { Listing::sorted(directory).await } else { Listing::new(directory).await } }
        };
        // Read the source first: a tree that cannot be read must not create a destination. Between hosts, that would be one
        // more round trip for each directory in it.
        let read = if marker.is_some() || !is_sorted { Some(list(&from).await?) } else { None };
        let mode = self.directory_mode(&metadata);
        let make = async {
            match (remote, &marker) {
                _ if self.observer.is_dry_run() => Ok(!is_there),
                (Some((from, to)), _) if is_there => {
                    if self.existing == ExistingDirectories::Resume {
                        resume_directory(from, to, there.metadata()).await?;
                    }
                    Ok(false)
                }
                (Some((_, at)), Some(marker)) => {
                    make_marked(at, marker).await?;
                    if let Some(mode) = mode {
                        to.set_mode(mode | OWNER).await?;
                    }
                    Ok(true)
                }
                // The root path is already resolved, and below it no link is followed, even one created meanwhile.
                _ => to.make_directory(mode, &there).await,
            }
        };
        let reading = async {
            match read {
                Some(read) => Ok(read),
                None => list(&from).await,
            }
        };
        let reading_there = async {
            match is_there {
                true => list(&to).await.map(Some),
                false => Ok(None),
            }
        };
        let (made, reading, listed) = tokio::join!(make, reading, reading_there);
        let is_new = made.map_err(|error| failed(&from, error))?;
        if is_new {
            did(&*self.observer, CopyAction::Make, &from, &to)?;
        }
        let there = match listed? {
            Some(listed) => Entries::Listed(Box::new(listed)),
            None if is_new => Entries::None,
            None => Entries::Unknown,
        };
        let extraneous = to
            .remote()
            .filter(|_| extraneous == Extraneous::Delete && is_there)
            .map(|to| ExtraneousEntries::of(to.clone(), metadata.modified_at_ms));
        let is_marked = marker.is_some();
        let directory = (!self.observer.is_dry_run()).then(|| {
            let mode = match self.existing {
                ExistingDirectories::Keep if is_there => None,
                ExistingDirectories::Resume if is_there => mode,
                _ => closed_mode(mode),
            };
            Arc::new(Directory { is_marked, parent, ..self.directory(&from, &to, &metadata, mode) })
        });
        Ok(Frame { from: reading?, to, there, is_marked, rules, skip, directory, extraneous })
    }

    fn directory(
        &self,
        from: &CopyEndpoint,
        to: &CopyEndpoint,
        metadata: &Metadata,
        mode: Option<u32>,
    ) -> Directory {
        Directory {
            from: from.path().to_owned(),
            to: to.clone(),
            modified_at_ms: modified(metadata),
            mode,
            is_marked: false,
            has_failed: Arc::clone(&self.has_failed),
            parent: None,
        }
    }

    /// Returns the permissions that a directory gets; `None` where they are unknown.
    fn directory_mode(&self, metadata: &Metadata) -> Option<u32> {
        metadata.mode.map(|mode| mode & self.directory_bits)
    }

    /// Starts to copy an entry that is not a directory.
    async fn item(&mut self, mut item: Item) -> Result<(), O::Stop> {
        while self.jobs.len() >= JOBS {
            self.join_one().await?;
        }
        let (observer, large) = (Arc::clone(&self.observer), Arc::clone(&self.large));
        let counters = Arc::clone(&self.counters);
        self.jobs.spawn(async move {
            let outcome = Box::pin(item.copy(&*observer, &large, &counters)).await;
            Ended { directory: item.directory, outcome }
        });
        Ok(())
    }

    /// Drops a reference to a directory; the last one sets its permissions and times.
    fn release(&mut self, directory: Option<Arc<Directory>>) {
        let Some(directory) = directory.and_then(Arc::into_inner) else { return };
        let observer = Arc::clone(&self.observer);
        self.jobs.spawn(async move {
            let outcome = directory.complete(&*observer).await.map_err(StepError::from);
            Ended { directory: directory.parent, outcome }
        });
    }

    async fn join_one(&mut self) -> Result<(), O::Stop> {
        match self.jobs.join_next().await {
            None => Ok(()),
            Some(Ok(Ended { directory, outcome })) => {
                if let (Some(directory), Err(_)) = (&directory, &outcome) {
                    directory.has_failed.store(true, Relaxed);
                }
                self.release(directory);
                match outcome {
                    Ok(()) => Ok(()),
                    Err(StepError::Failure(failure)) => {
                        self.is_incomplete = true;
                        (self.report)(&self.observer, *failure)
                    }
                    Err(StepError::Stop(stop)) => Err(stop),
                }
            }
            Some(Err(failed)) => match failed.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // Jobs are aborted only by dropping the set.
                Err(_) => Ok(()),
            },
        }
    }

    pub(in crate::api::fs) async fn finish(&mut self) -> Result<(), O::Stop> {
        while !self.jobs.is_empty() {
            self.join_one().await?;
        }
        self.counters.know(&self.total);
        Ok(())
    }

    /// Deletes what the sources do not have, if all of them were copied; what could not be read may have been there.
    pub(super) async fn delete_extraneous(self) -> Result<(), O::Stop> {
        if self.is_incomplete { Ok(()) } else { self.deletion.run(&self.observer).await }
    }
}

/// Returns the permissions of a new directory that its owner must not have until it is complete.
fn closed_mode(mode: Option<u32>) -> Option<u32> {
    mode.filter(|mode| mode & OWNER != OWNER)
}

/// Reports an action.
pub(super) fn did<O: CopyObserver>(
    observer: &O,
    action: CopyAction,
    from: &CopyEndpoint,
    to: &CopyEndpoint,
) -> Result<(), StepError<O::Stop>> {
    observer.on_action(action, &from.label(), &to.label()).map_err(StepError::Stop)
}

impl Directory {
    async fn complete(&self, observer: &impl CopyObserver) -> Result<(), Failure> {
        let is_unfinished = self.is_marked && self.has_failed.load(Relaxed);
        if is_unfinished {
            observer.on_leftover(joined(&self.to.label(), OsStr::new(CopyMarker::NAME)));
        }
        let done = async {
            if let Some(to) = self.to.remote().filter(|_| self.is_marked && !is_unfinished) {
                to.fs.remove(join(&to.path, CopyMarker::NAME)).recursive().missing_ok().await?;
            }
            if self.to.is_base() {
                return Ok(());
            }
            if let Some(ms) = self.modified_at_ms {
                self.to.set_modified(ms).await?;
            }
            match self.mode {
                Some(mode) => self.to.set_mode(mode).await,
                None => Ok(()),
            }
        };
        done.await.map_err(|error| Failure { path: self.from.clone(), ..failed(&self.to, error) })
    }
}

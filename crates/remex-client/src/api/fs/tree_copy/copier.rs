//! Performs a copy: one walk in pages, many files concurrently.

use std::{
    ffi::OsStr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, UNIX_EPOCH},
};

use remex_proto::path::from_bytes;
use tokio::{sync::Semaphore, task::JoinSet};

use super::{
    CopyAction, CopyFailure, CopyMarker, CopyObserver, CopyPath, CopyProblem, CopyTask, Extraneous, OWNER,
    PERMISSIONS, STICKY,
    extraneous::{Deletion, ExtraneousEntries},
    failed, is_directory, is_special, joined, kind,
    leftovers::{make_marked, take_up},
    listing::{Listing, add_gitignore},
};
use crate::{
    api::fs::{
        AsHostPath as _, Metadata, MetadataKind, Times, Transfer,
        path::{join, split},
        tree::{DirectoryRules, SkipUnchanged},
    },
    base::error::usage,
};

/// How many files are copied or deleted concurrently, to hide the latency of the connection.
pub(super) const JOBS: usize = 32;

/// Files longer than this are copied in blocks, and can be resumed; in bytes.
const LARGE: u64 = 256 << 10;

/// The maximum depth of directories: more than fits into a path.
const DEEPEST: usize = 2048;

/// How many of the concurrent files may be large: each keeps some blocks in memory.
const LARGE_JOBS: usize = 4;

/// A copy in progress.
pub(super) struct Copier<O: CopyObserver> {
    observer: Arc<O>,
    jobs: JoinSet<Ended<O::Stop>>,
    large: Arc<Semaphore>,
    /// Whether an earlier copy started this tree, so that its existing directories belong to the copy.
    goes_on: bool,
    /// Whether an entry of the current tree could not be copied.
    has_failed: Arc<AtomicBool>,
    /// Whether an entry of any tree could not be copied, so that nothing may be deleted.
    is_incomplete: bool,
    /// What to delete at the end.
    deletion: Deletion,
}

/// Why a step failed.
pub(super) enum Halt<S> {
    Failure(Box<CopyFailure>),
    Stop(S),
}

impl<S> From<CopyFailure> for Halt<S> {
    fn from(failure: CopyFailure) -> Self {
        Halt::Failure(Box::new(failure))
    }
}

/// The result of a job, with the directory that it worked in.
struct Ended<S> {
    directory: Option<Arc<Directory>>,
    outcome: Result<(), Halt<S>>,
}

/// A directory at the destination; each job in it holds a reference, and its times are set after the last one.
struct Directory {
    to: CopyPath,
    metadata: Metadata,
    /// Whether it existed before, and keeps its permissions.
    is_kept: bool,
    /// Whether it has the marker of an unfinished copy, which is removed once everything is copied.
    is_marked: bool,
    /// Whether an entry of the tree could not be copied.
    has_failed: Arc<AtomicBool>,
    parent: Option<Arc<Directory>>,
}

/// A directory that is being read.
struct Frame {
    from: Listing,
    to: CopyPath,
    /// The entries of the destination, if it existed before.
    there: Option<Listing>,
    is_marked: bool,
    rules: DirectoryRules,
    skip: SkipUnchanged,
    directory: Option<Arc<Directory>>,
    /// The entries of the destination that the source does not have, if they are to be deleted.
    extraneous: Option<ExtraneousEntries>,
}

/// One entry to copy.
struct Item {
    from: CopyPath,
    metadata: Metadata,
    to: CopyPath,
    there: Option<Metadata>,
    skip: SkipUnchanged,
    directory: Option<Arc<Directory>>,
}

impl<O: CopyObserver> Copier<O> {
    pub(super) fn new(observer: &Arc<O>) -> Self {
        Copier {
            observer: Arc::clone(observer),
            jobs: JoinSet::new(),
            large: Arc::new(Semaphore::new(LARGE_JOBS)),
            goes_on: false,
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
        metadata.is_symlink = false;
        if !metadata.is_directory {
            let is_named = skip == SkipUnchanged::BySizeAndTime
                && there.as_ref().is_some_and(|there| is_same(&metadata, there));
            // For a file that was named explicitly, compare the content, not only size and time.
            let there = if is_named && !Box::pin(has_same_content(&from, &to)).await { None } else { there };
            return self.item(Item { from, metadata, to, there, skip, directory: None }).await;
        }
        let keeps_root = contents_only && !marker.is_continued;
        self.goes_on = marker.is_continued;
        self.has_failed = Arc::default();
        let marker = (marker.is_continued || there.is_none() && !keeps_root).then_some(marker);
        let item = Item { from, metadata, to, there, skip, directory: None };
        let mut frames = Vec::new();
        match Box::pin(self.enter(item, DirectoryRules::root(rules), marker, extraneous)).await {
            Ok(mut frame) => {
                if keeps_root {
                    frame.directory = None;
                    frame.extraneous.iter_mut().for_each(ExtraneousEntries::leave_time);
                }
                frames.push(frame);
            }
            Err(halt) => self.halted(halt)?,
        }
        loop {
            let depth = frames.len();
            let Some(frame) = frames.last_mut() else { return Ok(()) };
            match self.next(frame).await {
                Ok(Some(item)) if is_directory(&item.metadata) && depth >= DEEPEST => {
                    let problem = CopyProblem::TooDeep { limit: DEEPEST };
                    self.failure(CopyFailure { label: item.from.label, problem })?;
                }
                Ok(Some(item)) if is_directory(&item.metadata) => {
                    let rules = frame.rules.enter(item.from.path.file_name().unwrap_or_default());
                    match Box::pin(self.enter(item, rules, None, extraneous)).await {
                        Ok(frame) => frames.push(frame),
                        Err(halt) => self.halted(halt)?,
                    }
                }
                Ok(Some(item)) => self.item(item).await?,
                Ok(None) => {
                    if let Some(mut frame) = frames.pop() {
                        self.deletion.extend(frame.extraneous.take());
                        self.release(frame.directory);
                    }
                }
                Err(halt) => {
                    self.halted(halt)?;
                    let directory = frames.pop().and_then(|frame| frame.directory);
                    self.release(directory);
                }
            }
        }
    }

    /// Reports a failed entry of the current tree.
    fn failure(&mut self, failure: CopyFailure) -> Result<(), O::Stop> {
        self.has_failed.store(true, Relaxed);
        self.is_incomplete = true;
        self.observer.on_failure(failure)
    }

    fn halted(&mut self, halt: Halt<O::Stop>) -> Result<(), O::Stop> {
        match halt {
            Halt::Failure(failure) => self.failure(*failure),
            Halt::Stop(stop) => Err(stop),
        }
    }

    /// Returns the next entry of a directory that can be copied and that the rules do not exclude.
    async fn next(&self, frame: &mut Frame) -> Result<Option<Item>, Halt<O::Stop>> {
        loop {
            let Some((name, metadata)) = frame.from.next().await? else {
                while let (Some(extraneous), Some(there)) = (&mut frame.extraneous, &mut frame.there)
                    && let Some((name, metadata)) = there.next().await?
                {
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
                Some(there) => there.find(&name, passed).await?,
                None => None,
            };
            if frame.rules.exclude(&name, is_directory(&metadata)) {
                self.observer.on_excluded(&from.label);
                continue;
            }
            if is_special(&metadata) {
                self.observer.on_special(&from.label).map_err(Halt::Stop)?;
                continue;
            }
            let (to, skip, directory) = (frame.to.join(&name), frame.skip, frame.directory.clone());
            return Ok(Some(Item { from, metadata, to, there, skip, directory }));
        }
    }

    /// Creates a directory, and starts to read its source.
    async fn enter(
        &mut self,
        item: Item,
        mut rules: DirectoryRules,
        marker: Option<CopyMarker>,
        extraneous: Extraneous,
    ) -> Result<Frame, Halt<O::Stop>> {
        let Item { from, metadata, to, there, skip, directory: parent } = item;
        let is_there = there.as_ref().is_some_and(|there| there.is_directory && !there.is_symlink);
        if there.is_some() && !is_there {
            let problem = CopyProblem::NotADirectory { to: to.label };
            return Err(CopyFailure { label: from.label, problem }.into());
        }
        // Read the source first: a tree that cannot be read must not create a destination.
        add_gitignore(&from, &mut rules).await?;
        let read = match &marker {
            Some(_) => Some(Listing::new(from.clone()).await?),
            None => None,
        };
        let make = async {
            match (is_there, &marker) {
                _ if self.observer.is_dry_run() => return Ok(()),
                (true, _) if self.goes_on => return take_up(&from, &to, there.as_ref()).await,
                (true, _) => return Ok(()),
                (false, Some(marker)) => make_marked(&to, marker).await?,
                // The root path is already resolved, and below it no link is followed, even one created meanwhile.
                (false, None) => to.fs.create_dir_all(&to.path).without_links().await?,
            }
            let mode = directory_permissions(&metadata) | OWNER;
            to.fs.set_permissions(&to.path, mode).without_links().await
        };
        let reading = async {
            match read {
                Some(read) => Ok(read),
                None => Listing::new(from.clone()).await,
            }
        };
        let reading_there = async {
            match is_there {
                true => Listing::new(to.clone()).await.map(Some),
                false => Ok(None),
            }
        };
        let (made, reading, there) = tokio::join!(make, reading, reading_there);
        made.map_err(|error| failed(&from, error))?;
        if !is_there {
            did(&*self.observer, CopyAction::Make, &from, &to)?;
        }
        let (is_kept, is_marked) = (is_there && !self.goes_on, marker.is_some());
        let extraneous = (extraneous == Extraneous::Delete && is_there)
            .then(|| ExtraneousEntries::of(to.clone(), metadata.modified_at_ms));
        let has_failed = Arc::clone(&self.has_failed);
        let directory = Directory { to: to.clone(), metadata, is_kept, is_marked, has_failed, parent };
        let directory = (!self.observer.is_dry_run()).then(|| Arc::new(directory));
        Ok(Frame { from: reading?, to, there: there?, is_marked, rules, skip, directory, extraneous })
    }

    /// Starts to copy an entry that is not a directory.
    async fn item(&mut self, item: Item) -> Result<(), O::Stop> {
        while self.jobs.len() >= JOBS {
            self.join_one().await?;
        }
        let (observer, large) = (Arc::clone(&self.observer), Arc::clone(&self.large));
        self.jobs.spawn(async move {
            let outcome = Box::pin(item.copy(&*observer, &large)).await;
            Ended { directory: item.directory, outcome }
        });
        Ok(())
    }

    /// Drops a reference to a directory; the last one sets its permissions and times.
    fn release(&mut self, directory: Option<Arc<Directory>>) {
        let Some(directory) = directory.and_then(Arc::into_inner) else { return };
        let observer = Arc::clone(&self.observer);
        self.jobs.spawn(async move {
            let outcome = directory.complete(&*observer).await.map_err(Halt::from);
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
                    Err(Halt::Failure(failure)) => {
                        self.is_incomplete = true;
                        self.observer.on_failure(*failure)
                    }
                    Err(Halt::Stop(stop)) => Err(stop),
                }
            }
            Some(Err(failed)) => match failed.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // Jobs are aborted only by dropping the set.
                Err(_) => Ok(()),
            },
        }
    }

    pub(super) async fn finish(&mut self) -> Result<(), O::Stop> {
        while !self.jobs.is_empty() {
            self.join_one().await?;
        }
        Ok(())
    }

    /// Deletes what the sources do not have, if all of them were copied; what could not be read may have been there.
    pub(super) async fn delete_extraneous(self) -> Result<(), O::Stop> {
        if self.is_incomplete { Ok(()) } else { self.deletion.run(&self.observer).await }
    }
}

/// Reports an action.
fn did<O: CopyObserver>(
    observer: &O,
    action: CopyAction,
    from: &CopyPath,
    to: &CopyPath,
) -> Result<(), Halt<O::Stop>> {
    observer.on_action(action, &from.label, &to.label).map_err(Halt::Stop)
}

impl Directory {
    async fn complete(&self, observer: &impl CopyObserver) -> Result<(), CopyFailure> {
        let (fs, path) = (&self.to.fs, &self.to.path);
        let times = Times { modified: time(self.metadata.modified_at_ms), accessed: None };
        let is_unfinished = self.is_marked && self.has_failed.load(Relaxed);
        if is_unfinished {
            observer.on_leftover(joined(&self.to.label, OsStr::new(CopyMarker::NAME)));
        }
        let done = async {
            if self.is_marked && !is_unfinished {
                fs.remove(join(path, CopyMarker::NAME)).recursive().missing_ok().await?;
            }
            if !self.is_kept {
                fs.set_permissions(path, directory_permissions(&self.metadata)).without_links().await?;
            }
            fs.set_times(path, times).await
        };
        done.await.map_err(|error| failed(&self.to, error))
    }
}

impl Item {
    async fn copy<O: CopyObserver>(&self, observer: &O, large: &Semaphore) -> Result<(), Halt<O::Stop>> {
        let Self { from, metadata, to, there, .. } = self;
        observer.on_started(&from.label);
        let there = there.as_ref();
        if there.is_some_and(|there| there.is_directory && !there.is_symlink) {
            let problem = CopyProblem::DirectoryExists { to: to.label.clone() };
            return Err(CopyFailure { label: from.label.clone(), problem }.into());
        }
        if there.is_some_and(is_special) {
            let problem = CopyProblem::SpecialExists { to: to.label.clone() };
            return Err(CopyFailure { label: from.label.clone(), problem }.into());
        }
        match kind(metadata) {
            Some(MetadataKind::Symlink) => self.link(observer).await,
            Some(MetadataKind::File) => {
                if Box::pin(self.is_unchanged()).await {
                    return self.skip(observer).await;
                }
                let _room = if metadata.size > LARGE { large.acquire().await.ok() } else { None };
                self.file(observer).await
            }
            _ => Err(CopyFailure { label: from.label.clone(), problem: CopyProblem::Special }.into()),
        }
    }

    async fn file<O: CopyObserver>(&self, observer: &O) -> Result<(), Halt<O::Stop>> {
        let Self { from, metadata, to, .. } = self;
        if !observer.is_dry_run() {
            let path = |end: &CopyPath| end.path.as_host_path();
            let transfer = Transfer {
                from: from.fs.clone(),
                source: path(from).map_err(|error| failed(from, error))?,
                metadata: metadata.clone(),
                to: to.fs.clone(),
                destination: path(to).map_err(|error| failed(to, error))?,
            };
            let (mut so_far, mut is_found) = (0, metadata.size > LARGE);
            let progress = |bytes: u64| {
                // The first report of a large file is what an earlier copy left.
                let more = bytes.saturating_sub(so_far);
                if std::mem::take(&mut is_found) {
                    observer.on_existing(more);
                } else {
                    observer.on_copied(more);
                }
                // The transfer may start over.
                so_far = so_far.max(bytes);
            };
            // The next copy of a tree cleans up after a killed one; a file that was named explicitly has no such cleanup.
            let done = async {
                match self.directory {
                    Some(_) => transfer.run().progress(progress).await,
                    None => transfer.run().with_part().progress(progress).await,
                }
            };
            if let Err(error) = done.await {
                self.report_part(&transfer, observer).await;
                return Err(failed(from, error).into());
            }
        }
        did(observer, CopyAction::Copy, from, to)
    }

    /// Reports the partial file that a failed transfer left.
    async fn report_part(&self, transfer: &Transfer, observer: &impl CopyObserver) {
        let Ok(part) = transfer.part() else { return };
        let name = part.native().ok().and_then(split).map(|(_, name)| name);
        if let (Some(name), Ok(true)) = (name, self.to.fs.exists(&part).await) {
            observer.on_leftover(sibling_of(&self.to.label, name));
        }
    }

    async fn link<O: CopyObserver>(&self, observer: &O) -> Result<(), Halt<O::Stop>> {
        let Self { from, to, there, .. } = self;
        let target = from.fs.read_link(&from.path).await.map_err(|error| failed(from, error))?;
        let target = from_bytes(&target.target_base64)
            .ok_or_else(|| {
                failed(from, usage("the target of the link is not UTF-8", "copy it from Linux or macOS"))
            })?
            .as_os_str();
        let is_same = there.as_ref().is_some_and(|there| {
            there.is_symlink && there.link_target.as_deref() == target.to_str() && target.to_str().is_some()
        });
        if is_same {
            return did(observer, CopyAction::Skip, from, to);
        }
        if !observer.is_dry_run() {
            let made = to.fs.replace_with_symlink(target, &to.path).await;
            made.map_err(|error| failed(from, error))?;
        }
        did(observer, CopyAction::Link, from, to)
    }

    async fn is_unchanged(&self) -> bool {
        let Self { from, metadata, to, there: Some(there), .. } = self else { return false };
        match self.skip {
            SkipUnchanged::Never => false,
            SkipUnchanged::BySizeAndTime => is_same(metadata, there),
            SkipUnchanged::ByContent => {
                let is_likely = there.is_file && !there.is_symlink && there.size == metadata.size;
                is_likely && Box::pin(has_same_content(from, to)).await
            }
        }
    }

    /// Skips an identical file, but updates its permissions and time.
    async fn skip<O: CopyObserver>(&self, observer: &O) -> Result<(), Halt<O::Stop>> {
        let Self { from, metadata, to, there, .. } = self;
        let mode = permissions(metadata);
        let is_other = there.as_ref().is_some_and(|there| permissions(there) != mode);
        if is_other && !observer.is_dry_run() {
            let set = to.fs.set_permissions(&to.path, mode).await;
            set.map_err(|error| failed(from, error))?;
        }
        let is_other = there.as_ref().is_some_and(|there| there.modified_at_ms != metadata.modified_at_ms);
        if is_other && !observer.is_dry_run() {
            let times = Times { modified: time(metadata.modified_at_ms), accessed: None };
            to.fs.set_times(&to.path, times).await.map_err(|error| failed(from, error))?;
        }
        observer.on_existing(metadata.size);
        did(observer, CopyAction::Skip, from, to)
    }
}

/// Returns whether two files have the same content.
async fn has_same_content(from: &CopyPath, to: &CopyPath) -> bool {
    let hashes = tokio::join!(from.fs.hash(&from.path), to.fs.hash(&to.path));
    matches!(hashes, (Ok(from), Ok(to)) if from == to)
}

/// Returns whether a file is unchanged, judging by size and time.
fn is_same(from: &Metadata, there: &Metadata) -> bool {
    there.is_file
        && !there.is_symlink
        && (from.size, from.modified_at_ms) == (there.size, there.modified_at_ms)
}

fn permissions(metadata: &Metadata) -> u32 {
    metadata.mode.unwrap_or(0o755) & PERMISSIONS
}

fn directory_permissions(metadata: &Metadata) -> u32 {
    metadata.mode.unwrap_or(0o755) & (PERMISSIONS | STICKY)
}

pub(super) fn time(ms: i64) -> Option<std::time::SystemTime> {
    let distance = Duration::from_millis(ms.unsigned_abs());
    if ms < 0 { UNIX_EPOCH.checked_sub(distance) } else { UNIX_EPOCH.checked_add(distance) }
}

/// Returns the label of a sibling.
fn sibling_of(label: &str, name: &OsStr) -> String {
    let name = name.to_string_lossy();
    let label = label.trim_end_matches('/');
    // A host name ends with a colon, but after a slash a colon is part of a file name.
    let directory = label.rfind('/').or_else(|| label.rfind(':')).map_or("", |at| &label[..=at]);
    format!("{directory}{name}")
}

//! Copies files and directory trees between hosts: skips identical files, resumes partial ones, verifies hashes.
//!
//! Memory does not grow with the tree: the walk keeps one page per level, and pauses while enough files are in progress.
//! Start at [`copy_trees`], which copies between servers, or at [`copier`], the engine, which also copies between this
//! host and a server. [`endpoint`] has the two kinds of endpoint.

pub(super) mod copier;
pub(super) mod counters;
mod download;
pub(super) mod endpoint;
mod extraneous;
mod item;
mod leftovers;
pub(super) mod listing;
mod local;
mod rules;
mod upload;

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::task::JoinSet;

pub use self::rules::TreeRules;
use self::{copier::Copier, endpoint::CopyEndpoint};
use super::{Fs, Metadata, MetadataKind, destination::not_a_file, handle::BLOCK, path};
use crate::{Error, base::error::usage};

/// Files up to this size are copied in one message, and are not resumed; in bytes.
const SMALL: usize = BLOCK;

/// How often a small file that changes meanwhile is read again.
const TRIES: u32 = 3;

/// The maximum depth of directories: more than fits into a path.
const DEEPEST: usize = 2048;

/// Set-user-id, set-group-id and sticky bits are not copied from another host: the copy has another owner.
const PERMISSIONS: u32 = 0o777;

/// The sticky bit, which keeps the users of a directory from removing each other's files.
const STICKY: u32 = 0o1000;

/// The permissions that the owner needs to write to a new directory.
const OWNER: u32 = 0o700;

/// A path on one host.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CopyPath {
    /// File access on the host.
    pub fs: Fs,
    /// Absolute.
    pub path: PathBuf,
    /// Its name in messages, such as `build:src`.
    pub label: String,
}

impl CopyPath {
    /// Creates a path with its name in messages.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::fs::CopyPath;
    ///
    /// let site = CopyPath::new(client.fs(), "/srv/site", "build:site");
    /// assert_eq!(site.join("index".as_ref()).label, "build:site/index");
    /// # Ok(()) }
    /// ```
    pub fn new(fs: Fs, path: impl Into<PathBuf>, label: impl Into<String>) -> Self {
        CopyPath { fs, path: path.into(), label: label.into() }
    }

    /// Returns the path of an entry of this directory.
    #[must_use]
    pub fn join(&self, name: &OsStr) -> Self {
        let label = joined(&self.label, name);
        CopyPath { fs: self.fs.clone(), path: path::join(&self.path, name), label }
    }
}

/// One file or directory to copy, and its destination.
#[derive(Debug)]
#[non_exhaustive]
pub struct CopyTask {
    /// The source.
    pub from: CopyPath,
    /// The metadata of the source; a link is followed.
    pub metadata: Metadata,
    /// The destination itself, not its parent directory.
    pub to: CopyPath,
    /// The metadata of the destination, if it exists.
    pub there: Option<Metadata>,
    /// Whether only the contents of a directory are copied, without its permissions and times.
    pub contents_only: bool,
    /// Marks a new directory until the copy is complete.
    pub marker: CopyMarker,
    /// Which entries of a directory are excluded; a file that is the source itself never is.
    pub rules: TreeRules,
    /// Which files are not copied again.
    pub skip_unchanged: SkipUnchanged,
    /// What happens to entries of the destination that the source does not have.
    pub extraneous: Extraneous,
}

/// What happens to entries of the destination that the source does not have.
///
/// Excluded entries are never deleted, nor a directory that contains one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Extraneous {
    /// They stay.
    #[default]
    Keep,
    /// They are deleted after everything else, and only if all tasks were copied without a failure.
    Delete,
}

/// Which files a copy does not copy again.
///
/// ```
/// use remex_client::fs::SkipUnchanged;
///
/// assert_eq!(SkipUnchanged::default(), SkipUnchanged::BySizeAndTime);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum SkipUnchanged {
    /// None: everything is copied.
    Never,
    /// Files of the same size and modification time, in milliseconds.
    #[default]
    BySizeAndTime,
    /// Files of the same content, judging by hashes: both sides read the whole file.
    ByContent,
}

/// Returns whether an entry is wanted, by its path relative to the root.
pub(super) type Filter<'a> = &'a (dyn Fn(&Path, &Metadata) -> bool + Send + Sync);

impl CopyTask {
    /// Creates a task for a source with this metadata and a destination that does not exist; [`copy_trees`] has an example.
    pub fn new(from: CopyPath, metadata: Metadata, to: CopyPath, marker: CopyMarker) -> Self {
        CopyTask {
            from,
            metadata,
            to,
            there: None,
            contents_only: false,
            marker,
            rules: TreeRules::default(),
            skip_unchanged: SkipUnchanged::default(),
            extraneous: Extraneous::default(),
        }
    }
}

/// Marks a new directory until the copy is complete, so that a repeated copy resumes it.
#[derive(Debug)]
pub struct CopyMarker {
    /// Identifies the source.
    text: Vec<u8>,
    /// Whether the destination has the marker: an earlier copy did not finish.
    pub is_continued: bool,
}

impl CopyMarker {
    /// The name of the file that marks an unfinished directory.
    pub const NAME: &str = ".remex-part";

    /// Creates a marker with a text that identifies the source.
    pub fn new(text: Vec<u8>) -> Self {
        CopyMarker { text, is_continued: false }
    }

    /// Returns whether an earlier copy of the same source left a directory unfinished.
    pub async fn is_in(&self, directory: &CopyPath) -> bool {
        let (fs, path) = (&directory.fs, path::join(&directory.path, Self::NAME));
        let is_likely = fs
            .metadata(&path)
            .await
            .is_ok_and(|there| there.is_file && !there.is_symlink && there.size == self.text.len() as u64);
        is_likely && fs.read(&path).await.is_ok_and(|content| content == self.text)
    }
}

/// What a copy does with one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CopyAction {
    /// Creates a directory.
    Make,
    /// Copies the content of a file.
    Copy,
    /// Creates a symbolic link.
    Link,
    /// Skips an identical file.
    Skip,
}

/// Why an entry was not copied.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopyFailure {
    /// The label of the entry.
    pub label: String,
    /// The reason.
    pub problem: CopyProblem,
}

/// Why an entry was not copied, with its exact path.
pub(super) struct Failure {
    pub(super) label: String,
    pub(super) problem: CopyProblem,
    /// In the source, or below a destination that has more.
    pub(super) path: PathBuf,
}

impl Failure {
    fn new(entry: &CopyEndpoint, problem: CopyProblem) -> Self {
        Self { label: entry.label(), problem, path: entry.path().to_owned() }
    }

    fn without_path(self) -> CopyFailure {
        CopyFailure { label: self.label, problem: self.problem }
    }

    /// Returns the failure as an error.
    pub(super) fn into_error(self) -> Error {
        match self.problem {
            CopyProblem::Failed(error) | CopyProblem::NotDeleted(error) => error,
            CopyProblem::Special => {
                usage("pipes, sockets and devices have no content to copy", "copy a file or a directory")
            }
            CopyProblem::SpecialExists { to } => not_a_file(to),
            CopyProblem::DirectoryExists { to } => {
                usage(format!("cannot replace `{to}`: it is a directory"), "remove it")
            }
            CopyProblem::NotADirectory { to } => {
                usage(format!("cannot copy into `{to}`: it is not a directory"), "remove it")
            }
            CopyProblem::TooDeep { limit } => usage(
                format!("cannot copy `{}`: directories are nested more than {limit} levels deep", self.label),
                "copy that directory separately",
            ),
            CopyProblem::Unordered { name } => Error::Protocol {
                what: format!("the server listed `{name}` in `{}` twice or out of order", self.label),
            },
        }
    }
}

/// The reason why an entry was not copied.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CopyProblem {
    /// A call failed.
    Failed(Error),
    /// An entry that the source does not have could not be deleted at the destination.
    NotDeleted(Error),
    /// The source that was named is a pipe, a socket or a device.
    Special,
    /// The destination is a pipe, a socket or a device.
    SpecialExists {
        /// The label of the destination.
        to: String,
    },
    /// The destination is a directory, and the source is not.
    DirectoryExists {
        /// The label of the destination.
        to: String,
    },
    /// The destination is not a directory, and the source is.
    NotADirectory {
        /// The label of the destination.
        to: String,
    },
    /// The directories are nested too deeply.
    TooDeep {
        /// How deep they may be.
        limit: usize,
    },
    /// The server listed an entry twice or out of order, so the same name could be a link first and a directory later.
    Unordered {
        /// The name of the entry.
        name: String,
    },
}

/// Observes a copy, and decides whether it continues after a failure.
pub trait CopyObserver: Send + Sync + 'static {
    /// The reason to stop early.
    type Stop: Send + 'static;

    /// Returns whether to report actions without performing them.
    fn is_dry_run(&self) -> bool {
        false
    }

    /// Returns whether to count the total while the copy runs.
    fn wants_total(&self) -> bool {
        false
    }

    /// An entry was started.
    fn on_started(&self, _label: &str) {}

    /// An entry is excluded by the rules.
    fn on_excluded(&self, _label: &str) {}

    /// An entry of a tree is a pipe, a socket or a device, and is left out; the copy is complete without it.
    ///
    /// # Errors
    ///
    /// When the copy should stop.
    fn on_special(&self, label: &str) -> Result<(), Self::Stop>;

    /// An entry that the source does not have was deleted, or would be without the dry run.
    ///
    /// # Errors
    ///
    /// When the copy should stop.
    fn on_deleted(&self, _label: &str) -> Result<(), Self::Stop> {
        Ok(())
    }

    /// These bytes were already copied by an earlier copy.
    fn on_existing(&self, _bytes: u64) {}

    /// These bytes were copied.
    fn on_copied(&self, _bytes: u64) {}

    /// These files and bytes were added to the total.
    fn on_counted(&self, _files: u64, _bytes: u64) {}

    /// The total is complete.
    fn on_total_known(&self) {}

    /// A partial file stays behind until a copy succeeds.
    fn on_leftover(&self, _label: String) {}

    /// An action was performed, or would be without the dry run.
    ///
    /// # Errors
    ///
    /// When the copy should stop.
    fn on_action(&self, action: CopyAction, from: &str, to: &str) -> Result<(), Self::Stop>;

    /// An entry could not be copied.
    ///
    /// # Errors
    ///
    /// When the copy should stop.
    fn on_failure(&self, failure: CopyFailure) -> Result<(), Self::Stop>;
}

/// Copies files and directory trees; reports entries that fail, and continues with the others.
///
/// This is the copy between any two hosts that `remex cp` consists of; [`TreeCopy`](super::TreeCopy) copies between this host
/// and a remote one with the same engine, and needs no server here. Unchanged files at the destination are skipped, large files are resumed where an earlier copy
/// stopped, and all content is verified by its hash. Permissions, times and symbolic links are preserved.
///
/// # Errors
///
/// The value that the observer returns to stop the copy.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
/// use std::sync::Arc;
/// use remex_client::fs::{
///     CopyAction, CopyFailure, CopyMarker, CopyObserver, CopyPath, CopyTask, TreeRules, copy_trees,
/// };
///
/// struct StopAtFirst;
///
/// impl CopyObserver for StopAtFirst {
///     type Stop = CopyFailure;
///
///     fn on_action(&self, action: CopyAction, from: &str, to: &str) -> Result<(), CopyFailure> {
///         println!("{action:?} {from} -> {to}");
///         Ok(())
///     }
///
///     fn on_special(&self, label: &str) -> Result<(), CopyFailure> {
///         println!("left out {label}");
///         Ok(())
///     }
///
///     fn on_failure(&self, failure: CopyFailure) -> Result<(), CopyFailure> {
///         Err(failure)
///     }
/// }
///
/// fs.create_dir(directory.path().join("project")).await?;
/// fs.write(directory.path().join("project/main.c"), "int main(void) {}\n").await?;
/// let end = |name: &str| CopyPath::new(fs.clone(), directory.path().join(name), name);
/// let metadata = fs.metadata(directory.path().join("project")).await?;
/// let marker = CopyMarker::new(b"project".to_vec());
/// let mut task = CopyTask::new(end("project"), metadata, end("copy"), marker);
/// task.rules = TreeRules::new(["*.o"])?;
/// copy_trees(vec![task], &Arc::new(StopAtFirst)).await.expect("nothing is in the way");
/// assert_eq!(fs.read(directory.path().join("copy/main.c")).await?, "int main(void) {}\n");
/// # Ok(()) }
/// ```
pub async fn copy_trees<O: CopyObserver>(tasks: Vec<CopyTask>, observer: &Arc<O>) -> Result<(), O::Stop> {
    let mut counting = JoinSet::new();
    if observer.wants_total() {
        let root = |task: &CopyTask| {
            (CopyEndpoint::Remote(task.from.clone()), task.metadata.clone(), task.rules.clone())
        };
        let roots = tasks.iter().map(root).collect();
        counting.spawn(listing::count(roots, Arc::clone(observer)));
    }
    let mut copy = Copier::between_hosts(observer);
    for task in tasks {
        copy.task(task).await?;
    }
    copy.finish().await?;
    copy.delete_extraneous().await
}

fn failed(place: &CopyEndpoint, error: Error) -> Failure {
    Failure::new(place, CopyProblem::Failed(error))
}

/// Returns the label of an entry of a directory.
fn joined(directory: &str, name: &OsStr) -> String {
    let name = name.to_string_lossy();
    let directory = directory.strip_suffix("/.").unwrap_or(directory);
    if directory.ends_with(['/', ':']) { format!("{directory}{name}") } else { format!("{directory}/{name}") }
}

pub(super) fn is_directory(metadata: &Metadata) -> bool {
    kind(metadata) == Some(MetadataKind::Directory)
}

/// Returns whether an entry is neither a file, a directory nor a link.
fn is_special(metadata: &Metadata) -> bool {
    use MetadataKind::{Directory, File, Symlink};
    !matches!(kind(metadata), Some(File | Directory | Symlink))
}

/// Returns what an entry is; a link counts as a link even if the server does not report its target.
pub(super) fn kind(metadata: &Metadata) -> Option<MetadataKind> {
    match metadata.kind {
        _ if metadata.is_symlink => Some(MetadataKind::Symlink),
        Some(kind) => Some(kind),
        None if metadata.is_directory => Some(MetadataKind::Directory),
        None if metadata.is_file => Some(MetadataKind::File),
        None => None,
    }
}

/// Returns when an entry was modified; a server of the base dialect may not know.
fn modified(metadata: &Metadata) -> Option<i64> {
    let is_known = metadata.modified_at_ms != 0 || metadata.mode.is_some();
    is_known.then_some(metadata.modified_at_ms)
}

/// Returns whether a file is unchanged, judging by size and time.
fn is_same(from: &Metadata, there: &Metadata) -> bool {
    let identity = |of: &Metadata| (kind(of), of.size, of.modified_at_ms);
    modified(from).is_some() && identity(from) == identity(there)
}

/// Returns a moment that the clock of this host can express.
fn time(ms: i64) -> Option<SystemTime> {
    let distance = Duration::from_millis(ms.unsigned_abs());
    if ms < 0 { UNIX_EPOCH.checked_sub(distance) } else { UNIX_EPOCH.checked_add(distance) }
}

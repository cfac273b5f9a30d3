//! Copies of directory trees between this host and the remote one: in constant memory, many files at once.
//!
//! Start at [`TreeCopy`], which collects options, and starts the engine of [`copy_trees`](super::copy_trees).

use std::{
    fmt,
    path::{Path, PathBuf},
    pin::{Pin, pin},
    sync::{Arc, Mutex},
};

use remex_base::lock;

use super::{
    AsHostPath, CopyAction, CopyFailure, CopyObserver, CopyPath, Extraneous, Fs, Metadata, MetadataKind,
    Progress, SkipUnchanged, TreeRules,
    path::native,
    tree_copy::{
        Failure, Filter,
        copier::Copier,
        counters::{Counters, Total},
        endpoint::CopyEndpoint,
        is_directory, kind,
        listing::count_tree,
    },
};
use crate::Error;

impl Fs {
    /// Copies the contents of a local directory into a remote one, which is created if missing.
    ///
    /// Permissions are preserved except set-user-id, set-group-id and sticky, because the owner is not; times are preserved,
    /// and links are copied as links. Each file is replaced atomically; links below `to` are replaced, not followed. Other
    /// existing files stay. [`TreeCopy`] says what else can be chosen.
    ///
    /// A server of the base dialect writes in place and follows links, and preserves neither permissions nor times, so
    /// that files are never found unchanged.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// # let (here, there) = (tempfile::tempdir()?, directory.path().join("project"));
    /// std::fs::write(here.path().join("main.c"), "int main(void) {}\n")?;
    /// std::fs::write(here.path().join("main.o"), "")?;
    /// let report = fs.upload_tree(here.path(), &there).exclude("*.o").await?;
    /// assert_eq!((report.files, report.excluded), (1, 1));
    ///
    /// let again = fs.upload_tree(here.path(), &there).exclude("*.o").await?;
    /// assert_eq!((again.files, again.unchanged), (0, 1));
    /// # Ok(()) }
    /// ```
    pub fn upload_tree<'a>(&self, from: impl AsRef<Path>, to: impl AsHostPath) -> TreeCopy<'a> {
        let from = from.as_ref().to_owned();
        TreeCopy::new(self, remote(&to).map(|to| Route::Upload { from, to }))
    }

    /// Copies the contents of a remote directory into a local one, which is created if missing.
    ///
    /// Permissions are preserved except set-user-id, set-group-id and sticky; times are preserved, and links are copied as
    /// links, whatever their target. Nothing is ever written outside `to`, even if the server is malicious: links below
    /// `to` are replaced, not followed. Each file is replaced atomically. Other existing files stay. [`TreeCopy`] says
    /// what else can be chosen.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// # let (there, here) = (directory.path().join("project"), tempfile::tempdir()?);
    /// fs.create_dir(&there).await?;
    /// fs.write(there.join("main.c"), "int main(void) {}\n").await?;
    /// let report = fs.download_tree(&there, here.path()).await?;
    /// assert_eq!(report.files, 1);
    /// assert!(here.path().join("main.c").exists());
    /// # Ok(()) }
    /// ```
    pub fn download_tree<'a>(&self, from: impl AsHostPath, to: impl AsRef<Path>) -> TreeCopy<'a> {
        let to = to.as_ref().to_owned();
        TreeCopy::new(self, remote(&from).map(|from| Route::Download { from, to }))
    }
}

fn remote(path: &impl AsHostPath) -> Result<PathBuf, Error> {
    Ok(native(&path.as_host_path()?)?.to_owned())
}

/// A copy of a directory tree, from [`Fs::upload_tree`] or [`Fs::download_tree`]; starts when it is awaited.
///
/// Unless chosen otherwise, everything is copied except files that have the same size and time at the destination, and
/// entries that cannot be copied are reported while the others are copied. Pipes, sockets and devices are counted and not
/// copied, nor are links with a server of the base dialect. Files at the destination that the source does not have stay.
///
/// # Cancel safety
///
/// When the future is dropped, files that are complete stay, and no file is half written: the temporary files are removed
/// shortly after, on the remote host by requests that need the connection. A client that is dropped or disconnected at
/// the same moment, or a lost connection, leaves up to 32 files `.NAME.remex-…` there. A server of the base dialect writes
/// in place, so that a dropped upload leaves incomplete files. The same copy, repeated, copies what is missing.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
/// # let (here, there) = (tempfile::tempdir()?, directory.path().join("project"));
/// # std::fs::create_dir(here.path().join("target"))?;
/// # std::fs::write(here.path().join("main.rs"), "fn main() {}\n")?;
/// let report = fs
///     .upload_tree(here.path(), &there)
///     .use_gitignore_files()
///     .exclude("target/")
///     .progress(|progress| println!("{}/{:?} files", progress.files, progress.total_files))
///     .await?;
/// for failure in &report.failures {
///     eprintln!("{failure}");
/// }
/// assert!(report.is_complete());
/// # Ok(()) }
/// ```
#[must_use = "a copy starts when it is awaited"]
pub struct TreeCopy<'a> {
    fs: Fs,
    /// An invalid path is reported when the copy starts.
    route: Result<Route, Error>,
    patterns: Vec<String>,
    gitignore_files: bool,
    predicate: Option<Predicate<'a>>,
    skip: SkipUnchanged,
    on_failure: OnFailure,
    progress: Option<ProgressCallback<'a>>,
}

type Predicate<'a> = Box<dyn Fn(&TreeEntry<'_>) -> bool + Send + Sync + 'a>;

type ProgressCallback<'a> = Box<dyn FnMut(&Progress) + Send + 'a>;

#[derive(Debug, Clone)]
enum Route {
    Upload { from: PathBuf, to: PathBuf },
    Download { from: PathBuf, to: PathBuf },
}

/// What happens after an entry could not be copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum OnFailure {
    #[default]
    Continue,
    Stop,
}

impl<'a> TreeCopy<'a> {
    fn new(fs: &Fs, route: Result<Route, Error>) -> Self {
        Self {
            fs: fs.clone(),
            route,
            patterns: Vec::new(),
            gitignore_files: false,
            predicate: None,
            skip: SkipUnchanged::default(),
            on_failure: OnFailure::default(),
            progress: None,
        }
    }

    /// Excludes entries by a rule in the syntax of `.gitignore`, relative to the root; later rules take precedence.
    ///
    /// An excluded directory is not read, so nothing below it can be included again.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// # let (here, there) = (tempfile::tempdir()?, directory.path().join("logs"));
    /// for name in ["a.log", "b.log", "c.txt"] {
    ///     std::fs::write(here.path().join(name), "")?;
    /// }
    /// let report = fs.upload_tree(here.path(), &there).exclude("*.log").exclude("!b.log").await?;
    /// assert_eq!((report.files, report.excluded), (2, 1));
    /// # Ok(()) }
    /// ```
    pub fn exclude(mut self, pattern: impl Into<String>) -> Self {
        self.patterns.push(pattern.into());
        self
    }

    /// Excludes what the `.gitignore` files of the source exclude, including those in its directories.
    ///
    /// The rules of [`exclude`](Self::exclude) take precedence. The directory `.git` is copied unless a rule excludes it.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// # let (here, there) = (tempfile::tempdir()?, directory.path().join("project"));
    /// std::fs::write(here.path().join(".gitignore"), "*.o\n")?;
    /// std::fs::write(here.path().join("main.o"), "")?;
    /// let report = fs.upload_tree(here.path(), &there).use_gitignore_files().exclude(".git/").await?;
    /// assert_eq!((report.files, report.excluded), (1, 1));
    /// # Ok(()) }
    /// ```
    pub fn use_gitignore_files(mut self) -> Self {
        self.gitignore_files = true;
        self
    }

    /// Copies only entries for which the function returns true, of those that the rules leave.
    ///
    /// It may be called twice for an entry, because the total is counted separately.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// # let (here, there) = (tempfile::tempdir()?, directory.path().join("copy"));
    /// std::fs::write(here.path().join("small"), "x")?;
    /// std::fs::write(here.path().join("large"), vec![0; 10_000])?;
    /// let report = fs.upload_tree(here.path(), &there).filter(|entry| entry.size < 1000).await?;
    /// assert_eq!((report.files, report.excluded), (1, 1));
    /// # Ok(()) }
    /// ```
    pub fn filter(mut self, wants: impl Fn(&TreeEntry<'_>) -> bool + Send + Sync + 'a) -> Self {
        self.predicate = Some(Box::new(wants));
        self
    }

    /// Chooses which files are not copied again.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// # let (here, there) = (tempfile::tempdir()?, directory.path().join("copy"));
    /// use remex_client::fs::SkipUnchanged;
    ///
    /// std::fs::write(here.path().join("data"), "x")?;
    /// fs.upload_tree(here.path(), &there).await?;
    /// let report = fs.upload_tree(here.path(), &there).skip_unchanged(SkipUnchanged::Never).await?;
    /// assert_eq!(report.files, 1);
    /// # Ok(()) }
    /// ```
    pub fn skip_unchanged(mut self, skip: SkipUnchanged) -> Self {
        self.skip = skip;
        self
    }

    /// Fails with the error of the first entry that cannot be copied, instead of reporting it and copying the others.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// # let (here, there) = (tempfile::tempdir()?, directory.path());
    /// std::fs::write(here.path().join("name"), "a file")?;
    /// fs.create_dir(there.join("name")).await?;
    /// assert_eq!(fs.upload_tree(here.path(), there).await?.failures.len(), 1);
    /// assert!(fs.upload_tree(here.path(), there).stop_at_first_failure().await.is_err());
    /// # Ok(()) }
    /// ```
    pub fn stop_at_first_failure(mut self) -> Self {
        self.on_failure = OnFailure::Stop;
        self
    }

    /// Calls a function as the copy proceeds, and at its end.
    ///
    /// The total is counted while the copy runs, and known in the last call at the latest. Files that fail are part of the
    /// total only.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// # let (here, there) = (tempfile::tempdir()?, directory.path().join("copy"));
    /// std::fs::write(here.path().join("greeting"), "hello\n")?;
    /// let mut last = None;
    /// fs.upload_tree(here.path(), &there).progress(|progress| last = Some(progress.clone())).await?;
    /// let last = last.unwrap();
    /// assert_eq!((last.files, last.bytes), (1, 6));
    /// assert_eq!((last.total_files, last.total_bytes), (Some(1), Some(6)));
    /// # Ok(()) }
    /// ```
    pub fn progress(mut self, report: impl FnMut(&Progress) + Send + 'a) -> Self {
        self.progress = Some(Box::new(report));
        self
    }

    /// Copies the tree; the same as awaiting it.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] for an invalid path or rule; [`Error::Local`] or [`Error::Refused`] when the source is not a
    /// directory that can be read, or the destination cannot be created; [`Error::Lost`] and [`Error::Protocol`] at any
    /// time. Entries that cannot be copied are [`failures`](TreeReport::failures) of the report, unless the copy
    /// [stops at the first](Self::stop_at_first_failure).
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// # let (here, there) = (tempfile::tempdir()?, directory.path().join("copy"));
    /// assert_eq!(fs.upload_tree(here.path(), &there).run().await?.files, 0);
    /// assert!(fs.upload_tree("/no/such/directory", &there).run().await.is_err());
    /// # Ok(()) }
    /// ```
    pub async fn run(self) -> Result<TreeReport, Error> {
        let mut rules = TreeRules::new(&self.patterns)?;
        if self.gitignore_files {
            rules = rules.with_gitignore_files();
        }
        let (from, to) = match self.route? {
            Route::Upload { from, to } => (CopyEndpoint::Local(from), resolve(self.fs, to).await?),
            Route::Download { from, to } => (resolve(self.fs, from).await?, CopyEndpoint::Local(to)),
        };
        let wants;
        let filter: Option<Filter<'_>> = match &self.predicate {
            None => None,
            Some(predicate) => {
                wants = |path: &Path, metadata: &Metadata| {
                    let (is_directory, size) = (is_directory(metadata), metadata.size);
                    predicate(&TreeEntry { path, is_directory, size })
                };
                Some(&wants)
            }
        };
        let counters = Arc::new(Counters::default());
        let root = from.path().to_owned();
        let failures = Arc::new(Failures { root, on_failure: self.on_failure, seen: Mutex::default() });
        let total = Total::default();
        let count = |metadata: &Metadata| {
            if kind(metadata) == Some(MetadataKind::File) {
                total.add_file(metadata.size);
            }
        };
        let counting = count_tree(from.clone(), rules.clone(), filter, count);
        let copying = async {
            let mut copier = Copier::new(&failures, Failures::note, &counters, filter);
            let root = copier.root(from, to, rules, self.skip).await.map_err(Failure::into_error)?;
            copier.walk(root, Extraneous::Keep).await?;
            copier.finish().await
        };
        match self.progress {
            None => Box::pin(copying).await?,
            Some(report) => {
                let counting = async {
                    counting.await;
                    counters.know(&total);
                };
                Box::pin(observe(copying, counting, &counters, report)).await?;
            }
        }
        let seen = std::mem::take(&mut *lock(&failures.seen));
        Ok(TreeReport { failures: seen, ..counters.report() })
    }
}

/// Runs a copy, and reports its progress.
async fn observe(
    copying: impl Future<Output = Result<(), Error>>,
    counting: impl Future<Output = ()>,
    counters: &Counters,
    mut report: ProgressCallback<'_>,
) -> Result<(), Error> {
    let (mut copying, mut counting) = (pin!(copying), pin!(counting));
    let mut is_counting = true;
    loop {
        tokio::select! {
            biased;
            done = &mut copying => break done?,
            () = &mut counting, if is_counting => is_counting = false,
            () = counters.changed() => report(&counters.progress()),
        }
    }
    report(&counters.progress());
    Ok(())
}

/// Makes a path on the remote host absolute.
async fn resolve(fs: Fs, path: PathBuf) -> Result<CopyEndpoint, Error> {
    let path = native(&fs.client.core().resolve(path.into()).await?)?.to_owned();
    let label = path.display().to_string();
    Ok(CopyEndpoint::Remote(CopyPath { fs, path, label }))
}

/// Collects what fails, or stops at the first failure.
struct Failures {
    /// The root of the source.
    root: PathBuf,
    on_failure: OnFailure,
    /// Locked only briefly, when an entry fails.
    seen: Mutex<Vec<TreeFailure>>,
}

impl CopyObserver for Failures {
    type Stop = Error;

    fn on_special(&self, _: &str) -> Result<(), Error> {
        Ok(())
    }

    fn on_action(&self, _: CopyAction, _: &str, _: &str) -> Result<(), Error> {
        Ok(())
    }

    fn on_failure(&self, failure: CopyFailure) -> Result<(), Error> {
        let CopyFailure { label, problem } = failure;
        self.note(Failure { path: PathBuf::from(&label), label, problem })
    }
}

impl Failures {
    fn note(&self, failure: Failure) -> Result<(), Error> {
        let path = failure.path.strip_prefix(&self.root).unwrap_or(&failure.path).to_owned();
        let error = failure.into_error();
        // Neither a lost session nor a server that sends nonsense gets better with the next file.
        let is_final = matches!(error, Error::Lost(_) | Error::Protocol { .. });
        if is_final || self.on_failure == OnFailure::Stop {
            return Err(error);
        }
        lock(&self.seen).push(TreeFailure { path, error });
        Ok(())
    }
}

impl<'a> IntoFuture for TreeCopy<'a> {
    type Output = Result<TreeReport, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl fmt::Debug for TreeCopy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TreeCopy").field("route", &self.route).finish_non_exhaustive()
    }
}

/// An entry of a tree, for [`TreeCopy::filter`].
///
/// ```
/// use remex_client::fs::TreeEntry;
///
/// fn is_wanted(entry: &TreeEntry<'_>) -> bool {
///     entry.is_directory || entry.path.extension().is_some_and(|extension| extension == "rs")
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TreeEntry<'a> {
    /// Relative to the root of the tree.
    pub path: &'a Path,
    /// Whether it is a directory; a link to one is not.
    pub is_directory: bool,
    /// The size of a file, in bytes.
    pub size: u64,
}

/// The result of a [`TreeCopy`].
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
/// let (here, there) = (tempfile::tempdir()?, directory.path().join("copy"));
/// std::fs::write(here.path().join("greeting"), "hello\n")?;
/// let report = fs.upload_tree(here.path(), &there).await?;
/// assert_eq!((report.files, report.bytes, report.failures.len()), (1, 6, 0));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[must_use = "it may contain failures"]
#[non_exhaustive]
pub struct TreeReport {
    /// Copied regular files.
    pub files: u64,
    /// Directories that are at the destination, not counting the root.
    pub directories: u64,
    /// Copied symbolic links.
    pub links: u64,
    /// The content of the copied files, in bytes.
    pub bytes: u64,
    /// Files and links that were not copied because they are unchanged.
    pub unchanged: u64,
    /// Excluded entries; what is below an excluded directory is not counted.
    pub excluded: u64,
    /// Entries that cannot be copied: pipes, sockets, devices, and links with a server of the base dialect.
    pub special: u64,
    /// Everything that failed, in no particular order.
    pub failures: Vec<TreeFailure>,
}

impl TreeReport {
    /// Returns whether nothing failed.
    ///
    /// ```
    /// assert!(remex_client::fs::TreeReport::default().is_complete());
    /// ```
    pub fn is_complete(&self) -> bool {
        self.failures.is_empty()
    }
}

/// An entry of a tree that could not be copied; for a directory, also everything below it that is not there.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
/// # let (here, there) = (tempfile::tempdir()?, directory.path());
/// std::fs::write(here.path().join("name"), "a file")?;
/// fs.create_dir(there.join("name")).await?;
/// let report = fs.upload_tree(here.path(), there).await?;
/// assert_eq!(report.failures[0].path.to_str(), Some("name"));
/// println!("{}", report.failures[0]);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TreeFailure {
    /// Relative to the root of the tree; empty for the root.
    pub path: PathBuf,
    /// The cause.
    pub error: Error,
}

impl fmt::Display for TreeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot copy `{}`: {}", self.path.display(), self.error)
    }
}

impl std::error::Error for TreeFailure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

//! Uploads and downloads of directory trees: in constant memory, several files at once.

mod download;
mod upload;

use std::{
    path::Path,
    pin::pin,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use tokio::{sync::Notify, task::JoinSet};

use super::handle::BLOCK;
use crate::Error;

/// How many files are transferred concurrently.
const JOBS: usize = 8;

/// Files up to this size are sent in one message, in bytes.
const SMALL: usize = BLOCK;

/// The permissions that the owner needs to write to a new directory.
const OWNER: u32 = 0o700;

/// The progress of a transfer.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
/// let (mut last, path) = (0, directory.path().join("image"));
/// fs.upload(&[0; 1 << 20][..], &path, |progress| last = progress.bytes).await?;
/// assert_eq!(last, 1 << 20);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Progress {
    /// Completed files.
    pub files: u64,
    /// Transferred bytes.
    pub bytes: u64,
    /// Total bytes, if known.
    pub total: Option<u64>,
    /// The file that was started last.
    pub current: String,
}

/// The result of a tree transfer.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
/// use remex_client::fs::Summary;
///
/// let (here, there) = (tempfile::tempdir()?, directory.path().join("copy"));
/// std::fs::write(here.path().join("greeting"), "hello\n")?;
/// let summary = fs.upload_tree(here.path(), &there, |_| ()).await?;
/// assert_eq!(summary, Summary { files: 1, bytes: 6, ..Summary::default() });
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Regular files.
    pub files: u64,
    /// Directories, not counting the root.
    pub directories: u64,
    /// Symbolic links.
    pub links: u64,
    /// The content of the files, in bytes.
    pub bytes: u64,
    /// Skipped entries that cannot be transferred: pipes, sockets, devices, and links on a server of the base dialect.
    pub skipped: u64,
}

/// Counters shared by the jobs of a transfer.
#[derive(Debug, Default)]
struct Counters {
    files: AtomicU64,
    directories: AtomicU64,
    links: AtomicU64,
    bytes: AtomicU64,
    skipped: AtomicU64,
    /// Set by each job when it starts, read for progress reports; locked only briefly.
    current: Mutex<String>,
    news: Notify,
}

impl Counters {
    fn begin(&self, path: &Path) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = path.display().to_string();
    }

    fn count(&self, what: &AtomicU64, more: u64) {
        what.fetch_add(more, Relaxed);
        self.news.notify_one();
    }

    /// Returns a progress callback that counts the bytes of one file.
    fn bytes_of_file(&self) -> impl FnMut(&Progress) {
        let mut counted = 0;
        move |progress| {
            self.count(&self.bytes, progress.bytes - counted);
            counted = progress.bytes;
        }
    }

    fn progress(&self) -> Progress {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Progress { files: self.files.load(Relaxed), bytes: self.bytes.load(Relaxed), total: None, current }
    }

    fn summary(&self) -> Summary {
        Summary {
            files: self.files.load(Relaxed),
            directories: self.directories.load(Relaxed),
            links: self.links.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            skipped: self.skipped.load(Relaxed),
        }
    }

    /// Waits for a transfer, and reports its progress.
    async fn follow(
        &self,
        transfer: impl Future<Output = Result<(), Error>>,
        mut progress: impl FnMut(&Progress),
    ) -> Result<Summary, Error> {
        let mut transfer = pin!(transfer);
        loop {
            tokio::select! {
                biased;
                done = &mut transfer => {
                    done?;
                    progress(&self.progress());
                    return Ok(self.summary());
                }
                () = self.news.notified() => progress(&self.progress()),
            }
        }
    }
}

/// Concurrent transfers of files and links; aborted on drop.
#[derive(Debug, Default)]
struct Jobs(JoinSet<Result<(), Error>>);

impl Jobs {
    /// Starts a job, once fewer than [`JOBS`] are running.
    async fn begin(
        &mut self,
        job: impl Future<Output = Result<(), Error>> + Send + 'static,
    ) -> Result<(), Error> {
        while self.0.len() >= JOBS {
            self.join_one().await?;
        }
        self.0.spawn(job);
        Ok(())
    }

    /// Waits for all jobs.
    async fn finish(&mut self) -> Result<(), Error> {
        while !self.0.is_empty() {
            self.join_one().await?;
        }
        Ok(())
    }

    async fn join_one(&mut self) -> Result<(), Error> {
        match self.0.join_next().await {
            None => Ok(()),
            Some(Ok(outcome)) => outcome,
            Some(Err(failed)) => match failed.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // Jobs are aborted only by dropping the set.
                Err(_) => Ok(()),
            },
        }
    }
}

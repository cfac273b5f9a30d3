//! The audit file: one JSON line for every login, connection, action and refusal.
//!
//! A thread of its own writes the lines, so that a slow disk delays no worker. Lines never contain payloads,
//! values of environment variables or tokens. Start at [`Audit`].

mod entry;
mod file;
mod policy;
mod subject;
mod timestamp;
mod visible;

use std::{
    io, iter,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

use remex_base::trace::LOG_TARGET;
use remex_proto::{ErrorKind, RpcError};
use tokio::sync::oneshot;

pub use entry::{Attached, Claims, Denial, Entry, Login, Outcome, PeerInfo, connection};
use file::AuditFile;
pub use file::NotOpened;
pub use policy::{Audited, Target, audited, target};
pub use timestamp::timestamp;

/// Lines that may wait for the disk.
const WAITING_LINES: usize = 8192;

/// Bytes of lines that may wait for the disk.
const WAITING_BYTES: usize = 16 << 20;

/// How long a request waits for its line to be written.
const WRITE_LIMIT: Duration = Duration::from_secs(10);

/// How long the end of the server waits for the disk to take the last lines.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

const THREAD_ENDED: &str = "the audit thread has ended";

/// Where and how to keep the audit file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditConfig {
    /// The file; older ones have `.1`, `.2` … appended.
    pub path: PathBuf,
    /// The size at which a new file begins, in bytes.
    pub max_bytes: u64,
    /// How many older files stay.
    pub keep: usize,
    /// Whether an action that cannot be recorded must not happen.
    pub is_required: bool,
}

impl AuditConfig {
    /// Returns the configuration of an audit file with the default size (64 MiB) and number of older files (8).
    pub fn new(path: PathBuf) -> Self {
        AuditConfig { path, max_bytes: 64 << 20, keep: 8, is_required: false }
    }

    /// Returns the file and the names of the older ones, at most 1,000; not all of them need exist.
    pub fn files(&self) -> impl Iterator<Item = PathBuf> {
        const MOST_OLDER: usize = 1_000;
        let older = (1..=self.keep.min(MOST_OLDER)).map(|number| self.older(number));
        iter::once(self.path.clone()).chain(older)
    }

    /// Returns the name of a file that was full; the first one is the newest.
    fn older(&self, number: usize) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{number}"));
        name.into()
    }
}

/// Records what clients do.
#[derive(Debug, Default)]
pub struct Audit {
    log: Option<Log>,
}

#[derive(Debug)]
struct Log {
    jobs: Sender<Job>,
    is_required: bool,
    waiting: Arc<Waiting>,
    /// Lines that were discarded because the disk was too slow or full.
    dropped: Arc<AtomicU64>,
}

/// The lines that wait for the disk.
#[derive(Debug, Default)]
struct Waiting {
    lines: AtomicUsize,
    bytes: AtomicUsize,
}

impl Log {
    /// Queues a line of `len` bytes.
    ///
    /// # Errors
    ///
    /// Why it was not queued: too many lines wait, or the thread has ended.
    fn send(&self, len: usize, job: Job) -> Result<(), &'static str> {
        let lines = self.waiting.lines.fetch_add(1, Ordering::Relaxed) + 1;
        let bytes = self.waiting.bytes.fetch_add(len, Ordering::Relaxed) + len;
        let sent = if lines > WAITING_LINES || bytes > WAITING_BYTES {
            Err("too many records wait for the disk")
        } else {
            self.jobs.send(job).map_err(|_| THREAD_ENDED)
        };
        sent.inspect_err(|_| self.waiting.remove(len))
    }
}

impl Waiting {
    fn remove(&self, len: usize) {
        self.lines.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(len, Ordering::Relaxed);
    }
}

enum Job {
    Line(Vec<u8>),
    /// Reports whether the line was written.
    Acknowledged(Vec<u8>, oneshot::Sender<io::Result<()>>),
    Reopen,
    /// Reports that everything before it was handled.
    Flush(oneshot::Sender<()>),
}

impl Audit {
    /// Opens the file and starts the thread that writes it; without a configuration, nothing is recorded.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened or trusted, or the thread cannot be created.
    pub fn start(config: Option<&AuditConfig>) -> Result<Self, NotOpened> {
        let Some(config) = config else { return Ok(Audit::default()) };
        let file = AuditFile::open(config)?;
        let (jobs, queue) = channel();
        let waiting = Arc::new(Waiting::default());
        let dropped = Arc::new(AtomicU64::new(0));
        let writer = Writer { file, queue, waiting: Arc::clone(&waiting), dropped: Arc::clone(&dropped) };
        thread::Builder::new().name("remex-audit".to_owned()).spawn(move || writer.run())?;
        Ok(Audit { log: Some(Log { jobs, is_required: config.is_required, waiting, dropped }) })
    }

    /// Returns whether anything is recorded.
    pub fn is_on(&self) -> bool {
        self.log.is_some()
    }

    /// Returns whether actions must be recorded before they happen.
    pub fn is_required(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.is_required)
    }

    /// Queues a line; if the disk is too slow, it is counted and discarded.
    pub fn record(&self, line: Vec<u8>) {
        let Some(log) = &self.log else { return };
        if log.send(line.len(), Job::Line(line)).is_err() {
            log.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes a line before the action that it describes.
    ///
    /// # Errors
    ///
    /// If the line could not be written; the action must not happen then.
    pub async fn record_first(&self, line: Vec<u8>) -> Result<(), RpcError> {
        self.write(line).await.map_err(|reason| unrecorded(&reason))
    }

    /// Records a login; where recording is required, before it succeeds.
    ///
    /// # Errors
    ///
    /// Why the line could not be written, where it is required; the client must not get in then.
    pub async fn record_login(&self, line: Vec<u8>) -> Result<(), String> {
        if self.is_required() {
            return self.write(line).await;
        }
        self.record(line);
        Ok(())
    }

    /// Writes a line and waits until the file has it; returns why it does not.
    async fn write(&self, line: Vec<u8>) -> Result<(), String> {
        let Some(log) = &self.log else { return Ok(()) };
        let (done, written) = oneshot::channel();
        log.send(line.len(), Job::Acknowledged(line, done))?;
        match tokio::time::timeout(WRITE_LIMIT, written).await {
            Ok(Ok(written)) => written.map_err(|error| error.to_string()),
            Err(_) => Err("the disk takes too long".to_owned()),
            Ok(Err(_)) => Err(THREAD_ENDED.to_owned()),
        }
    }

    /// Opens the file again, after another program has moved it.
    pub fn reopen(&self) {
        if let Some(log) = &self.log {
            let _ = log.jobs.send(Job::Reopen);
        }
    }

    /// Waits until the lines so far are written, a few seconds at most; what is left then is counted and logged.
    pub async fn flush(&self) {
        let Some(log) = &self.log else { return };
        let (done, flushed) = oneshot::channel();
        // An error means that the thread has ended; the waiting lines are counted below.
        let _ = log.jobs.send(Job::Flush(done));
        let _ = tokio::time::timeout(CLOSE_LIMIT, flushed).await;
        let lost = log.waiting.lines.load(Ordering::Relaxed);
        if lost > 0 {
            log.dropped.fetch_add(lost as u64, Ordering::Relaxed);
            tracing::error!(target: LOG_TARGET, lost, "the server ends before the audit file took its last lines");
        }
    }

    /// Returns how many lines were discarded.
    pub fn dropped(&self) -> u64 {
        self.log.as_ref().map_or(0, |log| log.dropped.load(Ordering::Relaxed))
    }
}

fn unrecorded(reason: &str) -> RpcError {
    let message =
        format!("the request was not carried out because it cannot be recorded in the audit file: {reason}");
    RpcError::new(ErrorKind::Internal, message)
        .with_hint("ask the administrator of the server to make room for the audit file")
}

/// The thread that writes the file.
struct Writer {
    file: AuditFile,
    queue: Receiver<Job>,
    waiting: Arc<Waiting>,
    dropped: Arc<AtomicU64>,
}

impl Writer {
    /// Writes lines until the server ends.
    fn run(mut self) {
        let mut reported = 0;
        while let Ok(job) = self.queue.recv() {
            let mut flushed = None;
            match job {
                Job::Line(line) => {
                    if self.file.write(&line).is_err() {
                        self.dropped.fetch_add(1, Ordering::Relaxed);
                    }
                    self.waiting.remove(line.len());
                }
                Job::Acknowledged(line, done) => {
                    let written = self.file.write(&line);
                    self.waiting.remove(line.len());
                    let _ = done.send(written);
                }
                Job::Reopen => self.file.reopen(),
                Job::Flush(done) => flushed = Some(done),
            }
            let dropped = self.dropped.load(Ordering::Relaxed);
            if dropped > reported && self.file.write(&entry::dropped(dropped - reported)).is_ok() {
                reported = dropped;
            }
            if let Some(flushed) = flushed {
                let _ = flushed.send(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_failed_write_is_reported_where_recording_is_required() {
        let directory = tempfile::tempdir().unwrap();
        let config = AuditConfig { is_required: true, ..AuditConfig::new(directory.path().join("audit")) };
        let audit = Audit::start(Some(&config)).unwrap();
        audit.record_first(b"{}\n".to_vec()).await.unwrap();
        assert_eq!(std::fs::read(&config.path).unwrap(), b"{}\n");

        let full = AuditConfig { path: "/dev/full".into(), ..config };
        let audit = Audit::start(Some(&full)).unwrap();
        let error = audit.record_first(b"{}\n".to_vec()).await.unwrap_err();
        assert!(error.message.contains("cannot be recorded"), "{error}");
    }

    /// Returns an audit whose disk takes nothing, and what keeps its queue open.
    fn stuck() -> (Audit, Receiver<Job>) {
        let (jobs, queue) = channel();
        let log = Log { jobs, is_required: true, waiting: Arc::default(), dropped: Arc::default() };
        (Audit { log: Some(log) }, queue)
    }

    #[test]
    fn queued_lines_are_bounded_by_their_bytes() {
        let (audit, queue) = stuck();
        (0..20).for_each(|_| audit.record(vec![b'x'; 1 << 20]));
        assert_eq!(audit.dropped(), 4);
        assert_eq!(queue.try_iter().count(), WAITING_BYTES >> 20);
    }

    #[test]
    fn the_file_is_reopened_even_if_the_queue_is_full() {
        let (audit, queue) = stuck();
        (0..=WAITING_LINES).for_each(|_| audit.record(b"{}\n".to_vec()));
        assert_eq!(audit.dropped(), 1);
        audit.reopen();
        assert!(matches!(queue.try_iter().last(), Some(Job::Reopen)));
    }

    #[tokio::test]
    async fn lines_that_do_not_fit_on_a_full_disk_are_counted() {
        let audit = Audit::start(Some(&AuditConfig::new("/dev/full".into()))).unwrap();
        (0..3).for_each(|_| audit.record(b"{}\n".to_vec()));
        audit.flush().await;
        assert_eq!(audit.dropped(), 3);
    }

    #[tokio::test]
    async fn shutdown_waits_for_the_last_lines() {
        let directory = tempfile::tempdir().unwrap();
        let config = AuditConfig::new(directory.path().join("audit"));
        let audit = Audit::start(Some(&config)).unwrap();
        (0..5000).for_each(|_| audit.record(b"{}\n".to_vec()));
        audit.flush().await;
        assert_eq!(std::fs::read(&config.path).unwrap().len(), 3 * 5000);
    }

    #[tokio::test(start_paused = true)]
    async fn shutdown_does_not_wait_long_for_a_disk_that_hangs() {
        let (audit, _queue) = stuck();
        (0..WAITING_LINES).for_each(|_| audit.record(b"{}\n".to_vec()));
        audit.flush().await;
        assert_eq!(audit.dropped(), WAITING_LINES as u64);
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_that_hangs_blocks_actions_that_must_be_recorded() {
        let (audit, _queue) = stuck();
        let recorded = tokio::time::timeout(2 * WRITE_LIMIT, audit.record_first(b"{}\n".to_vec())).await;
        let error = recorded.expect("a refusal in time").unwrap_err();
        assert!(error.message.contains("takes too long"), "{error}");
    }

    #[test]
    fn a_fifo_without_a_reader_is_an_error_at_the_start() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let error = Audit::start(Some(&AuditConfig::new(path))).unwrap_err();
        assert!(error.to_string().contains("nobody reads"), "{error}");
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_an_error_at_the_start() {
        let config = AuditConfig::new("/nonexistent/audit".into());
        let error = Audit::start(Some(&config)).unwrap_err();
        assert!(matches!(&error, NotOpened::Io(error) if error.kind() == io::ErrorKind::NotFound), "{error}");
    }
}

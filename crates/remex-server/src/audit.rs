//! The audit file: one JSON line for every login, connection, action and refusal.
//!
//! A thread of its own writes the lines, so that a slow disk delays no worker. Lines never contain payloads,
//! values of environment variables or tokens. Start at [`Audit`].

mod entry;
mod file;

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
};

use remex_proto::{ErrorKind, RpcError};
use tokio::sync::oneshot;

pub(crate) use entry::{Entry, Login, Outcome, PeerInfo, connection};
use file::AuditFile;

/// Lines that may wait for the disk.
const WAITING_LINES: usize = 8192;

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
}

/// Records what clients do.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    log: Option<Log>,
}

#[derive(Debug)]
struct Log {
    jobs: SyncSender<Job>,
    is_required: bool,
    /// Lines that were discarded because the disk was too slow.
    dropped: Arc<AtomicU64>,
}

enum Job {
    Line(Vec<u8>),
    /// Reports whether the line was written.
    Acknowledged(Vec<u8>, oneshot::Sender<io::Result<()>>),
    Reopen,
}

impl Audit {
    /// Opens the file and starts the thread that writes it; without a configuration, nothing is recorded.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened, or the thread cannot be created.
    pub(crate) fn start(config: Option<&AuditConfig>) -> io::Result<Self> {
        let Some(config) = config else { return Ok(Audit::default()) };
        let file = AuditFile::open(config)?;
        let (jobs, waiting) = sync_channel(WAITING_LINES);
        let dropped = Arc::new(AtomicU64::new(0));
        let writer = Writer { file, waiting, dropped: Arc::clone(&dropped) };
        thread::Builder::new().name("remex-audit".to_owned()).spawn(move || writer.run())?;
        Ok(Audit { log: Some(Log { jobs, is_required: config.is_required, dropped }) })
    }

    pub(crate) fn is_on(&self) -> bool {
        self.log.is_some()
    }

    /// Returns whether actions must be recorded before they happen.
    pub(crate) fn is_required(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.is_required)
    }

    /// Queues a line; if the disk is too slow, it is counted and discarded.
    pub(crate) fn record(&self, line: Vec<u8>) {
        let Some(log) = &self.log else { return };
        if log.jobs.try_send(Job::Line(line)).is_err() {
            log.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes a line before the action that it describes.
    ///
    /// # Errors
    ///
    /// If the line could not be written; the action must not happen then.
    pub(crate) async fn record_first(&self, line: Vec<u8>) -> Result<(), RpcError> {
        let Some(log) = &self.log else { return Ok(()) };
        let (done, written) = oneshot::channel();
        match log.jobs.try_send(Job::Acknowledged(line, done)) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => return Err(unrecorded("too many records wait for the disk")),
            Err(TrySendError::Disconnected(_)) => return Err(unrecorded("the audit thread has ended")),
        }
        match written.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(unrecorded(&error.to_string())),
            Err(_) => Err(unrecorded("the audit thread has ended")),
        }
    }

    /// Opens the file again, after another program has moved it.
    pub(crate) fn reopen(&self) {
        if let Some(log) = &self.log {
            // With a full queue, the next request to reopen does it.
            let _ = log.jobs.try_send(Job::Reopen);
        }
    }

    /// Returns how many lines were discarded.
    pub(crate) fn dropped(&self) -> u64 {
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
    waiting: Receiver<Job>,
    dropped: Arc<AtomicU64>,
}

impl Writer {
    /// Writes lines until the server ends.
    fn run(mut self) {
        let mut reported = 0;
        while let Ok(job) = self.waiting.recv() {
            match job {
                Job::Line(line) => drop(self.file.write(&line)),
                Job::Acknowledged(line, done) => {
                    let _ = done.send(self.file.write(&line));
                }
                Job::Reopen => self.file.reopen(),
            }
            let dropped = self.dropped.load(Ordering::Relaxed);
            if dropped > reported && self.file.write(&entry::dropped(dropped - reported)).is_ok() {
                reported = dropped;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_cannot_be_written_is_reported_to_those_who_require_it() {
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

    #[test]
    fn a_file_that_cannot_be_opened_is_an_error_at_the_start() {
        let config = AuditConfig::new("/nonexistent/audit".into());
        assert_eq!(Audit::start(Some(&config)).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}

//! A log whose events are announced only when they are on the disk. Start at [`DiskLogWriter::begin_sync`].

use std::io;

use remex_log::Unsynced;
use remex_proto::state::output_log::Seq;

use super::{DiskLogWriter, LogState as _};
use crate::state::{
    keeper_link::message::{ExhaustedQuota, Progress},
    state_dir::sync,
};

/// The state on the disk, and the changes in progress.
#[derive(Debug)]
pub(super) struct Syncing {
    /// The progress that may be announced.
    ready: Progress,
    /// The first event that no sync has covered.
    next_seq: Seq,
    is_running: bool,
    /// Why events may not survive a power failure. It stays: what the disk has lost once, no later sync brings back.
    failure: Option<String>,
}

/// Events on their way to the disk.
#[derive(Debug)]
pub(crate) struct SyncJob {
    files: Unsynced,
    progress: Progress,
}

/// The step required before new events are announced.
#[derive(Debug)]
pub(crate) enum SyncStep {
    /// This work, on a thread that may wait for the disk; then [`DiskLogWriter::end_sync`].
    Run(Box<SyncJob>),
    /// An earlier sync is in progress; when it ends, it continues with these events.
    Wait,
    /// Nothing.
    Done,
}

impl SyncJob {
    /// Waits until the events are on the disk.
    pub(crate) fn wait(&self) -> io::Result<()> {
        self.files.wait(sync)
    }
}

impl Syncing {
    pub(super) fn new() -> Self {
        Syncing { ready: Progress::start(), next_seq: 1, is_running: false, failure: None }
    }

    /// Goes on with a log that is on the disk up to the event before `next_seq`, unless there was a failure.
    pub(super) fn resume(ready: Progress, next_seq: Seq, failure: Option<String>) -> Self {
        Syncing { ready, next_seq, is_running: false, failure }
    }

    /// Returns why events may not survive a power failure.
    pub(super) fn failure(&self) -> Option<&String> {
        self.failure.as_ref()
    }

    /// Records that events cannot be brought to the disk.
    fn fail(&mut self, error: &io::Error) {
        self.failure.get_or_insert_with(|| failure(error));
    }

    /// Lets events be announced.
    fn announce(&mut self, mut progress: Progress) {
        if !self.ready.inline.is_empty() {
            // Without those before them they are read from the files.
            progress.inline = Vec::new();
        }
        self.ready = progress;
    }

    /// Returns what may be announced.
    pub(super) fn take(&mut self, is_full: bool, exhausted: Option<ExhaustedQuota>) -> Progress {
        let inline = std::mem::take(&mut self.ready.inline);
        Progress { inline, is_full, exhausted, sync_failure: self.failure.clone(), ..self.ready.clone() }
    }
}

/// Returns the text that readers get in `failure`.
pub(super) fn failure(error: &io::Error) -> String {
    format!(
        "cannot sync the output of this process: {error}; what was read of it may not survive a power failure, so check the \
         disk of the state directory"
    )
}

impl DiskLogWriter {
    /// Begins to bring new events to the disk, if they are announced only then.
    pub(crate) fn begin_sync(&mut self) -> SyncStep {
        let next_seq = self.next_seq();
        let Some(syncing) = &mut self.syncing else { return SyncStep::Done };
        if syncing.is_running {
            return SyncStep::Wait;
        }
        if syncing.next_seq == next_seq {
            return SyncStep::Done;
        }
        if self.writer.flush().is_err() {
            // Output that is not in the file yet is announced later.
            return SyncStep::Done;
        }
        let files = self.writer.unsynced();
        let mut progress = self.written_progress(false);
        // Otherwise it could be seen before it is on the disk.
        progress.exit.take_if(|_| progress.exited.is_none());
        let Some(syncing) = &mut self.syncing else { return SyncStep::Done };
        syncing.next_seq = next_seq;
        match files {
            Ok(files) => {
                syncing.is_running = true;
                SyncStep::Run(Box::new(SyncJob { files, progress }))
            }
            Err(error) => {
                syncing.fail(&error);
                syncing.announce(progress);
                SyncStep::Done
            }
        }
    }

    /// Returns whether events may not survive a power failure although they were to.
    pub(crate) fn has_sync_failed(&self) -> bool {
        self.syncing.as_ref().is_some_and(|syncing| syncing.failure.is_some())
    }

    /// Records that a sync has ended, and begins the next one if there are newer events.
    ///
    /// Events that are not on the disk are announced all the same, together with the reason.
    pub(crate) fn end_sync(&mut self, job: Box<SyncJob>, waited: &io::Result<()>) -> SyncStep {
        let SyncJob { files, progress } = *job;
        if waited.is_ok() {
            self.writer.synced(&files);
        }
        if let Some(syncing) = &mut self.syncing {
            if let Err(error) = waited {
                syncing.fail(error);
            }
            syncing.is_running = false;
            syncing.announce(progress);
        }
        self.begin_sync()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use remex_log::{Options, Unlimited, Writer};
    use remex_proto::state::output_log::{Hold, Stream};

    use super::*;
    use crate::process::LogWriter as _;

    fn append(log: &mut DiskLogWriter, text: &str) {
        let room = log.room(Hold::After(0), usize::MAX);
        let fill = &mut |spare: &mut [u8]| {
            spare[..text.len()].copy_from_slice(text.as_bytes());
            Ok(text.len())
        };
        assert_eq!(log.append(Stream::Stdout, 1, room, fill).unwrap(), text.len());
    }

    fn job(step: SyncStep) -> Box<SyncJob> {
        match step {
            SyncStep::Run(job) => job,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn events_are_announced_only_when_they_are_on_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { retain_bytes: 1 << 20, segment_bytes: None };
        let writer = Writer::create(dir.path(), options, Arc::new(Unlimited)).unwrap();
        let mut log = DiskLogWriter::new(writer, false, true);
        assert!(matches!(log.begin_sync(), SyncStep::Done));
        append(&mut log, "one");
        let first = job(log.begin_sync());
        append(&mut log, "two");
        assert!(matches!(log.begin_sync(), SyncStep::Wait), "one at a time");
        assert_eq!(log.take_progress(false).newest, 0, "nothing is on the disk yet");
        first.wait().unwrap();
        let second = job(log.end_sync(first, &Ok(())));
        let announced = log.take_progress(false);
        assert_eq!((announced.newest, announced.produced.stdout), (1, 3));
        assert_eq!(announced.inline.len(), 1, "a little output travels along");
        second.wait().unwrap();
        assert!(matches!(log.end_sync(second, &Ok(())), SyncStep::Done));
        let announced = log.take_progress(false);
        assert_eq!((announced.newest, announced.produced.stdout), (2, 6));
        assert_eq!(announced.inline[0].bytes, b"two");
        assert_eq!(log.take_progress(false).newest, 2, "it stays announced");
    }
}

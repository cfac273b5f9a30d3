//! The log that the keeper writes to disk.

use std::{io, path::Path, sync::Arc};

use remex_log::{Cause, Options, Quota, Recovered, Room, Writer};
use remex_proto::{
    Blob,
    process::Produced,
    state::output::{Hold, Point, Seq, Stream},
};
use serde::{Deserialize, Serialize};

use super::{
    Fill, LogState, LogWriter, ProcessLog,
    synced::{Syncing, failure},
};
use crate::process::LOG_TARGET;
use crate::state::keeper_link::message::{ExhaustedQuota, ExitRecord, InlineChunk, Progress, Rules};

/// How much new output travels with the announcement of its events; more is read from the log.
const INLINE_BYTES: usize = 16 << 10;

/// Output for which there is no room is dropped in pieces of this size.
const DROPPED_BYTES: usize = 64 << 10;

/// The log of one process in the keeper.
#[derive(Debug)]
pub(crate) struct DiskLogWriter {
    pub(super) writer: Writer,
    /// The events that the server needs to stay readable.
    hold: Hold<Point>,
    /// What happens to output for which there is no room: it is dropped, or the process waits.
    drops: bool,
    /// Why there is no room for what is dropped.
    full: Option<Cause>,
    /// Which disk quota is exhausted.
    exhausted: Option<ExhaustedQuota>,
    exit: Option<ExitRecord>,
    exited: Option<Seq>,
    is_closed: bool,
    inline: InlineOutput,
    /// What the server knows.
    announced: Progress,
    /// If events are announced only when they are on the disk.
    pub(super) syncing: Option<Syncing>,
}

/// The state of a log in the keeper that is not in its files.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct LogRecord {
    hold: Hold<Point>,
    exit: Option<ExitRecord>,
    loss: Option<Blob>,
    #[serde(default)]
    sync_failure: Option<String>,
}

/// Output that is not announced yet, to be sent inline with the announcement.
#[derive(Debug, Default)]
struct InlineOutput {
    chunks: Vec<InlineChunk>,
    bytes: usize,
    /// Bytes since the last announcement, whether they are in `chunks` or not.
    unannounced: u64,
    /// Whether there were more than an announcement carries.
    is_incomplete: bool,
}

impl DiskLogWriter {
    pub(crate) fn new(writer: Writer, drops: bool, sync: bool) -> Self {
        Self {
            writer,
            hold: Hold::ALL,
            drops,
            full: None,
            exhausted: None,
            exit: None,
            exited: None,
            is_closed: false,
            inline: InlineOutput::default(),
            announced: Progress::start(),
            syncing: sync.then(Syncing::new),
        }
    }

    /// Describes what is not in the file; fails if the file system has refused to write something.
    pub(crate) fn record(&mut self) -> io::Result<LogRecord> {
        if self.writer.flush().is_err() {
            return Err(io::Error::other("the disk does not take the last output"));
        }
        let loss = self.writer.unwritten_dropped_run().map(Blob::from);
        let sync_failure = self.syncing.as_ref().and_then(Syncing::failure).cloned();
        Ok(LogRecord { hold: self.hold, exit: self.exit.clone(), loss, sync_failure })
    }

    /// Goes on with a log.
    pub(crate) fn resume(
        dir: &Path,
        options: Options,
        space: Arc<Quota>,
        Rules { evicts: drops, sync, .. }: &Rules,
        record: LogRecord,
    ) -> io::Result<Self> {
        let (drops, sync) = (*drops, *sync);
        let (mut writer, Recovered { summary, cut_bytes }) = Writer::open(dir, options, space as _)?;
        if cut_bytes > 0 {
            tracing::error!(target: LOG_TARGET, cut_bytes, dir = %dir.display(), "the end of a log was damaged");
        }
        let mut sync_failure = record.sync_failure;
        if sync && let Err(error) = writer.sync() {
            tracing::error!(target: LOG_TARGET, %error, dir = %dir.display(), "cannot sync a log: output may not survive a power failure");
            sync_failure.get_or_insert_with(|| failure(&error));
        }
        let mut log = Self::new(writer, drops, false);
        log.hold = record.hold;
        log.exit = record.exit;
        log.exited = summary.exited.map(|end| end.seq);
        log.is_closed = summary.closed.is_some();
        // Before the loss, which cannot be announced until it is in the file.
        let written = log.written_progress(false);
        log.syncing = sync.then(|| Syncing::resume(written, log.next_seq(), sync_failure));
        if let Some(loss) = record.loss {
            log.writer.resume_dropped_run(&loss)?;
        }
        // The server knows nothing of what came since.
        log.inline.is_incomplete = true;
        Ok(log)
    }

    /// Records what the server wants to stay readable.
    pub(crate) fn set_hold(&mut self, hold: Hold<Point>) {
        self.hold = hold;
    }

    pub(crate) fn hold(&self) -> Hold<Point> {
        self.hold
    }

    pub(crate) fn files(&mut self) -> &mut Writer {
        &mut self.writer
    }

    /// Returns how many bytes were not announced yet.
    pub(crate) fn unannounced(&self) -> u64 {
        self.inline.unannounced
    }

    /// Returns what the server has to learn: where the log stands, and new output if that is little.
    ///
    /// Output that is not in the file yet cannot be read, so it is announced later.
    pub(crate) fn take_progress(&mut self, is_full: bool) -> Progress {
        let is_written = self.writer.flush().is_ok();
        match &mut self.syncing {
            Some(syncing) => syncing.take(is_full || !is_written, self.exhausted),
            None => self.written_progress(is_full),
        }
    }

    /// Returns where the log stands in its files, and new output if that is little.
    pub(super) fn written_progress(&mut self, is_full: bool) -> Progress {
        let _ = self.writer.flush();
        let position = self.writer.position();
        let InlineOutput { chunks, is_incomplete, .. } = std::mem::take(&mut self.inline);
        let (exit, inline) = (self.exit.clone(), Vec::new());
        if position.written_seq + 1 != position.next_seq {
            self.inline.is_incomplete = true;
            return Progress { exit, is_full: true, exhausted: self.exhausted, ..self.announced.clone() };
        }
        self.announced = Progress {
            first_seq: position.first_seq,
            first_offset: position.first_offset,
            newest: position.written_seq,
            produced: position.produced,
            retained: position.retained,
            exited: self.exited,
            is_closed: self.is_closed,
            exit,
            is_full,
            exhausted: self.exhausted,
            sync_failure: None,
            inline,
        };
        let inline = if is_incomplete { Vec::new() } else { chunks };
        Progress { inline, ..self.announced.clone() }
    }

    /// Returns what must stay: nothing if the engine says so, or else what the server has said.
    fn effective(&self, hold: Hold) -> Hold<Point> {
        match (hold, self.hold) {
            (Hold::Nothing, _) => Hold::Nothing,
            (Hold::After(_), hold) => hold,
        }
    }
}

impl LogWriter for DiskLogWriter {
    fn room(&mut self, hold: Hold, _budget: usize) -> usize {
        (self.full, self.exhausted) = (None, None);
        let cause = match self.writer.room(self.effective(hold)) {
            Room::Bytes(bytes) => return bytes,
            Room::Full(cause) => cause,
        };
        self.exhausted = match cause {
            Cause::SessionQuota => Some(ExhaustedQuota::Session),
            Cause::ServerQuota | Cause::DiskFull => Some(ExhaustedQuota::Server),
            Cause::Retention | Cause::ProcessQuota | Cause::Io(_) => None,
        };
        if !self.drops {
            return 0;
        }
        self.full = Some(cause);
        DROPPED_BYTES
    }

    fn room_for_rest(&mut self, hold: Hold) -> usize {
        let Hold::After(Point { seq, .. }) = self.effective(hold) else { return 0 };
        // Everything after this event stays, but none of it counts.
        let offset = self.writer.position().offset;
        match self.writer.room(Hold::After(Point { seq, offset })) {
            Room::Bytes(bytes) => bytes,
            Room::Full(_) => 0,
        }
    }

    fn append(&mut self, stream: Stream, now_ms: u64, max: usize, fill: Fill<'_>) -> io::Result<usize> {
        let inline = &mut self.inline;
        if let Some(cause) = self.full {
            let mut dropped = vec![0; max.min(DROPPED_BYTES)];
            let len = fill(&mut dropped)?;
            self.writer.drop_output(stream, len as u64, cause);
            inline.is_incomplete = true;
            inline.unannounced += len as u64;
            return Ok(len);
        }
        let room = INLINE_BYTES.saturating_sub(inline.bytes);
        let mut copy = Vec::new();
        let is_complete = !inline.is_incomplete;
        let appended = self.writer.append(stream, now_ms, max, |spare| {
            let len = fill(spare)?;
            if len <= room && is_complete {
                copy.extend_from_slice(&spare[..len]);
            }
            io::Result::Ok(len)
        })?;
        let Some(appended) = appended else { return Ok(0) };
        inline.unannounced += appended.len as u64;
        if copy.is_empty() {
            *inline = InlineOutput {
                is_incomplete: true,
                unannounced: inline.unannounced,
                ..InlineOutput::default()
            };
        } else {
            inline.bytes += copy.len();
            inline.chunks.push(InlineChunk { seq: appended.seq, stream, at_ms: now_ms, bytes: copy });
        }
        Ok(appended.len)
    }

    fn evict(&mut self, hold: Hold, _budget: usize) {
        self.writer.evict(self.effective(hold));
    }

    fn push_exited(&mut self, now_ms: u64, exit: &ExitRecord) {
        let payload = serde_json::to_vec(exit).unwrap_or_default();
        match self.writer.exited(now_ms, &payload) {
            Ok(appended) => self.exited = Some(appended.seq),
            Err(error) => tracing::error!(target: LOG_TARGET, %error, "cannot record the exit of a process"),
        }
    }

    fn push_closed(&mut self, now_ms: u64) {
        self.is_closed = true;
        if let Err(error) = self.writer.closed(now_ms, &[]) {
            tracing::error!(target: LOG_TARGET, %error, "cannot record the end of a process");
        }
    }

    fn joins_events(&self) -> bool {
        false
    }

    fn note_exit(&mut self, exit: ExitRecord) {
        self.exit = Some(exit);
    }

    fn settle(&mut self) -> bool {
        self.writer.flush().is_ok()
    }

    fn lacks_space(&self) -> bool {
        self.exhausted.is_some()
    }
}

impl LogState for DiskLogWriter {
    fn next_seq(&self) -> Seq {
        self.writer.position().next_seq
    }

    fn first_seq(&self) -> Seq {
        self.writer.position().first_seq
    }

    fn exited(&self) -> Option<Seq> {
        self.exited
    }

    fn is_closed(&self) -> bool {
        self.is_closed
    }

    fn produced(&self) -> Produced {
        self.writer.position().produced
    }

    fn evicted_bytes(&self) -> u64 {
        self.writer.position().evicted
    }

    fn held_bytes(&self) -> u64 {
        self.writer.position().retained
    }
}

impl ProcessLog for DiskLogWriter {
    fn memory(&self) -> usize {
        self.inline.bytes
    }
}

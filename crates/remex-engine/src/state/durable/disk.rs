//! Records in the state directory of processes that no keeper runs.

use std::{fs, io, path::Path, sync::Arc};

use remex_base::{clock::now_ms, trace::LOG_TARGET};
use remex_log::{Options, Summary, Unlimited, Writer};
use remex_proto::state::output::Hold;
use serde::{Deserialize, Serialize};

use crate::state::{
    keeper_link::message::{ExitRecord, Key, Progress, ReportedProcess},
    state_dir::read,
};

/// The file with the description of a process.
pub(crate) const DESCRIPTION: &str = "process.json";

/// The tag of [`StartNote`] in the log.
pub(crate) const START_NOTE: u8 = 1;

/// When a process started, as a note in its log.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct StartNote {
    /// The first process of the tree.
    pub pid: u32,
    /// When it started, in milliseconds since 1970.
    pub at_ms: u64,
}

/// Retention matters only to a writer that continues.
const ANY_RETENTION: Options = Options { retain_bytes: u64::MAX >> 1, segment_bytes: None };

/// Returns all processes on disk except those that `is_kept` knows; what was lost with its keeper is closed.
pub(super) fn processes(dir: &Path, is_kept: impl Fn(Key) -> bool) -> io::Result<Vec<ReportedProcess>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let Some(key) = entry.file_name().to_str().and_then(Key::from_dir_name) else { continue };
        if is_kept(key) {
            continue;
        }
        match process(key, &entry.path()) {
            Ok(process) => found.push(process),
            Err(error) => {
                tracing::warn!(target: LOG_TARGET, %error, path = %entry.path().display(), "cannot read a process in the state directory");
            }
        }
    }
    Ok(found)
}

fn process(key: Key, dir: &Path) -> io::Result<ReportedProcess> {
    let description = read(&dir.join(DESCRIPTION))?;
    let summary = remex_log::inspect(dir)?;
    let note = summary.notes.get(&START_NOTE).and_then(|note| serde_json::from_slice(note).ok());
    let started = note.map(|StartNote { pid, at_ms }| (pid, at_ms));
    let progress = if summary.closed.is_some() { progress_in(&summary) } else { close_lost(dir)? };
    Ok(ReportedProcess { key, description, request: Vec::new(), started, progress, hold: Hold::ALL })
}

/// Records in the log of a process that was lost with its keeper how it ended, and returns where the log stands.
pub(crate) fn close_lost(dir: &Path) -> io::Result<Progress> {
    let (mut writer, _) = Writer::open(dir, ANY_RETENTION, Arc::new(Unlimited))?;
    let summary = remex_log::inspect(dir)?;
    if summary.exited.is_none() {
        writer.exited(now_ms(), &serde_json::to_vec(&ExitRecord::lost(now_ms()))?)?;
    }
    if summary.closed.is_none() {
        writer.closed(now_ms(), &[])?;
    }
    drop(writer);
    Ok(progress_in(&remex_log::inspect(dir)?))
}

fn progress_in(summary: &Summary) -> Progress {
    let exit = summary.exited.as_ref().and_then(|end| serde_json::from_slice(end.payload.as_deref()?).ok());
    Progress {
        first_seq: summary.first_seq,
        first_offset: summary.first_offset,
        newest: summary.next_seq - 1,
        produced: summary.produced,
        retained: summary.offset.saturating_sub(summary.first_offset).saturating_sub(summary.dropped),
        exited: summary.exited.as_ref().map(|end| end.seq),
        is_closed: summary.closed.is_some(),
        exit,
        is_full: false,
        exhausted: None,
        sync_failure: None,
        inline: Vec::new(),
    }
}

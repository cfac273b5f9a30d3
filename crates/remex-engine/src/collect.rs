//! Deletes the logs of closed processes in a state directory that no server uses. Start at [`collect_state`].
//!
//! A server that uses the directory answers `process/collect` instead.

use std::{
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use remex_base::clock::now_ms;
use remex_proto::process as wire;

use crate::{
    process::Description,
    state::{
        durable::{
            ClosedLog, DESCRIPTION, Rule, START_NOTE, SavedSessions, SavedStart, StartNote, disk_space,
        },
        keeper_link::message::{ExitRecord, Key},
        state_dir::{self, StateDir, StateError},
    },
};

/// How long a keeper without processes may take to end.
const KEEPER_PATIENCE: Duration = Duration::from_secs(12);

/// Why nothing was deleted, or not everything.
#[derive(Debug, thiserror::Error)]
#[error("{message}; {hint}")]
pub struct CollectError {
    message: String,
    hint: &'static str,
}

impl CollectError {
    fn new(message: impl Into<String>, hint: &'static str) -> Self {
        CollectError { message: message.into(), hint }
    }

    /// Returns what failed and why, without what to do about it.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns what to do about it.
    pub fn hint(&self) -> &'static str {
        self.hint
    }
}

impl From<StateError> for CollectError {
    fn from(error: StateError) -> Self {
        CollectError::new(error.to_string(), error.hint())
    }
}

/// The log of a closed process.
struct Found {
    dir: PathBuf,
    log: ClosedLog,
    description: Description,
    start: Option<SavedStart>,
}

/// Deletes the logs of closed processes that `request` selects in the state directory at `path`; its scope is ignored,
/// because the directory belongs to one user.
///
/// Waits a moment for a server or keeper that is just ending. Processes whose end is not recorded are left to the next
/// server, and so is what cannot be read.
///
/// # Errors
///
/// If there is no state directory, if a server or its keeper uses it, or if the file system reports an error.
pub fn collect_state(path: &Path, request: &wire::Collect) -> Result<wire::Collected, CollectError> {
    if !path.join("processes").is_dir() {
        let message = format!("`{}` is not a state directory", path.display());
        return Err(CollectError::new(message, "name the directory that `remex serve --state` was given"));
    }
    let state = StateDir::open(path)?;
    let _server = state.lock_server().map_err(|error| in_use(error, "server"))?;
    let _keeper = state.lock_keeper_within(KEEPER_PATIENCE).map_err(|error| in_use(error, "keeper"))?;
    let read_error = |error: io::Error| {
        let message = format!("cannot read `{}`: {error}", path.display());
        CollectError::new(message, "check its permissions and its disk")
    };
    let mut logs = closed_logs(&state.processes()).map_err(read_error)?;
    logs.sort_by(|one, other| (one.log.ended_at_ms, &one.dir).cmp(&(other.log.ended_at_ms, &other.dir)));
    let rule = Rule { older_than_ms: request.older_than_ms, keep_bytes: request.keep_bytes };
    let sizes: Vec<_> = logs.iter().map(|found| found.log).collect();
    let (gone, kept) = logs.split_at(rule.select(&sizes, 0, now_ms()));
    let space = |logs: &[Found]| logs.iter().map(|found| found.log.bytes).sum::<u64>();
    let mut collected = wire::Collected::default();
    (collected.count, collected.bytes) = (gone.len() as u64, space(gone));
    (collected.kept_count, collected.kept_bytes) = (kept.len() as u64, space(kept));
    collected.processes = gone.iter().take(wire::COLLECTED_NAMES).map(Found::entry).collect();
    if !request.dry_run {
        let sessions = SavedSessions::in_dir(state.sessions());
        let known = sessions.ids().map_err(read_error)?;
        for found in gone {
            found.delete(&sessions, &known).map_err(|error| {
                let message = format!("cannot delete `{}`: {error}", found.dir.display());
                CollectError::new(message, "check its permissions and its disk")
            })?;
        }
    }
    Ok(collected)
}

fn in_use(error: StateError, user: &str) -> CollectError {
    match error {
        StateError::InUse { path, pid } => {
            let pid = pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
            let path = path.display();
            if user == "server" {
                CollectError::new(
                    format!("a server{pid} uses `{path}`"),
                    "leave out `--state` to collect through that server (`--on` names another than your own), or stop it",
                )
            } else {
                CollectError::new(
                    format!(
                        "processes still run in `{path}`, in the keeper{pid} that their server left behind"
                    ),
                    "start that server again and collect through it",
                )
            }
        }
        error => error.into(),
    }
}

fn closed_logs(dir: &Path) -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_str().and_then(Key::from_dir_name).is_some() {
            found.extend(Found::read(entry.path()));
        }
    }
    Ok(found)
}

impl Found {
    /// Reads the log in `dir`; `None` if its process has not closed or it cannot be read.
    fn read(dir: PathBuf) -> Option<Self> {
        let description: Description =
            serde_json::from_slice(&state_dir::read(&dir.join(DESCRIPTION)).ok()?).ok()?;
        let summary = remex_log::inspect(&dir).ok()?;
        let closed = summary.closed.as_ref()?;
        let exit = summary.exited.as_ref().and_then(|end| end.payload.as_deref());
        let exit = exit.and_then(|exit| serde_json::from_slice::<ExitRecord>(exit).ok());
        let ended_at_ms = exit.map_or(closed.at_ms, |exit| exit.at_ms);
        let note = summary.notes.get(&START_NOTE).and_then(|note| serde_json::from_slice(note).ok());
        let start = note.and_then(|StartNote { pid, at_ms }| description.saved_start(pid, at_ms));
        let log = ClosedLog { ended_at_ms, bytes: disk_space(&dir) };
        Some(Found { dir, log, description, start })
    }

    fn entry(&self) -> wire::CollectedProcess {
        let Description { id, session, .. } = &self.description;
        wire::CollectedProcess::new(id, session, self.log.ended_at_ms, self.log.bytes)
    }

    /// Deletes the log; its start stays known to its session, so that a repeat does not run it again.
    fn delete(&self, sessions: &SavedSessions, known: &HashSet<String>) -> io::Result<()> {
        let session = &self.description.session;
        if let Some(start) = self.start.as_ref().filter(|_| known.contains(session)) {
            sessions.forget(session, start, &self.dir)?;
        }
        match fs::remove_dir_all(&self.dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

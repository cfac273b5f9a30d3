//! Sessions on disk: one file each, written by one thread in the order of the changes.

use std::{
    collections::HashSet,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
};

use remex_proto::{ErrorKind, RpcError, process::Started, state::session_table::OnDetach};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::forgotten;
use crate::{identity::Identity, state_dir::replace};

/// A session as a later server finds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SavedSession {
    pub(crate) id: String,
    pub(crate) identity: SavedIdentity,
    pub(crate) name: Option<String>,
    pub(crate) client_name: String,
    /// How long it waits for its client; `None` as long as there is a server.
    pub(crate) detach_ttl_ms: Option<u64>,
    /// When its client disconnected, if it has.
    pub(crate) detached_at_ms: Option<u64>,
    /// Its number in tags.
    pub(crate) number: u32,
}

/// An [`Identity`] that outlives a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum SavedIdentity {
    Owner,
    User { uid: u32, name: String },
    Token { digest: [u8; 32], name: String },
    Certificate(String),
    Subject { issuer: String, subject: String },
}

/// A start that is not found in a process: its process was forgotten, or was not durable.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SavedStart {
    pub(crate) start_id: String,
    pub(crate) process_id: String,
    pub(crate) outcome: SavedOutcome,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum SavedOutcome {
    Started(Started),
    /// It began, and ended at the latest with the server.
    Begun,
}

impl SavedIdentity {
    /// Returns the identity to save; `None` if it ends with its connection or the program.
    pub(crate) fn of(identity: &Identity) -> Option<Self> {
        Some(match identity {
            Identity::Owner => SavedIdentity::Owner,
            Identity::User { uid, name } => SavedIdentity::User { uid: *uid, name: name.to_string() },
            Identity::Token { digest, name } => {
                SavedIdentity::Token { digest: *digest, name: name.to_string() }
            }
            Identity::Certificate(name) => SavedIdentity::Certificate(name.to_string()),
            Identity::Subject { issuer, subject } => {
                SavedIdentity::Subject { issuer: issuer.to_string(), subject: subject.to_string() }
            }
            Identity::Program | Identity::Own(_) => return None,
        })
    }

    pub(crate) fn identity(&self) -> Identity {
        match self.clone() {
            SavedIdentity::Owner => Identity::Owner,
            SavedIdentity::User { uid, name } => Identity::User { uid, name: name.into() },
            SavedIdentity::Token { digest, name } => Identity::Token { digest, name: name.into() },
            SavedIdentity::Certificate(name) => Identity::Certificate(name.into()),
            SavedIdentity::Subject { issuer, subject } => {
                Identity::Subject { issuer: issuer.into(), subject: subject.into() }
            }
        }
    }
}

impl SavedSession {
    pub(crate) fn on_detach(&self) -> OnDetach {
        self.detach_ttl_ms.map_or(OnDetach::Keep, OnDetach::ExpireAfterMs)
    }
}

impl SavedOutcome {
    /// Returns what a repeated start is answered with.
    pub(crate) fn outcome(self, process_id: &str) -> Result<Started, RpcError> {
        match self {
            SavedOutcome::Started(started) => Ok(started),
            SavedOutcome::Begun => {
                let message = format!("process `{process_id}` has ended with the server that started it");
                Err(RpcError::new(ErrorKind::UnknownProcess, message)
                    .with_hint("start it again with a new `startId`; a durable process survives the server"))
            }
        }
    }
}

/// Writes sessions in the order of their changes.
#[derive(Debug)]
pub(crate) struct SessionFiles {
    jobs: mpsc::Sender<Job>,
}

#[derive(Debug)]
struct Job {
    session: String,
    change: Change,
    done: Option<oneshot::Sender<io::Result<()>>>,
}

#[derive(Debug)]
enum Change {
    Put(Vec<u8>),
    /// Adds a line to the starts.
    Append(Vec<u8>),
    /// Adds a line to the starts, or else leaves that start in the log, without output.
    Forget {
        start: Vec<u8>,
        log: PathBuf,
    },
    Remove,
    /// Waits until what was saved is on the disk.
    Sync,
}

impl SessionFiles {
    pub(super) fn start(dir: PathBuf) -> io::Result<Arc<Self>> {
        let (jobs, queue) = mpsc::channel::<Job>();
        std::thread::Builder::new().name("remex-state".to_owned()).spawn(move || {
            for job in queue {
                let written = apply(&dir, &job);
                if let Err(error) = &written {
                    tracing::error!(%error, session = %job.session, "cannot save a session in the state directory");
                }
                if let Some(done) = job.done {
                    let _ = done.send(written);
                }
            }
        })?;
        Ok(Arc::new(SessionFiles { jobs }))
    }

    /// Saves a session; the result arrives once it is on disk.
    pub(crate) fn put(&self, session: &SavedSession) -> oneshot::Receiver<io::Result<()>> {
        self.send(&session.id, Change::Put(serde_json::to_vec(session).unwrap_or_default()))
    }

    /// Remembers a start.
    pub(crate) fn append(&self, session: &str, start: &SavedStart) -> oneshot::Receiver<io::Result<()>> {
        self.send(session, Change::Append(line(start)))
    }

    /// Remembers the start of a process whose log is about to be deleted.
    ///
    /// On a full disk it is remembered in what is left of the log. An error means that it is known from the log only.
    pub(crate) fn forget(
        &self,
        session: &str,
        start: &SavedStart,
        log: PathBuf,
    ) -> oneshot::Receiver<io::Result<()>> {
        self.send(session, Change::Forget { start: line(start), log })
    }

    /// Waits until what was saved of a session is on the disk.
    pub(crate) fn sync(&self, session: &str) -> oneshot::Receiver<io::Result<()>> {
        self.send(session, Change::Sync)
    }

    pub(crate) fn remove(&self, session: &str) -> oneshot::Receiver<io::Result<()>> {
        self.send(session, Change::Remove)
    }

    fn send(&self, session: &str, change: Change) -> oneshot::Receiver<io::Result<()>> {
        let (done, waiting) = oneshot::channel();
        let job = Job { session: session.to_owned(), change, done: Some(done) };
        let _ = self.jobs.send(job);
        waiting
    }
}

fn apply(dir: &Path, job: &Job) -> io::Result<()> {
    let [session, starts] = ["json", "starts"].map(|kind| dir.join(format!("{}.{kind}", job.session)));
    match &job.change {
        Change::Put(content) => replace(&session, content),
        Change::Append(line) => append(&starts, line),
        Change::Forget { start, log } => {
            let Err(error) = append(&starts, start) else { return forgotten::remove(log) };
            forgotten::set_aside(log)?;
            tracing::warn!(%error, session = %job.session, "the start of a forgotten process stays in its log");
            // That has freed space.
            if append(&starts, start).is_ok() { forgotten::remove(log) } else { Ok(()) }
        }
        Change::Sync => {
            File::open(session)?.sync_all()?;
            match File::open(starts) {
                Ok(starts) => starts.sync_all()?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            dir.ancestors().take(2).try_for_each(|dir| File::open(dir)?.sync_all())
        }
        Change::Remove => {
            let removed = [session, starts].map(fs::remove_file);
            removed
                .into_iter()
                .filter(|removed| !matches!(removed, Err(error) if error.kind() == io::ErrorKind::NotFound))
                .collect()
        }
    }
}

/// Appends a line as a whole or not at all, also after one that was torn by a full disk or a power failure.
fn append(path: &Path, line: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).read(true).append(true).mode(0o600).open(path)?;
    let end = file.metadata()?.len();
    let mut last = [b'\n'];
    if end > 0 {
        file.read_exact_at(&mut last, end - 1)?;
    }
    let mut lines = line.to_vec();
    if last != *b"\n" {
        let whole = fs::read(path)?;
        let torn = whole.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
        if serde_json::from_slice::<SavedStart>(&whole[torn..]).is_ok() {
            // Only its newline is missing.
            lines.insert(0, b'\n');
        } else {
            file.set_len(torn as u64)?;
        }
    }
    let end = file.metadata()?.len();
    file.write_all(&lines).inspect_err(|_| drop(file.set_len(end)))
}

/// The sessions in a directory that no server uses.
#[derive(Debug)]
pub(crate) struct SavedSessions {
    dir: PathBuf,
}

impl SavedSessions {
    pub(crate) fn in_dir(dir: PathBuf) -> Self {
        SavedSessions { dir }
    }

    /// Returns the ids of all of them, also of those that cannot be read.
    pub(crate) fn ids(&self) -> io::Result<HashSet<String>> {
        let mut ids = HashSet::new();
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                ids.extend(path.file_stem().map(|id| id.to_string_lossy().into_owned()));
            }
        }
        Ok(ids)
    }

    /// Remembers the start of a process whose log is about to be deleted; as [`SessionFiles::forget`].
    pub(crate) fn forget(&self, session: &str, start: &SavedStart, log: PathBuf) -> io::Result<()> {
        let change = Change::Forget { start: line(start), log };
        apply(&self.dir, &Job { session: session.to_owned(), change, done: None })
    }
}

fn line(start: &SavedStart) -> Vec<u8> {
    let mut line = serde_json::to_vec(start).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Sessions with their starts, and the ids of those that cannot be read.
type ReadSessions = (Vec<(SavedSession, Vec<SavedStart>)>, HashSet<String>);

/// Returns the sessions on disk.
pub(super) fn read(dir: &Path) -> io::Result<ReadSessions> {
    let (mut sessions, mut unreadable) = (Vec::new(), HashSet::new());
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let read = fs::read(&path).and_then(|bytes| Ok(serde_json::from_slice::<SavedSession>(&bytes)?));
        match read {
            Ok(session) => {
                let starts = fs::read(path.with_extension("starts")).unwrap_or_default();
                let lines = starts.split(|byte| *byte == b'\n');
                // The last line may be torn: that start was not answered.
                let starts = lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
                sessions.push((session, starts));
            }
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "cannot read a session in the state directory");
                unreadable.extend(path.file_stem().map(|id| id.to_string_lossy().into_owned()));
            }
        }
    }
    Ok((sessions, unreadable))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(number: u32) -> SavedStart {
        let (start_id, process_id) = (format!("s{number}"), format!("p{number}"));
        SavedStart { start_id, process_id, outcome: SavedOutcome::Begun }
    }

    fn ids_in(path: &Path) -> Vec<String> {
        let text = fs::read(path).unwrap();
        let lines = text.split_inclusive(|byte| *byte == b'\n');
        lines.map(|line| serde_json::from_slice::<SavedStart>(line).unwrap().start_id).collect()
    }

    #[test]
    fn a_start_after_a_torn_line_is_a_line_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.starts");
        append(&path, &line(&begun(1))).unwrap();
        let first = fs::read(&path).unwrap();
        let second = line(&begun(2));
        for torn in 1..second.len() {
            fs::write(&path, [&first, &second[..torn]].concat()).unwrap();
            append(&path, &line(&begun(3))).unwrap();
            let is_whole = torn == second.len() - 1;
            let expected: &[&str] = if is_whole { &["s1", "s2", "s3"] } else { &["s1", "s3"] };
            assert_eq!(ids_in(&path), expected, "{torn} bytes of the second line");
        }
        fs::write(&path, &second[..5]).unwrap();
        append(&path, &line(&begun(3))).unwrap();
        assert_eq!(ids_in(&path), ["s3"]);
    }
}

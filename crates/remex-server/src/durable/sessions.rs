//! Sessions on disk: one file each, written by one thread in the order of the changes.

use std::{
    collections::HashSet,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
};

use remex_proto::{ErrorKind, RpcError, process::Started, state::session_table::OnDetach};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

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
    Append(Vec<u8>),
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
        Change::Append(line) => {
            OpenOptions::new().create(true).append(true).mode(0o600).open(starts)?.write_all(line)
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

    /// Remembers a start.
    pub(crate) fn append(&self, session: &str, start: &SavedStart) -> io::Result<()> {
        let change = Change::Append(line(start));
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

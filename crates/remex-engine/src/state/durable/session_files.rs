//! Writes sessions to disk, on one thread. Start at [`SessionFiles`].

use std::{
    collections::{HashMap, HashSet, VecDeque, hash_map::Entry},
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use remex_base::{lock, trace::LOG_TARGET};
use tokio::sync::oneshot;

use super::{
    forgotten,
    sessions::{SavedSession, SavedStart, line, read_session},
};
use crate::state::state_dir::{Survival, open_regular, read, replace, sync, sync_dir};

/// A disk that takes longer for one change does not respond. What can do without it waits no longer than this.
const STALL: Duration = Duration::from_secs(1);

/// Writes sessions; the changes of one session in their order.
#[derive(Debug)]
pub struct SessionFiles {
    shared: Arc<Shared>,
}

/// The result of a change, once it is in the files.
pub type Saving = oneshot::Receiver<io::Result<()>>;

type Done = oneshot::Sender<io::Result<()>>;

#[derive(Debug, Default)]
struct Shared {
    /// Shared by the thread that writes and by those that change sessions; held briefly.
    queue: Mutex<Queue>,
    has_changes: Condvar,
}

/// Changes that are not in the files yet.
///
/// Sessions and processes bound it, not a number, because a change must not be lost: a newer state of a session replaces
/// an older one, each start is that of a process in memory, and a session that ends before it is written leaves nothing.
#[derive(Debug, Default)]
struct Queue {
    /// Sessions with changes, those first that have waited longest.
    order: VecDeque<String>,
    changes: HashMap<String, Changes>,
    /// Sessions that have files, or get them just now.
    with_files: HashSet<String>,
    /// Since when the thread writes one of them.
    writing_since: Option<Instant>,
    is_closed: bool,
}

/// The changes of one session.
#[derive(Debug, Default)]
struct Changes {
    /// Its newest state.
    state: Option<SavedSession>,
    /// Whether it must survive a power failure from now on.
    must_survive: bool,
    /// Callers that wait until the state is saved.
    waiting: Vec<Done>,
    starts: Vec<(StartChange, Done)>,
    has_ended: bool,
}

#[derive(Debug)]
enum StartChange {
    /// Adds a line to the starts.
    Append(Vec<u8>),
    /// Adds a line to the starts, or else leaves that start in the log, without output.
    Forget { start: Vec<u8>, log: PathBuf },
}

impl SessionFiles {
    /// Starts to write below `dir`, which has these sessions.
    pub(super) fn start<'a>(
        dir: PathBuf,
        saved: impl IntoIterator<Item = &'a SavedSession>,
    ) -> io::Result<Self> {
        let mut files = Files { dir, surviving: HashMap::new() };
        let shared = Arc::<Shared>::default();
        for session in saved {
            shared.queue().with_files.insert(session.id.clone());
            if session.sync {
                files.surviving.insert(session.id.clone(), OnDisk::Unknown);
            }
        }
        let queue = Arc::clone(&shared);
        std::thread::Builder::new().name("remex-state".to_owned()).spawn(move || queue.write(&mut files))?;
        Ok(SessionFiles { shared })
    }

    /// Saves a session.
    pub fn put(&self, session: &SavedSession) -> Saving {
        self.change(&session.id, |changes, done| {
            changes.state = Some(session.clone());
            changes.wait(done);
        })
    }

    /// Brings what was saved of a session to the disk; from now on, all its changes go there.
    pub fn sync(&self, session: &str) -> Saving {
        self.change(session, |changes, done| {
            changes.must_survive = true;
            changes.wait(done);
        })
    }

    /// Remembers a start.
    pub fn append(&self, session: &str, start: &SavedStart) -> Saving {
        let start = StartChange::Append(line(start));
        self.change(session, |changes, done| changes.starts.push((start, done)))
    }

    /// Remembers the start of a process whose log is about to be deleted.
    ///
    /// On a full disk it is remembered in what is left of the log. An error means that it is known from the log only.
    pub fn forget(&self, session: &str, start: &SavedStart, log: PathBuf) -> Saving {
        let start = StartChange::Forget { start: line(start), log };
        self.change(session, |changes, done| changes.starts.push((start, done)))
    }

    /// Deletes what was saved of a session that has ended.
    pub fn remove(&self, session: &str) -> Saving {
        let removing = self.change(session, Changes::end);
        let mut queue = self.shared.queue();
        if !queue.with_files.contains(session)
            && let Some(changes) = queue.changes.remove(session)
        {
            queue.order.retain(|waiting| waiting != session);
            drop(queue);
            answer(changes.waiting, &Ok(()));
        }
        removing
    }

    /// Waits until something is saved, unless the disk does not respond; then returns what to wait for later.
    pub async fn saved_soon(&self, mut saving: Saving) -> Result<io::Result<()>, Saving> {
        let stalled = self.shared.queue().writing_since.is_some_and(|since| since.elapsed() >= STALL);
        let patience = if stalled { Duration::ZERO } else { STALL };
        match tokio::time::timeout(patience, &mut saving).await {
            Ok(saved) => {
                Ok(saved.unwrap_or_else(|_| Err(io::Error::other("the thread that saves it has ended"))))
            }
            Err(_) => Err(saving),
        }
    }

    fn change(&self, session: &str, change: impl FnOnce(&mut Changes, Done)) -> Saving {
        let (done, saving) = oneshot::channel();
        let mut queue = self.shared.queue();
        let Queue { order, changes, .. } = &mut *queue;
        let changes = match changes.entry(session.to_owned()) {
            Entry::Occupied(changes) => changes.into_mut(),
            Entry::Vacant(none) => {
                order.push_back(session.to_owned());
                none.insert(Changes::default())
            }
        };
        if changes.has_ended {
            // It is not asked for again.
            let _ = done.send(Ok(()));
        } else {
            change(changes, done);
        }
        drop(queue);
        self.shared.has_changes.notify_one();
        saving
    }
}

impl Drop for SessionFiles {
    /// Lets the thread end when everything is written.
    fn drop(&mut self) {
        self.shared.queue().is_closed = true;
        self.shared.has_changes.notify_one();
    }
}

impl Changes {
    fn wait(&mut self, done: Done) {
        if self.waiting.len() == self.waiting.capacity() {
            // Clients that have disconnected.
            self.waiting.retain(|done| !done.is_closed());
        }
        self.waiting.push(done);
    }

    /// Replaces all changes by the end of the session.
    fn end(&mut self, done: Done) {
        let Changes { mut waiting, starts, .. } = std::mem::take(self);
        waiting.extend(starts.into_iter().map(|(_, done)| done).chain([done]));
        *self = Changes { waiting, has_ended: true, ..Changes::default() };
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }

    /// Writes changes until there will be no more.
    fn write(&self, files: &mut Files) {
        while let Some((session, changes)) = self.next() {
            let has_ended = changes.has_ended;
            files.apply(&session, changes);
            if has_ended {
                self.queue().with_files.remove(&session);
            }
        }
    }

    /// Waits for the changes of a session; `None` if there will be no more.
    fn next(&self) -> Option<(String, Changes)> {
        let mut queue = self.queue();
        queue.writing_since = None;
        loop {
            if let Some(session) = queue.order.pop_front() {
                queue.writing_since = Some(Instant::now());
                queue.with_files.insert(session.clone());
                let changes = queue.changes.remove(&session).unwrap_or_default();
                return Some((session, changes));
            }
            if queue.is_closed {
                return None;
            }
            queue = self.has_changes.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The files, as the thread that writes them knows them.
#[derive(Debug)]
struct Files {
    dir: PathBuf,
    /// Sessions that must survive a power failure.
    surviving: HashMap<String, OnDisk>,
}

/// Whether the saved state of a session is on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnDisk {
    Yes,
    /// An earlier server wrote it, or the disk has reported an error. It is written again, because the kernel reports an
    /// error once and then takes what it has lost for written.
    Unknown,
}

impl Files {
    fn apply(&mut self, session: &str, changes: Changes) {
        let Changes { state, must_survive, waiting, starts, has_ended } = changes;
        let saved = if has_ended { self.remove(session) } else { self.save(session, state, must_survive) };
        log_error(session, &saved);
        answer(waiting, &saved);
        for (change, done) in starts {
            let saved = self.save_start(session, change);
            log_error(session, &saved);
            let _ = done.send(saved);
        }
    }

    fn save(&mut self, session: &str, state: Option<SavedSession>, must_survive: bool) -> io::Result<()> {
        let path = path_of(&self.dir, session, "json");
        let known = self.surviving.get(session).copied();
        let state = match state {
            Some(state) if known.is_none() && !must_survive => {
                return write(&path, &state, Survival::Process);
            }
            Some(state) => state,
            // Only the starts have changed, or everything is on the disk.
            None if !must_survive || known == Some(OnDisk::Yes) => return Ok(()),
            None => read_session(&path)?,
        };
        self.surviving.insert(session.to_owned(), OnDisk::Unknown);
        write(&path, &SavedSession { sync: true, ..state }, Survival::PowerFailure)?;
        // The name of the directory itself.
        self.dir.parent().map_or(Ok(()), sync_dir)?;
        self.surviving.insert(session.to_owned(), OnDisk::Yes);
        Ok(())
    }

    fn save_start(&self, session: &str, change: StartChange) -> io::Result<()> {
        let is_surviving = self.surviving.contains_key(session);
        match change {
            // What ends with the server has nothing to survive.
            StartChange::Append(line) => {
                append(&path_of(&self.dir, session, "starts"), &line, Survival::Process)
            }
            StartChange::Forget { start, log } => {
                let survival = if is_surviving { Survival::PowerFailure } else { Survival::Process };
                forget(&self.dir, session, &start, &log, survival)
            }
        }
    }

    fn remove(&mut self, session: &str) -> io::Result<()> {
        self.surviving.remove(session);
        let removed = ["json", "starts"].map(|kind| fs::remove_file(path_of(&self.dir, session, kind)));
        removed
            .into_iter()
            .filter(|removed| !matches!(removed, Err(error) if error.kind() == io::ErrorKind::NotFound))
            .collect()
    }
}

/// Saves the start of a process whose log is about to be deleted; on a full disk, leaves it in what is left of the log.
pub(super) fn forget(
    dir: &Path,
    session: &str,
    start: &[u8],
    log: &Path,
    survival: Survival,
) -> io::Result<()> {
    let starts = path_of(dir, session, "starts");
    let Err(error) = append(&starts, start, survival) else { return forgotten::remove(log) };
    forgotten::set_aside(log)?;
    tracing::warn!(target: LOG_TARGET, %error, session, "the start of a forgotten process stays in its log");
    // The deletion has freed space.
    if append(&starts, start, survival).is_ok() { forgotten::remove(log) } else { Ok(()) }
}

fn path_of(dir: &Path, session: &str, kind: &str) -> PathBuf {
    dir.join(format!("{session}.{kind}"))
}

fn write(path: &Path, state: &SavedSession, survival: Survival) -> io::Result<()> {
    replace(path, &serde_json::to_vec(state).unwrap_or_default(), survival)
}

/// Appends a line as a whole or not at all, also after one that was torn by a full disk or a power failure.
fn append(path: &Path, line: &[u8], survival: Survival) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.create(true).read(true).append(true).mode(0o600);
    let mut file = open_regular(&options, path)?;
    let end = file.metadata()?.len();
    let mut last = [b'\n'];
    if end > 0 {
        file.read_exact_at(&mut last, end - 1)?;
    }
    let mut lines = line.to_vec();
    if last != *b"\n" {
        let whole = read(path)?;
        let torn = whole.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
        if serde_json::from_slice::<SavedStart>(&whole[torn..]).is_ok() {
            // Only its newline is missing.
            lines.insert(0, b'\n');
        } else {
            file.set_len(torn as u64)?;
        }
    }
    let end = file.metadata()?.len();
    let written = file.write_all(&lines).and_then(|()| match survival {
        Survival::Process => Ok(()),
        Survival::PowerFailure => {
            sync(&file)?;
            path.parent().map_or(Ok(()), sync_dir)
        }
    });
    written.inspect_err(|_| drop(file.set_len(end)))
}

fn log_error(session: &str, saved: &io::Result<()>) {
    if let Err(error) = saved {
        tracing::error!(target: LOG_TARGET, %error, session, "cannot save a session in the state directory");
    }
}

fn answer(waiting: Vec<Done>, saved: &io::Result<()>) {
    for done in waiting {
        let saved = saved.as_ref().map_err(|error| io::Error::new(error.kind(), error.to_string()));
        let _ = done.send(saved.copied());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        state::durable::{SavedIdentity, SavedOutcome},
        testing::{Medium, Names},
    };

    fn begun(number: u32) -> SavedStart {
        let (start_id, process_id) = (format!("s{number}"), format!("p{number}"));
        SavedStart { start_id, process_id, restarted: false, outcome: SavedOutcome::Begun }
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
        append(&path, &line(&begun(1)), Survival::Process).unwrap();
        let first = fs::read(&path).unwrap();
        let second = line(&begun(2));
        for torn in 1..second.len() {
            fs::write(&path, [&first, &second[..torn]].concat()).unwrap();
            append(&path, &line(&begun(3)), Survival::Process).unwrap();
            let is_whole = torn == second.len() - 1;
            let expected: &[&str] = if is_whole { &["s1", "s2", "s3"] } else { &["s1", "s3"] };
            assert_eq!(ids_in(&path), expected, "{torn} bytes of the second line");
        }
        fs::write(&path, &second[..5]).unwrap();
        append(&path, &line(&begun(3)), Survival::Process).unwrap();
        assert_eq!(ids_in(&path), ["s3"]);
    }

    fn session(id: &str, detached_at_ms: u64) -> SavedSession {
        SavedSession {
            id: id.to_owned(),
            identity: SavedIdentity::Owner,
            name: None,
            client_name: "test".to_owned(),
            detach_ttl_ms: None,
            detached_at_ms: Some(detached_at_ms),
            number: 1,
            sync: false,
        }
    }

    /// Returns the two halves of a writer whose disk does not respond yet.
    fn stalled(dir: &Path) -> (SessionFiles, Files) {
        let files = Files { dir: dir.to_owned(), surviving: HashMap::new() };
        (SessionFiles { shared: Arc::default() }, files)
    }

    /// Writes everything that waits.
    fn write_all(sessions: SessionFiles, mut files: Files) {
        let shared = Arc::clone(&sessions.shared);
        drop(sessions);
        shared.write(&mut files);
    }

    #[test]
    fn while_the_disk_stalls_only_the_newest_state_of_each_session_waits() {
        let dir = tempfile::tempdir().unwrap();
        let (sessions, files) = stalled(dir.path());
        let mut first = sessions.put(&session("s0", 0));
        for change in 1..=10_000 {
            // As after a disconnect: the caller is gone.
            drop(sessions.put(&session(&format!("s{}", change % 10), change)));
        }
        {
            let queue = sessions.shared.queue();
            assert_eq!((queue.order.len(), queue.changes.len()), (10, 10));
            let waiting: usize = queue.changes.values().map(|changes| changes.waiting.capacity()).sum();
            assert!(waiting <= 100, "{waiting}");
        }
        let mut last = sessions.append("s0", &begun(1));
        write_all(sessions, files);
        first.try_recv().unwrap().unwrap();
        last.try_recv().unwrap().unwrap();
        for number in 0..10_u64 {
            let newest = if number == 0 { 10_000 } else { 9_990 + number };
            let id = format!("s{number}");
            assert_eq!(read_session(&path_of(dir.path(), &id, "json")).unwrap(), session(&id, newest));
        }
        assert_eq!(ids_in(&dir.path().join("s0.starts")), ["s1"]);
    }

    #[test]
    fn sessions_opened_and_ended_while_the_disk_stalls_leave_no_state() {
        let dir = tempfile::tempdir().unwrap();
        let (sessions, files) = stalled(dir.path());
        for number in 0..1000 {
            let id = format!("s{number}");
            let mut saving = sessions.put(&session(&id, 0));
            drop(sessions.append(&id, &begun(1)));
            sessions.remove(&id).try_recv().unwrap().unwrap();
            saving.try_recv().unwrap().unwrap();
        }
        let queue = sessions.shared.queue();
        assert_eq!((queue.order.len(), queue.changes.len()), (0, 0));
        drop(queue);
        write_all(sessions, files);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_session_that_ends_is_deleted_whatever_was_changed_before() {
        let dir = tempfile::tempdir().unwrap();
        let sessions = SessionFiles::start(dir.path().to_owned(), []).unwrap();
        sessions.put(&session("s", 1)).blocking_recv().unwrap().unwrap();
        sessions.append("s", &begun(1)).blocking_recv().unwrap().unwrap();
        drop(sessions.put(&session("s", 2)));
        let removing = sessions.remove("s");
        drop(sessions.put(&session("s", 3)));
        removing.blocking_recv().unwrap().unwrap();
        assert!(!dir.path().join("s.starts").exists());
    }

    #[test]
    fn a_synced_session_stays_on_the_disk_after_any_change() {
        let medium = Medium::new();
        let dir = medium.new_dir().join("sessions");
        fs::create_dir_all(&dir).unwrap();
        for ancestor in dir.ancestors().take(4) {
            sync_dir(ancestor).unwrap();
        }
        let is_there = |at_ms: u64| {
            for names in [Names::Synced, Names::Current] {
                let after = medium.after_power_failure(names);
                let found = read_session(&after.new_dir().join("sessions/s.json"));
                assert_eq!(found.unwrap(), SavedSession { sync: true, ..session("s", at_ms) }, "{names:?}");
            }
        };
        let sessions = SessionFiles::start(dir.clone(), []).unwrap();
        sessions.put(&session("s", 1)).blocking_recv().unwrap().unwrap();
        sessions.sync("s").blocking_recv().unwrap().unwrap();
        is_there(1);
        sessions.put(&session("s", 2)).blocking_recv().unwrap().unwrap();
        is_there(2);
        let saved = read_session(&dir.join("s.json")).unwrap();
        let next = SessionFiles::start(dir.clone(), [&saved]).unwrap();
        next.put(&session("s", 3)).blocking_recv().unwrap().unwrap();
        is_there(3);
        medium.break_at("s.json");
        next.put(&session("s", 4)).blocking_recv().unwrap().unwrap_err();
        next.sync("s").blocking_recv().unwrap().unwrap_err();
        is_there(3);
        medium.repair();
        next.sync("s").blocking_recv().unwrap().unwrap();
        is_there(3);
    }
}

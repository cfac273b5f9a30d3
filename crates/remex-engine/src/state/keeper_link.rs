//! The server's end of the link to its keeper, the process that runs durable processes and outlives the server.
//!
//! Messages of the keeper go straight to the [`LinkListener`] of the process that they are about; nothing is queued in
//! between. A connection that ends is replaced by another one as long as the keeper runs, and each process then sends
//! again what may not have arrived. Start at [`KeeperLink`].

pub(crate) mod message;
pub(crate) mod peer;
pub(crate) mod stream;
mod trials;

use std::{
    collections::HashMap,
    fmt, fs,
    io::{self, Read as _, Write as _},
    net::Shutdown,
    os::unix::{ffi::OsStrExt as _, net::UnixStream as StdUnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::{Buf as _, BytesMut};
use remex_base::{clock::now_ms, lock, trace::LOG_TARGET};
use remex_process::{Tag, Tags};
use tokio::sync::{Notify, watch};

use crate::state::state_dir::StateDir;
use message::{
    FromKeeper, Greeting, KeeperStatus, Key, ProgramFile, Purpose, Quotas, ReportedProcess, RequestNumber,
    ToKeeper, VERSION,
};
use peer::Peer;
use stream::{LinkStream, Received};
pub(crate) use trials::Trial;
use trials::Trials;

/// How long a keeper may take to greet and list its processes.
const GREETING_PATIENCE: Duration = Duration::from_secs(15);

/// How long it may take to replace the program of a keeper.
const REPLACEMENT_PATIENCE: Duration = Duration::from_secs(30);

/// How long a keeper may take to report its status.
const STATUS_PATIENCE: Duration = Duration::from_secs(2);

/// Receives the messages of the keeper about one process.
pub(crate) trait LinkListener: Send + Sync {
    fn on_message(self: Arc<Self>, message: FromKeeper);

    /// Called after a reconnect to the same keeper, with its report of the process; `None` if it has none.
    fn on_relinked(self: Arc<Self>, epoch: Epoch, reported: Option<ReportedProcess>);

    /// Called once if the keeper is gone, and with it the process.
    fn on_keeper_lost(self: Arc<Self>);
}

/// Counts the connections of a link.
pub(crate) type Epoch = u64;

/// The link to one keeper: one connection after the other.
pub struct KeeperLink {
    state: Arc<StateDir>,
    own_tags: Tags,
    pid: u32,
    keeper: Peer,
    /// Shared by the task that carries messages and by all that send; held briefly.
    connection: Mutex<Connection>,
    /// Wakes the task that sends the rest.
    has_unsent: Notify,
    /// The connection with which all processes are synchronized; `None` while there is none.
    linked: watch::Sender<Option<Epoch>>,
    listeners: Mutex<Listeners>,
    /// Messages to repeat after a reconnect, until the keeper has carried them out. Held briefly.
    owed: Mutex<HashMap<Key, Owed>>,
    /// How many logs the keeper has deleted.
    deletions: watch::Sender<u64>,
    trials: Trials,
    next_key: AtomicU64,
    next_number: AtomicU64,
    /// Whether a request for the status is unanswered.
    is_asked: AtomicBool,
    status: watch::Sender<Option<KeeperStatus>>,
}

/// A message for the keeper that must survive reconnects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owed {
    Abandon,
    /// Also to abandon it: that does no harm to one that has closed.
    Forget,
}

/// The connection of now, if there is one.
#[derive(Debug)]
struct Connection {
    stream: Option<Arc<LinkStream>>,
    epoch: Epoch,
    /// Unsent bytes. Bounded by the requests that wait for an answer.
    unsent: BytesMut,
    /// Whether the keeper is gone, so that it cannot be reconnected.
    is_lost: bool,
}

/// The outcome of sending a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// It is on its way.
    Yes,
    /// Not sent: there is no connection, or another one than was meant.
    Unlinked,
    /// Not sent: the keeper is gone.
    Lost,
    /// Not sent: it is longer than any message may be.
    TooLong,
}

#[derive(Default)]
struct Listeners {
    by_key: HashMap<Key, Weak<dyn LinkListener>>,
    is_lost: bool,
}

impl fmt::Debug for KeeperLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeeperLink").field("pid", &self.pid).finish_non_exhaustive()
    }
}

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("there is no keeper")]
    NoKeeper,
    #[error("the keeper (pid {pid}) speaks version {found}, this server {VERSION}")]
    Version { pid: u32, found: u32 },
    /// It can be replaced before it is used.
    #[error("the keeper (pid {pid}) runs another program")]
    OtherProgram { pid: u32, is_same_version: bool },
    #[error("the keeper (pid {pid}) speaks another version and cannot be replaced: {reason}")]
    NotReplaced { pid: u32, reason: String },
    #[error("it does not respond; if it is suspended, SIGCONT resumes it")]
    Silent,
    #[error(transparent)]
    Io(io::Error),
}

impl LinkError {
    /// Returns whether the keeper has dropped the connection, perhaps because it is just ending.
    pub(crate) fn is_end(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        matches!(self, LinkError::Io(error) if matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof))
    }
}

impl From<io::Error> for LinkError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => LinkError::Silent,
            _ => LinkError::Io(error),
        }
    }
}

impl KeeperLink {
    /// Connects to the keeper of a state directory. Blocks; must be called within a runtime.
    ///
    /// With `program`, only if it runs that; whatever an earlier one runs, it can be replaced.
    pub(crate) fn connect(
        state: &Arc<StateDir>,
        own_tags: &Tags,
        quotas: Quotas,
        program: Option<ProgramFile>,
    ) -> Result<(Arc<Self>, Vec<ReportedProcess>), LinkError> {
        let Linked { stream, pid, reported } = greet(state, own_tags, quotas, program)?;
        let kept_keys = reported.iter().map(|process| process.key);
        // Also those of processes that have ended: the clock may have been set back since.
        let newest = kept_keys.chain(keys_in(&state.processes())?).map(|key| key.0).max().unwrap_or(0);
        let link = KeeperLink {
            state: Arc::clone(state),
            own_tags: own_tags.clone(),
            pid,
            keeper: Peer::new(pid),
            connection: Mutex::new(Connection {
                stream: Some(Arc::new(stream)),
                epoch: 1,
                unsent: BytesMut::new(),
                is_lost: false,
            }),
            has_unsent: Notify::new(),
            linked: watch::Sender::new(Some(1)),
            listeners: Mutex::default(),
            owed: Mutex::default(),
            deletions: watch::Sender::new(0),
            trials: Trials::default(),
            next_key: AtomicU64::new(newest.max(now_ms() << 16).saturating_add(1)),
            next_number: AtomicU64::new(1),
            is_asked: AtomicBool::new(false),
            status: watch::Sender::new(None),
        };
        Ok((Arc::new(link), reported))
    }

    /// Connects to the same keeper again. Blocks; must be called within a runtime.
    pub(crate) fn connect_again(&self, quotas: Quotas) -> Result<Linked, LinkError> {
        let linked = greet(&self.state, &self.own_tags, quotas, None)?;
        if linked.pid != self.pid {
            return Err(LinkError::NoKeeper);
        }
        Ok(linked)
    }

    /// Continues over another connection, once each process has repeated its requests.
    pub(crate) fn resume(&self, linked: Linked) {
        let epoch = {
            let mut connection = self.connection();
            connection.epoch += 1;
            connection.stream = Some(Arc::new(linked.stream));
            connection.unsent.clear();
            connection.epoch
        };
        self.is_asked.store(false, Ordering::Relaxed);
        let owed: Vec<_> = self.owed().iter().map(|(key, owed)| (*key, *owed)).collect();
        for (key, owed) in owed {
            self.send(&ToKeeper::Abandon(key));
            if owed == Owed::Forget {
                self.send(&ToKeeper::Forget(key));
            }
        }
        let mut reported: HashMap<_, _> =
            linked.reported.into_iter().map(|process| (process.key, process)).collect();
        let listeners: Vec<_> = {
            let listeners = self.listeners();
            listeners.by_key.iter().filter_map(|(key, listener)| Some((*key, listener.upgrade()?))).collect()
        };
        for (key, listener) in listeners {
            listener.on_relinked(epoch, reported.remove(&key));
        }
        self.linked.send_replace(Some(epoch));
    }

    /// Carries messages in both directions until the connection ends.
    pub(crate) async fn run(&self) -> io::Error {
        let Some(stream) = self.connection().stream.clone() else {
            return io::ErrorKind::NotConnected.into();
        };
        let lost = tokio::select! {
            lost = self.receive(&stream) => lost,
            lost = self.send_rest(&stream) => lost,
        };
        // First, so that nothing that finds no connection takes this one for a new one.
        self.linked.send_replace(None);
        let mut connection = self.connection();
        connection.stream = None;
        connection.unsent.clear();
        lost
    }

    /// Waits until the keeper has ended.
    pub(crate) async fn keeper_ended(&self) {
        self.keeper.ended().await;
    }

    /// Waits until there is a connection; returns `false` if there is none in time.
    pub(crate) async fn linked_within(&self, patience: Duration) -> bool {
        let mut linked = self.linked.subscribe();
        let waiting = linked.wait_for(Option::is_some);
        tokio::time::timeout(patience, waiting).await.is_ok_and(|waited| waited.is_ok())
    }

    /// Returns which connection a message is sent over now.
    pub(crate) fn epoch(&self) -> Epoch {
        self.connection().epoch
    }

    async fn receive(&self, stream: &LinkStream) -> io::Error {
        let mut received = Received::default();
        loop {
            if let Err(error) = stream.readable().await {
                return error;
            }
            match stream.try_read(&mut received) {
                Ok(0) => return io::ErrorKind::UnexpectedEof.into(),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return error,
            }
            while let Some(message) = received.next() {
                match message {
                    Ok(message) => self.dispatch(message),
                    // The next connection begins with everything that there is to know.
                    Err(unreadable) => return unreadable.into(),
                }
            }
        }
    }

    fn dispatch(&self, message: FromKeeper) {
        let key = match &message {
            FromKeeper::Started { key, .. }
            | FromKeeper::NotStarted { key, .. }
            | FromKeeper::Progress { key, .. }
            | FromKeeper::Answer { key, .. } => *key,
            FromKeeper::Processes(_) => return,
            FromKeeper::Deleted(key) => {
                self.owed().remove(key);
                self.deletions.send_modify(|count| *count += 1);
                return;
            }
            FromKeeper::LogTried(number, failure) => {
                return self.trials.answer(*number, failure.clone());
            }
            FromKeeper::Status(status) => {
                // In this order, so that later callers get an answer of their own.
                self.is_asked.store(false, Ordering::Relaxed);
                self.status.send_replace(Some(status.clone()));
                return;
            }
        };
        let listener = self.listeners().by_key.get(&key).and_then(Weak::upgrade);
        if let Some(listener) = listener {
            listener.on_message(message);
        }
    }

    async fn send_rest(&self, stream: &LinkStream) -> io::Error {
        loop {
            self.has_unsent.notified().await;
            while !self.connection().unsent.is_empty() {
                if let Err(error) = stream.writable().await {
                    return error;
                }
                if let Err(error) = self.connection().flush() {
                    return error;
                }
            }
        }
    }

    /// Sends a message over the current connection.
    pub(crate) fn send(&self, message: &ToKeeper) -> Sent {
        self.send_where(|_| true, message)
    }

    /// Sends a message, but over no other connection than this one.
    pub(crate) fn send_in(&self, epoch: Epoch, message: &ToKeeper) -> Sent {
        self.send_where(|now| now == epoch, message)
    }

    fn send_where(&self, is_meant: impl FnOnce(Epoch) -> bool, message: &ToKeeper) -> Sent {
        let bytes = match message::encode(message) {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::error!(target: LOG_TARGET, %error, "cannot send to the keeper");
                return Sent::TooLong;
            }
        };
        let mut connection = self.connection();
        if connection.is_lost {
            return Sent::Lost;
        }
        if connection.stream.is_none() || !is_meant(connection.epoch) {
            return Sent::Unlinked;
        }
        connection.unsent.extend_from_slice(&bytes);
        // An error ends the task that reads, too.
        let _ = connection.flush();
        if !connection.unsent.is_empty() {
            self.has_unsent.notify_one();
        }
        Sent::Yes
    }

    /// Has the keeper abort the start of a process, or kill it.
    pub fn abandon(&self, key: Key) {
        if !self.is_lost() {
            self.owed().entry(key).or_insert(Owed::Abandon);
        }
        self.send(&ToKeeper::Abandon(key));
    }

    /// Has the keeper delete the log of a process.
    pub fn forget(&self, key: Key) {
        if !self.is_lost() {
            self.owed().insert(key, Owed::Forget);
        }
        self.send(&ToKeeper::Forget(key));
    }

    /// Returns how many logs the keeper has deleted, to wait for more.
    pub(crate) fn deletions(&self) -> watch::Receiver<u64> {
        self.deletions.subscribe()
    }

    /// Has the keeper try whether there is space for the log of another start of a process.
    pub(crate) async fn try_log(&self, key: Key) -> Trial {
        let number = self.new_number();
        let trial = self.trials.begin(number);
        if self.send(&ToKeeper::TryLog { key, number }) != Sent::Yes {
            return Trial::Unanswered;
        }
        tokio::time::timeout(STATUS_PATIENCE, trial.outcome()).await.unwrap_or(Trial::Unanswered)
    }

    /// Asks the keeper for its status; returns `None` if it does not respond in time.
    pub(crate) async fn status(&self) -> Option<KeeperStatus> {
        let mut answers = self.status.subscribe();
        // One question at a time, so that a keeper that is suspended costs no memory.
        if !self.is_asked.swap(true, Ordering::Relaxed) && self.send(&ToKeeper::Status) != Sent::Yes {
            self.is_asked.store(false, Ordering::Relaxed);
            return None;
        }
        tokio::time::timeout(STATUS_PATIENCE, answers.changed()).await.ok()?.ok()?;
        answers.borrow().clone()
    }

    /// Sends the messages of a process to `listener`; returns `false` if the keeper is gone.
    pub(crate) fn listen<L: LinkListener + 'static>(&self, key: Key, listener: &Arc<L>) -> bool {
        let mut listeners = self.listeners();
        let listener: Weak<dyn LinkListener> = Arc::<L>::downgrade(listener);
        if listeners.is_lost {
            return false;
        }
        listeners.by_key.insert(key, listener);
        true
    }

    pub(crate) fn unlisten(&self, key: Key) {
        self.listeners().by_key.remove(&key);
    }

    /// Tells all processes that their keeper is gone.
    pub(crate) fn lose_all(&self) {
        self.connection().is_lost = true;
        self.owed().clear();
        let listeners = {
            let mut listeners = self.listeners();
            listeners.is_lost = true;
            std::mem::take(&mut listeners.by_key)
        };
        for listener in listeners.into_values().filter_map(|listener| listener.upgrade()) {
            listener.on_keeper_lost();
        }
    }

    /// Returns a name for a new process.
    pub fn new_key(&self) -> Key {
        let least = now_ms() << 16;
        let next = |last: u64| Some(last.max(least).saturating_add(1));
        let last = self.next_key.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        Key(last.unwrap_or_else(|last| last).max(least))
    }

    pub(crate) fn new_number(&self) -> RequestNumber {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the tag of a process that the keeper runs.
    pub fn tag(&self, session: u32, process: u32) -> Tag {
        self.state.tags().tag(session, process)
    }

    /// Returns the directory of a process.
    pub(crate) fn dir_of(&self, key: Key) -> PathBuf {
        self.state.processes().join(key.dir_name())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.listeners().is_lost
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        lock(&self.connection)
    }

    fn owed(&self) -> MutexGuard<'_, HashMap<Key, Owed>> {
        lock(&self.owed)
    }

    fn listeners(&self) -> MutexGuard<'_, Listeners> {
        lock(&self.listeners)
    }
}

impl Connection {
    /// Sends as much as there is room for.
    fn flush(&mut self) -> io::Result<()> {
        let Some(stream) = &self.stream else { return Ok(()) };
        while !self.unsent.is_empty() {
            match stream.try_write(&self.unsent) {
                Ok(len) => self.unsent.advance(len),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// A new connection to a keeper.
#[derive(Debug)]
pub(crate) struct Linked {
    stream: LinkStream,
    pid: u32,
    reported: Vec<ReportedProcess>,
}

/// Connects to the keeper, exchanges greetings, and receives its list of processes.
fn greet(
    state: &StateDir,
    own_tags: &Tags,
    quotas: Quotas,
    program: Option<ProgramFile>,
) -> Result<Linked, LinkError> {
    let mut stream = dial(state, GREETING_PATIENCE)?;
    stream.write_all(&Greeting::new(Purpose::Link, own_tags.number(), None).encode())?;
    let mut greeting = [0; Greeting::LEN];
    stream.read_exact(&mut greeting)?;
    let greeting = Greeting::decode(&greeting)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the listener there is not a keeper"))?;
    let is_same_version = greeting.version == VERSION;
    if program.is_some_and(|program| program != greeting.program) {
        return Err(LinkError::OtherProgram { pid: greeting.pid, is_same_version });
    }
    if !is_same_version {
        return Err(LinkError::Version { pid: greeting.pid, found: greeting.version });
    }
    stream.write_all(&message::encode(&ToKeeper::Quotas(quotas))?)?;
    let reported = read_list(&mut stream)?;
    stream.set_read_timeout(None)?;
    Ok(Linked { stream: LinkStream::new(stream)?, pid: greeting.pid, reported })
}

/// Asks the keeper to execute `program` in its place, and returns when it has; or else why it has not.
pub(crate) fn replace(state: &StateDir, own_tags: &Tags, program: &Path) -> Result<(), LinkError> {
    let mut stream = dial(state, REPLACEMENT_PATIENCE)?;
    stream.write_all(&Greeting::new(Purpose::Replace, own_tags.number(), None).encode())?;
    stream.write_all(program.as_os_str().as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    let mut reason = String::new();
    stream.read_to_string(&mut reason)?;
    if reason.is_empty() { Ok(()) } else { Err(LinkError::Io(io::Error::other(reason))) }
}

fn dial(state: &StateDir, patience: Duration) -> Result<StdUnixStream, LinkError> {
    let stream = match StdUnixStream::connect(state.socket()) {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return Err(LinkError::NoKeeper);
        }
        Err(error) => return Err(error.into()),
    };
    stream.set_read_timeout(Some(patience))?;
    Ok(stream)
}

/// Returns the keys that directories of processes have, or had before they were set aside.
fn keys_in(processes: &Path) -> io::Result<Vec<Key>> {
    let mut keys = Vec::new();
    for entry in fs::read_dir(processes)? {
        let name = PathBuf::from(entry?.file_name());
        keys.extend(name.file_stem().and_then(|stem| stem.to_str()).and_then(Key::from_dir_name));
    }
    Ok(keys)
}

/// Reads the list of processes, which follows the greeting.
fn read_list(stream: &mut StdUnixStream) -> io::Result<Vec<ReportedProcess>> {
    let mut all = Vec::new();
    loop {
        let mut bytes = vec![0; 4];
        stream.read_exact(&mut bytes)?;
        let len = u32::from_le_bytes(bytes[..].try_into().unwrap_or_default()) as usize;
        // Whether that is too long is checked when it is decoded.
        bytes.resize(4 + len.min(message::MAX_BYTES), 0);
        stream.read_exact(&mut bytes[4..])?;
        match message::decode(&bytes) {
            Some((Ok(FromKeeper::Processes(reported)), _)) if reported.is_empty() => return Ok(all),
            Some((Ok(FromKeeper::Processes(reported)), _)) => all.extend(reported),
            Some((Err(unreadable), _)) => return Err(unreadable.into()),
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "the keeper listed no processes")),
        }
    }
}

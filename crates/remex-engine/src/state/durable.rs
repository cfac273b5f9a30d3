//! The durable part of a server: its state directory, its keeper, and the records of earlier servers.
//!
//! Start at [`Durable`].

mod collect;
mod disk;
mod forgotten;
mod launch;
mod session_files;
mod sessions;

use std::{
    collections::{HashSet, VecDeque},
    ffi::OsString,
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, Weak},
    time::{Duration, Instant},
};

use remex_base::{
    deadlines::Expire,
    lock,
    threads::{ServerThreads, ServerWork},
    trace::LOG_TARGET,
};
use remex_process::{Tags, tree};
use remex_proto::{ErrorKind, HostPath, RpcError, environment};
use tokio::sync::watch;

use crate::state::{
    keeper_link::{
        self, KeeperLink, LinkError,
        message::{ExhaustedQuota, ProgramFile, Quotas, ReportedProcess, ToKeeper},
    },
    state_dir::{Lock, StateDir, StateError},
};
pub use collect::{ClosedLog, Rule, disk_space};
pub use disk::StartNote;
pub(crate) use disk::{DESCRIPTION, START_NOTE, close_lost};
pub use forgotten::Forgotten;
pub use session_files::Saving;
pub(crate) use session_files::SessionFiles;
pub(crate) use sessions::SavedSessions;
pub use sessions::{SavedIdentity, SavedOutcome, SavedSession, SavedStart};

/// How long to wait before a keeper that does not start is started again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// How long to wait before the first attempt to connect to a keeper again.
const RELINK_PAUSE: Duration = Duration::from_millis(5);

/// How often it is logged that a keeper cannot be reached.
const UNREACHABLE_PERIOD: Duration = Duration::from_secs(60);

/// How long a keeper that was just killed may still take connections, only to drop them.
const DYING_PATIENCE: Duration = Duration::from_secs(5);
const DYING_PAUSE: Duration = Duration::from_millis(10);

/// The durable part of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateConfig {
    /// A private directory of the server's user, which one server uses at a time; created if it is not there.
    pub dir: PathBuf,
    /// The program that calls [`run_keeper`](crate::run_keeper) with the directory, which is appended to these arguments. It
    /// outlives the server.
    pub keeper: Vec<OsString>,
    /// A program that executes the command after its arguments somewhere else, such as `systemd-run --scope`; empty for
    /// none. If that fails, the keeper is started without it.
    pub launcher: Vec<OsString>,
}

/// The state directory of a server, and the link to its keeper.
#[derive(Debug)]
pub struct Durable {
    state: Arc<StateDir>,
    lock: Lock,
    config: StateConfig,
    own_tags: Tags,
    /// Disk space that logs may use; the newest that the keeper was told, or the next one will be.
    quotas: Mutex<Quotas>,
    /// `None` while a new keeper is started.
    link: watch::Sender<Option<Arc<KeeperLink>>>,
    files: SessionFiles,
    /// Closed processes, the oldest first, whose logs are deleted when there is no space left.
    closed: Mutex<VecDeque<Closed>>,
}

/// A closed process whose log can be deleted.
struct Closed {
    session: String,
    process: Weak<dyn Expire>,
}

impl fmt::Debug for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Closed").field("session", &self.session).finish_non_exhaustive()
    }
}

/// The records of earlier servers.
#[derive(Debug, Default)]
pub struct Found {
    /// The sessions whose files can be read, each with its starts.
    pub sessions: Vec<(SavedSession, Vec<SavedStart>)>,
    /// The ids of sessions whose files cannot be read.
    pub unreadable: HashSet<String>,
    /// The processes that the keeper still has.
    pub processes: Vec<ReportedProcess>,
    /// Starts that could not be saved with their sessions.
    pub forgotten: Vec<Forgotten>,
}

/// Why a state directory cannot make a server durable.
#[derive(Debug, thiserror::Error)]
pub enum DurableError {
    /// The directory cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The keeper of a directory does not take this server.
    #[error("cannot link to the keeper of `{0}`: {1}")]
    Link(String, LinkError),
    /// The keeper of a directory does not start.
    #[error("cannot start the keeper of `{0}`: {1}")]
    Keeper(String, String),
    /// A keeper runs, but its socket is gone.
    #[error("the keeper of `{path}`{} runs, but nobody can connect to it: its socket `keeper.sock` is gone", pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default())]
    Unreachable {
        /// The directory.
        path: String,
        /// The keeper, if it is known.
        pid: Option<u32>,
    },
    /// A file cannot be read.
    #[error("cannot read `{0}`: {1}")]
    Read(String, io::Error),
}

impl DurableError {
    /// Returns what to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            DurableError::State(error) => error.hint(),
            DurableError::Link(_, LinkError::Version { .. } | LinkError::NotReplaced { .. }) => {
                "start the version of remex that the keeper belongs to, or end its processes with it first"
            }
            DurableError::Link(..) | DurableError::Keeper(..) => "see `keeper.log` in the state directory",
            DurableError::Unreachable { .. } => {
                "end the keeper with SIGTERM, which ends its processes as well"
            }
            DurableError::Read(..) => "check its permissions and its disk",
        }
    }
}

impl Durable {
    /// Opens the state directory, finds or starts its keeper, and reads what is there. Blocks; must be called within a
    /// runtime.
    pub fn open(
        config: StateConfig,
        own_tags: &Tags,
        quotas: Quotas,
    ) -> Result<(Arc<Self>, Found), DurableError> {
        let state = Arc::new(StateDir::open(&config.dir)?);
        let lock = state.lock_server()?;
        let path = state.path().display().to_string();
        let deadline = Instant::now() + DYING_PATIENCE;
        let linked = loop {
            match connect(&state, &config, own_tags, quotas) {
                Err(error) if error.is_end() && Instant::now() < deadline => std::thread::sleep(DYING_PAUSE),
                linked => break linked,
            }
        };
        let (link, reported) = match linked {
            Ok(linked) => linked,
            Err(LinkError::NoKeeper) => start_keeper(&state, &config, own_tags, quotas)?,
            Err(error) => return Err(DurableError::Link(path, error)),
        };
        let unreadable = |error| DurableError::Read(path.clone(), error);
        let known: HashSet<_> = reported.iter().map(|process| process.key).collect();
        let mut processes =
            disk::processes(&state.processes(), |key| known.contains(&key)).map_err(unreadable)?;
        processes.extend(reported);
        let (sessions, lost) = sessions::read(&state.sessions()).map_err(unreadable)?;
        let saved = sessions.iter().map(|(saved, _)| saved);
        let files = SessionFiles::start(state.sessions(), saved).map_err(unreadable)?;
        let forgotten = forgotten::read(&state.processes()).map_err(unreadable)?;
        let durable = Durable {
            state,
            lock,
            config,
            own_tags: own_tags.clone(),
            quotas: Mutex::new(quotas),
            link: watch::Sender::new(Some(link)),
            files,
            closed: Mutex::default(),
        };
        Ok((Arc::new(durable), Found { sessions, unreadable: lost, processes, forgotten }))
    }

    /// Keeps up the link to a keeper; never ends.
    pub async fn run(self: Arc<Self>, threads: Arc<ServerThreads>) {
        loop {
            let link = self.link.borrow().clone();
            if let Some(link) = link {
                let lost = link.run().await;
                if self.relink(&link, &threads).await {
                    tracing::warn!(target: LOG_TARGET, pid = link.pid(), error = %lost, "the link to the keeper has ended, and there is another one");
                    continue;
                }
                tracing::error!(target: LOG_TARGET, pid = link.pid(), error = %lost, "the keeper is gone, and the durable processes with it");
                self.link.send_replace(None);
                let (tags, keeper) = (self.state.tags().clone(), link.pid());
                let kill = move || {
                    // It may be a child of the program that this one has replaced.
                    let keeper = i32::try_from(keeper).ok().and_then(rustix::process::Pid::from_raw);
                    let _ = rustix::process::waitpid(keeper, rustix::process::WaitOptions::NOHANG);
                    tree::kill_server(&tags)
                };
                if let Ok(Err(error)) = threads.run(ServerWork::Keeper, kill).await {
                    tracing::error!(target: LOG_TARGET, %error, "some durable processes are still alive after SIGKILL");
                }
                link.lose_all();
            }
            let durable = Arc::clone(&self);
            let runtime = tokio::runtime::Handle::current();
            let started = threads.run(ServerWork::Keeper, move || {
                let _entered = runtime.enter();
                start_keeper(&durable.state, &durable.config, &durable.own_tags, durable.quotas())
            });
            match started.await {
                Ok(Ok((link, _))) => {
                    self.link.send_replace(Some(Arc::clone(&link)));
                    // They may have changed since it was started.
                    link.send(&ToKeeper::Quotas(self.quotas()));
                }
                Ok(Err(error)) => {
                    tracing::error!(target: LOG_TARGET, %error, "no new keeper can be started");
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                Err(_) => tokio::time::sleep(RETRY_PAUSE).await,
            }
        }
    }

    /// Connects to the keeper again as long as it runs; returns `false` once it has ended.
    async fn relink(self: &Arc<Self>, link: &Arc<KeeperLink>, threads: &ServerThreads) -> bool {
        let (mut pause, mut logged) = (RELINK_PAUSE, None);
        loop {
            // A keeper that is killed closes its sockets a moment before it has ended.
            if tokio::time::timeout(pause, link.keeper_ended()).await.is_ok() {
                return false;
            }
            let (durable, again) = (Arc::clone(self), Arc::clone(link));
            let runtime = tokio::runtime::Handle::current();
            let connecting = threads.run(ServerWork::Keeper, move || {
                let _entered = runtime.enter();
                match again.connect_again(durable.quotas()) {
                    // It is gone if it has left its lock as well, whatever has its pid.
                    Err(LinkError::NoKeeper) if durable.state.has_no_keeper() => Ok(None),
                    connected => connected.map(Some),
                }
            });
            match connecting.await {
                Ok(Ok(Some(linked))) => {
                    link.resume(linked);
                    return true;
                }
                Ok(Ok(None)) => return false,
                Ok(Err(error)) if logged.is_none_or(|at: Instant| at.elapsed() >= UNREACHABLE_PERIOD) => {
                    tracing::error!(target: LOG_TARGET, pid = link.pid(), %error, "the keeper runs, but cannot be reached; trying again");
                    logged = Some(Instant::now());
                }
                Ok(Err(_)) | Err(_) => {}
            }
            pause = (pause * 2).min(RETRY_PAUSE);
        }
    }

    /// Changes the disk space that logs may use.
    pub(crate) fn set_quotas(&self, quotas: Quotas) {
        *lock(&self.quotas) = quotas;
        if let Some(link) = self.link() {
            link.send(&ToKeeper::Quotas(quotas));
        }
    }

    fn quotas(&self) -> Quotas {
        *lock(&self.quotas)
    }

    /// Returns the link to the keeper, if there is one.
    pub fn link(&self) -> Option<Arc<KeeperLink>> {
        self.link.borrow().clone()
    }

    /// Returns what saves sessions.
    pub fn files(&self) -> &SessionFiles {
        &self.files
    }

    /// Returns the lock that this server holds.
    pub fn lock(&self) -> &Lock {
        &self.lock
    }

    /// Returns the state directory.
    pub fn state(&self) -> &StateDir {
        &self.state
    }

    /// Remembers a closed process, whose log is deleted when there is no space left; it is the newest.
    pub fn add_closed<P: Expire + 'static>(&self, session: &str, process: &Arc<P>) {
        let process: Weak<dyn Expire> = Arc::<P>::downgrade(process);
        let mut closed = lock(&self.closed);
        if closed.len() == closed.capacity() {
            closed.retain(|closed| closed.process.strong_count() > 0);
        }
        closed.push_back(Closed { session: session.to_owned(), process });
    }

    /// Deletes the log of the process that closed first, to make space for one of `session`; returns whether there is one.
    pub(crate) fn collect(&self, quota: ExhaustedQuota, session: &str) -> bool {
        let mut spared = Vec::new();
        let is_found = loop {
            let oldest = {
                let mut closed = lock(&self.closed);
                let found = closed
                    .iter()
                    .position(|closed| quota == ExhaustedQuota::Server || closed.session == session);
                found.and_then(|index| closed.remove(index))
            };
            let Some(oldest) = oldest else { break false };
            let Some(process) = oldest.process.upgrade() else { continue };
            if process.expire_early() {
                tracing::warn!(
                    target: LOG_TARGET,
                    session = oldest.session,
                    "no disk space left: deleting the log of a closed process"
                );
                break true;
            }
            spared.push(oldest);
        };
        let mut closed = lock(&self.closed);
        spared.into_iter().rev().for_each(|spared| closed.push_front(spared));
        is_found
    }

    /// Returns what is kept, as far as the keeper says it.
    pub async fn describe(&self) -> environment::State {
        let mut state = environment::State::default();
        state.directory = Some(HostPath::from(self.state.path().to_owned()));
        state.quota_bytes = Some(self.quotas().server_bytes);
        let Some(link) = self.link() else { return state };
        let mut keeper = environment::Keeper::default();
        keeper.pid = link.pid();
        if let Some(status) = link.status().await {
            state.used_bytes = Some(status.used_bytes);
            state.running_processes = Some(status.running);
            state.ended_processes = Some(status.ended);
            (keeper.version, keeper.responds) = (Some(status.version), true);
        }
        state.keeper = Some(keeper);
        state
    }

    /// Tells the keeper that the server ends in good order.
    pub fn say_goodbye(&self) {
        if let Some(link) = self.link() {
            link.send(&ToKeeper::Goodbye);
        }
    }
}

/// Returns why a process that must survive a power failure is not started.
pub fn not_synced(process: &str, error: &io::Error) -> RpcError {
    let message = format!("cannot start process `{process}`: cannot sync the state directory: {error}");
    RpcError::new(ErrorKind::Internal, message).with_hint("check its disk, or start it without `sync`")
}

/// Connects to the keeper; if it runs another program than this server would start now, that is replaced first.
fn connect(
    state: &Arc<StateDir>,
    config: &StateConfig,
    own_tags: &Tags,
    quotas: Quotas,
) -> Result<(Arc<KeeperLink>, Vec<ReportedProcess>), LinkError> {
    let program = config.keeper.first().map(Path::new);
    let found = KeeperLink::connect(state, own_tags, quotas, program.and_then(ProgramFile::at));
    let (Some(program), Err(LinkError::OtherProgram { pid, is_same_version })) = (program, &found) else {
        return found;
    };
    match keeper_link::replace(state, own_tags, program) {
        Ok(()) => tracing::info!(target: LOG_TARGET, pid, "the keeper runs the program of this server now"),
        Err(error) if *is_same_version => {
            tracing::warn!(target: LOG_TARGET, pid, %error, "the keeper goes on with its old program");
        }
        Err(LinkError::Io(error)) => {
            return Err(LinkError::NotReplaced { pid: *pid, reason: error.to_string() });
        }
        Err(error) => return Err(error),
    }
    KeeperLink::connect(state, own_tags, quotas, None)
}

/// Starts a keeper, after everything that an earlier one has left was ended.
fn start_keeper(
    state: &Arc<StateDir>,
    config: &StateConfig,
    own_tags: &Tags,
    quotas: Quotas,
) -> Result<(Arc<KeeperLink>, Vec<ReportedProcess>), DurableError> {
    let path = state.path().display().to_string();
    // Only if there is none: one that lost its socket still runs its processes.
    drop(state.lock_keeper().map_err(|error| match error {
        StateError::InUse { pid, .. } => DurableError::Unreachable { path: path.clone(), pid },
        error => error.into(),
    })?);
    match tree::kill_server(state.tags()) {
        Ok(0) => {}
        Ok(killed) => tracing::warn!(target: LOG_TARGET, killed, "ended processes whose keeper is gone"),
        Err(error) => {
            tracing::error!(target: LOG_TARGET, %error, "some processes whose keeper is gone are still alive after SIGKILL");
        }
    }
    let mut child = launch::keeper(state, config).map_err(|what| DurableError::Keeper(path.clone(), what))?;
    // Reaps the child, unless the server ends first.
    let waiting = std::thread::Builder::new().name("remex-keeper".to_owned());
    let _ = waiting.stack_size(64 << 10).spawn(move || child.wait());
    KeeperLink::connect(state, own_tags, quotas, None).map_err(|error| DurableError::Link(path, error))
}

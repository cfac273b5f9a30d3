//! The keeper: runs the durable processes of a server and outlives it.
//!
//! A process of its own that runs the same [engine](crate::process) as a server, but knows no session, connection or
//! JSON. One server at a time is linked to it. When the link ends, unaccepted input is dropped, and processes keep
//! running. Start at [`run_keeper`].

mod accept_errors;
mod announce;
mod handover;
mod link;
mod prepared_logs;
mod space;
mod start;

use std::{
    collections::HashMap,
    fs, io,
    os::fd::RawFd,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use remex_access::{account::Account, audit::Audit};
use remex_base::{clock::now_ms, lock, trace::LOG_TARGET};
use remex_log::{Quota, Space as _};
use remex_process::{Scope, Signal, Tags, tree};
use remex_proto::{RpcError, process as wire};
use remex_rpc::PeerProcess;
use tokio::{io::AsyncWriteExt as _, net::UnixListener, sync::Notify, task::JoinSet};

use crate::{
    process::{KeeperProcess, Owner},
    shared::{
        host::{EngineConfig, Host},
        resource_limits::{CgroupUse, LimitEnforcer},
        unix_peer,
    },
    state::{
        keeper_link::message::{
            FromKeeper, Greeting, KeeperStatus, Key, ProgramFile, Progress, Purpose, ReportedProcess, Rules,
            ToKeeper,
        },
        state_dir::{Lock, StateDir},
    },
};
use accept_errors::AcceptErrors;
use announce::Announcer;
pub use handover::supports_handover;
use handover::{HandoverState, InheritedFds};
use link::{Greeted, LinkCaller, ServerLink};
use prepared_logs::PreparedLogs;
use space::{Deletions, SessionQuotas};

/// How long a keeper without processes waits for a server.
const IDLE_PATIENCE: Duration = Duration::from_secs(10);

/// How many connections may be greeted at the same time.
const MAX_GREETED: usize = 256;

/// How long to wait when a connection cannot be accepted, for example for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long a server may take to read why the keeper is not replaced.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(1);

/// How many processes one message lists.
const LISTED_AT_ONCE: usize = 64;

/// How long a server may take to end after another one has taken its place.
const REPLACED_PATIENCE: Duration = Duration::from_secs(5);

/// How long killed processes may take until all their output is in their logs.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// A process of the keeper.
type Process = KeeperProcess<Announcer>;

/// Everything that the keeper runs.
#[derive(Debug)]
struct Keeper {
    host: Arc<Host>,
    state: StateDir,
    lock: Lock,
    greeting: Greeting,
    account: Arc<Account>,
    prepared: PreparedLogs,
    processes: Mutex<HashMap<Key, Entry>>,
    quotas: Mutex<SessionQuotas>,
    /// Logs of processes that ended with an earlier keeper, and their sizes.
    leftovers: Mutex<HashMap<Key, (Arc<Quota>, u64)>>,
    /// The link to the server, if there is one.
    link: Mutex<Option<Arc<ServerLink>>>,
    live: AtomicUsize,
    /// Notified when a process has closed.
    closed_one: Notify,
    deleting: Deletions,
}

#[derive(Clone, Debug)]
struct Entry {
    process: Arc<Process>,
    description: Vec<u8>,
    /// The request that starts it again: it may contain secrets, so it is never on the disk.
    request: Arc<[u8]>,
    quota: Arc<Quota>,
    started: Option<(u32, u64)>,
    rules: Rules,
}

/// How a link has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkEnd {
    /// The server has ended what it had started itself.
    WithGoodbye,
    /// The server has died, or connects again.
    WithoutGoodbye,
}

/// A server whose link has ended, and which may still run.
struct Unlinked {
    link: Arc<ServerLink>,
    greeting: Greeting,
}

impl Unlinked {
    /// Waits until the server has ended, which another one has replaced, and kills what it had started itself.
    async fn end(self) {
        let _ = tokio::time::timeout(REPLACED_PATIENCE, self.link.server_ended()).await;
        self.kill().await;
    }

    /// Kills what the server had started itself.
    async fn kill(self) {
        tracing::warn!(target: LOG_TARGET, pid = self.greeting.pid, "the server is gone; ending what it had started itself");
        if let Some(tags) = Tags::from_number(self.greeting.tags)
            && let Err(error) = tree::kill(&Scope::Server(tags.tag(0, 0))).await
        {
            tracing::error!(target: LOG_TARGET, %error, "some processes of the server are still alive after SIGKILL");
        }
    }
}

/// Waits until a server has ended that has no link, if there is one.
async fn ended(unlinked: &Option<Unlinked>) {
    match unlinked {
        Some(server) => server.link.server_ended().await,
        None => std::future::pending().await,
    }
}

/// Why a keeper cannot run.
#[derive(Debug, thiserror::Error)]
#[error("{message}; {hint}")]
pub struct KeeperError {
    message: String,
    hint: &'static str,
}

impl KeeperError {
    fn new(error: &impl ToString, hint: &'static str) -> Self {
        KeeperError { message: error.to_string(), hint }
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

/// Runs a keeper for the state directory until it has no process left; calls `ready` once servers can connect.
///
/// If this program was executed in place of another keeper, `handover_fd` is the descriptor of the state that it handed
/// over. When `shutdown` is done, it ends all processes, and then itself.
///
/// # Errors
///
/// If the directory cannot be used, or has a keeper already.
pub async fn run_keeper(
    config: EngineConfig,
    state: &Path,
    handover_fd: Option<RawFd>,
    ready: impl FnOnce(),
    shutdown: impl Future<Output = ()>,
) -> Result<(), KeeperError> {
    let state = StateDir::open(state).map_err(|error| KeeperError::new(&error, error.hint()))?;
    let (tags, is_replacement) = (state.tags().tag(0, 0), handover_fd.is_some());
    let kept = run_in(config, state, handover_fd, ready, shutdown).await;
    if kept.is_err() && is_replacement {
        // No other program knows these processes.
        let _ = tree::kill(&Scope::Server(tags)).await;
    }
    kept
}

async fn run_in(
    config: EngineConfig,
    state: StateDir,
    handover_fd: Option<RawFd>,
    ready: impl FnOnce(),
    shutdown: impl Future<Output = ()>,
) -> Result<(), KeeperError> {
    let inherited = handover_fd.map(HandoverState::take).transpose().map_err(|error| {
        KeeperError::new(&error, "start the server again; the logs of the processes are there")
    })?;
    let (lock, listener, handover) = match inherited {
        Some(InheritedFds { lock, listener, handover }) => (lock, Some(listener), Some(handover)),
        None => (state.lock_keeper().map_err(|error| KeeperError::new(&error, error.hint()))?, None, None),
    };
    let host_error =
        |error: io::Error| KeeperError::new(&error, "raise the limits on threads and descriptors");
    let enforcer =
        LimitEnforcer::new(&CgroupUse::None).map_err(|error| KeeperError::new(&error, error.hint()))?;
    let host =
        Host::new(config, Audit::default(), state.tags().clone(), enforcer, None).map_err(host_error)?;
    let socket = state.socket();
    let bind_error = |error: io::Error| KeeperError::new(&error, "check the state directory and its disk");
    let listener = match listener {
        Some(listener) => listener,
        None => {
            match fs::remove_file(&socket) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(bind_error(error)),
                _ => {}
            }
            UnixListener::bind(&socket).map_err(bind_error)?
        }
    };
    let prepared = PreparedLogs::new(state.spares()).map_err(bind_error)?;
    let keeper = Arc::new(Keeper {
        prepared,
        account: Arc::new(Account::default()),
        processes: Mutex::default(),
        quotas: Mutex::new(SessionQuotas::unlimited()),
        leftovers: Mutex::default(),
        link: Mutex::default(),
        live: AtomicUsize::new(0),
        closed_one: Notify::new(),
        deleting: Deletions::default(),
        greeting: Greeting::new(Purpose::Link, state.tags().number(), ProgramFile::own()),
        host: Arc::new(host),
        lock,
        state,
    });
    if let Some(handover) = handover {
        keeper.resume(handover);
    }
    keeper.count_leftovers();
    ready();
    keeper.refill_prepared_logs();
    tokio::select! {
        () = keeper.accept(&listener) => {}
        () = shutdown => keeper.end_all().await,
        () = keeper.host.return_freed_memory() => {}
    }
    let _ = fs::remove_file(socket);
    Ok(())
}

impl Keeper {
    /// Serves one server after the other, until there is neither a server nor a process for a while.
    async fn accept(self: &Arc<Self>, listener: &UnixListener) {
        // Greeted at the same time, so that one that is silent does not delay the others.
        let mut greeted = JoinSet::new();
        let mut refusals = AcceptErrors::default();
        let mut unlinked: Option<Unlinked> = None;
        loop {
            let stream = tokio::select! {
                accepted = listener.accept(), if greeted.len() < MAX_GREETED => accepted,
                Some(Ok(greeted)) = greeted.join_next() => {
                    match greeted {
                        Ok(Greeted::Server(link, greeting, quotas)) => {
                            // The same server again, or the next one, so that this one has ended or is just ending.
                            if let Some(earlier) = unlinked.take()
                                && earlier.greeting.tags != greeting.tags
                            {
                                earlier.end().await;
                            }
                            self.set_quotas(quotas);
                            if self.serve(&link, greeting).await == LinkEnd::WithGoodbye {
                                if self.processes().is_empty() {
                                    return;
                                }
                            } else {
                                unlinked = Some(Unlinked { link, greeting });
                            }
                            self.check_directory();
                        }
                        Ok(Greeted::Replacement(mut stream, program)) => {
                            // Only the next server asks for that.
                            if let Some(earlier) = unlinked.take() {
                                earlier.end().await;
                            }
                            let reason = self.hand_over(&program, listener).await;
                            let refused = stream.write_all(reason.as_bytes());
                            let _ = tokio::time::timeout(REFUSAL_PATIENCE, refused).await;
                        }
                        // A server that finds another program has gone away to ask for its replacement.
                        Err(error) => tracing::debug!(target: LOG_TARGET, %error, "a connection to the keeper ended early"),
                    }
                    continue;
                }
                () = ended(&unlinked) => {
                    if let Some(server) = unlinked.take() {
                        server.kill().await;
                    }
                    continue;
                }
                () = self.idle() => return,
            };
            let own = rustix::process::geteuid().as_raw();
            match stream {
                Ok((stream, _)) if !stream.peer_cred().is_ok_and(|peer| peer.uid() == own) => {
                    tracing::warn!(target: LOG_TARGET, "another user tried to connect to the keeper");
                }
                Ok((stream, _)) => match unix_peer::find(&stream) {
                    Ok(PeerProcess::Unconfined) => {
                        greeted.spawn(ServerLink::greet(stream, self.greeting));
                    }
                    Ok(PeerProcess::Jailed) => {
                        tracing::warn!(target: LOG_TARGET, "a process in a sandbox tried to connect to the keeper");
                    }
                    Ok(PeerProcess::Gone) | Err(_) => {
                        tracing::warn!(target: LOG_TARGET, "a process that has ended tried to connect to the keeper");
                    }
                },
                Err(error) => {
                    if refusals.is_new(&error, Instant::now()) {
                        tracing::warn!(target: LOG_TARGET, %error, "cannot accept a server");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Logs an error if no server can find this keeper any more. Its processes keep running.
    fn check_directory(&self) {
        if !self.state.has_keeper_lock(&self.lock) {
            tracing::error!(
                target: LOG_TARGET,
                path = %self.state.path().display(),
                processes = self.live.load(Ordering::Relaxed),
                "the state directory was deleted or replaced, so no server finds this keeper; SIGTERM ends it and its processes"
            );
        }
    }

    /// Ends all processes, as a server ends its own, and waits until their ends are in their logs.
    async fn end_all(&self) {
        let everything = Scope::Server(self.state.tags().tag(0, 0));
        for entry in self.entries() {
            entry.process.will_end_for(wire::ExitCause::Terminated);
        }
        // A stopped process handles TERM only after it continues.
        if let Err(error) = tree::signal(&everything, &[Signal::TERM, Signal::CONT]).await {
            tracing::warn!(target: LOG_TARGET, %error, "cannot send SIGTERM to all processes");
        }
        let _ = tokio::time::timeout(self.host.limits().shutdown_grace, self.all_closed()).await;
        for entry in self.entries() {
            entry.process.abandon();
        }
        if let Err(error) = tree::kill(&everything).await {
            tracing::error!(target: LOG_TARGET, %error, "some processes are still alive after SIGKILL");
        }
        if tokio::time::timeout(END_PATIENCE, self.all_closed()).await.is_err() {
            tracing::error!(target: LOG_TARGET, "some processes have not closed");
        }
    }

    /// Waits until no process is left.
    async fn all_closed(&self) {
        while self.live.load(Ordering::Relaxed) > 0 {
            self.closed_one.notified().await;
        }
    }

    /// Waits until no process has run for a while.
    async fn idle(&self) {
        loop {
            self.all_closed().await;
            tokio::time::sleep(IDLE_PATIENCE).await;
            if self.live.load(Ordering::Relaxed) == 0 {
                return;
            }
        }
    }

    /// Serves a server until the link ends.
    async fn serve(self: &Arc<Self>, link: &Arc<ServerLink>, greeting: Greeting) -> LinkEnd {
        tracing::info!(target: LOG_TARGET, pid = greeting.pid, "linked to a server");
        let mut end = LinkEnd::WithoutGoodbye;
        let mut kept = self.list();
        while !kept.is_empty() {
            let rest = kept.split_off(kept.len().min(LISTED_AT_ONCE));
            link.send(&FromKeeper::Processes(std::mem::replace(&mut kept, rest)));
        }
        link.send(&FromKeeper::Processes(Vec::new()));
        *lock(&self.link) = Some(Arc::clone(link));
        let sending = Arc::clone(link);
        let sending = tokio::spawn(async move { sending.run().await });
        loop {
            match link.receive().await {
                Ok(Some(Ok(ToKeeper::Goodbye))) => end = LinkEnd::WithGoodbye,
                Ok(Some(Ok(message))) => self.on_message(message, link),
                Ok(Some(Err(unreadable))) => link.refuse(&unreadable),
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(target: LOG_TARGET, %error, "the link to the server is broken");
                    break;
                }
            }
        }
        *lock(&self.link) = None;
        link.close();
        sending.abort();
        for entry in self.entries() {
            entry.process.cancel_input(|caller| caller.is_of(link));
        }
        end
    }

    fn on_message(self: &Arc<Self>, message: ToKeeper, link: &Arc<ServerLink>) {
        self.host.notify_activity();
        match message {
            ToKeeper::Quotas(quotas) => self.set_quotas(quotas),
            ToKeeper::Start(new) => self.start(*new, link),
            ToKeeper::Request { key, number, request } => {
                let caller = LinkCaller::new(link, key, number);
                match self.process(key) {
                    Some(process) => process.request(link::to_request(request, caller, &process.id)),
                    None => caller.answer_unknown(&request),
                }
            }
            ToKeeper::Cancel { key, numbers } => {
                if let Some(process) = self.process(key) {
                    process.cancel_input(|caller| caller.is_of(link) && numbers.contains(&caller.number()));
                }
            }
            ToKeeper::Hold { key, hold } => {
                if let Some(process) = self.process(key) {
                    process.with_log(|log| log.set_hold(hold));
                    process.wake();
                }
            }
            ToKeeper::Abandon(key) => {
                if let Some(process) = self.process(key) {
                    process.will_end_for(wire::ExitCause::Terminated);
                    process.abandon();
                }
            }
            ToKeeper::Forget(key) => self.forget(key),
            ToKeeper::Status => link.send(&FromKeeper::Status(self.status())),
            ToKeeper::Goodbye => {}
            ToKeeper::TryLog { key, number } => {
                link.send(&FromKeeper::LogTried(number, self.try_log(key)));
            }
            ToKeeper::ReadRest(key) => {
                if let Some(process) = self.process(key) {
                    process.read_rest();
                }
            }
        }
    }

    /// Returns what the server has to know about all processes.
    fn list(&self) -> Vec<ReportedProcess> {
        let entries: Vec<_> = self.processes().iter().map(|(key, entry)| (*key, entry.clone())).collect();
        let kept = entries.into_iter().map(|(key, entry)| {
            let Entry { process, description, request, started, .. } = entry;
            let (progress, hold) = process.progress_and_hold();
            ReportedProcess { key, description, request: request.to_vec(), started, progress, hold }
        });
        kept.collect()
    }

    fn status(&self) -> KeeperStatus {
        let running = self.live.load(Ordering::Relaxed);
        let ended = self.processes().len().saturating_sub(running) + lock(&self.leftovers).len();
        KeeperStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            used_bytes: lock(&self.quotas).server.used(),
            running: running as u64,
            ended: ended as u64,
        }
    }

    fn process(&self, key: Key) -> Option<Arc<Process>> {
        self.processes().get(&key).map(|entry| Arc::clone(&entry.process))
    }

    fn key_of(&self, process: &Arc<Process>) -> Option<Key> {
        let processes = self.processes();
        processes.iter().find(|(_, entry)| Arc::ptr_eq(&entry.process, process)).map(|(key, _)| *key)
    }

    fn entries(&self) -> Vec<Entry> {
        self.processes().values().cloned().collect()
    }

    fn processes(&self) -> MutexGuard<'_, HashMap<Key, Entry>> {
        lock(&self.processes)
    }

    fn link(&self) -> Option<Arc<ServerLink>> {
        lock(&self.link).clone()
    }

    fn count_live(&self, process: &Process) {
        if process.set_live(true) {
            self.live.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn ended(&self, process: &Arc<Process>) {
        if process.set_live(false) {
            self.live.fetch_sub(1, Ordering::Relaxed);
            self.closed_one.notify_one();
            self.host.notify_activity();
        }
    }
}

impl Owner<Announcer> for Keeper {
    fn id(&self) -> &str {
        "keeper"
    }

    fn identity(&self) -> &str {
        "keeper"
    }

    fn has_ended(&self) -> bool {
        false
    }

    fn reclaim(&self, _wanted: usize) {}

    fn on_started(
        &self,
        _process: &Arc<Process>,
        _start_id: Option<&str>,
        started: wire::Started,
        caller: Option<LinkCaller>,
    ) {
        let Some(caller) = caller else { return };
        let started = (started.pid.unwrap_or_default(), started.started_at_ms.unwrap_or_default());
        if let Some(entry) = self.processes().get_mut(&caller.key()) {
            entry.started = Some(started);
        }
        caller.started(started);
    }

    fn on_start_failed(&self, process: &Arc<Process>, _start_id: Option<&str>, _error: &RpcError) {
        self.on_broken(process);
    }

    fn announce_failure(&self, _process: &Arc<Process>, _error: &RpcError) {}

    fn on_broken(&self, process: &Arc<Process>) {
        self.ended(process);
        let Some(key) = self.key_of(process) else { return };
        let Some(entry) = self.processes().remove(&key) else { return };
        let bytes = process.with_log(|log| {
            // Gives back what is reserved, so that only the files count.
            let _ = log.files().closed(now_ms(), &[]);
            log.files().position().disk_bytes
        });
        let _ = fs::remove_dir_all(self.state.processes().join(key.dir_name()));
        entry.quota.release(bytes);
    }

    fn on_closed(&self, process: &Arc<Process>) {
        self.ended(process);
    }
}

/// Returns what to announce of a process now.
fn progress_of(process: &Process) -> Progress {
    process.progress_and_hold().0
}

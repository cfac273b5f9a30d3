//! The server: listeners, connections, and the orderly end; [`sessions`] has who holds which session, [`idle`] the end
//! that comes by itself.

mod idle;
mod sessions;

use std::{
    collections::HashMap,
    future::Future,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use remex_process::{Scope, Signal, Spawner, Tags, Watchdog, tree};
use remex_proto::message::Source;
use remex_rpc::{Accepted, FrameReader, Framing, Listener, Readiness, Terms, handshake, memory::ServerEnd};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinSet,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    budget::Budget,
    compute::ComputePool,
    config::{Config, Host, Limits, Proxies, Trust},
    connection::{self, Link, Way},
    fs::Files,
    http::Web,
    identity::Identity,
    janitor::Janitor,
    outbox::{ConnectionId, Outbox, Shared},
    session::{Session, Underway},
    supervise::supervised,
    watch::Lookout,
};
use sessions::Sessions;

/// How long a listener that ran out of descriptors waits before it accepts again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long nobody watches deadlines after a panic, so that one that comes back does not take all time there is.
const SUCCESSION: Duration = Duration::from_secs(1);

/// How long clients get to take the farewell.
const FAREWELL: Duration = Duration::from_secs(2);

/// WebSocket close codes.
pub(crate) const GOING_AWAY: u16 = 1001;
pub(crate) const POLICY: u16 = 1008;

/// Starts and controls processes for clients elsewhere.
///
/// Made with [`Server::new`] inside a tokio runtime; give it listeners with [`Server::serve`] and
/// end it with [`Server::shut_down`].
#[derive(Debug)]
pub struct Server {
    config: Config,
    spawner: Spawner,
    files: Files,
    web: Web,
    lookout: Arc<Lookout>,
    compute: ComputePool,
    /// Memory for long answers, from their making until they are sent.
    answers: Arc<Budget>,
    /// Memory for long messages, from their second MiB until they are parsed.
    incoming: Arc<Budget>,
    tags: Tags,
    /// Ends what is left when the server dies. A mutex, because whoever ends the server in order takes it out.
    watchdog: Mutex<Option<Watchdog>>,
    janitor: Janitor,
    /// Shared by connections and the janitor; held for moments only.
    sessions: Mutex<Sessions>,
    /// Shared by connections; held for moments only.
    connections: Mutex<HashMap<ConnectionId, Arc<Outbox>>>,
    shared: Shared,
    next_connection: AtomicU64,
    retained: AtomicUsize,
    phase: watch::Sender<Phase>,
    /// Changes whenever something came or went, for who waits for idleness.
    stirs: watch::Sender<()>,
    tasks: TaskTracker,
    /// The kernel's count of processes killed for want of memory, as last seen.
    oom_kills: AtomicU64,
    /// Ends the graces at the end early.
    hurry: CancellationToken,
    /// Bounds connections from the moment they are accepted.
    doors: Arc<Semaphore>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Serving,
    /// No new work; what runs is being ended.
    Ending,
    /// Clients are told and connections end.
    Leaving,
}

/// Why a server cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot start the threads that start processes: {0}; raise the limits on threads and descriptors")]
pub struct ListenError(io::Error);

impl From<io::Error> for ListenError {
    fn from(error: io::Error) -> Self {
        // Not as its source: the sentence has it already.
        Self(error)
    }
}

impl Server {
    /// Makes a server that listens nowhere yet.
    ///
    /// # Errors
    ///
    /// When the host has no room for the threads that start processes.
    pub fn new(config: Config) -> Result<Arc<Self>, ListenError> {
        let tags = Tags::new();
        // First, while there is little memory to share with it.
        let watchdog = Watchdog::start(&tags).inspect_err(|error| {
            tracing::warn!(
                %error,
                "no watchdog could be started: if the server is killed, processes in groups or sessions of their own live on; \
                 raise the limits on processes and descriptors"
            );
        });
        let threads = std::thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 8));
        let server = Arc::new(Server {
            spawner: Spawner::new(threads)?,
            files: Files::new()?,
            answers: Arc::new(Budget::new(config.limits.answer_bytes as u64)),
            incoming: Arc::new(Budget::new(config.limits.incoming_bytes as u64)),
            shared: Shared::new(config.limits.server_request_bytes as u64),
            compute: ComputePool::new(threads.min(4))?,
            web: Web::default(),
            lookout: Arc::default(),
            tags,
            watchdog: Mutex::new(watchdog.ok()),
            janitor: Janitor::default(),
            sessions: Mutex::default(),
            connections: Mutex::default(),
            next_connection: AtomicU64::new(1),
            retained: AtomicUsize::new(0),
            phase: watch::Sender::new(Phase::Serving),
            stirs: watch::Sender::new(()),
            tasks: TaskTracker::new(),
            oom_kills: AtomicU64::new(oom_kills()),
            hurry: CancellationToken::new(),
            doors: Arc::new(Semaphore::new(config.limits.connections)),
            config,
        });
        let (janitor, mut phase) = (Arc::clone(&server), server.phase.subscribe());
        server.track(async move {
            tokio::select! {
                () = watch_deadlines(janitor) => {}
                _ = phase.wait_for(|phase| *phase == Phase::Leaving) => {}
            }
        });
        Ok(server)
    }

    /// Accepts connections on `listener` until the server ends.
    pub async fn serve(self: Arc<Self>, listener: Listener) {
        let mut phase = self.phase.subscribe();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = phase.wait_for(|phase| *phase > Phase::Serving) => return,
            };
            match accepted {
                Ok(accepted) => match self.door() {
                    Some(door) => {
                        let server = Arc::clone(&self);
                        self.track(async move {
                            server.welcome(accepted).await;
                            drop(door);
                        });
                    }
                    None => tracing::warn!("a connection was dropped: there are too many"),
                },
                Err(error) => {
                    tracing::warn!(error = %error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Serves exactly one connection of lines, such as stdio, until it ends.
    pub async fn serve_stdio(self: Arc<Self>, reader: remex_rpc::ReadHalf, writer: remex_rpc::WriteHalf) {
        let reader = FrameReader::new(reader, Framing::Lines, self.limits().message_bytes);
        let way = Way::Wire { reader, writer, framing: Framing::Lines, source: Source::Stdio };
        let identity = self.own_identity();
        // A panic ends the connection like any other.
        let _ = supervised(connection::run(self, Link { way, identity })).await;
    }

    /// Serves a client in this process, until the link ends or the server does, in a task that the server owns.
    ///
    /// Its session ends with the link. Must be called within a tokio runtime. A server that is ending, or has too many
    /// connections, drops the end.
    pub fn serve_memory(self: &Arc<Self>, end: ServerEnd) {
        let Some(door) = self.door().filter(|_| !self.is_ending()) else {
            return tracing::warn!("a link was dropped: the server is ending, or there are too many");
        };
        let (server, identity) = (Arc::clone(self), self.own_identity());
        self.track(async move {
            connection::run(server, Link { way: Way::Memory(end), identity }).await;
            drop(door);
        });
    }

    pub(crate) fn compute(&self) -> &ComputePool {
        &self.compute
    }

    pub(crate) fn answers(&self) -> &Arc<Budget> {
        &self.answers
    }

    pub(crate) fn incoming(&self) -> &Arc<Budget> {
        &self.incoming
    }

    pub(crate) fn shared(&self) -> Shared {
        self.shared.clone()
    }

    /// Returns an identity that nobody else has.
    fn own_identity(&self) -> Identity {
        Identity::Own(self.next_connection.fetch_add(1, Ordering::Relaxed))
    }

    async fn welcome(self: Arc<Self>, accepted: Accepted) {
        let message_bytes = self.limits().message_bytes;
        let link = match accepted {
            Accepted::Tcp { stream } => {
                let readiness = if self.is_ending() { Readiness::ShuttingDown } else { Readiness::Ready };
                let terms = Terms { readiness, max_message_len: message_bytes, ..Terms::default() };
                match handshake(stream, |token| self.config.auth.judge(token), &terms).await {
                    Ok(upgraded) => Link {
                        way: Way::Wire {
                            reader: upgraded.reader,
                            writer: upgraded.writer,
                            framing: Framing::WebSocket(remex_rpc::Role::Server),
                            source: Source::WebSocket,
                        },
                        identity: upgraded.who,
                    },
                    Err(reason) => {
                        return tracing::debug!(error = %reason, "a connection did not become a WebSocket");
                    }
                }
            }
            Accepted::Unix { peer_uid, .. } if peer_uid != rustix::process::geteuid().as_raw() => {
                return tracing::warn!(uid = peer_uid, "a peer with another uid was refused");
            }
            Accepted::Unix { stream, .. } => {
                let (reader, writer) = stream.into_split();
                Link {
                    way: Way::Wire {
                        reader: FrameReader::new(Box::new(reader), Framing::Lines, message_bytes),
                        writer: Box::new(writer),
                        framing: Framing::Lines,
                        source: Source::Unix,
                    },
                    identity: Identity::Local,
                }
            }
        };
        connection::run(self, link).await;
    }

    /// Ends the server in order: no new work, processes ended with grace and then killed, clients told.
    pub async fn shut_down(&self) {
        self.phase.send_replace(Phase::Ending);
        let sessions: Vec<_> = self.sessions().by_id.values().cloned().collect();
        tracing::info!(sessions = sessions.len(), "shutting down");
        sessions.iter().for_each(|session| session.will_end());
        // One look for all sessions. What is stopped hears it only when it goes on.
        if let Err(error) = tree::signal(&self.everything(), &[Signal::TERM, Signal::CONT]).await {
            tracing::warn!(%error, "processes cannot be asked to end");
        }
        let all_closed = async {
            for session in &sessions {
                session.all_closed().await;
            }
        };
        tokio::select! {
            () = all_closed => {}
            () = tokio::time::sleep(self.limits().shutdown_grace) => {}
            () = self.hurry.cancelled() => {}
        }
        let ended = self.end_all(sessions).await;
        self.phase.send_replace(Phase::Leaving);
        // A session knows its server: whoever embeds one gets the memory of both back.
        self.sessions().by_id.clear();
        let outboxes: Vec<_> = self.connections().values().cloned().collect();
        let deadline = tokio::time::Instant::now() + FAREWELL;
        let hurry = self.hurry.clone();
        for_all(outboxes, |outbox| {
            let hurry = hurry.clone();
            async move {
                // The last events go before the farewell, to everybody who takes them.
                tokio::select! {
                    () = outbox.all_sent() => {}
                    () = tokio::time::sleep_until(deadline - FAREWELL / 2) => {}
                    () = hurry.cancelled() => {}
                }
                outbox.say_goodbye(GOING_AWAY, "the server is shutting down");
            }
        })
        .await;
        self.tasks.close();
        tokio::select! {
            () = self.tasks.wait() => {}
            () = tokio::time::sleep_until(deadline) => {}
            () = self.hurry.cancelled() => {}
        }
        self.dismiss_watchdog(ended);
    }

    /// Ends everything that was started, also what is left of sessions that are over.
    async fn end_all(&self, sessions: Vec<Arc<Session>>) -> Ended {
        let underway = sessions.iter().map(|session| session.abandon()).max();
        let kill = async || Ended::from(tree::kill(&self.everything()).await);
        let mut ended = kill().await;
        for_all(sessions, |session| async move {
            if let Err(error) = session.closed_in_time().await {
                tracing::error!(session = %session.id, error = %error.message, "session did not end");
            }
        })
        .await;
        if underway == Some(Underway::Starts) {
            // What came of them may have come after the look, and what was left then may have ended.
            ended = kill().await;
        }
        ended
    }

    /// Returns everything that was ever started here.
    fn everything(&self) -> Scope {
        Scope::Server(self.tags.tag(0, 0))
    }

    /// Ends the server and everything it started at once, for those who cannot wait for [`Server::shut_down`].
    ///
    /// Needs no runtime. Blocks until nothing is left, which takes milliseconds.
    pub fn kill(&self) {
        self.phase.send_replace(Phase::Leaving);
        let sessions = std::mem::take(&mut self.sessions().by_id);
        for session in sessions.values() {
            session.abandon();
        }
        let ended = Ended::from(tree::kill(&self.everything()).wait());
        for outbox in self.connections().values() {
            outbox.say_goodbye(GOING_AWAY, "the server is shutting down");
        }
        self.dismiss_watchdog(ended);
    }

    /// Lets the watchdog go: where something is left, it is the last that can end it.
    fn dismiss_watchdog(&self, ended: Ended) {
        let watchdog = self.watchdog.lock().unwrap_or_else(PoisonError::into_inner).take();
        match ended {
            Ended::All => drop(watchdog),
            Ended::NotAll => watchdog.into_iter().for_each(Watchdog::release),
        }
    }

    /// Cuts the graces of [`Server::shut_down`] short.
    pub fn hurry(&self) {
        self.hurry.cancel();
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.config.limits
    }

    pub(crate) fn host(&self) -> &Host {
        &self.config.host
    }

    pub(crate) fn files(&self) -> &Files {
        &self.files
    }

    pub(crate) fn web(&self) -> &Web {
        &self.web
    }

    pub(crate) fn proxies(&self) -> &Proxies {
        &self.config.proxies
    }

    pub(crate) fn trust(&self) -> &Trust {
        &self.config.trust
    }

    pub(crate) fn lookout(&self) -> &Arc<Lookout> {
        &self.lookout
    }

    pub(crate) fn host_env(&self) -> &[(std::ffi::OsString, std::ffi::OsString)] {
        &self.config.host_env
    }

    pub(crate) fn spawner(&self) -> &Spawner {
        &self.spawner
    }

    pub(crate) fn tags(&self) -> &Tags {
        &self.tags
    }

    pub(crate) fn janitor(&self) -> &Janitor {
        &self.janitor
    }

    pub(crate) fn is_ending(&self) -> bool {
        *self.phase.borrow() > Phase::Serving
    }

    /// Takes a place for one more connection, if there is one.
    fn door(self: &Arc<Self>) -> Option<Door> {
        let permit = Arc::clone(&self.doors).try_acquire_owned().ok()?;
        Some(Door { permit: Some(permit), server: Arc::clone(self) })
    }

    /// Runs a task that the server waits for when it ends; a panic in it is logged.
    pub(crate) fn track(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(supervised(task));
    }

    /// Registers a connection.
    pub(crate) fn connect(&self, outbox: impl FnOnce(ConnectionId) -> Arc<Outbox>) -> Arc<Outbox> {
        let id = self.next_connection.fetch_add(1, Ordering::Relaxed);
        let outbox = outbox(id);
        self.connections().insert(id, Arc::clone(&outbox));
        self.stir();
        outbox
    }

    pub(crate) fn disconnect(&self, connection: ConnectionId) {
        self.connections().remove(&connection);
        self.stir();
    }

    pub(crate) fn retention_left(&self) -> usize {
        self.limits().server_retain_bytes.saturating_sub(self.retained.load(Ordering::Relaxed))
    }

    pub(crate) fn charge(&self, before: usize, after: usize) {
        if after > before {
            self.retained.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.retained.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    /// Tells whether the kernel has killed something for want of memory since last asked.
    pub(crate) fn out_of_memory(&self) -> bool {
        let now = oom_kills();
        self.oom_kills.fetch_max(now, Ordering::Relaxed) < now
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<ConnectionId, Arc<Outbox>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the end of a server has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// Nothing that was started is left.
    All,
    NotAll,
}

impl From<io::Result<usize>> for Ended {
    fn from(killed: io::Result<usize>) -> Self {
        match killed {
            Ok(_) => Self::All,
            Err(error) => {
                tracing::error!(%error, "not all processes ended");
                Self::NotAll
            }
        }
    }
}

/// A place among the connections of a server.
struct Door {
    permit: Option<OwnedSemaphorePermit>,
    server: Arc<Server>,
}

impl Drop for Door {
    fn drop(&mut self) {
        drop(self.permit.take());
        self.server.stir();
    }
}

/// Runs the janitor until the server ends; one that panics gets a successor.
async fn watch_deadlines(server: Arc<Server>) {
    while supervised(Janitor::run(Arc::clone(&server))).await.is_err() {
        tokio::time::sleep(SUCCESSION).await;
    }
}

/// Does something for all of them at once.
async fn for_all<T, F: Future<Output = ()> + Send + 'static>(all: Vec<T>, work: impl Fn(T) -> F) {
    let mut tasks: JoinSet<()> = all.into_iter().map(work).collect();
    while tasks.join_next().await.is_some() {}
}

/// Returns how many processes the kernel has killed for want of memory since it booted.
fn oom_kills() -> u64 {
    let Ok(text) = std::fs::read_to_string("/proc/vmstat") else { return 0 };
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
}

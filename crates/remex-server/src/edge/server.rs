//! The server: listeners and graceful shutdown.
//!
//! [`admit`] authenticates connections, [`credentials`] follows changed credential files, [`pages`] serves metrics, and
//! [`idle`] handles the idle shutdown.

mod admit;
mod credentials;
mod idle;
mod pages;

use std::{
    borrow::Cow,
    future::Future,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use remex_access::{
    admission::AdmissionControl,
    audit::{Audit, NotOpened},
    auth::Authenticator,
    grants::Auth,
    identity::Credential,
};
use remex_base::{
    limits::Limits,
    lock,
    supervise::{in_phases, supervise},
    threads::ServerWork,
};
use remex_engine::{Durable, DurableError, LimitEnforcer, Phase, Quotas};
use remex_process::{CgroupError, Scope, Signal, Tags, Watchdog, tree};
use remex_proto::message::Source;
use remex_rpc::{Accepted, FrameReader, Framing, ListenAddress, Listener, memory::ServerEnd, tls::ServerTls};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use crate::{
    config::{Config, MetricsAccess},
    edge::{
        connection::{self, Link, Transport, Validity},
        tls::TlsListener,
    },
    outbox::close_code::{GOING_AWAY, RESTART},
    sessions::session::{PendingStarts, Reach, Session, SessionRegistry},
    shared::host::Host,
};
use admit::TcpEnds;

/// How long a listener that ran out of descriptors waits before it accepts again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long clients have to read the last messages.
const CLOSE_GRACE: Duration = Duration::from_secs(2);

/// Starts and controls processes for remote clients.
///
/// Create it with [`Server::new`] inside a tokio runtime, pass it listeners with [`Server::serve`], and end it
/// with [`Server::shut_down`].
#[derive(Debug)]
pub struct Server {
    /// Replaced as a whole on a reload; open connections watch it.
    auth: watch::Sender<Arc<Authenticator>>,
    is_watching_credentials: AtomicBool,
    /// Lets one thread read the credential files at a time.
    credential_read: Arc<Semaphore>,
    host: Arc<Host>,
    sessions: Arc<SessionRegistry>,
    /// Kills all remaining processes if the server dies. A mutex, because a graceful shutdown takes it out.
    watchdog: Mutex<Option<Watchdog>>,
    /// Cuts the grace periods of a shutdown short.
    grace_skipped: CancellationToken,
    /// Whether another program takes over the listeners.
    is_replaced: AtomicBool,
    metrics: MetricsAccess,
    /// Limits connections from the moment they are accepted.
    admission: Arc<AdmissionControl>,
}

/// Why a server cannot be created.
#[derive(Debug, thiserror::Error)]
#[error("{}; {}", self.message(), self.hint())]
pub struct CreateError(CreateErrorKind);

#[derive(Debug)]
enum CreateErrorKind {
    /// The host has no thread or descriptor left for it.
    Threads(io::Error),
    /// The cgroup that was named for it cannot be used.
    Cgroup(CgroupError),
    /// The audit file cannot be opened.
    Audit { path: PathBuf, error: NotOpened },
    /// The state directory cannot be used.
    State(DurableError),
}

impl CreateError {
    /// Returns what failed and why, without what to do about it.
    pub fn message(&self) -> String {
        match &self.0 {
            CreateErrorKind::Threads(error) => {
                format!("cannot start the threads that start processes: {error}")
            }
            CreateErrorKind::Cgroup(error) => format!("cannot limit processes by cgroups: {error}"),
            CreateErrorKind::Audit { path, error } => {
                format!("cannot open the audit file `{}`: {error}", path.display())
            }
            CreateErrorKind::State(error) => error.to_string(),
        }
    }

    /// Returns what to do about it.
    pub fn hint(&self) -> Cow<'static, str> {
        match &self.0 {
            CreateErrorKind::Threads(_) => "raise the limits on threads and descriptors".into(),
            CreateErrorKind::Cgroup(error) => error.hint().into(),
            CreateErrorKind::Audit { error, .. } => error.hint().into(),
            CreateErrorKind::State(error) => error.hint().into(),
        }
    }
}

impl Server {
    /// Creates a server without listeners.
    ///
    /// # Errors
    ///
    /// If the host cannot create the threads that start processes, or the cgroup or the audit file in the
    /// configuration cannot be used.
    pub fn new(mut config: Config) -> Result<Arc<Self>, CreateError> {
        let tags = Tags::new();
        // Before any process is started, because none may be beside the cgroups of children.
        let enforcer = LimitEnforcer::new(&config.cgroup)
            .map_err(|error| CreateError(CreateErrorKind::Cgroup(error)))?;
        let quotas = Quotas::from(&config.limits);
        let durable = config.state.take().map(|state| Durable::open(state, &tags, quotas)).transpose();
        let durable = durable.map_err(|error| CreateError(CreateErrorKind::State(error)))?;
        let (durable, found) = durable.unzip();
        // Started first, while there is little memory to share with it. A keeper is the watchdog of a durable server.
        let watchdog = if durable.is_some() { Ok(None) } else { Watchdog::start(&tags).map(Some) };
        let watchdog = watchdog.inspect_err(|error| {
            tracing::warn!(
                %error,
                "no watchdog could be started: if the server is killed, processes in groups or sessions of their own survive; \
                 raise the limits on processes and descriptors"
            );
        });
        let metrics = config.metrics;
        let auth = Authenticator::new(config.auth.clone(), rustix::process::geteuid().as_raw());
        let audit = Audit::start(config.audit.as_ref()).map_err(|error| {
            let path = config.audit.as_ref().map(|audit| audit.path.clone()).unwrap_or_default();
            CreateError(CreateErrorKind::Audit { path, error })
        })?;
        let requires_bearer = config.auth.requires_bearer();
        let host = Host::new(config, audit, tags, enforcer, durable)
            .map_err(|error| CreateError(CreateErrorKind::Threads(error)))?;
        host.requires_bearer(requires_bearer);
        let host = Arc::new(host);
        let sessions = SessionRegistry::new(&host);
        if let (Some(durable), Some(found)) = (host.durable(), found) {
            host.hide(durable.state().path());
            sessions.restore(found);
            let keeping = Arc::clone(durable).run(Arc::clone(host.own_threads()));
            let mut phase = host.phase().subscribe();
            host.spawn(async move {
                tokio::select! {
                    () = keeping => {}
                    _ = phase.wait_for(|phase| *phase == Phase::Disconnecting) => {}
                }
            });
        }
        Ok(Arc::new(Server {
            auth: watch::Sender::new(Arc::new(auth)),
            is_watching_credentials: AtomicBool::new(false),
            credential_read: Arc::new(Semaphore::new(1)),
            sessions,
            watchdog: Mutex::new(watchdog.ok().flatten()),
            grace_skipped: CancellationToken::new(),
            is_replaced: AtomicBool::new(false),
            metrics,
            admission: Arc::default(),
            host,
        }))
    }

    /// Accepts connections on `listener` until the server shuts down.
    pub async fn serve(self: Arc<Self>, listener: Listener) {
        self.accept(listener, None).await;
    }

    /// Accepts encrypted connections on `listener` until the server shuts down.
    pub async fn serve_tls(self: Arc<Self>, listener: Listener, tls: Arc<ServerTls>) {
        self.accept(listener, Some(TlsListener::new(tls))).await;
    }

    async fn accept(self: Arc<Self>, listener: Listener, tls: Option<Arc<TlsListener>>) {
        match listener.address() {
            ListenAddress::Unix(path) => self.host.hide(path),
            ListenAddress::WebSocket(address) | ListenAddress::SecureWebSocket(address) => {
                self.host.listens_on_tcp(address.port());
            }
            ListenAddress::Stdio => {}
        }
        if !self.is_watching_credentials.swap(true, Ordering::Relaxed) {
            self.host.spawn(Arc::clone(&self).watch_credentials());
        }
        let mut phase = self.host.phase().subscribe();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = phase.wait_for(|phase| *phase > Phase::Serving) => return,
            };
            match accepted {
                Ok(Accepted::Tcp { stream, peer, local }) => {
                    self.on_tcp(stream, TcpEnds { peer, local }, tls.clone());
                }
                Ok(Accepted::Unix { stream, peer_uid }) => {
                    let server = Arc::clone(&self);
                    self.host.spawn(in_phases(async move {
                        let admitted = server.admit_unix(stream, peer_uid).await;
                        server.run(admitted)
                    }));
                }
                Err(error) => {
                    self.warn_unaccepted(&error);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Serves exactly one line-framed connection, such as stdio, until it ends.
    pub async fn serve_stdio(self: Arc<Self>, reader: remex_rpc::ReadHalf, writer: remex_rpc::WriteHalf) {
        let reader = FrameReader::new(reader, Framing::Lines, self.host.limits().message_bytes);
        let transport = Transport::Wire { reader, writer, framing: Framing::Lines, source: Source::Stdio };
        let peer = Arc::from("stdio");
        let credential = Credential::own(self.sessions.connections().next_id());
        // A panic ends the connection like any other reason.
        let link = Link { transport, validity: Validity::fixed(credential), peer };
        let _ = supervise(connection::run(Arc::clone(&self.sessions), link)).await;
    }

    /// Serves a client in this process until the link or the server ends, in a task that the server owns.
    ///
    /// The session ends with the link, unless the client asks for a time to detach. Must be called within a tokio runtime. If the server is shutting down or
    /// has too many connections, it drops `end`.
    pub fn serve_memory(self: &Arc<Self>, end: ServerEnd) {
        let credential = Credential::program();
        let permit = self.admit(&credential.identity, None);
        let Some(permit) = permit.ok().filter(|_| !self.host.is_stopping()) else {
            return tracing::warn!(
                "in-process connection dropped: the server is shutting down, or has too many connections"
            );
        };
        let sessions = Arc::clone(&self.sessions);
        let validity = Validity::fixed(credential);
        let link = Link { transport: Transport::Memory(end), validity, peer: Arc::from("memory") };
        self.host.spawn(async move {
            connection::run(sessions, link).await;
            drop(permit);
        });
    }

    /// Runs `work` of the program around the server that may hang, on a thread that no client can occupy; it continues if
    /// the future is dropped. Returns `None` if it panicked.
    pub fn run_blocking<T, W>(&self, work: W) -> impl Future<Output = Option<T>> + Send + use<T, W>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        let running = self.host.own_threads().run(ServerWork::Program, work);
        async move { running.await.ok() }
    }

    /// Opens the audit file again, after another program has moved it.
    pub fn reopen_audit(&self) {
        self.host.audit().reopen();
    }

    fn authenticator(&self) -> Arc<Authenticator> {
        Arc::clone(&self.auth.borrow())
    }

    /// Replaces the rules for new connections, and disconnects clients whose tokens are gone.
    pub fn set_auth(&self, auth: Auth) {
        self.host.requires_bearer(auth.requires_bearer());
        let auth = Arc::new(Authenticator::new(auth, rustix::process::geteuid().as_raw()));
        self.auth.send_replace(auth);
    }

    /// Replaces the [credentials](Config::credentials) that are hidden from everything that is confined from now on.
    pub fn set_credentials(&self, credentials: Vec<PathBuf>) {
        self.host.set_credentials(credentials);
    }

    /// Replaces the limits for everything that begins from now on, apart from those that need a
    /// [restart](crate::Reload::Restart).
    pub fn set_limits(&self, limits: Limits) {
        self.host.set_limits(limits);
    }

    /// Returns whether processes and sessions survive the server.
    pub fn is_durable(&self) -> bool {
        self.host.durable().is_some()
    }

    /// Says in the state directory which program the server is, how it is, and on which unix sockets it listens, for other
    /// commands of remex.
    pub fn say_status(&self, program: &Path, status: &str, sockets: &[PathBuf]) {
        if let Some(durable) = self.host.durable() {
            durable.lock().say_status(program, status, sockets);
        }
    }

    /// Ends the server so that another program can take over its listening sockets, which the caller has
    /// [cloned](Listener::for_handover), and its durable processes: clients are asked to reconnect.
    pub async fn hand_over(&self) {
        self.is_replaced.store(true, Ordering::Relaxed);
        self.shut_down().await;
    }

    /// Shuts the server down gracefully: accepts no new work, terminates processes and then kills them,
    /// notifies clients.
    pub async fn shut_down(&self) {
        self.host.phase().send_replace(Phase::Stopping);
        let sessions = self.sessions.all();
        tracing::info!(sessions = sessions.len(), "shutting down");
        sessions.iter().for_each(|session| session.will_end(Reach::Ephemeral));
        // One scan for all sessions. A stopped process handles TERM only after it continues.
        if let Err(error) = tree::signal(&self.everything(), &[Signal::TERM, Signal::CONT]).await {
            tracing::warn!(%error, "cannot send SIGTERM to all processes");
        }
        let all_closed = async {
            for session in &sessions {
                session.all_closed(Reach::Ephemeral).await;
            }
        };
        tokio::select! {
            () = all_closed => {}
            () = tokio::time::sleep(self.host.limits().shutdown_grace) => {}
            () = self.grace_skipped.cancelled() => {}
        }
        let ended = self.end_all(sessions).await;
        if self.is_durable() {
            self.sessions.connections().all().iter().for_each(|outbox| outbox.leave_unanswered());
        }
        self.host.phase().send_replace(Phase::Disconnecting);
        let sessions = self.sessions.take_all();
        if self.is_durable() {
            // What waits for durable processes is answered by the next server, not with an error by this one.
            self.host.leave_to_next(sessions);
        } else {
            drop(sessions);
        }
        let outboxes = self.sessions.connections().all();
        let deadline = tokio::time::Instant::now() + CLOSE_GRACE;
        let grace_skipped = self.grace_skipped.clone();
        let (code, reason) = if self.is_replaced.load(Ordering::Relaxed) {
            (RESTART, "the server is being replaced: reconnect")
        } else {
            (GOING_AWAY, "the server is shutting down")
        };
        for_all(outboxes, |outbox| {
            let grace_skipped = grace_skipped.clone();
            async move {
                // Send the last events before the connection closes, to clients that read them.
                tokio::select! {
                    () = outbox.all_sent() => {}
                    () = tokio::time::sleep_until(deadline - CLOSE_GRACE / 2) => {}
                    () = grace_skipped.cancelled() => {}
                }
                outbox.request_close(code, reason);
            }
        })
        .await;
        self.host.tasks().close();
        tokio::select! {
            () = self.host.tasks().wait() => {}
            () = tokio::time::sleep_until(deadline) => {}
            () = self.grace_skipped.cancelled() => {}
        }
        self.host.drop_left();
        if let Some(cgroups) = self.host.limit_enforcer().cgroups() {
            cgroups.remove_empty();
        }
        self.host.audit().flush().await;
        if let (Some(durable), Ended::All) = (self.host.durable(), ended) {
            durable.say_goodbye();
        }
        self.dismiss_watchdog(ended);
    }

    /// Kills everything that was started, including remaining processes of ended sessions.
    async fn end_all(&self, sessions: Vec<Arc<Session>>) -> Ended {
        let pending = sessions.iter().map(|session| session.abandon(Reach::Ephemeral)).max();
        let kill = async || Ended::from(tree::kill(&self.everything()).await);
        let mut ended = kill().await;
        for_all(sessions, |session| async move {
            if let Err(error) = session.closed_in_time(Reach::Ephemeral).await {
                let identity = &session.owner.identity;
                tracing::error!(session = %session.id, %identity, error = %error.message, "session still has processes after its end");
            }
        })
        .await;
        if pending == Some(PendingStarts::Starts) {
            // A start in progress may have created a child after the scan, and processes that survived it may have
            // ended.
            ended = kill().await;
        }
        ended
    }

    /// Returns the scope of everything that this server ever started.
    fn everything(&self) -> Scope {
        Scope::Server(self.host.tags().tag(0, 0))
    }

    /// Ends the server and everything it started at once, for callers that cannot wait for
    /// [`Server::shut_down`].
    ///
    /// Needs no runtime. Blocks until nothing is left, which takes milliseconds.
    pub fn kill(&self) {
        self.host.phase().send_replace(Phase::Disconnecting);
        for session in self.sessions.take_all() {
            session.abandon(Reach::Ephemeral);
        }
        let ended = Ended::from(tree::kill(&self.everything()).wait());
        for outbox in self.sessions.connections().all() {
            outbox.request_close(GOING_AWAY, "the server is shutting down");
        }
        self.dismiss_watchdog(ended);
    }

    /// Ends the watchdog, or releases it to keep trying if something could not be killed.
    fn dismiss_watchdog(&self, ended: Ended) {
        let watchdog = lock(&self.watchdog).take();
        match ended {
            Ended::All => drop(watchdog),
            Ended::NotAll => watchdog.into_iter().for_each(Watchdog::release),
        }
    }

    /// Makes [`Server::shut_down`] skip the rest of its grace periods.
    pub fn skip_grace_periods(&self) {
        self.grace_skipped.cancel();
    }
}

#[cfg(test)]
impl Server {
    pub(crate) fn host(&self) -> &Arc<Host> {
        &self.host
    }

    pub(crate) fn sessions(&self) -> &Arc<SessionRegistry> {
        &self.sessions
    }
}

/// Whether the shutdown has killed everything.
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
                tracing::error!(%error, "some processes are still alive after SIGKILL");
                Self::NotAll
            }
        }
    }
}

/// Runs `work` for all items concurrently.
async fn for_all<T, F: Future<Output = ()> + Send + 'static>(all: Vec<T>, work: impl Fn(T) -> F) {
    let mut tasks: JoinSet<()> = all.into_iter().map(work).collect();
    while tasks.join_next().await.is_some() {}
}

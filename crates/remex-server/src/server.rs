//! The server: listeners, connections and graceful shutdown; [`idle`] handles the idle shutdown,
//! [`credentials`] changed credential files.

mod credentials;
mod idle;

use std::{
    future::Future,
    io,
    net::SocketAddr,
    ops::Deref,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use remex_process::{Scope, Signal, Tags, Watchdog, tree};
use remex_proto::{ErrorKind, RequestId, RpcError, message::Source};
use remex_rpc::{
    Accepted, FrameReader, Framing, HandshakeConfig, HostNames, Listener, NotUpgraded, Readiness, Received,
    Refusal, Stream, memory::ServerEnd, receive, refuse_at_once, tls::ServerTls,
};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpStream, UnixStream},
    sync::{Semaphore, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use crate::{
    admission::{AdmissionControl, Crowded, HalfOpenPermit, Origin, Permit},
    audit::Login,
    auth::{Authenticator, Denied, Proof, SocketOwner, TcpPeer},
    budget::Budget,
    config::{Auth, Config, MetricsAccess},
    connection::{self, Link, Transport, Validity},
    host::{Host, Phase},
    identity::{Credential, Identity},
    limits::Limits,
    metrics::CONTENT_TYPE,
    outbox::close_code::GOING_AWAY,
    scope::Permission,
    session::{PendingStarts, Session, SessionRegistry},
    socket_owner,
    supervise::supervise,
    tls::{NotSecured, TlsListener},
};

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
    metrics: MetricsAccess,
    /// Limits connections from the moment they are accepted.
    admission: Arc<AdmissionControl>,
}

/// Why a server cannot be created: the host has no thread or descriptor left for it.
#[derive(Debug, thiserror::Error)]
#[error("{}; {}", self.message(), self.hint())]
pub struct CreateError(io::Error);

impl CreateError {
    /// Returns what failed and why, without what to do about it.
    pub fn message(&self) -> String {
        format!("cannot start the threads that start processes: {}", self.0)
    }

    /// Returns what to do about it.
    pub fn hint(&self) -> &'static str {
        "raise the limits on threads and descriptors"
    }
}

impl From<io::Error> for CreateError {
    fn from(error: io::Error) -> Self {
        // Not as its source: the message contains it already.
        Self(error)
    }
}

impl Server {
    /// Creates a server without listeners.
    ///
    /// # Errors
    ///
    /// If the host cannot create the threads that start processes.
    pub fn new(config: Config) -> Result<Arc<Self>, CreateError> {
        let tags = Tags::new();
        // Started first, while there is little memory to share with it.
        let watchdog = Watchdog::start(&tags).inspect_err(|error| {
            tracing::warn!(
                %error,
                "no watchdog could be started: if the server is killed, processes in groups or sessions of their own survive; \
                 raise the limits on processes and descriptors"
            );
        });
        let metrics = config.metrics;
        let auth = Authenticator::new(config.auth.clone(), rustix::process::geteuid().as_raw());
        let host = Arc::new(Host::new(config, tags)?);
        Ok(Arc::new(Server {
            auth: watch::Sender::new(Arc::new(auth)),
            is_watching_credentials: AtomicBool::new(false),
            credential_read: Arc::new(Semaphore::new(1)),
            sessions: SessionRegistry::new(&host),
            watchdog: Mutex::new(watchdog.ok()),
            grace_skipped: CancellationToken::new(),
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
                    self.host.spawn(async move {
                        let admitted = server.welcome_unix(stream, peer_uid).await;
                        server.run(admitted).await;
                    });
                }
                Err(error) => {
                    tracing::warn!(error = %error, "cannot accept a connection");
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
        let credential = self.own_credential();
        // A panic ends the connection like any other reason.
        let link = Link { transport, validity: Validity::fixed(credential), peer };
        let _ = supervise(connection::run(Arc::clone(&self.sessions), link)).await;
    }

    /// Serves a client in this process until the link or the server ends, in a task that the server owns.
    ///
    /// The session ends with the link. Must be called within a tokio runtime. If the server is shutting down or
    /// has too many connections, it drops `end`.
    pub fn serve_memory(self: &Arc<Self>, end: ServerEnd) {
        let credential = self.own_credential();
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

    /// Returns a credential with a unique identity.
    fn own_credential(&self) -> Credential {
        Credential::own(self.sessions.connections().next_id())
    }

    /// Begins the handshake of a TCP connection, or refuses it at once.
    fn on_tcp(self: &Arc<Self>, stream: TcpStream, ends: TcpEnds, tls: Option<Arc<TlsListener>>) {
        let owner = socket_owner::find(ends.local, ends.peer);
        let origin = Origin::new(ends.peer.ip(), owner, rustix::process::geteuid().as_raw());
        let permit = match self.admission.begin(origin, &self.host.limits()) {
            Ok(permit) => permit,
            Err(crowded) => {
                self.host.metrics().connections_refused.add(1);
                if self.admission.is_to_be_reported(Instant::now()) {
                    tracing::warn!(peer = %ends.peer, error = %crowded, "refusing connections without requests");
                }
                if tls.is_none() {
                    refuse_at_once(stream, Refusal::Limited { reason: crowded.reason() });
                }
                return;
            }
        };
        let (server, permit) = (Arc::clone(self), Noticed::new(permit, &self.host));
        self.host.spawn(async move {
            let handshake = server.welcome_tcp(stream, ends.peer, owner, &permit, tls);
            let admitted = tokio::select! {
                admitted = handshake => admitted,
                () = permit.evicted() => Err(NotAdmitted::Crowded(Crowded::HalfOpen)),
            };
            drop(permit);
            server.run(admitted).await;
        });
    }

    /// Serves a connection until it ends.
    async fn run(&self, admitted: Result<(Link, Noticed<Permit>), NotAdmitted>) {
        match admitted {
            Ok((link, permit)) => {
                connection::run(Arc::clone(&self.sessions), link).await;
                drop(permit);
            }
            Err(reason) => tracing::debug!(error = %reason, "connection refused"),
        }
    }

    async fn welcome_unix(
        &self,
        stream: UnixStream,
        uid: u32,
    ) -> Result<(Link, Noticed<Permit>), NotAdmitted> {
        let peer = format!("unix:{uid}");
        let credential = self.authenticator().user(uid);
        self.on_login(&peer, &credential);
        let credential = credential?;
        let permit = match self.admit(&credential.identity, None) {
            Ok(permit) => permit,
            Err(crowded) => {
                refuse_line(stream, crowded).await;
                return Err(crowded.into());
            }
        };
        let (reader, writer) = stream.into_split();
        let message_bytes = self.host.limits().message_bytes;
        let transport = Transport::Wire {
            reader: FrameReader::new(Box::new(reader), Framing::Lines, message_bytes),
            writer: Box::new(writer),
            framing: Framing::Lines,
            source: Source::Unix,
        };
        let validity = Validity::revocable(credential, Proof::Unix(uid), self.auth.subscribe());
        Ok((Link { transport, validity, peer: peer.into() }, permit))
    }

    async fn welcome_tcp(
        self: &Arc<Self>,
        stream: TcpStream,
        peer: SocketAddr,
        owner: SocketOwner,
        half_open: &HalfOpenPermit,
        tls: Option<Arc<TlsListener>>,
    ) -> Result<(Link, Noticed<Permit>), NotAdmitted> {
        let config = self.handshake_config(tls.as_deref());
        let (stream, certificate) = match &tls {
            None => (Stream::from(stream), None),
            Some(tls) => tls.accept(&self.host, stream, peer, config.head_timeout).await?,
        };
        let received = receive(stream, &config).await.inspect_err(|error| {
            if *error == NotUpgraded::Tls {
                tracing::warn!(%peer, %error, "refused a client");
            }
        })?;
        let received = match received {
            Received::Page(page) if self.metrics == MetricsAccess::Open => {
                page.answer(CONTENT_TYPE, &self.metrics_text()).await;
                return Err(NotAdmitted::Answered);
            }
            received => received,
        };
        let bearer = match &received {
            Received::Upgrade(upgrade) => upgrade.bearer(),
            Received::Page(page) => page.bearer(),
        };
        let presented = TcpPeer { bearer, certificate: certificate.as_ref(), owner };
        if bearer.is_some() {
            self.reload_credentials().await;
        }
        let admitted = self.authenticator().tcp(&presented, SystemTime::now());
        self.on_login(&peer.to_string(), &admitted);
        let admitted = admitted.map(|credential| (Proof::of_tcp(&credential, &presented), credential));
        if admitted.as_ref().is_err_and(Denied::is_wrong_token) {
            self.delay_failed_login(half_open.origin()).await;
        }
        match (received, admitted) {
            (Received::Upgrade(upgrade), Err(denied)) => {
                upgrade.refuse(denied.refusal()).await;
                Err(denied.into())
            }
            (Received::Upgrade(upgrade), Ok(_)) if self.host.is_stopping() => {
                Err(upgrade.refuse(Refusal::ShuttingDown).await.into())
            }
            (Received::Upgrade(upgrade), Ok((proof, credential))) => {
                let permit = match self.admit(&credential.identity, Some(half_open.origin())) {
                    Ok(permit) => permit,
                    Err(crowded) => {
                        let refusal = Refusal::Limited { reason: crowded.reason() };
                        return Err(upgrade.refuse(refusal).await.into());
                    }
                };
                let (reader, writer) = upgrade.accept().await?;
                let framing = Framing::WebSocket(remex_rpc::Role::Server);
                let transport = Transport::Wire { reader, writer, framing, source: Source::WebSocket };
                let validity = Validity::revocable(credential, proof, self.auth.subscribe());
                Ok((Link { transport, validity, peer: peer.to_string().into() }, permit))
            }
            (Received::Page(page), Err(denied)) => Err(page.refuse(denied.refusal()).await.into()),
            (Received::Page(page), Ok((_, credential))) if credential.scopes.allow(Permission::Metrics) => {
                page.answer(CONTENT_TYPE, &self.metrics_text()).await;
                Err(NotAdmitted::Answered)
            }
            (Received::Page(page), Ok(_)) => Err(page.refuse(Refusal::Forbidden).await.into()),
        }
    }

    /// Delays the answer to a wrong token, longer each time.
    async fn delay_failed_login(&self, origin: Origin) {
        let delay = self.admission.on_failed_login(origin, &self.host.limits(), Instant::now());
        let mut phase = self.host.phase().subscribe();
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            _ = phase.wait_for(|phase| *phase > Phase::Serving) => {}
        }
    }

    /// Admits an authenticated connection if there is room for it.
    fn admit(&self, identity: &Identity, origin: Option<Origin>) -> Result<Noticed<Permit>, Crowded> {
        let permit = self.admission.admit(identity, origin, &self.host.limits());
        let permit = permit.inspect_err(|crowded| {
            self.host.metrics().connections_refused.add(1);
            tracing::warn!(%identity, error = %crowded, "refused a client");
        })?;
        Ok(Noticed::new(permit, &self.host))
    }

    fn handshake_config(&self, tls: Option<&TlsListener>) -> HandshakeConfig {
        let auth = self.authenticator();
        let mut hosts = auth.host_names();
        hosts.push(self.host.info().hostname.clone());
        hosts.extend(tls.map(|tls| tls.names().to_vec()).unwrap_or_default());
        HandshakeConfig {
            readiness: if self.host.is_stopping() { Readiness::ShuttingDown } else { Readiness::Ready },
            max_message_len: self.host.limits().message_bytes,
            origins: auth.origins(),
            hosts: HostNames::Only(hosts.into()),
            pages: &["/metrics"],
            ..HandshakeConfig::default()
        }
    }

    /// Counts and records an attempt to authenticate.
    fn on_login(&self, peer: &str, admitted: &Result<Credential, Denied>) {
        if let Err(denied) = admitted {
            self.host.metrics().logins_failed.add(1);
            tracing::warn!(peer, error = %denied, "login refused");
        }
        if self.host.audit().is_on() {
            let identity = admitted.as_ref().ok().map(|credential| credential.identity.to_string());
            let outcome = admitted.as_ref().err().map_or_else(|| "ok".to_owned(), ToString::to_string);
            let login = Login { peer, identity: identity.as_deref(), outcome: &outcome };
            self.host.audit().record(login.line());
        }
    }

    /// Opens the audit file again, after another program has moved it.
    pub fn reopen_audit(&self) {
        self.host.audit().reopen();
    }

    /// Serves `/metrics` and the health checks to everyone who can reach `listener`, and nothing else.
    pub async fn serve_metrics(self: Arc<Self>, listener: Listener) {
        let mut phase = self.host.phase().subscribe();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = phase.wait_for(|phase| *phase > Phase::Serving) => return,
            };
            match accepted {
                Ok(Accepted::Tcp { stream, peer, local }) => {
                    let owner = socket_owner::find(local, peer);
                    let origin = Origin::new(peer.ip(), owner, rustix::process::geteuid().as_raw());
                    let Ok(permit) = self.admission.begin(origin, &self.host.limits()) else { continue };
                    let server = Arc::clone(&self);
                    self.host.spawn(async move {
                        let config = server.handshake_config(None);
                        match receive(stream, &config).await {
                            Ok(Received::Page(page)) => {
                                page.answer(CONTENT_TYPE, &server.metrics_text()).await;
                            }
                            Ok(Received::Upgrade(upgrade)) => drop(upgrade.refuse(Refusal::Forbidden).await),
                            Err(_) => {}
                        }
                        drop(permit);
                    });
                }
                Ok(Accepted::Unix { .. }) => {}
                Err(error) => {
                    tracing::warn!(error = %error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Returns the counters and the state of the server in the text format of Prometheus.
    fn metrics_text(&self) -> String {
        let (host, limits) = (&self.host, self.host.limits());
        let sessions = self.sessions.all();
        let processes: usize = sessions.iter().map(|session| session.process_count()).sum();
        let connections = self.sessions.connections().all();
        let unanswered: usize = connections.iter().map(|outbox| outbox.unanswered()).sum();
        let retained = limits.server_retain_bytes.saturating_sub(host.retention().left());
        let used = |budget: &Budget| budget.total().saturating_sub(budget.free());
        host.metrics().render(|gauges| {
            gauges.gauge("remex_connections", "Connections that are open.", connections.len() as u64);
            gauges.gauge("remex_sessions", "Sessions that exist.", sessions.len() as u64);
            gauges.gauge("remex_processes", "Processes that are not closed.", processes as u64);
            gauges.gauge(
                "remex_unanswered_requests",
                "Requests that wait for their answer.",
                unanswered as u64,
            );
            let help = "Memory in use, by the cap that limits it.";
            gauges.gauge_by(
                "remex_memory_bytes",
                help,
                "cap",
                &[
                    ("retained_output", retained as u64),
                    ("answers", used(host.answers())),
                    ("incoming", used(host.incoming())),
                ],
            );
            let help = "The caps on memory.";
            gauges.gauge_by(
                "remex_memory_limit_bytes",
                help,
                "cap",
                &[
                    ("retained_output", limits.server_retain_bytes as u64),
                    ("answers", host.answers().total()),
                    ("incoming", host.incoming().total()),
                ],
            );
            let help = "Lines of the audit file that were discarded because the disk was too slow.";
            gauges.counter("remex_audit_dropped_total", help, host.audit().dropped());
        })
    }

    fn authenticator(&self) -> Arc<Authenticator> {
        Arc::clone(&self.auth.borrow())
    }

    /// Replaces the rules for new connections, and disconnects clients whose tokens are gone.
    pub fn set_auth(&self, auth: Auth) {
        let auth = Arc::new(Authenticator::new(auth, rustix::process::geteuid().as_raw()));
        self.auth.send_replace(auth);
    }

    /// Replaces the limits for everything that begins from now on, apart from those that need a
    /// [restart](crate::Reload::Restart).
    pub fn set_limits(&self, limits: Limits) {
        self.host.set_limits(limits);
    }

    /// Shuts the server down gracefully: accepts no new work, terminates processes and then kills them,
    /// notifies clients.
    pub async fn shut_down(&self) {
        self.host.phase().send_replace(Phase::Stopping);
        let sessions = self.sessions.all();
        tracing::info!(sessions = sessions.len(), "shutting down");
        sessions.iter().for_each(|session| session.will_end());
        // One scan for all sessions. A stopped process handles TERM only after it continues.
        if let Err(error) = tree::signal(&self.everything(), &[Signal::TERM, Signal::CONT]).await {
            tracing::warn!(%error, "cannot send SIGTERM to all processes");
        }
        let all_closed = async {
            for session in &sessions {
                session.all_closed().await;
            }
        };
        tokio::select! {
            () = all_closed => {}
            () = tokio::time::sleep(self.host.limits().shutdown_grace) => {}
            () = self.grace_skipped.cancelled() => {}
        }
        let ended = self.end_all(sessions).await;
        self.host.phase().send_replace(Phase::Disconnecting);
        drop(self.sessions.take_all());
        let outboxes = self.sessions.connections().all();
        let deadline = tokio::time::Instant::now() + CLOSE_GRACE;
        let grace_skipped = self.grace_skipped.clone();
        for_all(outboxes, |outbox| {
            let grace_skipped = grace_skipped.clone();
            async move {
                // Send the last events before the connection closes, to clients that read them.
                tokio::select! {
                    () = outbox.all_sent() => {}
                    () = tokio::time::sleep_until(deadline - CLOSE_GRACE / 2) => {}
                    () = grace_skipped.cancelled() => {}
                }
                outbox.request_close(GOING_AWAY, "the server is shutting down");
            }
        })
        .await;
        self.host.tasks().close();
        tokio::select! {
            () = self.host.tasks().wait() => {}
            () = tokio::time::sleep_until(deadline) => {}
            () = self.grace_skipped.cancelled() => {}
        }
        self.dismiss_watchdog(ended);
    }

    /// Kills everything that was started, including remaining processes of ended sessions.
    async fn end_all(&self, sessions: Vec<Arc<Session>>) -> Ended {
        let pending = sessions.iter().map(|session| session.abandon()).max();
        let kill = async || Ended::from(tree::kill(&self.everything()).await);
        let mut ended = kill().await;
        for_all(sessions, |session| async move {
            if let Err(error) = session.closed_in_time().await {
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
            session.abandon();
        }
        let ended = Ended::from(tree::kill(&self.everything()).wait());
        for outbox in self.sessions.connections().all() {
            outbox.request_close(GOING_AWAY, "the server is shutting down");
        }
        self.dismiss_watchdog(ended);
    }

    /// Ends the watchdog, or releases it to keep trying if something could not be killed.
    fn dismiss_watchdog(&self, ended: Ended) {
        let watchdog = self.watchdog.lock().unwrap_or_else(PoisonError::into_inner).take();
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

/// Why a connection was not admitted.
#[derive(Debug, thiserror::Error)]
enum NotAdmitted {
    #[error(transparent)]
    Tls(#[from] NotSecured),
    #[error("a page was requested and answered")]
    Answered,
    #[error(transparent)]
    Http(#[from] NotUpgraded),
    #[error(transparent)]
    Denied(#[from] Denied),
    #[error(transparent)]
    Crowded(#[from] Crowded),
}

/// The two ends of a TCP connection.
#[derive(Clone, Copy)]
struct TcpEnds {
    peer: SocketAddr,
    local: SocketAddr,
}

/// Tells a peer that speaks lines why it is refused.
async fn refuse_line(mut stream: UnixStream, crowded: Crowded) {
    let error = RpcError::new(ErrorKind::LimitExceeded, crowded.to_string());
    let mut line = Vec::new();
    remex_proto::message::write_error(&mut line, &RequestId::MALFORMED, &error);
    line.push(b'\n');
    // The send buffer of a new connection has room; a peer that reads nothing must not be waited for.
    let _ = tokio::time::timeout(CLOSE_GRACE, stream.write_all(&line)).await;
}

/// A permit whose end counts as activity.
struct Noticed<T> {
    /// Taken when dropped.
    permit: Option<T>,
    host: Arc<Host>,
}

impl<T> Noticed<T> {
    fn new(permit: T, host: &Arc<Host>) -> Self {
        Noticed { permit: Some(permit), host: Arc::clone(host) }
    }
}

impl<T> Deref for Noticed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.permit.as_ref().expect("the permit is taken only when this is dropped")
    }
}

impl<T> Drop for Noticed<T> {
    fn drop(&mut self) {
        drop(self.permit.take());
        self.host.notify_activity();
    }
}

/// Runs `work` for all items concurrently.
async fn for_all<T, F: Future<Output = ()> + Send + 'static>(all: Vec<T>, work: impl Fn(T) -> F) {
    let mut tasks: JoinSet<()> = all.into_iter().map(work).collect();
    while tasks.join_next().await.is_some() {}
}

//! From an accepted connection to an authenticated client, or to a refusal.

use std::{
    io,
    net::SocketAddr,
    ops::Deref,
    sync::Arc,
    time::{Instant, SystemTime},
};

use remex_access::{
    admission::{HalfOpenPermit, LimitReached, Origin, Permit, Refused},
    audit::Login,
    auth::{Denied, Proof, SocketHolder, SocketOwner, TcpPeer},
    identity::{Credential, Identity},
    scope::Permission,
};
use remex_base::{
    certificate::PeerCertificate,
    metrics::CONTENT_TYPE,
    supervise::{Running, in_phases},
    threads::ServerWork,
};
use remex_engine::{Phase, unix_peer};
use remex_proto::{ErrorKind, RequestId, RpcError, message::Source};
use remex_rpc::{
    FrameReader, Framing, HandshakeConfig, HostNames, NotUpgraded, Page, PeerProcess, Readiness, Received,
    Refusal, Stream, receive, refuse_at_once, tls::NotEncrypted,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UnixStream},
};

use super::{CLOSE_GRACE, Server};
use crate::{
    config::MetricsAccess,
    edge::{
        connection::{self, Link, Transport, Validity},
        tls::{NotSecured, TlsListener},
    },
    peers::{socket_owner, ssh_login::SshLogin},
    shared::host::Host,
};

/// What a connection that waits for a message may take, besides its reader, its outbox and its writer.
const IDLE_BYTES: usize = 4 << 10;

impl Server {
    /// Begins the handshake of a TCP connection, or refuses it at once.
    pub(super) fn on_tcp(self: &Arc<Self>, stream: TcpStream, ends: TcpEnds, tls: Option<Arc<TlsListener>>) {
        let owner = socket_owner::find(ends.local, ends.peer);
        let origin = Origin::new(ends.peer.ip(), owner, rustix::process::geteuid().as_raw());
        let permit = match self.admission.begin(origin, &self.host.limits()) {
            Ok(permit) => permit,
            Err(crowded) => {
                self.host.metrics().connections_refused.add(1);
                if let Some(suppressed) = self.admission.report(Refused::HalfOpen, Instant::now()) {
                    tracing::warn!(peer = %ends.peer, error = %crowded, suppressed = nonzero(suppressed), "refusing connections without requests");
                }
                if tls.is_none() {
                    refuse_at_once(stream, Refusal::Limited { reason: crowded.reason() });
                }
                return;
            }
        };
        let (server, permit) = (Arc::clone(self), NotifyOnDrop::new(permit, &self.host));
        self.host.spawn(in_phases(async move {
            let handshake = server.admit_tcp(stream, ends, owner, &permit, tls);
            let admitted = tokio::select! {
                admitted = handshake => admitted,
                () = permit.evicted() => Err(NotAdmitted::LimitReached(LimitReached::HalfOpen)),
            };
            drop(permit);
            server.run(admitted)
        }));
    }

    /// Returns what serves a connection until it ends, if it was admitted.
    pub(super) fn run(&self, admitted: Result<(Link, NotifyOnDrop<Permit>), NotAdmitted>) -> Option<Running> {
        match admitted {
            Ok((link, permit)) => {
                // On the heap: the future that awaits it would have its space twice.
                let running = Box::pin(connection::run(Arc::clone(&self.sessions), link));
                debug_assert!(size_of_val(&*running) <= IDLE_BYTES, "{} bytes", size_of_val(&*running));
                Some(Box::pin(async move {
                    running.await;
                    drop(permit);
                }))
            }
            Err(reason) => {
                tracing::debug!(error = %reason, "connection refused");
                None
            }
        }
    }

    pub(super) async fn admit_unix(
        &self,
        stream: UnixStream,
        uid: u32,
    ) -> Result<(Link, NotifyOnDrop<Permit>), NotAdmitted> {
        let peer = format!("unix:{uid}");
        let credential = match unix_peer::find(&stream) {
            Ok(PeerProcess::Unconfined) => self.authenticator().user(uid),
            Ok(PeerProcess::Jailed) => Err(Denied::Confined),
            Ok(PeerProcess::Gone) | Err(_) => Err(Denied::EndedProcess),
        };
        let credential = match self.on_login(&peer, credential).await {
            Err(denied @ (Denied::Confined | Denied::EndedProcess)) => {
                let error = RpcError::new(ErrorKind::PermissionDenied, denied.to_string());
                refuse_line(stream, &error.with_hint("connect from outside of the sandbox")).await;
                return Err(denied.into());
            }
            Err(denied @ Denied::OtherUser(_)) => {
                let error = RpcError::new(ErrorKind::PermissionDenied, denied.to_string());
                let hint = format!("its owner can start the server with `--allow-user {uid}`");
                refuse_line(stream, &error.with_hint(hint)).await;
                return Err(denied.into());
            }
            Err(denied @ Denied::Unrecorded { .. }) => {
                refuse_line(stream, &RpcError::new(ErrorKind::Internal, denied.to_string())).await;
                return Err(denied.into());
            }
            other => other?,
        };
        let permit = match self.admit(&credential.identity, None) {
            Ok(permit) => permit,
            Err(crowded) => {
                refuse_line(stream, &RpcError::new(ErrorKind::LimitExceeded, crowded.to_string())).await;
                return Err(crowded.into());
            }
        };
        let login = SshLogin::of(&stream);
        let (reader, writer) = stream.into_split();
        let message_bytes = self.host.limits().message_bytes;
        let transport = Transport::Wire {
            reader: FrameReader::new(Box::new(reader), Framing::Lines, message_bytes),
            writer: Box::new(writer),
            framing: Framing::Lines,
            source: Source::Unix,
        };
        let validity =
            Validity::revocable(credential, Proof::Unix(uid), self.auth.subscribe()).with_login(login);
        Ok((Link { transport, validity, peer: peer.into() }, permit))
    }

    async fn admit_tcp(
        self: &Arc<Self>,
        stream: TcpStream,
        ends: TcpEnds,
        owner: SocketOwner,
        half_open: &HalfOpenPermit,
        tls: Option<Arc<TlsListener>>,
    ) -> Result<(Link, NotifyOnDrop<Permit>), NotAdmitted> {
        let peer = ends.peer;
        let config = self.handshake_config(tls.as_deref());
        let (stream, certificate) = match &tls {
            None => (Stream::from(stream), None),
            Some(tls) => tls
                .accept(&self.host, stream, config.head_timeout)
                .await
                .inspect_err(|error| self.on_tls_failure(&peer.to_string(), error))?,
        };
        let received = receive(stream, &config)
            .await
            .inspect_err(|error| self.on_bad_request(&peer.to_string(), error))?;
        let upgrade = match received {
            Received::Page(page) => {
                return Err(self.answer_page(page, ends, certificate.as_ref(), owner, half_open).await);
            }
            Received::Upgrade(upgrade) => upgrade,
        };
        let holder = self.holder(ends, owner).await;
        let presented =
            TcpPeer { bearer: upgrade.bearer(), certificate: certificate.as_ref(), owner, holder };
        let admitted = self.log_in(&presented, peer, half_open).await;
        let admitted = admitted.map(|credential| (Proof::of_tcp(&credential, &presented), credential));
        match admitted {
            Err(denied) => {
                upgrade.refuse(refusal(&denied)).await;
                Err(denied.into())
            }
            Ok(_) if self.host.is_stopping() => Err(upgrade.refuse(Refusal::ShuttingDown).await.into()),
            Ok((proof, credential)) => {
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
        }
    }

    /// Answers a request for `/metrics` if the client may read them, and returns how it ended.
    pub(super) async fn answer_page(
        self: &Arc<Self>,
        page: Page,
        ends: TcpEnds,
        certificate: Option<&PeerCertificate>,
        owner: SocketOwner,
        half_open: &HalfOpenPermit,
    ) -> NotAdmitted {
        if self.metrics == MetricsAccess::Authenticated {
            let holder = self.holder(ends, owner).await;
            let presented = TcpPeer { bearer: page.bearer(), certificate, owner, holder };
            match self.log_in(&presented, ends.peer, half_open).await {
                Err(denied) => return page.refuse(refusal(&denied)).await.into(),
                Ok(credential) if !credential.scopes.allow(Permission::Metrics) => {
                    return page.refuse(Refusal::Forbidden).await.into();
                }
                Ok(_) => {}
            }
        }
        page.answer(CONTENT_TYPE, &self.metrics_text()).await;
        NotAdmitted::Answered
    }

    /// Finds out whether a jail confines the process at the other end.
    async fn holder(&self, ends: TcpEnds, owner: SocketOwner) -> SocketHolder {
        let look = move || socket_owner::find_holder(ends.local, ends.peer, owner);
        self.host.own_threads().run(ServerWork::Peers, look).await.unwrap_or(SocketHolder::Hidden)
    }

    /// Authenticates the sender of a request; a wrong token is answered late.
    async fn log_in(
        self: &Arc<Self>,
        presented: &TcpPeer<'_>,
        peer: SocketAddr,
        half_open: &HalfOpenPermit,
    ) -> Result<Credential, Denied> {
        if presented.bearer.is_some() {
            self.reload_credentials().await;
        }
        let admitted = self.authenticator().tcp(presented, SystemTime::now());
        let admitted = self.on_login(&peer.to_string(), admitted).await;
        if admitted.as_ref().is_err_and(Denied::is_wrong_token) {
            self.delay_failed_login(half_open.origin()).await;
        }
        admitted
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
    pub(super) fn admit(
        &self,
        identity: &Identity,
        origin: Option<Origin>,
    ) -> Result<NotifyOnDrop<Permit>, LimitReached> {
        let permit = self.admission.admit(identity, origin, &self.host.limits());
        let permit = permit.inspect_err(|crowded| {
            self.host.metrics().connections_refused.add(1);
            if let Some(suppressed) = self.admission.report(Refused::LimitReached, Instant::now()) {
                tracing::warn!(%identity, error = %crowded, suppressed = nonzero(suppressed), "refused a client");
            }
        })?;
        Ok(NotifyOnDrop::new(permit, &self.host))
    }

    pub(super) fn handshake_config(&self, tls: Option<&TlsListener>) -> HandshakeConfig {
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

    /// Counts and records an attempt to authenticate; one that must be recorded and cannot be is denied.
    async fn on_login(&self, peer: &str, admitted: Result<Credential, Denied>) -> Result<Credential, Denied> {
        let recorded = match self.record_login(peer, &admitted).await {
            Err(reason) if admitted.is_ok() => Err(Denied::Unrecorded { reason }),
            _ => admitted,
        };
        recorded.inspect_err(|denied| {
            self.host.metrics().logins_failed.add(1);
            if let Some(suppressed) = self.admission.report(Refused::Login, Instant::now()) {
                tracing::warn!(peer, error = %denied, suppressed = nonzero(suppressed), "login refused");
            }
        })
    }

    /// Returns why a login that must be recorded was not.
    async fn record_login(&self, peer: &str, admitted: &Result<Credential, Denied>) -> Result<(), String> {
        if !self.host.audit().is_on() {
            return Ok(());
        }
        let identity = admitted.as_ref().ok().map(|credential| &credential.identity);
        let (shown, claims) = (identity.map(ToString::to_string), identity.and_then(Identity::claims));
        let outcome = admitted.as_ref().err().map_or_else(|| "ok".to_owned(), ToString::to_string);
        let login = Login { peer, identity: shown.as_deref(), claims: claims.as_ref(), outcome: &outcome };
        self.host.audit().record_login(login.line()).await
    }

    /// Counts and records a client that TLS refused, for example for its certificate.
    fn on_tls_failure(&self, peer: &str, error: &NotSecured) {
        // Probes that only connect are common.
        if matches!(error, NotSecured::Failed(NotEncrypted::Closed)) {
            return;
        }
        if let Some(suppressed) = self.admission.report(Refused::Tls, Instant::now()) {
            tracing::warn!(peer, %error, suppressed = nonzero(suppressed), "refused a client on a TLS port");
        }
        self.on_unauthenticated(peer, &format!("TLS failed: {error}"));
    }

    /// Reports that no connection can be accepted, which is tried again 20 times a second.
    pub(super) fn warn_unaccepted(&self, error: &io::Error) {
        if let Some(suppressed) = self.admission.report(Refused::Unaccepted, Instant::now()) {
            tracing::warn!(%error, suppressed = nonzero(suppressed), "cannot accept a connection");
        }
    }

    /// Counts and records a client whose request was refused before it could authenticate.
    fn on_bad_request(&self, peer: &str, error: &NotUpgraded) {
        if *error == NotUpgraded::Tls
            && let Some(suppressed) = self.admission.report(Refused::Tls, Instant::now())
        {
            tracing::warn!(peer, %error, suppressed = nonzero(suppressed), "refused a client");
        }
        match error {
            NotUpgraded::Tls => self.on_unauthenticated(peer, "TLS on a port without it"),
            NotUpgraded::Answered { status: 403 } => {
                self.on_unauthenticated(peer, "the origin is not allowed");
            }
            NotUpgraded::Answered { status: 421 } => {
                self.on_unauthenticated(peer, "the host name is not allowed");
            }
            NotUpgraded::Answered { status: 408 } => {
                self.on_unauthenticated(peer, "the request took too long");
            }
            _ => {}
        }
    }

    /// Counts and records a login that failed before a credential was presented.
    fn on_unauthenticated(&self, peer: &str, outcome: &str) {
        self.host.metrics().logins_failed.add(1);
        if self.host.audit().is_on() {
            self.host.audit().record(Login { peer, identity: None, claims: None, outcome }.line());
        }
    }
}

/// Returns a count for the log, which does not show zero.
fn nonzero(count: u64) -> Option<u64> {
    Some(count).filter(|count| *count > 0)
}

/// Why a connection was not admitted.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotAdmitted {
    #[error(transparent)]
    Tls(#[from] NotSecured),
    #[error("a page was requested and answered")]
    Answered,
    #[error(transparent)]
    Http(#[from] NotUpgraded),
    #[error(transparent)]
    Denied(#[from] Denied),
    #[error(transparent)]
    LimitReached(#[from] LimitReached),
}

/// The two ends of a TCP connection.
#[derive(Clone, Copy)]
pub(super) struct TcpEnds {
    pub(super) peer: SocketAddr,
    pub(super) local: SocketAddr,
}

/// Sends the reason for a refusal to a peer that uses the line framing.
async fn refuse_line(mut stream: UnixStream, error: &RpcError) {
    let mut line = Vec::new();
    remex_proto::message::write_error(&mut line, &RequestId::MALFORMED, error);
    line.push(b'\n');
    let said = async {
        stream.write_all(&line).await?;
        stream.shutdown().await?;
        // Until the peer closes, because one that is still sending would get an error before it reads the line.
        while stream.read(&mut [0; 4096]).await? > 0 {}
        io::Result::Ok(())
    };
    // The send buffer of a new connection has room; a peer that reads nothing must not be waited for.
    let _ = tokio::time::timeout(CLOSE_GRACE, said).await;
}

/// A permit that notifies the host of activity when it is dropped.
pub(super) struct NotifyOnDrop<T> {
    /// Taken when dropped.
    permit: Option<T>,
    host: Arc<Host>,
}

impl<T> NotifyOnDrop<T> {
    fn new(permit: T, host: &Arc<Host>) -> Self {
        NotifyOnDrop { permit: Some(permit), host: Arc::clone(host) }
    }
}

impl<T> Deref for NotifyOnDrop<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.permit.as_ref().expect("the permit is taken only when this is dropped")
    }
}

impl<T> Drop for NotifyOnDrop<T> {
    fn drop(&mut self) {
        drop(self.permit.take());
        self.host.notify_activity();
    }
}

/// Returns how to answer an HTTP request.
fn refusal(denied: &Denied) -> Refusal {
    match denied {
        Denied::NoCredential
        | Denied::UnknownToken
        | Denied::Expired
        // The answer does not reveal which tokens exist or once existed.
        | Denied::InvalidToken(_) => Refusal::Unauthenticated,
        Denied::UnknownOwner => Refusal::UnknownUser,
        Denied::UnknownProcess => Refusal::UnknownProcess,
        Denied::EndedProcess => Refusal::EndedProcess,
        Denied::Confined | Denied::NoProcess => Refusal::Confined,
        Denied::UnknownCertificate(_) => Refusal::UnlistedCertificate,
        Denied::CommonName(_) => Refusal::CommonName,
        Denied::OtherUser(uid) => Refusal::OtherUser { uid: *uid },
        Denied::Unrecorded { .. } => Refusal::Unrecorded,
    }
}

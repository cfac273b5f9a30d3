//! Which connection holds which session: creates, resumes, takes over, detaches and ends sessions.
//!
//! Start at [`SessionRegistry`].

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::{Duration, Instant},
};

use remex_access::{
    identity::{Credential, Identity},
    rate::Rates,
};
use remex_base::{clock::steady_ms, lock, supervise::supervise};
use remex_engine::Phase;
use remex_process::Tag;
use remex_proto::{
    ErrorKind, RequestId, RpcError,
    initialize::{Dialect, Initialize},
    session as wire,
    state::session_table::{
        Attachment, CreateError, Detached, EndOutcome, NewSession, OnDetach, ResumeOutcome, ResumeRequest,
        SessionTable, Takeover,
    },
};

use super::{OwnerShared, Session, SessionOwner, Subscriber};
use crate::{
    outbox::{ConnectionId, Connections, Outbox, close_code::POLICY},
    shared::host::Host,
};

/// How long deadlines are not watched after a panic, so that a recurring panic does not use a whole core.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// All sessions of a server, and the connections that may hold them.
#[derive(Debug)]
pub(crate) struct SessionRegistry {
    host: Arc<Host>,
    connections: Connections,
    rates: Rates,
    /// Shared by connections and the task that watches deadlines; held briefly.
    sessions: Mutex<Sessions>,
}

#[derive(Debug, Default)]
pub(super) struct Sessions {
    pub(super) table: SessionTable<Identity, ConnectionId>,
    pub(super) by_id: HashMap<String, Arc<Session>>,
    next_number: u32,
    /// What the sessions of each identity share.
    owners: HashMap<Identity, Weak<OwnerShared>>,
}

impl SessionRegistry {
    /// Creates an empty registry and watches its deadlines until the server shuts down.
    pub(crate) fn new(host: &Arc<Host>) -> Arc<Self> {
        let registry = Arc::new(SessionRegistry {
            host: Arc::clone(host),
            connections: Connections::new(host.limits().server_request_bytes as u64),
            rates: Rates::default(),
            sessions: Mutex::default(),
        });
        let (watching, mut phase) = (Arc::clone(&registry), host.phase().subscribe());
        host.spawn(async move {
            tokio::select! {
                () = watching.watch_deadlines() => {}
                _ = phase.wait_for(|phase| *phase == Phase::Disconnecting) => {}
            }
        });
        registry
    }

    pub(crate) fn host(&self) -> &Arc<Host> {
        &self.host
    }

    pub(crate) fn connections(&self) -> &Connections {
        &self.connections
    }

    pub(crate) fn rates(&self) -> &Rates {
        &self.rates
    }

    /// Returns all sessions.
    pub(crate) fn all(&self) -> Vec<Arc<Session>> {
        self.sessions().by_id.values().cloned().collect()
    }

    /// Removes and returns all sessions, which have ended.
    pub(crate) fn take_all(&self) -> Vec<Arc<Session>> {
        std::mem::take(&mut self.sessions().by_id).into_values().collect()
    }

    /// Refuses sessions from now on if `may_close` returns `true`; no session can be created or resumed while
    /// it decides.
    pub(crate) fn close_if(&self, may_close: impl FnOnce(bool) -> bool) -> bool {
        let sessions = self.sessions();
        let closes = may_close(sessions.are_busy());
        if closes {
            self.host.phase().send_replace(Phase::Stopping);
        }
        closes
    }

    /// Returns whether a session has processes, or is detached and will expire.
    pub(crate) fn is_busy(&self) -> bool {
        self.sessions().are_busy()
    }

    /// Forgets closed processes and ends detached sessions at their deadlines.
    async fn watch_deadlines(self: Arc<Self>) {
        loop {
            let registry = Arc::clone(&self);
            let watching = async move {
                loop {
                    let until = |at_ms: u64| Duration::from_millis(at_ms.saturating_sub(steady_ms()));
                    let next = registry.next_expiry_ms().and_then(|at| Instant::now().checked_add(until(at)));
                    registry.host.deadlines().wait(next).await;
                    registry.host.deadlines().expire(Instant::now());
                    registry.expire_sessions();
                }
            };
            let _: Result<std::convert::Infallible, _> = supervise(watching).await;
            tokio::time::sleep(RESTART_PAUSE).await;
        }
    }

    /// Makes a connection the controller of a session, unless another has taken the session over in the
    /// meantime.
    pub(crate) fn attach(&self, session: &Session, subscriber: Subscriber) {
        session.attach(subscriber, |connection| self.is_controller(&session.id, connection));
    }

    /// Creates a new session or resumes an existing one.
    pub(crate) async fn open(
        self: &Arc<Self>,
        request: &Initialize,
        identity: &Identity,
        connection: ConnectionId,
    ) -> Result<OpenedSession, RpcError> {
        let on_detach = self.on_detach(request, identity);
        let opened = match request.resume_session_id.session() {
            None => self.create_session(request, identity, connection, on_detach),
            Some(wanted) => {
                let on_detach = request.detach_ttl_ms.map(|_| on_detach);
                self.resume_session(wanted, request, identity, connection, on_detach).await
            }
        };
        let opened = match opened {
            Err(error) if error.kind == ErrorKind::ShuttingDown && self.can_save(identity, on_detach) => {
                // The next server will answer when the client has reconnected, however late this connection came.
                if let Some(outbox) = self.connections.get(connection) {
                    outbox.leave_unanswered();
                }
                return Err(error);
            }
            opened => opened?,
        };
        self.save_opened(&opened).await;
        Ok(opened)
    }

    /// Refuses a session if the server is shutting down. Takes `sessions`, because an idle server closes under
    /// that lock.
    fn check_serving(&self, _sessions: &Sessions) -> Result<(), RpcError> {
        if !self.host.is_stopping() {
            return Ok(());
        }
        Err(RpcError::new(ErrorKind::ShuttingDown, "the server is shutting down")
            .with_hint("connect to another one"))
    }

    fn on_detach(&self, request: &Initialize, identity: &Identity) -> OnDetach {
        let ends = match identity {
            Identity::Own(_) => true,
            // Its connections are not interrupted, so only those are survived that it wants to be.
            Identity::Program => request.detach_ttl_ms.is_none(),
            _ => request.dialect() == Dialect::V0,
        };
        if ends { OnDetach::End } else { self.granted(request.detach_ttl_ms) }
    }

    /// Returns how long a session may live without a connection; `wanted` is what its client asks for.
    fn granted(&self, wanted: Option<u64>) -> OnDetach {
        let limits = self.host.limits();
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        match (wanted, limits.detach_ttl_max) {
            (None, most) => OnDetach::ExpireAfterMs(ms(
                most.map_or(limits.detach_ttl, |most| most.min(limits.detach_ttl))
            )),
            (Some(wanted), Some(most)) => OnDetach::ExpireAfterMs(wanted.min(ms(most))),
            // Longer than any realistic wait means until the server ends.
            (Some(wanted), None) if wanted >= ms(Duration::from_secs(100 * 365 * 24 * 3600)) => {
                OnDetach::Keep
            }
            (Some(wanted), None) => OnDetach::ExpireAfterMs(wanted),
        }
    }

    fn create_session(
        self: &Arc<Self>,
        request: &Initialize,
        identity: &Identity,
        connection: ConnectionId,
        on_detach: OnDetach,
    ) -> Result<OpenedSession, RpcError> {
        let mut sessions = self.sessions();
        self.check_serving(&sessions)?;
        if sessions.by_id.len() >= self.host.limits().sessions {
            let message = format!("the server has {} sessions, which is its limit", sessions.by_id.len());
            return Err(RpcError::new(ErrorKind::LimitExceeded, message).with_hint("end some first"));
        }
        let own = sessions.table.list(identity, steady_ms()).len();
        if own >= self.host.limits().sessions_per_identity {
            let message = format!(
                "`{identity}` has {own} sessions, which is the limit for one identity (`sessions_per_identity`); end some first"
            );
            return Err(RpcError::new(ErrorKind::LimitExceeded, message));
        }
        let id = session_id()?;
        let new = NewSession {
            id: id.clone(),
            identity: identity.clone(),
            name: request.session_name.clone(),
            client_name: request.client_name.clone(),
            on_detach,
            connection,
        };
        sessions.table.create(new, steady_ms()).map_err(|taken| match taken {
            CreateError::Name => name_taken(request),
            CreateError::Id => {
                RpcError::new(ErrorKind::Internal, "the random session id is in use").with_hint("try again")
            }
        })?;
        let number = sessions.free_number();
        let owner = sessions.owner(identity, &self.host);
        let is_saved = self.can_save(identity, on_detach);
        let session = Arc::new(Session::new(id.clone(), owner, number, is_saved, &self.host));
        session.owner.add(&session);
        sessions.by_id.insert(id, Arc::clone(&session));
        tracing::info!(session = %session.id, connection, %identity, "session created");
        Ok(OpenedSession { session, resumed: false, on_detach, previous: None })
    }

    async fn resume_session(
        self: &Arc<Self>,
        wanted: &str,
        request: &Initialize,
        identity: &Identity,
        connection: ConnectionId,
        on_detach: Option<OnDetach>,
    ) -> Result<OpenedSession, RpcError> {
        let takeover = if request.takeover == Some(true) { Takeover::Yes } else { Takeover::No };
        let mut silent = None;
        loop {
            let (holder, session) = {
                let mut sessions = self.sessions();
                self.check_serving(&sessions)?;
                let now = steady_ms();
                let id = sessions.resolve(wanted, identity).ok_or_else(|| unknown_session(wanted))?;
                let claim = ResumeRequest {
                    identity,
                    client_name: &request.client_name,
                    connection,
                    takeover,
                    name: request.session_name.as_deref(),
                    on_detach,
                };
                let outcome = sessions.table.resume(&id, &claim, now);
                let session = sessions.by_id.get(&id).cloned().ok_or_else(|| unknown_session(wanted))?;
                let on_detach = sessions
                    .table
                    .session(&id, identity, now)
                    .map_or(OnDetach::Keep, |known| known.on_detach);
                drop(sessions);
                match outcome {
                    ResumeOutcome::Attached => {
                        return Ok(OpenedSession { session, resumed: true, on_detach, previous: silent });
                    }
                    ResumeOutcome::TookOver { previous } => {
                        self.disconnect(&session, previous, wire::TAKEN_OVER);
                        let previous = Some(previous);
                        return Ok(OpenedSession { session, resumed: true, on_detach, previous });
                    }
                    ResumeOutcome::NameTaken => return Err(name_taken(request)),
                    ResumeOutcome::Unknown => return Err(unknown_session(wanted)),
                    ResumeOutcome::Held { holder } => (holder, session),
                }
            };
            let outbox = self.connections.get(holder);
            let alive = match &outbox {
                Some(outbox) => outbox.is_alive(self.host.limits().holder_silence).await,
                None => false,
            };
            if alive {
                return Err(already_attached(wanted));
            }
            silent = Some(holder);
            self.detach(&session, holder);
            self.disconnect(
                &session,
                holder,
                "the client did not respond, and another one resumed its session",
            );
        }
    }

    fn disconnect(&self, session: &Session, connection: ConnectionId, reason: &str) {
        session.detach(connection);
        if let Some(outbox) = self.connections.get(connection) {
            if !outbox.closes_with_a_reason() {
                let error = RpcError::new(ErrorKind::SessionAttached, reason);
                outbox.push_error(&RequestId::MALFORMED, &error);
            }
            outbox.request_close(POLICY, reason);
        }
    }

    /// Lets a session without a connection live at least this long from now on.
    pub(crate) fn prolong(&self, session: &Session, detach_ttl_ms: u64) {
        let on_detach = self.granted(Some(detach_ttl_ms));
        self.sessions().table.prolong(&session.id, on_detach, steady_ms());
        drop(self.save(session));
        self.host.deadlines().wake();
    }

    /// Handles the end of a connection: its session is detached or ends.
    pub(crate) fn detach(self: &Arc<Self>, session: &Arc<Session>, connection: ConnectionId) {
        let outcome = self.sessions().table.detach(&session.id, connection, steady_ms());
        match outcome {
            Detached::NotController => {}
            Detached::Waiting { .. } => {
                session.detach(connection);
                drop(self.save(session));
                self.host.deadlines().wake();
                let identity = &session.owner.identity;
                tracing::info!(session = %session.id, connection, %identity, "session detached");
            }
            Detached::Ended => {
                session.detach(connection);
                self.end_later(session);
            }
        }
    }

    /// Returns the live session that a credential gives access to: of its identity, by id or name; for an
    /// administrator also any other, by id.
    pub(crate) fn session_of(&self, wanted: &str, credential: &Credential) -> Result<Arc<Session>, RpcError> {
        let sessions = self.sessions();
        // An id before a name: what a name stands for may change between its look-ups.
        let id =
            sessions.foreign(wanted, credential).or_else(|| sessions.resolve(wanted, &credential.identity));
        id.and_then(|id| sessions.by_id.get(&id).cloned()).ok_or_else(|| unknown_session(wanted))
    }

    /// Returns the session that [`Self::session_of`] finds, if it belongs to another identity.
    pub(crate) fn foreign_session(&self, wanted: &str, credential: &Credential) -> Option<Arc<Session>> {
        if !credential.is_admin() {
            return None;
        }
        let sessions = self.sessions();
        sessions.foreign(wanted, credential).and_then(|id| sessions.by_id.get(&id).cloned())
    }

    pub(crate) fn all_of(&self, identity: &Identity) -> Vec<Arc<Session>> {
        let sessions = self.sessions();
        let listed = sessions.table.list(identity, steady_ms());
        listed.into_iter().filter_map(|entry| sessions.by_id.get(&entry.id).cloned()).collect()
    }

    /// Returns the ids of the sessions that end by `at_ms` unless their clients return.
    pub(crate) fn expiring_by(&self, at_ms: u64) -> HashSet<String> {
        let sessions = self.sessions();
        let listed = sessions.table.list_all(steady_ms()).into_iter();
        listed
            .filter(|known| known.expires_at_ms().is_some_and(|expires| expires <= at_ms))
            .map(|known| known.id.clone())
            .collect()
    }

    /// Lists the sessions of an identity, or of all identities.
    pub(crate) fn list(&self, identity: Option<&Identity>) -> wire::Listing {
        let sessions = self.sessions();
        let entry = |known: &remex_proto::state::session_table::Session<Identity, ConnectionId>| {
            let mut entry = wire::Entry::new(&known.id, &known.client_name);
            entry.name.clone_from(&known.name);
            entry.identity = known.identity.to_string();
            entry.attached = known.controller().is_some();
            entry.detached_at_ms = match known.attachment {
                Attachment::Detached { since_ms } => Some(since_ms),
                Attachment::Attached { .. } => None,
            };
            entry.expires_at_ms = known.expires_at_ms();
            let session = sessions.by_id.get(&known.id);
            entry.processes = session.map_or(0, |session| session.process_count() as u64);
            entry
        };
        let listed = match identity {
            Some(identity) => sessions.table.list(identity, steady_ms()),
            None => sessions.table.list_all(steady_ms()),
        };
        wire::Listing { sessions: listed.into_iter().map(entry).collect() }
    }

    /// Ends a session; its processes are gone when this returns. A session in which another connection restarts a process is
    /// only detached from the connection that holds it, if that ends it.
    ///
    /// Returns the connection that held it, which must be notified.
    pub(crate) async fn end(
        self: &Arc<Self>,
        wanted: &str,
        credential: &Credential,
        connection: ConnectionId,
    ) -> Result<Option<Arc<Outbox>>, RpcError> {
        let session = self.session_of(wanted, credential)?;
        if self.is_controller(&session.id, connection) && session.is_restarted_by_others() {
            // Its client has resumed while another client restarts a process, and takes that for the end of its work.
            self.detach(&session, connection);
            return Ok(self.connections.get(connection));
        }
        let EndOutcome::Ended { controller } = self.sessions().end(&session.id) else {
            return Err(unknown_session(wanted));
        };
        let ended = session.end().await;
        self.remove(&session);
        ended?;
        Ok(controller.and_then(|connection| self.connections.get(connection)))
    }

    fn is_controller(&self, session: &str, connection: ConnectionId) -> bool {
        self.sessions().table.controller(session) == Some(connection)
    }

    fn next_expiry_ms(&self) -> Option<u64> {
        self.sessions().table.next_deadline()
    }

    fn expire_sessions(self: &Arc<Self>) {
        let expired: Vec<_> = {
            let mut sessions = self.sessions();
            let ids = sessions.table.expire(steady_ms());
            ids.iter().filter_map(|id| sessions.by_id.get(id).cloned()).collect()
        };
        for session in expired {
            let (identity, processes) = (&session.owner.identity, session.process_count());
            tracing::info!(session = %session.id, %identity, processes, "session expired");
            self.end_later(&session);
        }
    }

    pub(super) fn sessions(&self) -> MutexGuard<'_, Sessions> {
        lock(&self.sessions)
    }

    fn end_later(self: &Arc<Self>, session: &Arc<Session>) {
        let (registry, session) = (Arc::clone(self), Arc::clone(session));
        self.host.spawn(async move {
            if let Ok(Err(error)) = supervise(session.end()).await {
                let identity = &session.owner.identity;
                tracing::error!(session = %session.id, %identity, error = %error.message, "session still has processes after its end");
            }
            registry.remove(&session);
        });
    }

    /// Forgets a session that has ended.
    fn remove(&self, session: &Session) {
        self.sessions().by_id.remove(&session.id);
        session.delete_file();
        self.host.notify_activity();
    }
}

impl Sessions {
    /// Returns a number for the tags of a new session that no live session uses.
    fn free_number(&mut self) -> u32 {
        loop {
            self.next_number = self.next_number.wrapping_add(1) & Tag::LARGEST_SESSION;
            if self.by_id.values().all(|session| session.number != self.next_number) {
                return self.next_number;
            }
        }
    }

    /// Returns what the sessions of an identity share.
    pub(super) fn owner(&mut self, identity: &Identity, host: &Host) -> SessionOwner {
        self.owners.retain(|_, shared| shared.strong_count() > 0);
        let known = self.owners.get(identity).and_then(Weak::upgrade);
        let shared = known.unwrap_or_else(|| Arc::new(OwnerShared::new(host.accounts().of(identity))));
        self.owners.insert(identity.clone(), Arc::downgrade(&shared));
        SessionOwner { identity: identity.to_string().into(), shared }
    }

    /// Gives up a session, whichever identity it has.
    fn end(&mut self, id: &str) -> EndOutcome<ConnectionId> {
        let now = steady_ms();
        match self.table.any_session(id, now).map(|known| known.identity.clone()) {
            Some(identity) => self.table.end(id, &identity, now),
            None => EndOutcome::Unknown,
        }
    }

    /// Returns whether a session has processes, or is detached and will expire.
    fn are_busy(&self) -> bool {
        self.table.next_deadline().is_some() || self.by_id.values().any(|session| session.is_busy())
    }

    /// Returns the id of a session of another identity, if the credential gives access to it.
    fn foreign(&self, wanted: &str, credential: &Credential) -> Option<String> {
        let known = credential.is_admin().then(|| self.table.any_session(wanted, steady_ms()))??;
        (known.identity != credential.identity).then(|| known.id.clone())
    }

    fn resolve(&self, wanted: &str, identity: &Identity) -> Option<String> {
        let now = steady_ms();
        let known = self
            .table
            .session(wanted, identity, now)
            .or_else(|| self.table.by_name(identity, wanted, now))?;
        Some(known.id.clone())
    }
}

/// A session that a connection now holds.
pub(crate) struct OpenedSession {
    pub(crate) session: Arc<Session>,
    pub(crate) resumed: bool,
    pub(crate) on_detach: OnDetach,
    /// The connection that held it until now.
    pub(crate) previous: Option<ConnectionId>,
}

pub(crate) fn unknown_session(wanted: &str) -> RpcError {
    RpcError::new(ErrorKind::UnknownSession, format!("unknown session id {wanted}"))
        .with_hint("it has ended or never existed; initialize with `resumeSessionId: null` for a new one")
}

fn already_attached(wanted: &str) -> RpcError {
    RpcError::new(
        ErrorKind::SessionAttached,
        format!("session {wanted} is already attached to another connection"),
    )
    .with_hint("try again after it disconnects, or initialize with `takeover: true`")
}

fn name_taken(request: &Initialize) -> RpcError {
    let name = request.session_name.as_deref().unwrap_or_default();
    RpcError::new(ErrorKind::SessionNameTaken, format!("session name `{name}` is in use"))
        .with_hint("choose another, or resume that session by its name")
}

/// Returns a random UUID (version 4) in canonical form.
fn session_id() -> Result<String, RpcError> {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).map_err(|error| {
        RpcError::new(ErrorKind::Internal, format!("the kernel returned no random bytes: {error}"))
    })?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex = |range: std::ops::Range<usize>| {
        bytes[range].iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    Ok(format!("{}-{}-{}-{}-{}", hex(0..4), hex(4..6), hex(6..8), hex(8..10), hex(10..16)))
}

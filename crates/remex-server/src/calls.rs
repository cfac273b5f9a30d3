//! Dispatches each call: one exhaustive match from the method table to the module that owns the method.
//!
//! Start at [`Calls`].

mod answers;
mod collect;
mod listing;
mod permission;
mod process;
mod recorded;
mod target;

use std::{collections::BTreeSet, pin::Pin, sync::Arc, time::Instant};

use remex_access::{
    audit::PeerInfo,
    identity::{Credential, Identity},
    scope::Scopes,
};
use remex_base::{
    limits::Limits,
    trace::{self, RequestFacts, RequestTrace},
};
use remex_files::PathGuard;
use remex_process::Size;
use remex_proto::{
    Call, ClientNote, ErrorKind, PROTOCOL_VERSION, RequestId, RpcError, TraceContext,
    call::{Empty, Family},
    environment::{Status, StatusReply},
    initialize::{self, Capability, Initialize},
    session as wire_session,
    state::session_table::OnDetach,
};
use tokio::sync::Semaphore;
use tracing::Instrument as _;

use remex_engine::{Owner as _, Request};
use target::ProcessTarget;

use crate::{
    areas::{
        context::CallContext,
        environment,
        fs::FileCalls,
        http::{BodyPace, HttpCalls},
        watch::Watches,
    },
    outbox::{Observation, Outbox, Responder, close_code::POLICY},
    peers::ssh_login::SshLogin,
    sessions::{
        process::{Process, StartAt},
        session::{Session, SessionRegistry, Subscriber},
    },
};

/// The calls of one connection.
#[derive(Debug)]
pub(crate) struct Calls {
    context: CallContext,
    sessions: Arc<SessionRegistry>,
    credential: Credential,
    /// The ssh login that the client runs in.
    pub(crate) login: Option<Arc<SshLogin>>,
    peer: Arc<PeerInfo>,
    handshake: Handshake,
    /// Limits waits for text in output.
    searches: Arc<Semaphore>,
}

/// How far the handshake of a connection has progressed.
#[derive(Debug)]
enum Handshake {
    /// `initialize` has not succeeded yet.
    Expected,
    /// The client has not sent `initialized` yet.
    Answered(Box<Ready>),
    Complete(Box<Ready>),
}

/// State of a connection after `initialize`.
#[derive(Debug)]
struct Ready {
    session: Arc<Session>,
    capabilities: BTreeSet<Capability>,
    /// Sessions that this connection observes.
    observed: Vec<Arc<Session>>,
    files: FileCalls,
    watches: Watches,
    http: HttpCalls,
}

impl Ready {
    fn new(
        session: Arc<Session>,
        capabilities: BTreeSet<Capability>,
        scopes: &Arc<Scopes>,
        limits: &Limits,
    ) -> Self {
        Ready {
            files: FileCalls::new(&session.path_locks, PathGuard::new(scopes), limits),
            watches: Watches::default(),
            http: HttpCalls::new(limits),
            session,
            capabilities,
            observed: Vec::new(),
        }
    }

    fn has(&self, capability: Capability) -> bool {
        self.capabilities.contains(&capability)
    }
}

impl Handshake {
    /// Records `initialized`; returns `false` if it came before `initialize`.
    fn complete(&mut self) -> bool {
        match std::mem::replace(self, Handshake::Expected) {
            Handshake::Expected => false,
            Handshake::Answered(ready) | Handshake::Complete(ready) => {
                *self = Handshake::Complete(ready);
                true
            }
        }
    }

    fn ready(&self) -> Option<&Ready> {
        match self {
            Handshake::Expected => None,
            Handshake::Answered(ready) | Handshake::Complete(ready) => Some(ready),
        }
    }

    fn ready_mut(&mut self) -> Option<&mut Ready> {
        match self {
            Handshake::Expected => None,
            Handshake::Answered(ready) | Handshake::Complete(ready) => Some(ready),
        }
    }

    fn check(&mut self, family: Family) -> Result<&mut Ready, RpcError> {
        let missing = match self {
            Handshake::Complete(ready) => return Ok(ready),
            Handshake::Expected => "call initialize",
            Handshake::Answered(_) => "send initialized",
        };
        let message = format!("client must {missing} before using {} methods", family.word());
        Err(RpcError::new(ErrorKind::Handshake, message))
    }
}

impl Calls {
    pub(crate) fn new(
        sessions: &Arc<SessionRegistry>,
        outbox: &Arc<Outbox>,
        credential: Credential,
        peer: Arc<PeerInfo>,
    ) -> Self {
        let host = sessions.host();
        Calls {
            context: CallContext::new(host, outbox, &peer.identity),
            sessions: Arc::clone(sessions),
            credential,
            login: None,
            peer,
            handshake: Handshake::Expected,
            searches: Arc::new(Semaphore::new(host.limits().output_waits)),
        }
    }

    /// Returns whether `initialize` has succeeded.
    pub(crate) fn is_initialized(&self) -> bool {
        self.handshake.ready().is_some()
    }

    /// Carries out one call. The caller waits only for the handshake and for long command lines.
    ///
    /// The future is boxed: a connection that waits for a call has no space for carrying one out.
    pub(crate) fn call(
        &mut self,
        id: RequestId,
        call: Call,
        context: Option<Box<TraceContext>>,
        responder: Responder,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let facts = RequestFacts {
            call: &call,
            id: &id,
            connection: self.context.connection(),
            identity: &self.peer.identity,
            session: self.handshake.ready().map(|ready| ready.session.id.as_str()),
        };
        let span = trace::request(&facts, context.as_deref(), self.context.host().set_parent());
        let request = RequestTrace { span: span.clone(), context };
        Box::pin(self.call_in_span(id, call, request, responder).instrument(span))
    }

    async fn call_in_span(&mut self, id: RequestId, call: Call, trace: RequestTrace, responder: Responder) {
        let is_allowed = permission::check(&call, &self.credential.scopes);
        let host = Arc::clone(self.context.host());
        let entry = host.audit().is_on().then(|| Box::new(self.entry(&call, &is_allowed)));
        let (method, started) = (call.method(), Instant::now());
        let responder = responder.promising(call.reply_type()).observed(Observation {
            host: Arc::clone(&host),
            method,
            started,
            entry,
            trace,
        });
        if let Call::Initialize(request) = call {
            return self.initialize(request, responder).await;
        }
        let ready = match self.handshake.check(call.family()) {
            Ok(ready) => ready,
            Err(error) => return responder.error(&error),
        };
        if let Err(error) = is_allowed {
            return responder.error(&error);
        }
        if let Err(error) = recorded::record_first(&host, &responder).await {
            return responder.error(&error);
        }
        let (own, context) = (Arc::clone(&ready.session), &mut self.context);
        let Ready { files, watches, http, capabilities, .. } = ready;
        let identity = &self.credential.identity;
        tracing::debug!(connection = context.connection(), %identity, method = call.method(), "request");
        match call {
            Call::Initialize(_) => {}
            Call::ProcessStart(request) => self.start(own, request, responder).await,
            Call::ProcessRead(request) => self.read_output(id, &own, request, responder),
            Call::ProcessWrite(request) => self.write(&own, request, responder),
            Call::ProcessSignal(request) => self.signal(&own, &request, responder),
            Call::ProcessTerminate(request) => self.terminate(&own, &request, responder),
            Call::ProcessRestart(request) => self.restart(&own, request, responder),
            Call::ProcessCloseStdin(request) => {
                let process_request = Request::CloseStdin(responder, request.process_id.as_str().into());
                self.request(&own, ProcessTarget::of(&request), process_request);
            }
            Call::ProcessRelease(request) => {
                let released = self.session(&own, request.session_id.as_deref()).and_then(|session| {
                    let released = session.release(&request)?;
                    // An administrator may look at the sessions of others, but not keep them.
                    let is_theirs = self.sessions.foreign_session(&session.id, &self.credential).is_some();
                    if let Some(ttl) = request.detach_ttl_ms.filter(|_| !is_theirs) {
                        self.sessions.prolong(&session, ttl);
                    }
                    Ok(released)
                });
                responder.answer(released);
            }
            Call::ProcessForget(request) => {
                let session = self.session(&own, request.session_id.as_deref());
                responder.answer(session.and_then(|session| session.forget_closed(&request)));
            }
            Call::ProcessResize(request) => {
                let size = Size { rows: request.rows.get(), cols: request.cols.get() };
                let process_request = Request::Resize(size, responder, request.process_id.as_str().into());
                self.request(&own, ProcessTarget::of(&request), process_request);
            }
            Call::ProcessWait(request) => self.wait(id, &own, request, responder),
            Call::ProcessSnapshot(request) => self.snapshot(id, &own, &request, responder),
            Call::ProcessList(request) => self.list(id, &own, &request, responder),
            Call::ProcessSeek(request) => self.seek(id, &own, &request, responder),
            Call::ProcessCollect(request) => self.collect(id, &own, &request, responder),
            Call::SessionList(request) => responder.answer(self.list_sessions(request)),
            Call::SessionEnd(request) => self.end_session(request, responder),
            Call::SessionObserve(request) => {
                let result = self.observe(&own, &request);
                responder.answer(result.map(|()| Empty {}));
            }
            Call::SessionUnobserve(request) => {
                let result = self.unobserve(&request);
                responder.answer(result.map(|()| Empty {}));
            }
            Call::FsReadFile(request) => files.read_file(context, id, request, responder),
            Call::FsWriteFile(request) => files.call(context, id, request, responder),
            Call::FsCreateDirectory(request) => files.call(context, id, request, responder),
            Call::FsGetMetadata(request) => files.call(context, id, request, responder),
            Call::FsCanonicalize(request) => files.call(context, id, request, responder),
            Call::FsReadDirectory(request) => files.call(context, id, request, responder),
            Call::FsWalk(request) => files.call(context, id, request, responder),
            Call::FsRemove(request) => files.call(context, id, request, responder),
            Call::FsCopy(request) => files.call(context, id, request, responder),
            Call::FsRename(request) => files.call(context, id, request, responder),
            Call::FsSetPermissions(request) => files.call(context, id, request, responder),
            Call::FsSetTimes(request) => files.call(context, id, request, responder),
            Call::FsSymlink(request) => files.call(context, id, request, responder),
            Call::FsReadLink(request) => files.call(context, id, request, responder),
            Call::FsHash(request) => files.call(context, id, request, responder),
            Call::FsSearch(request) => files.call(context, id, request, responder),
            Call::FsOpen(request) => files.open(context, id, request, responder),
            Call::FsReadBlock(request) => files.read_block(context, id, request, responder),
            Call::FsWriteBlock(request) => files.write_block(context, id, request, responder),
            Call::FsClose(request) => files.close(context, id, &request, responder),
            Call::FsWatchMissing(request) => watches.watch_missing(context, files, request, responder),
            Call::FsWatch(request) => watches.watch(context, files, request, responder),
            Call::FsUnwatch(request) => watches.unwatch(&request, responder),
            Call::HttpRequest(request) => {
                let is_told = capabilities.contains(&Capability::Consumed);
                let pace = if is_told { BodyPace::Consumer } else { BodyPace::Connection };
                http.request(context, id, request, pace, responder);
            }
            Call::EnvironmentInfo(_) => {
                environment::describe(context, id, &self.credential.scopes, responder);
            }
            Call::EnvironmentStatus(_) => responder.ok(StatusReply { status: Status::Ready }),
            Call::EnvironmentConfigRead(request) => {
                environment::read_config(context, files, id, request, responder);
            }
            Call::CapabilityRootsDiscover(request) => files.discover_roots(context, id, request, responder),
            Call::CapabilitiesDiscover(request) => files.discover(context, id, &request, responder),
        }
    }

    /// Handles a notification.
    ///
    /// # Errors
    ///
    /// If the client must not send it, with the reason.
    pub(crate) fn on_note(&mut self, note: ClientNote) -> Result<(), &'static str> {
        let has = |capability| self.handshake.ready().is_some_and(|ready| ready.has(capability));
        match note {
            ClientNote::Initialized(_) => {
                if !self.handshake.complete() {
                    return Err("`initialized` before `initialize`");
                }
            }
            ClientNote::RequestCancel(cancel) => {
                if !has(Capability::Cancel) {
                    return Err("`request/cancel` without the capability `cancel`");
                }
                self.cancel(&cancel.id);
            }
            ClientNote::FlowAck(ack) => {
                if !has(Capability::Acks) {
                    return Err("`flow/ack` without the capability `acks`");
                }
                self.context.outbox().acknowledged(ack.mark);
            }
            ClientNote::FlowConsumed(consumed) => {
                let Some(ready) = self.handshake.ready().filter(|ready| ready.has(Capability::Consumed))
                else {
                    return Err("`flow/consumed` without the capability `consumed`");
                };
                if let Some(process) = ready.session.process(&consumed.process_id) {
                    process.consumed(self.context.connection(), consumed.seq, consumed.incarnation);
                }
            }
            ClientNote::FlowBodyConsumed(consumed) => {
                let Some(ready) = self.handshake.ready().filter(|ready| ready.has(Capability::Consumed))
                else {
                    return Err("`flow/bodyConsumed` without the capability `consumed`");
                };
                ready.http.consumed(&consumed.request_id, consumed.seq);
            }
        }
        Ok(())
    }

    fn cancel(&mut self, id: &RequestId) {
        let http = self.handshake.ready().map(|ready| &ready.http);
        let cancel_stream = |is_answered| http.is_some_and(|http| http.cancel(id, is_answered));
        let is_found = self.context.abort_call(id) || cancel_stream(false);
        let (outbox, connection) = (self.context.outbox(), self.context.connection());
        let source = outbox.input_of(id);
        if source.is_some_and(|source| source.cancel_input(&|responder| responder.is_for(connection, id))) {
            return;
        }
        // Only a stream can remain of a request that was answered.
        if !outbox.cancel(id) && !is_found {
            cancel_stream(true);
        }
    }

    /// Removes the calls that have ended.
    pub(crate) fn reap(&mut self) {
        self.context.reap();
    }

    /// Answers everything received before the end of input; pending reads and waits end early.
    pub(crate) async fn finish(&mut self) {
        self.context.finish().await;
    }

    /// Ends the calls and detaches the session, which another connection may resume.
    pub(crate) async fn end(&mut self) {
        let connection = self.context.connection();
        self.context.outbox().mark_disconnected();
        for source in self.context.outbox().inputs() {
            source.cancel_input(&|responder| responder.outbox().id == connection);
        }
        self.detach();
        self.context.shut_down().await;
        if let Some(ready) = self.handshake.ready() {
            ready.files.close_all(self.context.threads());
        }
    }

    /// Detaches the session and stops observing others.
    pub(crate) fn detach(&self) {
        let Some(ready) = self.handshake.ready() else { return };
        self.sessions.detach(&ready.session, self.context.connection());
        for session in &ready.observed {
            session.unobserve(self.context.connection());
        }
    }

    async fn initialize(&mut self, request: Initialize, mut responder: Responder) {
        if self.handshake.ready().is_some() {
            let error =
                RpcError::new(ErrorKind::Handshake, "initialize may only be sent once per connection");
            return responder.error(&error);
        }
        let limits = self.context.host().limits();
        let checked = limits.check_id("clientName", &request.client_name).and_then(|()| {
            limits.check_id("sessionName", request.session_name.as_deref().unwrap_or_default())
        });
        if let Err(error) = checked {
            return responder.error(&error);
        }
        if let Err(error) = recorded::record_first(self.context.host(), &responder).await {
            return responder.error(&error);
        }
        let opened =
            match self.sessions.open(&request, &self.credential.identity, self.context.connection()).await {
                Ok(opened) => opened,
                // Dropping the responder answers nothing then.
                Err(_) if self.context.outbox().leaves_unanswered() => return,
                Err(error) => return responder.error(&error),
            };
        recorded::on_opened(&mut responder, &opened);
        let capabilities = request.capabilities.unwrap_or_default();
        if capabilities.contains(&Capability::Acks) {
            self.context.outbox().use_marks();
        }
        if capabilities.contains(&Capability::BinaryFrames) {
            self.context.outbox().use_binary();
        }
        let limits = self.context.host().limits();
        let mut reply = initialize::Reply::new(opened.session.id.clone());
        PROTOCOL_VERSION.clone_into(&mut reply.protocol_version);
        reply.server = initialize::Server::new("remex", env!("CARGO_PKG_VERSION"));
        reply.capabilities.enabled.clone_from(&capabilities);
        reply.capabilities.available = Capability::ALL.iter().copied().collect();
        reply.resumed = opened.resumed;
        reply.detach_ttl_ms = match opened.on_detach {
            OnDetach::End => Some(0),
            OnDetach::ExpireAfterMs(ttl) => Some(ttl),
            OnDetach::Keep => None,
        };
        reply.limits.message_bytes = limits.message_bytes as u64;
        reply.limits.processes = limits.processes as u64;
        reply.limits.retain_bytes = limits.retain_bytes_max as u64;
        reply.limits.pending_requests = limits.unanswered_requests as u64;
        reply.limits.handles = limits.handles as u64;
        reply.environment_info = Some(self.context.host().info().info.clone());
        // The answer must precede the first event.
        responder.ok(reply);
        let outbox = Arc::clone(self.context.outbox());
        self.sessions.attach(&opened.session, Subscriber { outbox, capabilities: capabilities.clone() });
        let ready = Ready::new(opened.session, capabilities, &self.credential.scopes, &limits);
        self.handshake = Handshake::Answered(Box::new(ready));
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.credential.identity
    }

    fn list_sessions(&self, request: wire_session::List) -> Result<wire_session::Listing, RpcError> {
        match request.scope {
            wire_session::Scope::Identity => Ok(self.sessions.list(Some(self.identity()))),
            wire_session::Scope::All => {
                permission::check_admin(&self.credential.scopes, "session/list")?;
                Ok(self.sessions.list(None))
            }
        }
    }

    /// Returns the session that a request is about: the connection's own, unless it names another one of its
    /// identity, or of any if it may.
    fn session(&self, own: &Arc<Session>, named: Option<&str>) -> Result<Arc<Session>, RpcError> {
        match named {
            None => Ok(Arc::clone(own)),
            Some(named) if named == own.id => Ok(Arc::clone(own)),
            Some(named) => self.sessions.session_of(named, &self.credential),
        }
    }

    fn find(&self, own: &Arc<Session>, target: ProcessTarget<'_>) -> Result<Process, RpcError> {
        self.session(own, target.session)?.process_of(target.process, target.incarnation)
    }

    fn end_session(&self, request: wire_session::End, responder: Responder) {
        let (sessions, credential) = (Arc::clone(&self.sessions), self.credential.clone());
        let connection = self.context.connection();
        // Runs to completion even if the connection closes, which ending the session may itself cause.
        self.context.host().spawn(async move {
            let result = sessions.end(&request.session_id, &credential, connection).await;
            let controller = result.as_ref().ok().cloned().flatten();
            responder.answer(result.map(|_| Empty {}));
            if let Some(outbox) = controller {
                outbox.request_close(POLICY, "the session was ended");
            }
        });
    }

    fn observe(&mut self, own: &Arc<Session>, request: &wire_session::Observe) -> Result<(), RpcError> {
        let session = self.session(own, Some(&request.session_id))?;
        if session.id == own.id {
            return Err(RpcError::new(
                ErrorKind::InvalidParams,
                "cannot observe the session that this connection controls",
            )
            .with_hint("it already receives the notifications of that session"));
        }
        let outbox = Arc::clone(self.context.outbox());
        let Some(ready) = self.handshake.ready_mut() else { return Ok(()) };
        let subscriber = Subscriber { outbox, capabilities: ready.capabilities.clone() };
        let from = |process: &str| match request.from_seq_of(process) {
            Some(seq) => StartAt::After(seq.saturating_sub(1)),
            None => StartAt::Now,
        };
        session.observe(subscriber, from);
        ready.observed.retain(|known| !known.has_ended());
        if !ready.observed.iter().any(|known| known.id == session.id) {
            ready.observed.push(session);
        }
        Ok(())
    }

    fn unobserve(&mut self, request: &wire_session::Unobserve) -> Result<(), RpcError> {
        let session = self.sessions.session_of(&request.session_id, &self.credential)?;
        session.unobserve(self.context.connection());
        if let Some(ready) = self.handshake.ready_mut() {
            ready.observed.retain(|known| known.id != session.id);
        }
        Ok(())
    }
}

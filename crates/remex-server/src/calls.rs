//! What each call does: one exhaustive match from the method table to the sessions and processes.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use remex_process::{Signal, Size, tree};
use remex_proto::{
    Call, ErrorKind, PROTOCOL_VERSION, RequestId, RpcError,
    call::{Empty, Family},
    environment::{Status, StatusReply},
    initialize::{self, Capability, Initialize},
    process as wire, session as wire_session,
    state::session_table::OnDetach,
};

use crate::{
    answers::{self, LIST_LESS, READ_LESS, Room},
    budget,
    compute::LARGE_MESSAGE,
    connection::Connection,
    listing::ProcessList,
    outbox::{Form, Responder, Then},
    process::{Feed, From, HANGS, NotRead, Order, Process, Waiter, unknown_process},
    server::POLICY,
    session::{Listener, Session},
};

/// How far the handshake of a connection has got.
pub(crate) enum Handshake {
    /// `initialize` has not succeeded yet.
    Expected,
    /// `initialized` has not come yet.
    Answered(Ready),
    Complete(Ready),
}

/// What a connection has after `initialize`.
pub(crate) struct Ready {
    session: Arc<Session>,
    capabilities: BTreeSet<Capability>,
    /// Sessions that this connection looks at.
    observed: Vec<Arc<Session>>,
}

impl Handshake {
    /// Notes `initialized`; `false` when it came too early.
    pub(crate) fn complete(&mut self) -> bool {
        match std::mem::replace(self, Handshake::Expected) {
            Handshake::Expected => false,
            Handshake::Answered(ready) | Handshake::Complete(ready) => {
                *self = Handshake::Complete(ready);
                true
            }
        }
    }

    pub(crate) fn enabled(&self, capability: Capability) -> bool {
        self.ready().is_some_and(|ready| ready.capabilities.contains(&capability))
    }

    pub(crate) fn session(&self) -> Option<&Arc<Session>> {
        self.ready().map(|ready| &ready.session)
    }

    pub(crate) fn observed(&self) -> &[Arc<Session>] {
        self.ready().map_or(&[], |ready| &ready.observed)
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

    fn check(&self, family: Family) -> Result<&Arc<Session>, RpcError> {
        let missing = match self {
            Handshake::Complete(ready) => return Ok(&ready.session),
            Handshake::Expected => "call initialize",
            Handshake::Answered(_) => "send initialized",
        };
        let message = format!("client must {missing} before using {} methods", family.word());
        Err(RpcError::new(ErrorKind::Handshake, message))
    }
}

impl Connection {
    /// Carries out one call. Only the handshake and long command lines make the reader wait.
    pub(crate) async fn call(&mut self, id: RequestId, call: Call, responder: Responder) {
        let responder = responder.promising(call.reply_type());
        if let Call::Initialize(request) = call {
            return self.initialize(request, responder).await;
        }
        let own = match self.handshake.check(call.family()) {
            Ok(session) => Arc::clone(session),
            Err(error) => return responder.error(&error),
        };
        tracing::debug!(connection = self.outbox.id, method = call.method(), "request");
        match call {
            Call::Initialize(_) => {}
            Call::ProcessStart(request) => self.start(own, request, responder).await,
            Call::ProcessRead(request) => self.read_output(id, &own, request, responder),
            Call::ProcessWrite(request) => self.write(&own, request, responder),
            Call::ProcessSignal(request) => self.signal(&own, &request, responder),
            Call::ProcessTerminate(request) => self.terminate(&own, &request, responder),
            Call::ProcessCloseStdin(request) => {
                let order = Order::CloseStdin(responder, request.process_id.as_str().into());
                self.order(&own, request.session_id.as_deref(), &request.process_id, order);
            }
            Call::ProcessRelease(request) => {
                let session = self.session(&own, request.session_id.as_deref());
                responder.answer(session.and_then(|session| session.release(&request.process_id)));
            }
            Call::ProcessForget(request) => {
                let session = self.session(&own, request.session_id.as_deref());
                responder.answer(session.and_then(|session| session.forget_closed(&request.process_id)));
            }
            Call::ProcessResize(request) => {
                let size = Size { rows: request.rows.get(), cols: request.cols.get() };
                let order = Order::Resize(size, responder, request.process_id.as_str().into());
                self.order(&own, request.session_id.as_deref(), &request.process_id, order);
            }
            Call::ProcessWait(request) => self.wait(id, &own, request, responder),
            Call::ProcessSnapshot(request) => self.snapshot(id, &own, &request, responder),
            Call::ProcessList(request) => self.list(id, &own, &request, responder),
            Call::SessionList(_) => responder.ok(self.server.list_sessions(&self.identity)),
            Call::SessionEnd(request) => self.end_session(request, responder),
            Call::SessionObserve(request) => {
                let result = self.observe(&own, &request);
                responder.answer(result.map(|()| Empty {}));
            }
            Call::SessionUnobserve(request) => {
                let result = self.unobserve(&request);
                responder.answer(result.map(|()| Empty {}));
            }
            Call::FsReadFile(request) => self.read_file(id, request, responder),
            Call::FsWriteFile(request) => self.files(id, request, responder),
            Call::FsCreateDirectory(request) => self.files(id, request, responder),
            Call::FsGetMetadata(request) => self.files(id, request, responder),
            Call::FsCanonicalize(request) => self.files(id, request, responder),
            Call::FsReadDirectory(request) => self.files(id, request, responder),
            Call::FsWalk(request) => self.files(id, request, responder),
            Call::FsRemove(request) => self.files(id, request, responder),
            Call::FsCopy(request) => self.files(id, request, responder),
            Call::FsRename(request) => self.files(id, request, responder),
            Call::FsSetPermissions(request) => self.files(id, request, responder),
            Call::FsSetTimes(request) => self.files(id, request, responder),
            Call::FsSymlink(request) => self.files(id, request, responder),
            Call::FsReadLink(request) => self.files(id, request, responder),
            Call::FsHash(request) => self.files(id, request, responder),
            Call::FsOpen(request) => self.open_file(id, request, responder),
            Call::FsReadBlock(request) => self.read_block(id, request, responder),
            Call::FsWriteBlock(request) => self.write_block(id, request, responder),
            Call::FsClose(request) => self.close_file(id, &request, responder),
            Call::FsWatchMissing(request) => self.watch_missing(request, responder),
            Call::FsWatch(request) => self.watch(request, responder),
            Call::FsUnwatch(request) => self.unwatch(&request, responder),
            Call::HttpRequest(request) => self.http_request(id, request, responder),
            Call::EnvironmentInfo(_) => responder.ok(self.server.host().info.clone()),
            Call::EnvironmentStatus(_) => responder.ok(StatusReply { status: Status::Ready }),
            Call::EnvironmentConfigRead(request) => self.read_config(id, request, responder),
        }
    }

    async fn initialize(&mut self, request: Initialize, responder: Responder) {
        if self.handshake.session().is_some() {
            let error =
                RpcError::new(ErrorKind::Handshake, "initialize may only be sent once per connection");
            return responder.error(&error);
        }
        let limits = self.server.limits();
        let checked = limits.check_id("clientName", &request.client_name).and_then(|()| {
            limits.check_id("sessionName", request.session_name.as_deref().unwrap_or_default())
        });
        if let Err(error) = checked {
            return responder.error(&error);
        }
        let opened = match self.server.open_session(&request, &self.identity, self.outbox.id).await {
            Ok(opened) => opened,
            Err(error) => return responder.error(&error),
        };
        let available = BTreeSet::from(Capability::ALL);
        let capabilities = request.capabilities.unwrap_or_default();
        if capabilities.contains(&Capability::Acks) {
            self.outbox.use_marks();
        }
        let limits = self.server.limits();
        let reply = initialize::Reply {
            session_id: opened.session.id.clone(),
            protocol_version: PROTOCOL_VERSION.to_owned(),
            server: initialize::Server {
                name: "remex".to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
            },
            capabilities: initialize::Capabilities { enabled: capabilities.clone(), available },
            resumed: opened.resumed,
            detach_ttl_ms: match opened.on_detach {
                OnDetach::End => Some(0),
                OnDetach::ExpireAfterMs(ttl) => Some(ttl),
                OnDetach::Keep => None,
            },
            limits: initialize::Limits {
                message_bytes: limits.message_bytes as u64,
                processes: limits.processes as u64,
                retain_bytes: limits.retain_bytes_max as u64,
                pending_requests: limits.unanswered_requests as u64,
                handles: limits.handles as u64,
            },
            environment_info: Some(self.server.host().info.clone()),
        };
        // The answer is on its way before the first event can be.
        responder.ok(reply);
        let listener = Listener { outbox: Arc::clone(&self.outbox), capabilities: capabilities.clone() };
        opened.session.attach(listener);
        self.handshake =
            Handshake::Answered(Ready { session: opened.session, capabilities, observed: Vec::new() });
    }

    /// Returns the session a request is about: the connection's own unless it names another of its identity.
    fn session(&self, own: &Arc<Session>, named: Option<&str>) -> Result<Arc<Session>, RpcError> {
        match named {
            None => Ok(Arc::clone(own)),
            Some(named) if named == own.id => Ok(Arc::clone(own)),
            Some(named) => self.server.session_of(named, &self.identity),
        }
    }

    fn find(&self, own: &Arc<Session>, named: Option<&str>, process: &str) -> Result<Arc<Process>, RpcError> {
        self.session(own, named)?.process(process).ok_or_else(|| unknown_process(process))
    }

    fn terminate(&mut self, own: &Arc<Session>, request: &wire::Terminate, responder: Responder) {
        let order = Order::Terminate(request.mode, request.scope, responder);
        self.order(own, request.session_id.as_deref(), &request.process_id, order);
    }

    fn order(&mut self, own: &Arc<Session>, named: Option<&str>, process: &str, order: Order) {
        let session = match self.session(own, named) {
            Ok(session) => session,
            Err(error) => return order.into_responder().error(&error),
        };
        match session.process(process) {
            Some(process) => {
                if order.is_input() {
                    order.responder().is_input_of(&process);
                }
                process.order(order);
            }
            None => order.answer_unknown(),
        }
    }

    async fn start(&self, own: Arc<Session>, request: wire::Start, responder: Responder) {
        if responder.request_bytes() <= LARGE_MESSAGE {
            return own.start(request, responder, &self.slots);
        }
        // Megabytes of arguments and variables are copied on the way to a child.
        let slots = Arc::clone(&self.slots);
        self.server.compute().run(move || own.start(request, responder, &slots)).await;
    }

    fn write(&mut self, own: &Arc<Session>, request: wire::Write, responder: Responder) {
        let write_id = request.write_id.as_deref().unwrap_or_default();
        if let Err(error) = self.server.limits().check_id("writeId", write_id) {
            return responder.error(&error);
        }
        let process_id: Box<str> = request.process_id.as_str().into();
        let feed = Feed { chunk: request.chunk.0, write_id: request.write_id, process_id, responder };
        self.order(own, request.session_id.as_deref(), &request.process_id, Order::Write(feed));
    }

    fn signal(&mut self, own: &Arc<Session>, request: &wire::Signal, responder: Responder) {
        match Signal::from_name(request.signal.name()) {
            Some(signal) => {
                let order = Order::Signal(signal, responder);
                self.order(own, request.session_id.as_deref(), &request.process_id, order);
            }
            None => responder.error(&RpcError::new(
                ErrorKind::NotSupported,
                format!("this host has no signal {}", request.signal),
            )),
        }
    }

    fn read_output(&mut self, id: RequestId, own: &Arc<Session>, request: wire::Read, responder: Responder) {
        let process = match self.find(own, request.session_id.as_deref(), &request.process_id) {
            Ok(process) => process,
            Err(error) => return responder.error(&error),
        };
        let reader =
            request.session_id.as_deref().is_none_or(|named| named == own.id).then_some(self.outbox.id);
        let (server, ending) = (Arc::clone(&self.server), self.ending.clone());
        let asked = Instant::now();
        let wait = Duration::from_millis(request.wait_ms.unwrap_or(0));
        self.run_beside(id, async move {
            if !process.started(asked.checked_add(wait.max(HANGS))).await {
                return responder.error(&unknown_process(&process.id));
            }
            tokio::select! {
                () = process.readable(&request, reader, asked) => {}
                () = ending.cancelled() => {}
            }
            responder.outbox().room().await;
            // Little is told at once, whatever else is in the making.
            match process.read(&request, reader, LARGE_MESSAGE as u64) {
                Ok((reply, then)) => return responder.ok_then(reply, then),
                Err(NotRead::NoMemory) => return responder.error(&budget::no_memory(READ_LESS)),
                Err(NotRead::TooLong(_)) => {}
            }
            // A reply may be megabytes: it is made when there is room for it.
            let making = responder.outbox().room_for_answer().await;
            // Now and not elsewhere: what is streamed and acknowledged meanwhile may be evicted, and would be a gap.
            let read = |room: Room| {
                let read = process.read(&request, reader, room.bytes);
                std::future::ready(read.map(|read| (read, room)))
            };
            let ((reply, then), share) =
                match answers::within_room(&server, &responder, READ_LESS, read).await {
                    Ok(read) => read,
                    Err(error) => return responder.error(&error),
                };
            let answer = move || {
                responder.ok_long(reply, then, share);
                drop(making);
            };
            server.compute().run(answer).await;
        });
    }

    fn wait(&mut self, id: RequestId, own: &Arc<Session>, request: wire::Wait, responder: Responder) {
        let process = match self.find(own, request.session_id.as_deref(), &request.process_id) {
            Ok(process) => process,
            Err(error) => return responder.error(&error),
        };
        let is_own = request.session_id.as_deref().is_none_or(|named| named == own.id);
        let waiter = if is_own { Waiter::Controller } else { Waiter::Onlooker };
        let slot = match request.until {
            wire::Until::Output { .. } => match Arc::clone(&self.searches).try_acquire_owned() {
                Ok(slot) => Some(slot),
                Err(_) => return responder.error(&too_many_searches(self.server.limits().output_waits)),
            },
            wire::Until::Exit | wire::Until::Closed | wire::Until::IdleMs(_) => None,
        };
        let ending = self.ending.clone();
        let asked = Instant::now();
        let wait = request.wait_ms.map(Duration::from_millis);
        self.run_beside(id, async move {
            if !process.started(wait.and_then(|wait| asked.checked_add(wait.max(HANGS)))).await {
                return responder.error(&unknown_process(&process.id));
            }
            tokio::select! {
                waited = process.wait(&request, waiter, asked) => responder.answer(waited),
                () = ending.cancelled() => {}
            }
            drop(slot);
        });
    }

    fn snapshot(
        &mut self,
        id: RequestId,
        own: &Arc<Session>,
        request: &wire::Snapshot,
        responder: Responder,
    ) {
        let process = match self.find(own, request.session_id.as_deref(), &request.process_id) {
            Ok(process) => process,
            Err(error) => return responder.error(&error),
        };
        let (server, max_bytes) = (Arc::clone(&self.server), request.max_bytes);
        let asked = Instant::now();
        self.run_beside(id, async move {
            if !process.started(asked.checked_add(HANGS)).await {
                return responder.error(&unknown_process(&process.id));
            }
            responder.outbox().room().await;
            match process.snapshot(max_bytes, LARGE_MESSAGE as u64) {
                Ok(snapshot) => return responder.ok(snapshot),
                Err(NotRead::NoMemory) => return responder.error(&budget::no_memory(READ_LESS)),
                Err(NotRead::TooLong(_)) => {}
            }
            let making = Arc::new(responder.outbox().room_for_answer().await);
            let look = |room: Room| {
                let (process, making) = (Arc::clone(&process), Arc::clone(&making));
                server.compute().run(move || {
                    let snapshot = process.snapshot(max_bytes, room.bytes);
                    drop(making);
                    snapshot.map(|snapshot| (snapshot, room))
                })
            };
            let (snapshot, share) = match answers::within_room(&server, &responder, READ_LESS, look).await {
                Ok(snapshot) => snapshot,
                Err(error) => return responder.error(&error),
            };
            let answer = move || {
                responder.ok_long(snapshot, Then::Nothing, share);
                drop(making);
            };
            server.compute().run(answer).await;
        });
    }

    fn list(&mut self, id: RequestId, own: &Arc<Session>, request: &wire::List, responder: Responder) {
        let sessions = match request.scope {
            wire::Scope::Identity => self.server.sessions_of(&self.identity),
            wire::Scope::Session => match self.session(own, request.session_id.as_deref()) {
                Ok(session) => vec![session],
                Err(error) => return responder.error(&error),
            },
        };
        let (server, slots) = (Arc::clone(&self.server), Arc::clone(&self.slots));
        let number = id.clone();
        self.run_beside(id, async move {
            let _slot = slots.acquire().await;
            let making = Arc::new(responder.outbox().room_for_answer().await);
            // One look for all of them: there may be as many sessions as processes on this host.
            let members = match sessions.first() {
                Some(session) => tree::marked(session.tag()).await.unwrap_or_default(),
                None => Vec::new(),
            };
            // There may be tens of thousands of them, too many for a worker.
            let held = Arc::clone(&making);
            let collect = move || {
                let list = ProcessList::new(&sessions, &members);
                drop(held);
                Arc::new(list)
            };
            let list = server.compute().run(collect).await;
            if responder.outbox().form() == Form::Value {
                return responder.ok(server.compute().run(move || list.to_listing()).await);
            }
            let most = server.answers().total();
            let encode = |room: Room| {
                let (list, id, making) = (Arc::clone(&list), number.clone(), Arc::clone(&making));
                server.compute().run(move || {
                    let json = list.encode(&id, room.bytes, most);
                    drop((list, making));
                    json.map(|json| (json, room))
                })
            };
            match answers::within_room(&server, &responder, LIST_LESS, encode).await {
                Ok((json, share)) => responder.ok_json::<wire::Listing>(json, share),
                Err(error) => responder.error(&error),
            }
        });
    }

    fn end_session(&self, request: wire_session::End, responder: Responder) {
        let (server, identity) = (Arc::clone(&self.server), self.identity.clone());
        // Ending goes on even if the connection that asked for it is gone, which it may end itself.
        self.server.track(async move {
            let result = server.end_session(&request.session_id, &identity).await;
            let controller = result.as_ref().ok().cloned().flatten();
            responder.answer(result.map(|_| Empty {}));
            if let Some(outbox) = controller {
                outbox.say_goodbye(POLICY, "the session was ended");
            }
        });
    }

    fn observe(&mut self, own: &Arc<Session>, request: &wire_session::Observe) -> Result<(), RpcError> {
        let session = self.session(own, Some(&request.session_id))?;
        if session.id == own.id {
            return Err(RpcError::new(
                ErrorKind::InvalidParams,
                "cannot observe the session that this connection controls; its notifications come anyway",
            ));
        }
        let outbox = Arc::clone(&self.outbox);
        let Some(ready) = self.handshake.ready_mut() else { return Ok(()) };
        let listener = Listener { outbox, capabilities: ready.capabilities.clone() };
        let from = |process: &str| match request.from_seq.as_ref().and_then(|from| from.get(process)) {
            Some(seq) => From::After(seq.saturating_sub(1)),
            None => From::Now,
        };
        session.observe(listener, from);
        ready.observed.retain(|known| !known.has_ended());
        if !ready.observed.iter().any(|known| known.id == session.id) {
            ready.observed.push(session);
        }
        Ok(())
    }

    fn unobserve(&mut self, request: &wire_session::Unobserve) -> Result<(), RpcError> {
        let session = self.server.session_of(&request.session_id, &self.identity)?;
        session.unobserve(self.outbox.id);
        if let Some(ready) = self.handshake.ready_mut() {
            ready.observed.retain(|known| known.id != session.id);
        }
        Ok(())
    }
}

fn too_many_searches(limit: usize) -> RpcError {
    let message =
        format!("{limit} waits for output run on this connection, which is the limit; cancel some first");
    RpcError::new(ErrorKind::LimitExceeded, message)
}

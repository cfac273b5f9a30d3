//! Calls about processes.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use remex_access::{
    account::{self, Kind},
    budget,
};
use remex_base::{compute::LARGE_MESSAGE, threads::ClientThreads};
use remex_engine::{
    Backoff, HANG_THRESHOLD, ReadError, Request, StdinWrite, Waiter, unknown_process, unreadable,
};
use remex_process::{Signal, tree};
use remex_proto::{ErrorKind, RequestId, RpcError, process as wire};

use super::{
    Calls, ProcessTarget,
    answers::{self, Allowance, FORGET_SOME, LIST_LESS, READ_LESS, unless_forgotten},
    listing::{Identities, ProcessList},
    permission,
};
use crate::{
    outbox::{AfterSend, ConnectionId, Encoding, Responder},
    sessions::{
        process::Process,
        session::{Session, StartBounds},
    },
};

/// About what a wait for text in output needs at most.
const SEARCH_BYTES: usize = 1 << 20;

impl Calls {
    pub(super) fn terminate(&mut self, own: &Arc<Session>, request: &wire::Terminate, responder: Responder) {
        let process_request = Request::Terminate(request.mode, request.scope, responder);
        self.request(own, ProcessTarget::of(request), process_request);
    }

    pub(super) fn request(
        &mut self,
        own: &Arc<Session>,
        target: ProcessTarget<'_>,
        process_request: Request<Responder>,
    ) {
        let session = match self.session(own, target.session) {
            Ok(session) => session,
            Err(error) => return process_request.into_caller().error(&error),
        };
        session.request(target.process, target.incarnation, process_request);
    }

    pub(super) async fn start(&self, own: Arc<Session>, request: wire::Start, responder: Responder) {
        let bounds = StartBounds { login: self.login.clone(), ..self.restart_bounds() };
        if responder.request_bytes() <= LARGE_MESSAGE {
            return own.start(request, responder, &bounds, self.context.slots());
        }
        // Starting a child copies its arguments and environment, which may be megabytes.
        let slots = Arc::clone(self.context.slots());
        self.context.host().compute().run(move || own.start(request, responder, &bounds, &slots)).await;
    }

    pub(super) fn restart(&mut self, own: &Arc<Session>, request: wire::StartAgain, responder: Responder) {
        let restart_id = request.restart_id.as_deref().unwrap_or_default();
        if let Err(error) = self.context.host().limits().check_id("restartId", restart_id) {
            return responder.error(&error);
        }
        match self.session(own, request.session_id.as_deref()) {
            // The client that started it agreed to run it with its own permissions, not with those of another identity.
            Ok(session) if session.owner.identity != own.owner.identity => responder.error(&not_yours()),
            Ok(session) => session.restart(request, responder, self.restart_bounds(), self.context.slots()),
            Err(error) => responder.error(&error),
        }
    }

    /// Returns what the connection means for starts whose variables are known.
    fn restart_bounds(&self) -> StartBounds {
        let scopes = &self.credential.scopes;
        let (max_processes, floor) = (scopes.max_processes(), scopes.floor());
        StartBounds { max_processes, floor, first_floor: None, login: None }
    }

    pub(super) fn write(&mut self, own: &Arc<Session>, request: wire::Write, responder: Responder) {
        let write_id = request.write_id.as_deref().unwrap_or_default();
        if let Err(error) = self.context.host().limits().check_id("writeId", write_id) {
            return responder.error(&error);
        }
        let target = ProcessTarget {
            session: request.session_id.as_deref(),
            process: &request.process_id,
            incarnation: request.incarnation,
        };
        let write = StdinWrite {
            chunk: request.chunk.0,
            write_id: request.write_id,
            process_id: request.process_id.as_str().into(),
            caller: responder,
        };
        self.request(own, target, Request::Write(write));
    }

    pub(super) fn signal(&mut self, own: &Arc<Session>, request: &wire::Signal, responder: Responder) {
        match Signal::from_name(request.signal.name()) {
            Some(signal) => {
                let process_request = Request::Signal(signal, responder);
                self.request(own, ProcessTarget::of(request), process_request);
            }
            None => responder.error(&RpcError::new(
                ErrorKind::NotSupported,
                format!("this host has no signal {}", request.signal),
            )),
        }
    }

    pub(super) fn read_output(
        &mut self,
        id: RequestId,
        own: &Arc<Session>,
        request: wire::Read,
        responder: Responder,
    ) {
        let process = match self.find(own, ProcessTarget::of(&request)) {
            Ok(process) => process,
            Err(error) => return responder.error(&error),
        };
        let reader = request
            .session_id
            .as_deref()
            .is_none_or(|named| named == own.id)
            .then_some(self.context.connection());
        let (host, ending) = (Arc::clone(self.context.host()), self.context.end_of_input().clone());
        let (asked, threads) = (Instant::now(), self.context.threads().clone());
        let wait = Duration::from_millis(request.wait_ms.unwrap_or(0));
        self.context.spawn_call(id, async move {
            if !process.started(asked.checked_add(wait.max(HANG_THRESHOLD))).await {
                return responder.error(&unknown_process(&process.id));
            }
            tokio::select! {
                () = process.readable(&request, reader, asked) => {}
                () = ending.cancelled() => {}
            }
            responder.outbox().wait_for_room().await;
            // A short answer is sent at once, whatever else is being built.
            let request = Arc::new(request);
            match read_within(&process, &threads, &request, reader, LARGE_MESSAGE as u64).await {
                Ok((reply, then)) => return responder.ok_then(reply, then),
                Err(ReadError::NoMemory) => return responder.error(&budget::no_memory(READ_LESS)),
                Err(ReadError::Unreadable(error)) => {
                    return responder.error(&unless_forgotten(&process, error));
                }
                Err(ReadError::TooLong(_) | ReadError::OnDisk) => {}
            }
            // A reply may be megabytes, so it is built only when there is room for it.
            let making = responder.outbox().room_for_answer().await;
            let read = async |room: Allowance| {
                let read = read_within(&process, &threads, &request, reader, room.bytes).await;
                read.map(|read| (read, room))
            };
            let ((reply, then), share) = match answers::within_room(&host, &responder, READ_LESS, read).await
            {
                Ok(read) => read,
                Err(error) => return responder.error(&unless_forgotten(&process, error)),
            };
            let answer = move || {
                responder.ok_long(reply, then, share);
                drop(making);
            };
            host.compute().run(answer).await;
        });
    }

    pub(super) fn wait(
        &mut self,
        id: RequestId,
        own: &Arc<Session>,
        request: wire::Wait,
        responder: Responder,
    ) {
        let process = match self.find(own, ProcessTarget::of(&request)) {
            Ok(process) => process,
            Err(error) => return responder.error(&error),
        };
        let is_own = request.session_id.as_deref().is_none_or(|named| named == own.id);
        let waiter = if is_own { Waiter::Keeping } else { Waiter::Observing };
        let slot = match request.until {
            wire::Until::Output { .. } => match Arc::clone(&self.searches).try_acquire_owned() {
                Ok(slot) => match self.context.outbox().account().try_take(Kind::Handles, SEARCH_BYTES) {
                    Some(charge) => Some((slot, charge)),
                    None => {
                        let account = self.context.outbox().account();
                        let what = format!("cannot wait for output of process `{}`", process.id);
                        return responder.error(&account::full(&what, account, Kind::Handles, SEARCH_BYTES));
                    }
                },
                Err(_) => {
                    return responder.error(&too_many_searches(self.context.host().limits().output_waits));
                }
            },
            wire::Until::Exit | wire::Until::Closed | wire::Until::IdleMs(_) => None,
        };
        let ending = self.context.end_of_input().clone();
        let asked = Instant::now();
        let wait = request.wait_ms.map(Duration::from_millis);
        self.context.spawn_call(id, async move {
            if !process.started(wait.and_then(|wait| asked.checked_add(wait.max(HANG_THRESHOLD)))).await {
                return responder.error(&unknown_process(&process.id));
            }
            tokio::select! {
                waited = process.wait(&request, waiter, asked) => responder.answer(waited),
                () = ending.cancelled() => {}
            }
            drop(slot);
        });
    }

    pub(super) fn snapshot(
        &mut self,
        id: RequestId,
        own: &Arc<Session>,
        request: &wire::Snapshot,
        responder: Responder,
    ) {
        let process = match self.find(own, ProcessTarget::of(request)) {
            Ok(process) => process,
            Err(error) => return responder.error(&error),
        };
        let (host, max_bytes) = (Arc::clone(self.context.host()), request.max_bytes);
        let threads = self.context.threads().clone();
        let asked = Instant::now();
        self.context.spawn_call(id, async move {
            if !process.started(asked.checked_add(HANG_THRESHOLD)).await {
                return responder.error(&unknown_process(&process.id));
            }
            responder.outbox().wait_for_room().await;
            let short = if process.is_durable() {
                stored_snapshot(&process, &threads, max_bytes, LARGE_MESSAGE as u64).await
            } else {
                process.snapshot(max_bytes, LARGE_MESSAGE as u64)
            };
            match short {
                Ok(snapshot) => return responder.ok(snapshot),
                Err(ReadError::NoMemory) => return responder.error(&budget::no_memory(READ_LESS)),
                Err(ReadError::Unreadable(error)) => {
                    return responder.error(&unless_forgotten(&process, error));
                }
                Err(ReadError::TooLong(_) | ReadError::OnDisk) => {}
            }
            let making = Arc::new(responder.outbox().room_for_answer().await);
            let look = async |room: Allowance| {
                if process.is_durable() {
                    let snapshot = stored_snapshot(&process, &threads, max_bytes, room.bytes).await;
                    return snapshot.map(|snapshot| (snapshot, room));
                }
                let (process, making) = (process.clone(), Arc::clone(&making));
                let snapshot = move || {
                    let snapshot = process.snapshot(max_bytes, room.bytes);
                    drop(making);
                    snapshot.map(|snapshot| (snapshot, room))
                };
                host.compute().run(snapshot).await
            };
            let (snapshot, share) = match answers::within_room(&host, &responder, READ_LESS, look).await {
                Ok(snapshot) => snapshot,
                Err(error) => return responder.error(&unless_forgotten(&process, error)),
            };
            let answer = move || {
                responder.ok_long(snapshot, AfterSend::Nothing, share);
                drop(making);
            };
            host.compute().run(answer).await;
        });
    }

    pub(super) fn seek(
        &mut self,
        id: RequestId,
        own: &Arc<Session>,
        request: &wire::Seek,
        responder: Responder,
    ) {
        let process = match self.find(own, ProcessTarget::of(request)) {
            Ok(process) => process,
            Err(error) => return responder.error(&error),
        };
        let (to, asked, threads) = (request.to, Instant::now(), self.context.threads().clone());
        self.context.spawn_call(id, async move {
            if !process.started(asked.checked_add(HANG_THRESHOLD)).await {
                return responder.error(&unknown_process(&process.id));
            }
            let sought = process.seek(to, &threads).await;
            responder.answer(sought.map_err(|error| unless_forgotten(&process, error)));
        });
    }

    pub(super) fn list(
        &mut self,
        id: RequestId,
        own: &Arc<Session>,
        request: &wire::List,
        responder: Responder,
    ) {
        let (sessions, hint) = match request.scope {
            wire::Scope::Identity => (self.sessions.all_of(&self.credential.identity), LIST_LESS),
            wire::Scope::All => match permission::check_admin(&self.credential.scopes, "process/list") {
                Ok(()) => (self.sessions.all(), LIST_LESS),
                Err(error) => return responder.error(&error),
            },
            wire::Scope::Session => match self.session(own, request.session_id.as_deref()) {
                Ok(session) => (vec![session], FORGET_SOME),
                Err(error) => return responder.error(&error),
            },
        };
        let (host, slots) = (Arc::clone(self.context.host()), Arc::clone(self.context.slots()));
        let number = id.clone();
        let identities =
            if request.scope == wire::Scope::All { Identities::Named } else { Identities::Known };
        self.context.spawn_call(id, async move {
            let _slot = slots.acquire().await;
            let making = Arc::new(responder.outbox().room_for_answer().await);
            // One scan for all of them: the host may have as many sessions as processes.
            let mut members = Vec::new();
            if let Some(session) = sessions.first() {
                let kept = host.durable().map(|durable| tree::tagged(durable.state().tags().tag(0, 0)));
                members = tree::tagged(session.tag()).await.unwrap_or_default();
                if let Some(kept) = kept {
                    members.extend(kept.await.unwrap_or_default());
                }
            }
            // There may be tens of thousands, too many for a worker of the runtime.
            let held = Arc::clone(&making);
            let collect = move || {
                let list = ProcessList::new(&sessions, &members, identities);
                drop(held);
                Arc::new(list)
            };
            let list = host.compute().run(collect).await;
            if responder.outbox().encoding() == Encoding::Value {
                return responder.ok(host.compute().run(move || list.to_listing()).await);
            }
            let most = host.answers().whole(responder.outbox().account());
            let encode = |room: Allowance| {
                let (list, id, making) = (Arc::clone(&list), number.clone(), Arc::clone(&making));
                host.compute().run(move || {
                    let json = list.encode(&id, room.bytes, most);
                    drop((list, making));
                    json.map(|json| (json, room))
                })
            };
            match answers::within_room(&host, &responder, hint, encode).await {
                Ok((json, share)) => responder.ok_json::<wire::Listing>(json, share),
                Err(error) => responder.error(&error),
            }
        });
    }
}

/// Reads the output of a process: on another thread what is only on the disk, so that a slow disk holds up nothing else.
///
/// What is in memory is read here: output that is streamed and acknowledged in the meantime may be evicted and would
/// become a gap.
async fn read_within(
    process: &Process,
    threads: &ClientThreads,
    request: &Arc<wire::Read>,
    reader: Option<ConnectionId>,
    room: u64,
) -> Result<(wire::ReadReply, AfterSend), ReadError> {
    let mut backoff = Backoff::default();
    loop {
        let stored = match process.stored(request) {
            None => None,
            Some(stored) => {
                let request = Arc::clone(request);
                let read = threads.run(move || stored.read(&request, room)).await;
                match read.unwrap_or_else(|_| Err(ReadError::Unreadable(unreadable(&process.id, None)))) {
                    Err(ReadError::Unreadable(_)) if !process.is_forgotten() && backoff.brief().await => {
                        continue;
                    }
                    read => Some(read?),
                }
            }
        };
        match process.read(request, reader, room, stored) {
            // More came, and the files have to be read again.
            Err(ReadError::OnDisk) => {}
            read => return read,
        }
    }
}

/// Returns the beginning and end of the output of a durable process, which is on the disk.
async fn stored_snapshot(
    process: &Process,
    threads: &ClientThreads,
    max_bytes: Option<u64>,
    room: u64,
) -> Result<wire::SnapshotReply, ReadError> {
    let mut backoff = Backoff::default();
    loop {
        let asked = process.clone();
        let snapshot = threads.run(move || asked.snapshot(max_bytes, room)).await;
        match snapshot.unwrap_or_else(|_| Err(ReadError::Unreadable(unreadable(&process.id, None)))) {
            Err(ReadError::Unreadable(_)) if !process.is_forgotten() && backoff.brief().await => {}
            snapshot => return snapshot,
        }
    }
}

fn not_yours() -> RpcError {
    let message =
        "a process of another identity cannot be restarted, because it would run with what yours may do";
    RpcError::new(ErrorKind::PermissionDenied, message)
        .with_hint("end it with `process/terminate`, and let its owner start it again")
}

fn too_many_searches(limit: usize) -> RpcError {
    let message = format!("this connection already has {limit} waits for output, which is the limit");
    RpcError::new(ErrorKind::LimitExceeded, message).with_hint("cancel some first")
}

//! The state shared by callers, consumers and the connection task: pending calls, event queues, outgoing messages.
//!
//! It does no I/O: `driver.rs` has the task that does. Start at [`Core`].

mod call;
mod call_class;
mod confined;
mod files;
mod host_paths;
mod incoming;
mod oldest;
mod outgoing;
mod pending_reply;
mod process_queues;
mod protocol_errors;
mod queues;
mod repeat;
mod route;
mod slots;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use remex_base::lock;
use remex_proto::{
    Call,
    environment::Info,
    initialize::{Capability, Reply as Welcome},
    sandbox::Sandbox,
    state::pending::{self, AfterDisconnect, Pending},
};
use tokio::sync::{Notify, OnceCell, oneshot, watch};

use crate::{ConnectionState, Error, Options, SessionLost, Target};
use call::{Admission, PendingCall, ReplyTo};
pub(crate) use call::{Body, MessageForm, RawReply};
pub(crate) use call_class::CallClass;
use call_class::class;
use files::OpenFiles;
pub(crate) use host_paths::is_absolute;
use outgoing::Outgoing;
pub(crate) use outgoing::OutgoingItem;
pub(crate) use pending_reply::PendingReply;
use process_queues::ProcessQueues;
use protocol_errors::ProtocolErrors;
use repeat::after_disconnect;
pub(crate) use route::{Route, RouteEvent, RouteKey};
use slots::Slots;

/// A call on its way into the queue, boxed so that no future of a caller holds the request.
type Queueing<'a> = Pin<Box<dyn Future<Output = Result<PendingReply, Error>> + Send + Sync + 'a>>;

/// The maximum length that the id adds to a message.
const ID_BYTES: u64 = 32;

/// The maximum length of all open calls together.
const CALL_BYTES: usize = 64 << 20;

/// Limits all open calls, including those without a caller: reads for event queues, kills, closing of input.
const ALL_CALLS: usize = 8192;

/// The shared state of one client.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) target: Target,
    pub(crate) options: Options,
    /// Callers and consumers register, the connection task completes; locked only briefly.
    state: Mutex<CoreState>,
    /// Wakes the sending task.
    bell: Notify,
    /// Wakes callers that wait because too many calls are open.
    room: Notify,
    slots: Slots,
    files: OnceLock<OpenFiles>,
    pub(crate) connection_state: watch::Sender<ConnectionState>,
    /// Whether the next attempt to reconnect may prompt the user.
    pub(crate) prompt_permit: watch::Sender<bool>,
    /// How messages are passed; the same for every connection of one target.
    mode: OnceLock<MessageForm>,
    /// Whether the connection takes binary messages.
    is_binary: AtomicBool,
    /// The handshake reply of the first connection.
    welcome: OnceLock<Welcome>,
    /// Makes ids unique among clients.
    prefix: String,
    next_name: AtomicU64,
    /// What confines file requests, see [`Client::confine_files`](crate::Client::confine_files).
    files_sandbox: OnceLock<Sandbox>,
    /// The host information of a server that does not send it in the handshake; requested once.
    host_info: OnceCell<Info>,
}

#[derive(Debug)]
struct CoreState {
    pending: Pending<PendingCall>,
    outgoing: Outgoing,
    /// The processes with handles.
    followed: BTreeMap<String, ProcessQueues>,
    /// Running processes without a handle, and their starts as far as known: they must not block on this client.
    unfollowed: BTreeMap<String, Option<u64>>,
    routes: HashMap<RouteKey, Arc<Route>>,
    /// The sessions that someone observes.
    observed: HashSet<String>,
    /// The capabilities enabled on this connection.
    enabled: Enabled,
    /// Counts received messages, to detect silence.
    received: u64,
    /// Counts replies, which prove that the server receives.
    answers: u64,
    protocol_errors: ProtocolErrors,
    /// Counts disconnects: a call sent before one may have been sent twice.
    disconnects: u64,
    /// Counts closes of processes.
    closes: u64,
    end: SessionEnd,
}

/// Whether the owner has ended the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionEnd {
    NotRequested,
    Requested,
    /// The server has ended it, and is about to close the connection.
    Done,
}

/// Capabilities enabled on the connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Enabled {
    cancel: bool,
    consumed: bool,
}

impl Core {
    pub(crate) fn new(target: Target, options: Options) -> Arc<Self> {
        let limits = pending::Limits { calls: ALL_CALLS, bytes: CALL_BYTES };
        Arc::new(Self {
            target,
            options,
            state: Mutex::new(CoreState {
                pending: Pending::new(limits),
                outgoing: Outgoing::default(),
                followed: BTreeMap::new(),
                unfollowed: BTreeMap::new(),
                routes: HashMap::new(),
                observed: HashSet::new(),
                enabled: Enabled::default(),
                received: 0,
                answers: 0,
                protocol_errors: ProtocolErrors::default(),
                disconnects: 0,
                closes: 0,
                end: SessionEnd::NotRequested,
            }),
            bell: Notify::new(),
            room: Notify::new(),
            slots: Slots::new(),
            files: OnceLock::new(),
            connection_state: watch::Sender::new(ConnectionState::Connected),
            prompt_permit: watch::Sender::new(false),
            mode: OnceLock::new(),
            is_binary: AtomicBool::new(false),
            welcome: OnceLock::new(),
            prefix: random_word(),
            next_name: AtomicU64::new(1),
            files_sandbox: OnceLock::new(),
            host_info: OnceCell::new(),
        })
    }

    /// Returns an id that is unique in the session.
    pub(crate) fn name(&self, kind: &str) -> String {
        format!("{kind}-{}-{}", self.prefix, self.number())
    }

    /// Returns a number that is unique in the session.
    pub(crate) fn number(&self) -> u64 {
        self.next_name.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the handshake reply of the first connection.
    pub(crate) fn welcome(&self) -> &Welcome {
        self.welcome.get().expect("a client is handed out after its first handshake")
    }

    /// Returns the limits for open files.
    pub(crate) fn files(&self) -> &OpenFiles {
        self.files.get_or_init(|| OpenFiles::new(self.welcome().limits.handles))
    }

    /// Returns the number of disconnects.
    pub(crate) fn disconnects(&self) -> u64 {
        self.lock().disconnects
    }

    /// Returns what changes whenever a handle that is made later may miss the close of its process.
    pub(crate) fn missed_closes(&self) -> (u64, u64) {
        let state = self.lock();
        (state.disconnects, state.closes)
    }

    /// Records that the owner is ending the session.
    pub(crate) fn request_end(&self) {
        self.lock().end = SessionEnd::Requested;
    }

    /// Returns whether the session was ended by its owner, so that there is nothing to resume.
    pub(crate) fn has_ended(&self) -> bool {
        self.lock().end == SessionEnd::Done
    }

    /// Makes a call and waits for its reply; dropping the future cancels the call.
    pub(crate) fn call(
        self: &Arc<Self>,
        call: Call,
    ) -> impl Future<Output = Result<RawReply, Error>> + use<'_> {
        let queued = self.enqueue(call);
        async move { queued.await?.await }
    }

    /// Makes a call that fails with [`Error::Interrupted`] at a disconnect, even if it could be repeated.
    pub(crate) async fn call_once(self: &Arc<Self>, call: Call) -> Result<RawReply, Error> {
        self.enqueue_for(class(&call), AfterDisconnect::Fail, call).await?.await
    }

    /// Queues a call, in the order in which this function is called.
    pub(crate) fn enqueue(self: &Arc<Self>, call: Call) -> Queueing<'_> {
        let class = class(&call);
        self.enqueue_as(class, call)
    }

    /// Queues a call in the given class.
    pub(crate) fn enqueue_as(self: &Arc<Self>, class: CallClass, call: Call) -> Queueing<'_> {
        let after_disconnect = after_disconnect(&call);
        self.enqueue_for(class, after_disconnect, call)
    }

    fn enqueue_for(
        self: &Arc<Self>,
        class: CallClass,
        after_disconnect: AfterDisconnect,
        call: Call,
    ) -> Queueing<'_> {
        Box::pin(self.resolve_and_queue(class, after_disconnect, call))
    }

    async fn resolve_and_queue(
        self: &Arc<Self>,
        class: CallClass,
        after_disconnect: AfterDisconnect,
        mut call: Call,
    ) -> Result<PendingReply, Error> {
        self.resolve_paths(&mut call).await?;
        let slot = match self.slots.of(class) {
            Some(slots) => Arc::clone(slots).acquire_owned().await.ok(),
            None => None,
        };
        if let Call::ProcessRead(read) = &call {
            self.on_poll(read);
        }
        let (caller, receiver) = oneshot::channel();
        let answer = match &call {
            Call::ProcessRestart(again) if self.is_own(again.session_id.as_deref()) => {
                let (process_id, before) = (again.process_id.clone(), self.queue(&again.process_id));
                ReplyTo::Restart { process_id, before, caller }
            }
            _ => ReplyTo::Caller(caller),
        };
        let method = call.method();
        let body = self.encode(call);
        self.check_length(method, &body)?;
        let mut waiting = PendingCall { method, body, answer, _slot: slot };
        let id = loop {
            let room = self.room.notified();
            let room_wanted =
                if class == CallClass::Control { Admission::Unbounded } else { Admission::WithinLimits };
            match self.register(waiting, after_disconnect, room_wanted)? {
                Ok(id) => break id,
                Err(refused) => waiting = refused,
            }
            room.await;
        };
        Ok(PendingReply { core: Arc::clone(self), id, receiver: Some(receiver) })
    }

    /// Queues a call without a caller; bypasses the limits.
    pub(crate) fn enqueue_unbounded(&self, call: Call) {
        let waiting = PendingCall {
            method: call.method(),
            body: self.encode(call),
            answer: ReplyTo::Discard,
            _slot: None,
        };
        // Only a lost session refuses it, and then its subject no longer exists.
        let _ = self.register(waiting, AfterDisconnect::Resend, Admission::Unbounded);
    }

    /// Rejects a message that is too long for the server.
    fn check_length(&self, method: &'static str, body: &Body) -> Result<(), Error> {
        let limit = self.welcome().limits.message_bytes;
        if matches!(body, Body::Memory(_)) {
            return Ok(());
        }
        let bytes = body.len() as u64 + ID_BYTES;
        if limit > 0 && bytes > limit { Err(Error::TooLong { method, bytes, limit }) } else { Ok(()) }
    }

    /// Registers a call; returns it when the limits are reached.
    fn register(
        &self,
        waiting: PendingCall,
        after_disconnect: AfterDisconnect,
        room: Admission,
    ) -> Result<Result<u64, PendingCall>, Error> {
        let len = waiting.body.len();
        let mut state = self.lock();
        let registered = match room {
            Admission::WithinLimits => state.pending.register(waiting, len, after_disconnect),
            Admission::Unbounded => state.pending.register_unbounded(waiting, len, after_disconnect),
        };
        let id = match registered {
            Ok(id) => id,
            Err(pending::Refused::Full(waiting)) => return Ok(Err(waiting)),
            Err(pending::Refused::Abandoned(_)) => return Err(self.lost_error()),
        };
        state.outgoing.requests.push_back(id);
        drop(state);
        self.bell.notify_one();
        Ok(Ok(id))
    }

    /// Confines all file requests from now on; the first sandbox stays.
    pub(crate) fn confine_files(&self, sandbox: Sandbox) {
        let _ = self.files_sandbox.set(sandbox);
    }

    fn encode(&self, mut call: Call) -> Body {
        if let Some(sandbox) = self.files_sandbox.get() {
            confined::confine(&mut call, sandbox);
        }
        let trace = crate::base::trace::current().or_else(|| self.options.trace.clone());
        if self.mode.get() == Some(&MessageForm::Memory) {
            return Body::Memory(Some((Box::new(call), trace.map(Box::new))));
        }
        let uses_plain_paths = self.welcome.get().is_some_and(|welcome| !welcome.has_sessions());
        Body::encode(call, trace, uses_plain_paths, self.is_binary())
    }

    /// Returns whether the connection takes binary messages.
    pub(crate) fn is_binary(&self) -> bool {
        self.is_binary.load(Ordering::Relaxed)
    }

    /// Removes and cancels a call whose caller was dropped.
    fn forget(&self, id: u64) {
        let mut state = self.lock();
        if state.pending.complete(id).is_none() {
            return;
        }
        if let Some(at) = state.outgoing.requests.iter().position(|waiting| *waiting == id) {
            state.outgoing.requests.remove(at);
        } else if state.enabled.cancel {
            state.outgoing.cancels.push_back(id);
        }
        drop(state);
        self.bell.notify_one();
        self.room.notify_waiters();
    }

    /// Adds a route; must precede the request that opens it. It ends with the connection.
    pub(crate) fn add_route(&self, key: RouteKey, route: &Arc<Route>) {
        let mut state = self.lock();
        if let ConnectionState::Lost(loss) = &*self.connection_state.borrow() {
            return route.end(RouteEvent::Lost(loss.clone()));
        }
        state.routes.insert(key, Arc::clone(route));
    }

    /// Claims a session for one observer; returns whether it was free.
    pub(crate) fn claim_session(&self, session_id: &str) -> bool {
        self.lock().observed.insert(session_id.to_owned())
    }

    pub(crate) fn release_session(&self, session_id: &str) {
        self.lock().observed.remove(session_id);
    }

    pub(crate) fn remove_route(&self, key: &RouteKey) {
        self.lock().routes.remove(key);
    }

    // Called by the connection task.

    /// Handles a new connection: sends pending calls, and reads events that the queues have missed.
    pub(crate) fn on_connected(&self, welcome: &Welcome, mode: MessageForm) -> Result<(), Error> {
        if *self.mode.get_or_init(|| mode) != mode {
            return Err(Error::Protocol { what: "the target changed its kind of transport".to_owned() });
        }
        let _ = self.welcome.set(welcome.clone());
        let is_binary = welcome.capabilities.enabled.contains(&Capability::BinaryFrames);
        self.is_binary.store(is_binary, Ordering::Relaxed);
        let limit = welcome.limits.message_bytes;
        let len = |body: &Body| (if is_binary { body.len() } else { body.json_len() }) as u64 + ID_BYTES;
        let (earlier, queues, unfollowed, too_long): (Vec<_>, Vec<_>, Vec<_>, Vec<_>) = {
            let mut state = self.lock();
            let CoreState { pending, outgoing, .. } = &mut *state;
            *outgoing = Outgoing::default();
            // As base64, what was short enough before may be too long for this server.
            let (fits, too_long): (Vec<_>, Vec<_>) = pending
                .connect()
                .map(|(id, call)| (id, len(&call.body)))
                .partition(|(_, len)| limit == 0 || *len <= limit);
            outgoing.requests.extend(fits.into_iter().map(|(id, _)| id));
            let too_long =
                too_long.into_iter().filter_map(|(id, len)| Some((pending.complete(id)?, len))).collect();
            let enabled = &welcome.capabilities.enabled;
            state.enabled = Enabled {
                cancel: enabled.contains(&Capability::Cancel),
                consumed: enabled.contains(&Capability::Consumed),
            };
            (
                // A handle on the process after them may be from after the disconnect.
                state.followed.values_mut().flat_map(ProcessQueues::take_earlier).collect(),
                state.followed.values().filter_map(ProcessQueues::newest).cloned().collect(),
                // Any of them may have been restarted meanwhile.
                state
                    .unfollowed
                    .iter_mut()
                    .map(|(id, incarnation)| (*incarnation = None, id.clone()).1)
                    .collect(),
                too_long,
            )
        };
        for (call, bytes) in too_long {
            let error = Error::TooLong { method: call.method, bytes, limit };
            call.complete(self, Err(error));
        }
        for queue in earlier {
            queue.on_succeeded();
        }
        for queue in queues {
            self.resume_queue(&queue);
        }
        for process_id in unfollowed {
            self.skip_output(process_id);
        }
        self.connection_state.send_replace(ConnectionState::Connected);
        self.bell.notify_one();
        Ok(())
    }

    /// Handles a disconnect: fails the calls that cannot be repeated.
    pub(crate) fn on_disconnected(&self, since: tokio::time::Instant, cause: &Error) {
        let (failed, routes, earlier, queues): (_, Vec<_>, Vec<_>, Vec<_>) = {
            let mut state = self.lock();
            state.outgoing = Outgoing::default();
            state.disconnects += 1;
            (
                state.pending.disconnect(),
                state.routes.drain().map(|(_, route)| route).collect(),
                state.followed.values_mut().flat_map(ProcessQueues::take_earlier).collect(),
                state.followed.values().filter_map(ProcessQueues::newest).cloned().collect(),
            )
        };
        let cause = Box::new(cause.clone());
        self.connection_state.send_replace(ConnectionState::Reconnecting { since, cause, attempts: 0 });
        for queue in earlier {
            queue.on_succeeded();
        }
        for queue in queues {
            queue.on_disconnect();
        }
        for (_, waiting) in failed {
            let error = Error::Interrupted { method: waiting.method };
            waiting.complete(self, Err(error));
        }
        for route in routes {
            route.end(RouteEvent::Disconnected);
        }
        self.room.notify_waiters();
    }

    /// Records why an attempt to reconnect failed.
    pub(crate) fn on_attempt_failed(&self, error: &Error) {
        self.connection_state.send_modify(|state| {
            if let ConnectionState::Reconnecting { cause, attempts, .. } = state {
                **cause = error.clone();
                *attempts += 1;
            }
        });
    }

    /// Handles the loss of the session: fails everything that waits.
    pub(crate) fn on_lost(&self, loss: &SessionLost) {
        self.connection_state.send_replace(ConnectionState::Lost(loss.clone()));
        let (failed, routes, followed) = {
            let mut state = self.lock();
            (state.pending.abandon(), std::mem::take(&mut state.routes), std::mem::take(&mut state.followed))
        };
        for (_, waiting) in failed {
            waiting.complete(self, Err(loss.clone().into()));
        }
        for route in routes.into_values() {
            route.end(RouteEvent::Lost(loss.clone()));
        }
        for queue in followed.into_values().flat_map(ProcessQueues::into_queues) {
            queue.fail(&loss.clone().into());
        }
        self.room.notify_waiters();
    }

    fn lost_error(&self) -> Error {
        match &*self.connection_state.borrow() {
            ConnectionState::Lost(loss) => loss.clone().into(),
            ConnectionState::Connected | ConnectionState::Reconnecting { .. } => SessionLost::Closed.into(),
        }
    }

    /// Counts a reply.
    pub(crate) fn on_answer(&self) {
        self.lock().answers += 1;
    }

    /// Returns the number of replies.
    pub(crate) fn answers(&self) -> u64 {
        self.lock().answers
    }

    /// Counts a received message.
    pub(crate) fn on_receive(&self) {
        self.lock().received += 1;
    }

    /// Returns the number of received messages.
    pub(crate) fn received(&self) -> u64 {
        self.lock().received
    }

    fn lock(&self) -> MutexGuard<'_, CoreState> {
        lock(&self.state)
    }
}

pub(crate) fn random_word() -> String {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("the kernel provides random bytes");
    format!("{:016x}", u64::from_ne_bytes(bytes))
}

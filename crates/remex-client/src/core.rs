//! The state shared by callers, consumers and the connection task: pending calls, event queues, outgoing messages.
//!
//! It does no I/O: `engine.rs` has the task that does. Start at [`Core`].

mod call_class;
mod files;
mod incoming;
mod outgoing;
mod pending_reply;
mod protocol_errors;
mod repeat;
mod route;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use remex_proto::{
    Call,
    initialize::{Capability, Reply as Welcome},
    process as wire,
    state::pending::{self, AfterDisconnect, Pending},
};
use remex_rpc::memory::Reply;
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot, watch};

use crate::{
    ConnectionState, Error, Options, SessionLost, Target,
    error::is_unknown_process,
    event_queue::{EventQueue, QueueAction},
};
pub(crate) use call_class::CallClass;
use call_class::class;
use files::OpenFiles;
use outgoing::Outgoing;
pub(crate) use outgoing::OutgoingItem;
pub(crate) use pending_reply::PendingReply;
use protocol_errors::ProtocolErrors;
use repeat::after_disconnect;
pub(crate) use route::{Route, RouteEvent, RouteKey};

/// How many calls of each kind may be open; together fewer than the 1,024 at which a server stops reading.
const CALLS: usize = 128;
const FILE_CALLS: usize = 256;
const PARKED_CALLS: usize = 384;

/// The cursor of a read that only asks how far a process is.
pub(crate) const AFTER_EVERYTHING: u64 = u64::MAX - 1;

/// The longest beginning of a message, with its id.
const ID_BYTES: u64 = 32;

/// How much they may have together.
const CALL_BYTES: usize = 64 << 20;

/// Limits all open calls, including those without a caller: reads for event queues, kills, closing of input.
const ALL_CALLS: usize = 8192;

/// What one client shares.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) target: Target,
    pub(crate) options: Options,
    /// Callers and consumers register, the task with the connection completes; held for moments only.
    state: Mutex<State>,
    /// Rings the task that sends.
    bell: Notify,
    /// Rings callers that found too many bytes waiting.
    room: Notify,
    slots: Slots,
    files: OnceLock<OpenFiles>,
    pub(crate) connection_state: watch::Sender<ConnectionState>,
    /// How messages travel; every connection of one target does it alike.
    mode: OnceLock<MessageForm>,
    /// What the server said when the session began.
    welcome: OnceLock<Welcome>,
    /// Makes ids unique among clients.
    prefix: String,
    next_name: AtomicU64,
}

/// Limits how many calls of each class may be open, so that slow calls block only their own class.
#[derive(Debug)]
struct Slots {
    plain: Arc<Semaphore>,
    /// A path may hang.
    files: Arc<Semaphore>,
    /// A process may take no input, and a wait may be long.
    parked: Arc<Semaphore>,
}

impl Slots {
    fn of(&self, class: CallClass) -> Option<&Arc<Semaphore>> {
        match class {
            CallClass::Control => None,
            CallClass::Plain => Some(&self.plain),
            CallClass::Files => Some(&self.files),
            CallClass::Parked => Some(&self.parked),
        }
    }
}

#[derive(Debug)]
struct State {
    pending: Pending<PendingCall>,
    outgoing: Outgoing,
    queues: BTreeMap<String, Arc<EventQueue>>,
    /// Running processes without a handle: they must not block on this client.
    unfollowed: BTreeSet<String>,
    routes: HashMap<RouteKey, Arc<Route>>,
    /// What the server does for this connection.
    enabled: Enabled,
    /// Counts what arrived, to notice silence.
    received: u64,
    /// Counts answers, which prove that the server hears.
    answers: u64,
    protocol_errors: ProtocolErrors,
    /// Counts cuts: what was sent before one may have been sent twice.
    disconnects: u64,
    end: SessionEnd,
}

/// How far the owner has got with ending the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionEnd {
    NotRequested,
    Requested,
    /// The server has ended it, and closes the connection next.
    Done,
}

/// What was switched on for the connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Enabled {
    cancel: bool,
    consumed: bool,
}

/// Whether a call waits until the limits admit it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Admission {
    WithinLimits,
    /// The call must not be delayed or dropped, such as a kill.
    Unbounded,
}

/// How messages travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageForm {
    Wire,
    Memory,
}

/// A call that waits for its answer.
#[derive(Debug)]
struct PendingCall {
    method: &'static str,
    body: Body,
    answer: ReplyTo,
    /// Counts against the calls that may be open.
    _slot: Option<OwnedSemaphorePermit>,
}

/// A call on its way.
#[derive(Debug)]
pub(crate) enum Body {
    /// A request but for its id; kept, because it may have to be sent again.
    Wire(Bytes),
    /// Taken when it is sent.
    Memory(Option<Box<Call>>),
}

/// Who waits for an answer.
#[derive(Debug)]
enum ReplyTo {
    Caller(oneshot::Sender<Result<RawReply, Error>>),
    /// A read that a feed asked for.
    Queue(Arc<EventQueue>),
    /// A read of the position of a process without a handle.
    Unfollowed(String),
    Nobody,
}

/// An answer as it came.
#[derive(Debug)]
pub(crate) enum RawReply {
    /// The member `result`.
    Json(Bytes),
    Value(Reply),
}

impl RawReply {
    pub(crate) fn decode<R: DeserializeOwned + 'static>(self, method: &'static str) -> Result<R, Error> {
        let nonsense = |why: &dyn std::fmt::Display| Error::Protocol {
            what: format!("the answer to `{method}` does not decode: {why}"),
        };
        match self {
            RawReply::Json(json) => serde_json::from_slice(&json).map_err(|error| nonsense(&error)),
            RawReply::Value(reply) => reply.take().ok_or_else(|| nonsense(&"it has another type")),
        }
    }
}

impl Core {
    pub(crate) fn new(target: Target, options: Options) -> Arc<Self> {
        let limits = pending::Limits { calls: ALL_CALLS, bytes: CALL_BYTES };
        Arc::new(Self {
            target,
            options,
            state: Mutex::new(State {
                pending: Pending::new(limits),
                outgoing: Outgoing::default(),
                queues: BTreeMap::new(),
                unfollowed: BTreeSet::new(),
                routes: HashMap::new(),
                enabled: Enabled::default(),
                received: 0,
                answers: 0,
                protocol_errors: ProtocolErrors::default(),
                disconnects: 0,
                end: SessionEnd::NotRequested,
            }),
            bell: Notify::new(),
            room: Notify::new(),
            slots: Slots {
                plain: Arc::new(Semaphore::new(CALLS)),
                files: Arc::new(Semaphore::new(FILE_CALLS)),
                parked: Arc::new(Semaphore::new(PARKED_CALLS)),
            },
            files: OnceLock::new(),
            connection_state: watch::Sender::new(ConnectionState::Connected),
            mode: OnceLock::new(),
            welcome: OnceLock::new(),
            prefix: random_word(),
            next_name: AtomicU64::new(1),
        })
    }

    /// Returns a word that no other thing of the session has.
    pub(crate) fn name(&self, kind: &str) -> String {
        format!("{kind}-{}-{}", self.prefix, self.number())
    }

    /// Returns a number that no other thing of the session has.
    pub(crate) fn number(&self) -> u64 {
        self.next_name.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns what the server said when the session began.
    pub(crate) fn welcome(&self) -> &Welcome {
        self.welcome.get().expect("a client is handed out after its first handshake")
    }

    /// Returns the room for open files.
    pub(crate) fn files(&self) -> &OpenFiles {
        self.files.get_or_init(|| OpenFiles::new(self.welcome().limits.handles))
    }

    /// Returns how often the connection was cut.
    pub(crate) fn disconnects(&self) -> u64 {
        self.lock().disconnects
    }

    /// Notes that the owner ends the session.
    pub(crate) fn request_end(&self) {
        self.lock().end = SessionEnd::Requested;
    }

    /// Tells whether the session has ended as its owner wished, so that there is nothing to recover.
    pub(crate) fn has_ended(&self) -> bool {
        self.lock().end == SessionEnd::Done
    }

    /// Makes a call and waits for its answer; dropped, the call is forgotten and cancelled.
    pub(crate) async fn call(self: &Arc<Self>, call: Call) -> Result<RawReply, Error> {
        self.enqueue(call).await?.await
    }

    /// Makes a call, in the order of the calls to this function; the ticket has the answer.
    pub(crate) async fn enqueue(self: &Arc<Self>, call: Call) -> Result<PendingReply, Error> {
        let class = class(&call);
        self.enqueue_as(class, call).await
    }

    /// Makes a call in a lane of the caller's choice.
    pub(crate) async fn enqueue_as(
        self: &Arc<Self>,
        class: CallClass,
        call: Call,
    ) -> Result<PendingReply, Error> {
        let slot = match self.slots.of(class) {
            Some(slots) => Arc::clone(slots).acquire_owned().await.ok(),
            None => None,
        };
        if let Call::ProcessRead(read) = &call {
            self.on_poll(read);
        }
        let method = call.method();
        let after_disconnect = after_disconnect(&call);
        let body = self.encode(call);
        self.check_length(method, &body)?;
        let (answer, receiver) = oneshot::channel();
        let mut waiting = PendingCall { method, body, answer: ReplyTo::Caller(answer), _slot: slot };
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

    /// Makes a call without a caller; it bypasses the limits.
    pub(crate) fn enqueue_unbounded(&self, call: Call) {
        let waiting = PendingCall {
            method: call.method(),
            body: self.encode(call),
            answer: ReplyTo::Nobody,
            _slot: None,
        };
        // Only a lost session refuses it, and with that everything it could be about is gone.
        let _ = self.register(waiting, AfterDisconnect::Resend, Admission::Unbounded);
    }

    /// Notes the position of a caller that polls a process with `process/read`.
    fn on_poll(&self, read: &wire::Read) {
        let is_ours = read.session_id.as_ref().is_none_or(|id| *id == self.welcome().session_id);
        let Some(seq) = read.after_seq.filter(|seq| is_ours && *seq != AFTER_EVERYTHING) else { return };
        let queue = self.lock().queues.get(&read.process_id).cloned();
        if let Some(queue) = queue {
            let action = queue.on_poll(seq);
            self.perform(&queue, action);
        }
    }

    fn read_for_queue(&self, queue: &Arc<EventQueue>, read: wire::Read) {
        let waiting = PendingCall {
            method: "process/read",
            body: self.encode(read.into()),
            answer: ReplyTo::Queue(Arc::clone(queue)),
            _slot: None,
        };
        // A feed has one read under way at most.
        let _ = self.register(waiting, AfterDisconnect::Fail, Admission::Unbounded);
    }

    /// Refuses what the server would refuse, or not even answer.
    fn check_length(&self, method: &'static str, body: &Body) -> Result<(), Error> {
        let limit = self.welcome().limits.message_bytes;
        let Body::Wire(body) = body else { return Ok(()) };
        let bytes = body.len() as u64 + ID_BYTES;
        if limit > 0 && bytes > limit { Err(Error::TooLong { method, bytes, limit }) } else { Ok(()) }
    }

    /// Registers a call; gives it back when there is no room.
    fn register(
        &self,
        waiting: PendingCall,
        after_disconnect: AfterDisconnect,
        room: Admission,
    ) -> Result<Result<u64, PendingCall>, Error> {
        let len = match &waiting.body {
            Body::Wire(body) => body.len(),
            Body::Memory(_) => 0,
        };
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

    fn encode(&self, call: Call) -> Body {
        if self.mode.get() == Some(&MessageForm::Memory) {
            return Body::Memory(Some(Box::new(call)));
        }
        let mut body = Vec::with_capacity(256);
        call.write_body(&mut body);
        Body::Wire(body.into())
    }

    /// Forgets a call whose caller has lost interest.
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

    /// Adds the feed of a process, before anything can be said about it.
    pub(crate) fn add_queue(&self, queue: &Arc<EventQueue>) -> Result<(), Error> {
        let mut state = self.lock();
        if let ConnectionState::Lost(loss) = &*self.connection_state.borrow() {
            return Err(loss.clone().into());
        }
        if state.queues.contains_key(&queue.id) {
            return Err(Error::Usage(format!(
                "this client has a handle on process `{}` already; clone it",
                queue.id
            )));
        }
        state.unfollowed.remove(&queue.id);
        state.queues.insert(queue.id.clone(), Arc::clone(queue));
        Ok(())
    }

    pub(crate) fn remove_queue(&self, queue: &EventQueue) {
        let is_closed = queue.known().closed.is_some();
        let mut state = self.lock();
        state.queues.remove(&queue.id);
        if is_closed {
            return;
        }
        // Nobody will use up what comes, so nothing of it may hold up the process.
        state.unfollowed.insert(queue.id.clone());
        drop(state);
        self.skip_output(queue.id.clone());
    }

    /// Acknowledges the output of a process without a handle, so that the server may drop it.
    ///
    /// What it says from now on is passed over as it comes.
    fn skip_output(&self, process_id: String) {
        if !self.lock().enabled.consumed {
            return;
        }
        let look = wire::Read {
            process_id: process_id.clone(),
            session_id: None,
            after_seq: Some(AFTER_EVERYTHING),
            max_bytes: Some(0),
            wait_ms: None,
        };
        let waiting = PendingCall {
            method: "process/read",
            body: self.encode(look.into()),
            answer: ReplyTo::Unfollowed(process_id),
            _slot: None,
        };
        // After a cut the next connection brings another look.
        let _ = self.register(waiting, AfterDisconnect::Fail, Admission::Unbounded);
    }

    fn on_unfollowed_reply(&self, process_id: &str, answer: Result<wire::ReadReply, Error>) {
        let is_over = match &answer {
            Ok(reply) => reply.closed,
            Err(error) => is_unknown_process(error),
        };
        let mut state = self.lock();
        if is_over {
            state.unfollowed.remove(process_id);
        } else if let Ok(reply) = answer
            // If a handle exists again, its consumers have not consumed the earlier output.
            && state.unfollowed.contains(process_id)
        {
            drop(state);
            self.consumed(process_id, reply.next_seq.saturating_sub(1));
        }
    }

    /// Does what a feed wants done.
    pub(crate) fn perform(&self, queue: &Arc<EventQueue>, action: QueueAction) {
        if let Some(seq) = action.consumed {
            self.consumed(&queue.id, seq);
        }
        if let Some(read) = action.read {
            self.read_for_queue(queue, read);
        }
    }

    /// Adds a route, before anything can arrive on it. It ends with the connection.
    pub(crate) fn add_route(&self, key: RouteKey, route: &Arc<Route>) {
        let mut state = self.lock();
        if let ConnectionState::Lost(loss) = &*self.connection_state.borrow() {
            return route.end(RouteEvent::Lost(loss.clone()));
        }
        state.routes.insert(key, Arc::clone(route));
    }

    pub(crate) fn remove_route(&self, key: &RouteKey) {
        self.lock().routes.remove(key);
    }

    // What the task with the connection does.

    /// Notes that a connection stands: sends what waits, and looks for what the queues have missed.
    pub(crate) fn on_connected(&self, welcome: &Welcome, mode: MessageForm) -> Result<(), Error> {
        if *self.mode.get_or_init(|| mode) != mode {
            return Err(Error::Protocol { what: "the way to the server changed its kind".to_owned() });
        }
        let _ = self.welcome.set(welcome.clone());
        let (queues, unfollowed): (Vec<_>, Vec<_>) = {
            let mut state = self.lock();
            let State { pending, outgoing, .. } = &mut *state;
            *outgoing = Outgoing::default();
            outgoing.requests.extend(pending.connect().map(|(id, _)| id));
            let enabled = &welcome.capabilities.enabled;
            state.enabled = Enabled {
                cancel: enabled.contains(&Capability::Cancel),
                consumed: enabled.contains(&Capability::Consumed),
            };
            (state.queues.values().cloned().collect(), state.unfollowed.iter().cloned().collect())
        };
        for queue in queues {
            let action = queue.on_reconnect();
            self.perform(&queue, action);
        }
        for process_id in unfollowed {
            self.skip_output(process_id);
        }
        self.connection_state.send_replace(ConnectionState::Connected);
        self.bell.notify_one();
        Ok(())
    }

    /// Notes that the connection was cut: calls that cannot be repeated end here.
    pub(crate) fn on_disconnected(&self, since: tokio::time::Instant) {
        let (failed, routes, queues): (_, Vec<_>, Vec<_>) = {
            let mut state = self.lock();
            state.outgoing = Outgoing::default();
            state.disconnects += 1;
            (
                state.pending.disconnect(),
                state.routes.drain().map(|(_, route)| route).collect(),
                state.queues.values().cloned().collect(),
            )
        };
        self.connection_state.send_replace(ConnectionState::Reconnecting { since });
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

    /// Notes that there will be no further connection: everything that waits ends with the cause.
    pub(crate) fn on_lost(&self, loss: &SessionLost) {
        self.connection_state.send_replace(ConnectionState::Lost(loss.clone()));
        let (failed, routes, queues) = {
            let mut state = self.lock();
            (state.pending.abandon(), std::mem::take(&mut state.routes), std::mem::take(&mut state.queues))
        };
        for (_, waiting) in failed {
            waiting.complete(self, Err(loss.clone().into()));
        }
        for route in routes.into_values() {
            route.end(RouteEvent::Lost(loss.clone()));
        }
        for queue in queues.into_values() {
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

    /// Notes that the server answered: it hears.
    pub(crate) fn on_answer(&self) {
        self.lock().answers += 1;
    }

    /// Returns how often the server answered.
    pub(crate) fn answers(&self) -> u64 {
        self.lock().answers
    }

    /// Notes that something arrived.
    pub(crate) fn on_receive(&self) {
        self.lock().received += 1;
    }

    /// Returns a number that changes when something arrives.
    pub(crate) fn received(&self) -> u64 {
        self.lock().received
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingCall {
    fn complete(self, core: &Core, outcome: Result<RawReply, Error>) {
        match self.answer {
            ReplyTo::Caller(caller) => drop(caller.send(outcome)),
            ReplyTo::Queue(queue) => {
                let action = queue.on_read_reply(outcome.and_then(|arrived| arrived.decode("process/read")));
                core.perform(&queue, action);
            }
            ReplyTo::Unfollowed(process_id) => {
                core.on_unfollowed_reply(
                    &process_id,
                    outcome.and_then(|arrived| arrived.decode("process/read")),
                );
            }
            ReplyTo::Nobody => {}
        }
    }
}

pub(crate) fn random_word() -> String {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("a kernel that runs programs has random bytes");
    format!("{:016x}", u64::from_ne_bytes(bytes))
}

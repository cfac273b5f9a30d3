//! What callers, consumers and the task with the connection share: open calls, feeds, what is to be sent.
//!
//! It does no I/O: `engine.rs` has the task that does. Start at [`Core`].

mod route;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
};

use bytes::Bytes;
use remex_proto::{
    Call, ClientNote, ErrorKind, Message, MessageLimits, RequestId, RpcError, ServerNote,
    call::Request as _,
    flow,
    initialize::{Capability, Reply as Welcome},
    process as wire, request, session,
    state::pending::{self, AfterCut, Pending},
};
use remex_rpc::memory::{Reply, ToClient};
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot, watch};

use crate::{
    Condition, Error, Loss, Options, Target,
    process::feed::{Feed, Order},
};
pub(crate) use route::{Route, RouteKey, Routed};

/// How many calls callers may have open; fewer than a server lets wait before it stops reading.
const CALLS: usize = 512;

/// How much they may have together.
const CALL_BYTES: usize = 64 << 20;

/// How many calls may be open with those that nobody waits for: reads of feeds, kills, ends of input.
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
    slots: Arc<Semaphore>,
    pub(crate) condition: watch::Sender<Condition>,
    /// How messages travel; every connection of one target does it alike.
    mode: OnceLock<Mode>,
    /// What the server said when the session began.
    welcome: OnceLock<Welcome>,
    /// Makes ids unique among clients.
    prefix: String,
    next_name: AtomicU64,
}

#[derive(Debug)]
struct State {
    pending: Pending<Waiting>,
    outgoing: Outgoing,
    feeds: BTreeMap<String, Arc<Feed>>,
    /// Processes that go on and that nobody follows: they must not wait for this client.
    unfollowed: BTreeSet<String>,
    routes: HashMap<RouteKey, Arc<Route>>,
    /// What the server does for this connection.
    enabled: Enabled,
    /// Counts what arrived, to notice silence.
    heard: u64,
    /// Counts answers, which prove that the server hears.
    answers: u64,
    /// Counts cuts: what was sent before one may have been sent twice.
    cuts: u64,
    end: End,
}

/// How far the owner has got with ending the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    NotAsked,
    Asked,
    /// The server has ended it, and closes the connection next.
    Done,
}

/// What was switched on for the connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Enabled {
    cancel: bool,
    consumed: bool,
}

/// What is to be sent, in this order but for the requests, which come last.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    /// The answer to the last ping.
    pub(crate) pong: Option<Bytes>,
    /// A sign of life is wanted.
    pub(crate) ping: bool,
    /// The newest mark.
    ack: Option<u64>,
    /// How far the consumers of each process have got.
    consumed: BTreeMap<String, u64>,
    /// How far the readers of each body have got.
    body_consumed: BTreeMap<String, u64>,
    cancels: VecDeque<u64>,
    requests: VecDeque<u64>,
}

/// How messages travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Wire,
    Memory,
}

/// A call that waits for its answer.
#[derive(Debug)]
struct Waiting {
    method: &'static str,
    body: Body,
    answer: Answer,
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
enum Answer {
    Caller(oneshot::Sender<Result<Arrived, Error>>),
    /// A read that a feed asked for.
    Feed(Arc<Feed>),
    /// A look at how far a process that nobody follows has got.
    Unfollowed(String),
    Nobody,
}

/// An answer as it came.
#[derive(Debug)]
pub(crate) enum Arrived {
    /// The member `result`.
    Json(Bytes),
    Value(Reply),
}

impl Arrived {
    pub(crate) fn decode<R: DeserializeOwned + 'static>(self, method: &'static str) -> Result<R, Error> {
        let nonsense = |why: &dyn std::fmt::Display| Error::Protocol {
            what: format!("the answer to `{method}` does not decode: {why}"),
        };
        match self {
            Arrived::Json(json) => serde_json::from_slice(&json).map_err(|error| nonsense(&error)),
            Arrived::Value(reply) => reply.take().ok_or_else(|| nonsense(&"it has another type")),
        }
    }
}

/// One thing to send.
pub(crate) enum Item {
    Ping,
    Pong(Bytes),
    Note(ClientNote),
    Request(u64, Body),
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
                feeds: BTreeMap::new(),
                unfollowed: BTreeSet::new(),
                routes: HashMap::new(),
                enabled: Enabled::default(),
                heard: 0,
                answers: 0,
                cuts: 0,
                end: End::NotAsked,
            }),
            bell: Notify::new(),
            room: Notify::new(),
            slots: Arc::new(Semaphore::new(CALLS)),
            condition: watch::Sender::new(Condition::Connected),
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

    /// Returns how often the connection was cut.
    pub(crate) fn cuts(&self) -> u64 {
        self.lock().cuts
    }

    /// Notes that the owner ends the session.
    pub(crate) fn ask_to_end(&self) {
        self.lock().end = End::Asked;
    }

    /// Tells whether the session has ended as its owner wished, so that there is nothing to recover.
    pub(crate) fn has_ended(&self) -> bool {
        self.lock().end == End::Done
    }

    /// Makes a call and waits for its answer; dropped, the call is forgotten and cancelled.
    pub(crate) async fn ask(self: &Arc<Self>, call: Call) -> Result<Arrived, Error> {
        self.order(call).await?.await
    }

    /// Makes a call, in the order of the calls to this function; the ticket has the answer.
    pub(crate) async fn order(self: &Arc<Self>, call: Call) -> Result<Ticket, Error> {
        let slot = Arc::clone(&self.slots).acquire_owned().await.ok();
        let method = call.method();
        let after_cut = after_cut(&call);
        let (answer, receiver) = oneshot::channel();
        let mut waiting =
            Waiting { method, body: self.encode(call), answer: Answer::Caller(answer), _slot: slot };
        let id = loop {
            let room = self.room.notified();
            match self.register(waiting, after_cut)? {
                Ok(id) => break id,
                Err(refused) => waiting = refused,
            }
            room.await;
        };
        Ok(Ticket { core: Arc::clone(self), id, receiver: Some(receiver) })
    }

    /// Makes a call that nobody waits for; it is sent at once, whatever else waits.
    pub(crate) fn order_now(&self, call: Call) {
        let waiting =
            Waiting { method: call.method(), body: self.encode(call), answer: Answer::Nobody, _slot: None };
        // Only a lost session refuses it, and with that everything it could be about is gone.
        let _ = self.register(waiting, AfterCut::Resend);
    }

    fn read_feed(&self, feed: &Arc<Feed>, read: wire::Read) {
        let waiting = Waiting {
            method: "process/read",
            body: self.encode(read.into()),
            answer: Answer::Feed(Arc::clone(feed)),
            _slot: None,
        };
        if !matches!(self.register(waiting, AfterCut::Fail), Ok(Ok(_))) {
            feed.interrupt();
        }
    }

    /// Registers a call; gives it back when there is no room.
    fn register(&self, waiting: Waiting, after_cut: AfterCut) -> Result<Result<u64, Waiting>, Error> {
        let len = match &waiting.body {
            Body::Wire(body) => body.len(),
            Body::Memory(_) => 0,
        };
        let mut state = self.lock();
        let id = match state.pending.register(waiting, len, after_cut) {
            Ok(id) => id,
            Err(pending::Refused::Full(waiting)) => return Ok(Err(waiting)),
            Err(pending::Refused::Abandoned(_)) => return Err(self.loss()),
        };
        state.outgoing.requests.push_back(id);
        drop(state);
        self.bell.notify_one();
        Ok(Ok(id))
    }

    fn encode(&self, call: Call) -> Body {
        if self.mode.get() == Some(&Mode::Memory) {
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

    /// Ends what an answered call has left behind, where the server can be told.
    pub(crate) fn cancel(&self, id: u64) {
        let mut state = self.lock();
        if state.enabled.cancel {
            state.outgoing.cancels.push_back(id);
            drop(state);
            self.bell.notify_one();
        }
    }

    /// Adds the feed of a process, before anything can be said about it.
    pub(crate) fn add_feed(&self, feed: &Arc<Feed>) -> Result<(), Error> {
        let mut state = self.lock();
        if let Condition::Lost(loss) = &*self.condition.borrow() {
            return Err(loss.clone().into());
        }
        if state.feeds.contains_key(&feed.id) {
            return Err(Error::Usage(format!(
                "this client has a handle on process `{}` already; clone it",
                feed.id
            )));
        }
        state.unfollowed.remove(&feed.id);
        state.feeds.insert(feed.id.clone(), Arc::clone(feed));
        Ok(())
    }

    pub(crate) fn remove_feed(&self, feed: &Feed) {
        let is_closed = feed.known().closed.is_some();
        let mut state = self.lock();
        state.feeds.remove(&feed.id);
        if is_closed {
            return;
        }
        // Nobody will use up what comes, so nothing of it may hold up the process.
        state.unfollowed.insert(feed.id.clone());
        drop(state);
        self.pass_over(feed.id.clone());
    }

    /// Lets the server forget what a process has said that nobody follows.
    ///
    /// What it says from now on is passed over as it comes.
    fn pass_over(&self, process_id: String) {
        if !self.lock().enabled.consumed {
            return;
        }
        let look = wire::Read {
            process_id: process_id.clone(),
            session_id: None,
            after_seq: Some(u64::MAX - 1),
            max_bytes: Some(0),
            wait_ms: None,
        };
        let waiting = Waiting {
            method: "process/read",
            body: self.encode(look.into()),
            answer: Answer::Unfollowed(process_id),
            _slot: None,
        };
        // Without room, or a connection, the next connection brings another look.
        let _ = self.register(waiting, AfterCut::Fail);
    }

    fn hear_unfollowed(&self, process_id: &str, answer: Result<wire::ReadReply, Error>) {
        let is_over = match &answer {
            Ok(reply) => reply.closed,
            Err(error) => is_unknown_process(error),
        };
        if is_over {
            self.lock().unfollowed.remove(process_id);
        } else if let Ok(reply) = answer {
            self.consumed(process_id, reply.next_seq.saturating_sub(1));
        }
    }

    /// Tells the server how far the consumers of a process have got.
    pub(crate) fn consumed(&self, process_id: &str, seq: u64) {
        let mut state = self.lock();
        if !state.enabled.consumed {
            return;
        }
        let told = state.outgoing.consumed.entry(process_id.to_owned()).or_default();
        *told = (*told).max(seq);
        drop(state);
        self.bell.notify_one();
    }

    /// Tells the server how far the reader of a body has got.
    pub(crate) fn body_consumed(&self, request_id: &str, seq: u64) {
        let mut state = self.lock();
        if state.enabled.consumed {
            state.outgoing.body_consumed.insert(request_id.to_owned(), seq);
            drop(state);
            self.bell.notify_one();
        }
    }

    /// Does what a feed wants done.
    pub(crate) fn obey(&self, feed: &Arc<Feed>, order: Order) {
        if let Some(seq) = order.consumed {
            self.consumed(&feed.id, seq);
        }
        if let Some(read) = order.read {
            self.read_feed(feed, read);
        }
    }

    /// Adds a route, before anything can arrive on it. It ends with the connection.
    pub(crate) fn add_route(&self, key: RouteKey, route: &Arc<Route>) {
        let mut state = self.lock();
        if let Condition::Lost(loss) = &*self.condition.borrow() {
            return route.end(Routed::Lost(loss.clone()));
        }
        state.routes.insert(key, Arc::clone(route));
    }

    pub(crate) fn remove_route(&self, key: &RouteKey) {
        self.lock().routes.remove(key);
    }

    // What the task with the connection does.

    /// Notes that a connection stands: sends what waits, and looks for what the feeds have missed.
    pub(crate) fn connected(&self, welcome: &Welcome, mode: Mode) -> Result<(), Error> {
        if *self.mode.get_or_init(|| mode) != mode {
            return Err(Error::Protocol { what: "the way to the server changed its kind".to_owned() });
        }
        let _ = self.welcome.set(welcome.clone());
        let (feeds, unfollowed): (Vec<_>, Vec<_>) = {
            let mut state = self.lock();
            let State { pending, outgoing, .. } = &mut *state;
            *outgoing = Outgoing::default();
            outgoing.requests.extend(pending.connect().map(|(id, _)| id));
            let enabled = &welcome.capabilities.enabled;
            state.enabled = Enabled {
                cancel: enabled.contains(&Capability::Cancel),
                consumed: enabled.contains(&Capability::Consumed),
            };
            (state.feeds.values().cloned().collect(), state.unfollowed.iter().cloned().collect())
        };
        for feed in feeds {
            let order = feed.resume();
            self.obey(&feed, order);
        }
        for process_id in unfollowed {
            self.pass_over(process_id);
        }
        self.condition.send_replace(Condition::Connected);
        self.bell.notify_one();
        Ok(())
    }

    /// Notes that the connection was cut: calls that cannot be repeated end here.
    pub(crate) fn disconnected(&self, since: tokio::time::Instant) {
        let (failed, routes, feeds): (_, Vec<_>, Vec<_>) = {
            let mut state = self.lock();
            state.outgoing = Outgoing::default();
            state.cuts += 1;
            (
                state.pending.disconnect(),
                state.routes.drain().map(|(_, route)| route).collect(),
                state.feeds.values().cloned().collect(),
            )
        };
        self.condition.send_replace(Condition::Recovering { since });
        for feed in feeds {
            feed.interrupt();
        }
        for (_, waiting) in failed {
            let error = Error::Interrupted { method: waiting.method };
            waiting.complete(self, Err(error));
        }
        for route in routes {
            route.end(Routed::Cut);
        }
        self.room.notify_waiters();
    }

    /// Notes that there will be no further connection: everything that waits ends with the cause.
    pub(crate) fn lost(&self, loss: &Loss) {
        self.condition.send_replace(Condition::Lost(loss.clone()));
        let (failed, routes, feeds) = {
            let mut state = self.lock();
            (state.pending.abandon(), std::mem::take(&mut state.routes), std::mem::take(&mut state.feeds))
        };
        for (_, waiting) in failed {
            waiting.complete(self, Err(loss.clone().into()));
        }
        for route in routes.into_values() {
            route.end(Routed::Lost(loss.clone()));
        }
        for feed in feeds.into_values() {
            feed.fail(&loss.clone().into());
        }
        self.room.notify_waiters();
    }

    fn loss(&self) -> Error {
        match &*self.condition.borrow() {
            Condition::Lost(loss) => loss.clone().into(),
            Condition::Connected | Condition::Recovering { .. } => Loss::Closed.into(),
        }
    }

    /// Waits for something to send, and takes it.
    pub(crate) async fn next_item(&self) -> Item {
        loop {
            if let Some(item) = self.take_item() {
                return item;
            }
            self.bell.notified().await;
        }
    }

    /// Takes the next thing to send.
    pub(crate) fn take_item(&self) -> Option<Item> {
        let mut state = self.lock();
        let State { pending, outgoing, .. } = &mut *state;
        if let Some(payload) = outgoing.pong.take() {
            return Some(Item::Pong(payload));
        }
        if std::mem::take(&mut outgoing.ping) {
            return Some(Item::Ping);
        }
        if let Some(mark) = outgoing.ack.take() {
            return Some(Item::Note(flow::Ack { mark }.into()));
        }
        if let Some(process_id) = outgoing.consumed.keys().next().cloned() {
            let seq = outgoing.consumed.remove(&process_id).unwrap_or_default();
            return Some(Item::Note(flow::Consumed { process_id, seq }.into()));
        }
        if let Some(request_id) = outgoing.body_consumed.keys().next().cloned() {
            let seq = outgoing.body_consumed.remove(&request_id).unwrap_or_default();
            return Some(Item::Note(flow::BodyConsumed { request_id, seq }.into()));
        }
        if let Some(id) = outgoing.cancels.pop_front() {
            return Some(Item::Note(request::Cancel { id: RequestId::Integer(id.cast_signed()) }.into()));
        }
        while let Some(id) = outgoing.requests.pop_front() {
            if let Some(waiting) = pending.waiting(id) {
                let body = match &mut waiting.body {
                    Body::Wire(body) => Body::Wire(body.clone()),
                    Body::Memory(call) => Body::Memory(call.take()),
                };
                return Some(Item::Request(id, body));
            }
        }
        None
    }

    /// Asks for a sign of life; returns how many there were.
    pub(crate) fn ping(&self) -> u64 {
        let mut state = self.lock();
        state.outgoing.ping = true;
        let answers = state.answers;
        drop(state);
        self.bell.notify_one();
        answers
    }

    /// Notes that the server answered: it hears.
    pub(crate) fn answered(&self) {
        self.lock().answers += 1;
    }

    /// Returns how often the server answered.
    pub(crate) fn answers(&self) -> u64 {
        self.lock().answers
    }

    pub(crate) fn pong(&self, payload: Bytes) {
        let mut state = self.lock();
        state.outgoing.pong = Some(payload);
        drop(state);
        self.bell.notify_one();
    }

    /// Notes that something arrived.
    pub(crate) fn hear(&self) {
        self.lock().heard += 1;
    }

    /// Returns a number that changes when something arrives.
    pub(crate) fn heard(&self) -> u64 {
        self.lock().heard
    }

    /// Takes a message from the wire.
    pub(crate) fn message(&self, bytes: &Bytes) -> Result<(), Error> {
        let nonsense = |what: String| Error::Protocol { what };
        match Message::parse(bytes, MessageLimits { max_values: usize::MAX, ..MessageLimits::WIRE }) {
            Err(malformed) => Err(nonsense(malformed.to_string())),
            Ok(Message::Response { id, outcome }) => {
                let outcome = match outcome {
                    Ok(result) => Ok(Arrived::Json(bytes.slice_ref(result.as_bytes()))),
                    Err(error) => Err(serde_json::from_str::<RpcError>(error)
                        .map_err(|error| nonsense(format!("an error does not decode: {error}")))?),
                };
                self.answer(&id, outcome);
                Ok(())
            }
            Ok(Message::Notification { method, params }) => {
                match ServerNote::parse(&method, params) {
                    Ok(note) => self.note(note),
                    // A newer server may tell more than this client knows.
                    Err(remex_proto::ParseError::UnknownMethod { .. }) => {}
                    Err(error) => return Err(nonsense(format!("`{method}` does not decode: {error}"))),
                }
                Ok(())
            }
            Ok(Message::Request { method, .. }) => Err(nonsense(format!("it asked for `{method}`"))),
        }
    }

    /// Takes a message from a server in this process.
    pub(crate) fn value(&self, value: ToClient) -> Result<(), Error> {
        match value {
            ToClient::Answer { id, outcome } => self.answer(&id, outcome.map(Arrived::Value)),
            ToClient::Note(note) => self.note(note),
            ToClient::Goodbye { reason } => {
                return Err(Error::Unreachable { target: self.target.to_string(), reason });
            }
        }
        Ok(())
    }

    fn answer(&self, id: &RequestId, outcome: Result<Arrived, RpcError>) {
        let RequestId::Integer(id) = id else { return };
        let waiting = {
            let mut state = self.lock();
            state.answers += 1;
            let waiting = state.pending.complete(id.cast_unsigned());
            let ends = waiting.as_ref().is_some_and(|waiting| waiting.method == session::End::METHOD);
            if ends && state.end == End::Asked && outcome.is_ok() {
                state.end = End::Done;
            }
            waiting
        };
        // An answer that nobody waits for is one that came after its caller had left.
        if let Some(waiting) = waiting {
            self.room.notify_waiters();
            waiting.complete(self, outcome.map_err(Error::Refused));
        }
    }

    fn note(&self, note: ServerNote) {
        let event = match note {
            ServerNote::FlowMark(flow::Mark { mark }) => {
                self.lock().outgoing.ack = Some(mark);
                return self.bell.notify_one();
            }
            ServerNote::HttpBodyDelta(delta) => {
                return self.route(&RouteKey::Http(delta.request_id.clone()), Routed::Body(delta));
            }
            ServerNote::FsChanged(changed) => {
                return self.route(&RouteKey::Watch(changed.watch_id), Routed::Changed(changed));
            }
            ServerNote::ProcessOutput(note) => Heard::Output(note),
            ServerNote::ProcessExited(note) => Heard::Exited(note),
            ServerNote::ProcessClosed(note) => Heard::Closed(note),
            ServerNote::ProcessGap(note) => Heard::Gap(note),
            ServerNote::ProcessStarted(_)
            | ServerNote::ProcessFailed(_)
            | ServerNote::FsMissingChanged(_) => return,
        };
        let (process_id, seq) = event.place();
        let feed = self.lock().feeds.get(process_id).cloned();
        match feed {
            Some(feed) => {
                let order = feed.hear(event);
                self.obey(&feed, order);
            }
            // A process whose handle was dropped goes on, and what it says is nobody's.
            None => {
                if matches!(event, Heard::Closed(_)) {
                    self.lock().unfollowed.remove(process_id);
                }
                self.consumed(process_id, seq);
            }
        }
    }

    fn route(&self, key: &RouteKey, what: Routed) {
        let route = self.lock().routes.get(key).cloned();
        if let Some(route) = route {
            route.push(what);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a server told about a process of this session.
#[derive(Debug)]
pub(crate) enum Heard {
    Output(wire::Output),
    Exited(wire::Exited),
    Closed(wire::Closed),
    Gap(wire::Gap),
}

impl Heard {
    /// Returns the process, and the last event that this is about.
    pub(crate) fn place(&self) -> (&str, u64) {
        match self {
            Heard::Output(note) => (&note.process_id, note.seq),
            Heard::Exited(note) => (&note.process_id, note.seq),
            Heard::Closed(note) => (&note.process_id, note.seq),
            Heard::Gap(note) => (&note.process_id, note.range.to_seq),
        }
    }
}

impl Waiting {
    fn complete(self, core: &Core, outcome: Result<Arrived, Error>) {
        match self.answer {
            Answer::Caller(caller) => drop(caller.send(outcome)),
            Answer::Feed(feed) => {
                let order = feed.hear_read(outcome.and_then(|arrived| arrived.decode("process/read")));
                core.obey(&feed, order);
            }
            Answer::Unfollowed(process_id) => {
                core.hear_unfollowed(&process_id, outcome.and_then(|arrived| arrived.decode("process/read")));
            }
            Answer::Nobody => {}
        }
    }
}

/// The answer to come of one call; dropped, the call is forgotten and cancelled.
#[derive(Debug)]
pub(crate) struct Ticket {
    core: Arc<Core>,
    id: u64,
    /// Taken when the answer is there, or nobody wants it.
    receiver: Option<oneshot::Receiver<Result<Arrived, Error>>>,
}

impl Ticket {
    /// Returns the number of the call.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Lets the call go on without anybody who waits for it.
    pub(crate) fn detach(mut self) {
        self.receiver = None;
    }
}

impl Future for Ticket {
    type Output = Result<Arrived, Error>;

    fn poll(mut self: std::pin::Pin<&mut Self>, context: &mut std::task::Context<'_>) -> Poll<Self::Output> {
        let Some(receiver) = &mut self.receiver else { return Poll::Pending };
        let answered = std::task::ready!(std::pin::Pin::new(receiver).poll(context));
        self.receiver = None;
        Poll::Ready(answered.unwrap_or_else(|_| Err(self.core.loss())))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.receiver.is_some() {
            self.core.forget(self.id);
        }
    }
}

/// Tells whether a call may be sent again after a cut that left it unanswered.
fn after_cut(call: &Call) -> AfterCut {
    let is_repeatable = match call {
        Call::ProcessStart(start) => start.start_id.is_some(),
        Call::ProcessWrite(write) => write.write_id.is_some(),
        // Doing these twice is the same as doing them once.
        Call::ProcessRead(_)
        | Call::ProcessTerminate(_)
        | Call::ProcessCloseStdin(_)
        | Call::ProcessResize(_)
        | Call::ProcessWait(_)
        | Call::ProcessSnapshot(_)
        | Call::ProcessList(_)
        | Call::SessionList(_)
        | Call::SessionEnd(_)
        | Call::FsReadFile(_)
        | Call::FsGetMetadata(_)
        | Call::FsCanonicalize(_)
        | Call::FsReadDirectory(_)
        | Call::FsWalk(_)
        | Call::FsSetPermissions(_)
        | Call::FsSetTimes(_)
        | Call::FsReadLink(_)
        | Call::FsHash(_)
        | Call::EnvironmentInfo(_)
        | Call::EnvironmentStatus(_)
        | Call::EnvironmentConfigRead(_) => true,
        Call::FsWriteFile(write) => write.if_match.is_none(),
        Call::FsCreateDirectory(create) => create.recursive != Some(false),
        Call::HttpRequest(request) => {
            !request.stream_response && ["GET", "HEAD", "OPTIONS"].contains(&request.method.as_str())
        }
        // A second time these fail, or do something else, or their handle is gone with the connection.
        Call::Initialize(_)
        | Call::ProcessSignal(_)
        | Call::SessionObserve(_)
        | Call::SessionUnobserve(_)
        | Call::FsRemove(_)
        | Call::FsCopy(_)
        | Call::FsOpen(_)
        | Call::FsReadBlock(_)
        | Call::FsWriteBlock(_)
        | Call::FsClose(_)
        | Call::FsWatchMissing(_)
        | Call::FsRename(_)
        | Call::FsSymlink(_)
        | Call::FsWatch(_)
        | Call::FsUnwatch(_) => false,
    };
    if is_repeatable { AfterCut::Resend } else { AfterCut::Fail }
}

/// Tells whether a server has forgotten a process, whatever its dialect.
pub(crate) fn is_unknown_process(error: &Error) -> bool {
    matches!(error, Error::Refused(refusal) if refusal.kind == ErrorKind::UnknownProcess
        || refusal.message.starts_with("unknown process id"))
}

/// Tells whether a process is about to be there, whatever the dialect of the server.
pub(crate) fn is_starting(error: &Error) -> bool {
    matches!(error, Error::Refused(refusal) if refusal.kind == ErrorKind::ProcessStarting
        || refusal.message.starts_with("process id") && refusal.message.ends_with("is starting"))
}

pub(crate) fn random_word() -> String {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("a kernel that runs programs has random bytes");
    format!("{:016x}", u64::from_ne_bytes(bytes))
}

//! What callers, consumers and the task with the connection share: open calls, feeds, what is to be sent.
//!
//! It does no I/O: `engine.rs` has the task that does. Start at [`Core`].

mod breaches;
mod files;
mod incoming;
mod lane;
mod outgoing;
mod repeat;
mod route;
mod ticket;

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
    state::pending::{self, AfterCut, Pending},
};
use remex_rpc::memory::Reply;
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot, watch};

use crate::{
    Condition, Error, Loss, Options, Target,
    error::is_unknown_process,
    feed::{Feed, Order},
};
use breaches::Breaches;
use files::OpenFiles;
pub(crate) use lane::Lane;
use lane::lane;
pub(crate) use outgoing::Item;
use outgoing::Outgoing;
use repeat::after_cut;
pub(crate) use route::{Route, RouteKey, Routed};
pub(crate) use ticket::Ticket;

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
    slots: Slots,
    files: OnceLock<OpenFiles>,
    pub(crate) condition: watch::Sender<Condition>,
    /// How messages travel; every connection of one target does it alike.
    mode: OnceLock<Mode>,
    /// What the server said when the session began.
    welcome: OnceLock<Welcome>,
    /// Makes ids unique among clients.
    prefix: String,
    next_name: AtomicU64,
}

/// Room for calls of each kind, so that those that take long hold up their own kind only.
#[derive(Debug)]
struct Slots {
    plain: Arc<Semaphore>,
    /// A path may hang.
    files: Arc<Semaphore>,
    /// A process may take no input, and a wait may be long.
    parked: Arc<Semaphore>,
}

impl Slots {
    fn of(&self, lane: Lane) -> Option<&Arc<Semaphore>> {
        match lane {
            Lane::Control => None,
            Lane::Plain => Some(&self.plain),
            Lane::Files => Some(&self.files),
            Lane::Parked => Some(&self.parked),
        }
    }
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
    breaches: Breaches,
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

/// Whether a call waits for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    WithinLimits,
    /// It must not get lost, or let somebody wait for a kill.
    Whatever,
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
                breaches: Breaches::default(),
                cuts: 0,
                end: End::NotAsked,
            }),
            bell: Notify::new(),
            room: Notify::new(),
            slots: Slots {
                plain: Arc::new(Semaphore::new(CALLS)),
                files: Arc::new(Semaphore::new(FILE_CALLS)),
                parked: Arc::new(Semaphore::new(PARKED_CALLS)),
            },
            files: OnceLock::new(),
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

    /// Returns the room for open files.
    pub(crate) fn files(&self) -> &OpenFiles {
        self.files.get_or_init(|| OpenFiles::new(self.welcome().limits.handles))
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
        let lane = lane(&call);
        self.order_in(lane, call).await
    }

    /// Makes a call in a lane of the caller's choice.
    pub(crate) async fn order_in(self: &Arc<Self>, lane: Lane, call: Call) -> Result<Ticket, Error> {
        let slot = match self.slots.of(lane) {
            Some(slots) => Arc::clone(slots).acquire_owned().await.ok(),
            None => None,
        };
        if let Call::ProcessRead(read) = &call {
            self.on_poll(read);
        }
        let method = call.method();
        let after_cut = after_cut(&call);
        let body = self.encode(call);
        self.check_length(method, &body)?;
        let (answer, receiver) = oneshot::channel();
        let mut waiting = Waiting { method, body, answer: Answer::Caller(answer), _slot: slot };
        let id = loop {
            let room = self.room.notified();
            let room_wanted = if lane == Lane::Control { Room::Whatever } else { Room::WithinLimits };
            match self.register(waiting, after_cut, room_wanted)? {
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
        let _ = self.register(waiting, AfterCut::Resend, Room::Whatever);
    }

    /// Notes how far somebody has come who reads a process without being its consumer.
    fn on_poll(&self, read: &wire::Read) {
        let is_ours = read.session_id.as_ref().is_none_or(|id| *id == self.welcome().session_id);
        let Some(seq) = read.after_seq.filter(|seq| is_ours && *seq != AFTER_EVERYTHING) else { return };
        let feed = self.lock().feeds.get(&read.process_id).cloned();
        if let Some(feed) = feed {
            let order = feed.on_poll(seq);
            self.obey(&feed, order);
        }
    }

    fn read_feed(&self, feed: &Arc<Feed>, read: wire::Read) {
        let waiting = Waiting {
            method: "process/read",
            body: self.encode(read.into()),
            answer: Answer::Feed(Arc::clone(feed)),
            _slot: None,
        };
        // A feed has one read under way at most.
        let _ = self.register(waiting, AfterCut::Fail, Room::Whatever);
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
        waiting: Waiting,
        after_cut: AfterCut,
        room: Room,
    ) -> Result<Result<u64, Waiting>, Error> {
        let len = match &waiting.body {
            Body::Wire(body) => body.len(),
            Body::Memory(_) => 0,
        };
        let mut state = self.lock();
        let registered = match room {
            Room::WithinLimits => state.pending.register(waiting, len, after_cut),
            Room::Whatever => state.pending.insist(waiting, len, after_cut),
        };
        let id = match registered {
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
            after_seq: Some(AFTER_EVERYTHING),
            max_bytes: Some(0),
            wait_ms: None,
        };
        let waiting = Waiting {
            method: "process/read",
            body: self.encode(look.into()),
            answer: Answer::Unfollowed(process_id),
            _slot: None,
        };
        // After a cut the next connection brings another look.
        let _ = self.register(waiting, AfterCut::Fail, Room::Whatever);
    }

    fn hear_unfollowed(&self, process_id: &str, answer: Result<wire::ReadReply, Error>) {
        let is_over = match &answer {
            Ok(reply) => reply.closed,
            Err(error) => is_unknown_process(error),
        };
        let mut state = self.lock();
        if is_over {
            state.unfollowed.remove(process_id);
        } else if let Ok(reply) = answer
            // Whoever follows it by now has not used up what came before.
            && state.unfollowed.contains(process_id)
        {
            drop(state);
            self.consumed(process_id, reply.next_seq.saturating_sub(1));
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

    /// Notes that the server answered: it hears.
    pub(crate) fn answered(&self) {
        self.lock().answers += 1;
    }

    /// Returns how often the server answered.
    pub(crate) fn answers(&self) -> u64 {
        self.lock().answers
    }

    /// Notes that something arrived.
    pub(crate) fn hear(&self) {
        self.lock().heard += 1;
    }

    /// Returns a number that changes when something arrives.
    pub(crate) fn heard(&self) -> u64 {
        self.lock().heard
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

pub(crate) fn random_word() -> String {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("a kernel that runs programs has random bytes");
    format!("{:016x}", u64::from_ne_bytes(bytes))
}

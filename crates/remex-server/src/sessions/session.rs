//! A session: owns processes and outlives connections.
//!
//! The [`SessionRegistry`] decides which connection holds it and when it expires; the session itself knows its
//! processes and their subscribers. Start at [`Session`].

mod active_restarts;
mod ending;
mod owner;
mod processes;
mod registry;
mod restarts;
mod saved;
mod starts;
mod subscribers;

use std::sync::{
    Arc, Mutex, MutexGuard, Weak,
    atomic::{AtomicBool, AtomicU32, Ordering},
};

use remex_access::{
    account::{Account, Charge, Kind},
    scope::Floor,
};
use remex_base::{lock, supervise::in_phases, trace};
use remex_engine::{
    Command, EngineContext, Owner, PendingDecision, ServerProcess, Snapshots, StartFloor, Starting, broken,
    unknown_process,
};
use remex_files::PathLockQueue;
use remex_process::Tag;
use remex_proto::{
    ErrorKind, RpcError,
    initialize::Capability,
    network::{PolicyDecision, PolicyRequest},
    process as wire,
};
use tokio::sync::{Notify, Semaphore};
use tracing::Instrument as _;

use crate::{
    outbox::{AfterSend, ConnectionId, Responder},
    peers::ssh_login::SshLogin,
    sessions::process::{Followers, Process, ProcessOwner, Standing, StartAt, Viewer},
    shared::host::Host,
};
use active_restarts::ActiveRestarts;
pub(crate) use ending::PendingStarts;
use owner::{OwnerShared, SessionOwner};
use processes::Processes;
pub(crate) use registry::{OpenedSession, SessionRegistry};
use restarts::Entry;
use starts::{PendingStart, StartKind, Starts};
pub(crate) use subscribers::Subscriber;
use subscribers::Subscribers;

/// About what a session needs, with its names.
const SESSION_BYTES: usize = 8 << 10;

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: String,
    pub(crate) owner: SessionOwner,
    /// Identifies the session in the tags of its processes.
    pub(crate) number: u32,
    host: Arc<Host>,
    account: Arc<Account>,
    #[expect(dead_code, reason = "releases a resource when dropped")]
    charge: Charge,
    /// Shared by handlers and process tasks; held briefly.
    processes: Mutex<Processes>,
    /// Shared like `processes`.
    subscribers: Mutex<Subscribers>,
    /// Shared like `processes`.
    starts: Mutex<Starts>,
    next_process: AtomicU32,
    snapshots: Snapshots,
    /// The order of its file requests.
    pub(crate) path_locks: Arc<PathLockQueue>,
    /// Held while the controller changes or a start is admitted, so that neither sees an intermediate state of
    /// the other.
    changing: Mutex<()>,
    /// Shared like `processes`, which is locked after it.
    active_restarts: Mutex<ActiveRestarts>,
    /// Notified when a process has closed.
    closed_one: Notify,
    /// Whether a later server is to find it again.
    is_lasting: bool,
    /// Whether it could not be saved when it was created.
    is_unsaved: AtomicBool,
}

/// Which processes something applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    All,
    /// Those that end with the server.
    Ephemeral,
}

impl Reach {
    fn covers(self, process: &Process) -> bool {
        self == Reach::All || !process.is_durable()
    }
}

/// What the connection of a client means for its starts.
#[derive(Clone, Debug)]
pub(crate) struct StartBounds {
    /// The most processes at a time.
    pub(crate) max_processes: Option<usize>,
    /// The least confinement.
    pub(crate) floor: Floor,
    /// For a process that is started again, what the credential of its first start demanded.
    pub(crate) first_floor: Option<Floor>,
    /// Whose variables they get.
    pub(crate) login: Option<Arc<SshLogin>>,
}

impl StartBounds {
    fn start_floor(&self) -> StartFloor {
        StartFloor { now: self.floor, first: self.first_floor.unwrap_or(self.floor) }
    }
}

impl Session {
    pub(crate) fn new(
        id: String,
        owner: SessionOwner,
        number: u32,
        is_lasting: bool,
        host: &Arc<Host>,
    ) -> Self {
        let limits = host.limits();
        let caps = [(Kind::Output, limits.session_retain_bytes)];
        let account = Arc::new(Account::within(owner.account(), usize::MAX, &caps));
        Session {
            charge: account.take(Kind::Sessions, SESSION_BYTES),
            snapshots: Snapshots::new(&account),
            account,
            id,
            owner,
            number,
            host: Arc::clone(host),
            processes: Mutex::default(),
            subscribers: Mutex::default(),
            starts: Mutex::default(),
            next_process: AtomicU32::new(0),
            path_locks: Arc::new(PathLockQueue::new(limits.waiting_file_requests)),
            changing: Mutex::default(),
            active_restarts: Mutex::default(),
            closed_one: Notify::new(),
            is_lasting,
            is_unsaved: AtomicBool::new(false),
        }
    }

    /// Returns whether a later server finds it again.
    fn is_saved(&self) -> bool {
        self.is_lasting && !self.is_unsaved.load(Ordering::Relaxed)
    }

    /// Returns a tag that matches everything the session started.
    pub(crate) fn tag(&self) -> Tag {
        self.host.tags().tag(self.number, 0)
    }

    pub(crate) fn process(&self, id: &str) -> Option<Process> {
        self.processes().by_id.get(id).cloned()
    }

    /// Returns the process that a request is for, unless it was restarted since.
    pub(crate) fn process_of(&self, id: &str, incarnation: Option<u64>) -> Result<Process, RpcError> {
        let process = self.process(id).ok_or_else(|| unknown_process(id))?;
        process.check_incarnation(incarnation)?;
        Ok(process)
    }

    /// Stops holding output of a process for a disconnected client.
    pub(crate) fn release(&self, request: &wire::Release) -> Result<remex_proto::call::Empty, RpcError> {
        self.process_of(&request.process_id, request.incarnation)?.release();
        Ok(remex_proto::call::Empty {})
    }

    /// Forgets a process on request, once it has closed and its own client has received everything.
    pub(crate) fn forget_closed(&self, request: &wire::Forget) -> Result<remex_proto::call::Empty, RpcError> {
        let id = &request.process_id;
        let process = self.process_of(id, request.incarnation)?;
        if !process.is_closed() {
            let message =
                format!("cannot forget process `{id}`: it runs, or something holds its output open");
            return Err(
                RpcError::new(ErrorKind::InvalidParams, message).with_hint("end it with `process/terminate`")
            );
        }
        if process.standing() == Standing::Restarting {
            let message = format!("cannot forget process `{id}`: it is being restarted");
            return Err(RpcError::new(ErrorKind::InvalidParams, message).with_hint("wait until it runs"));
        }
        // A caller that forgets a process does not want its output held for a detached client.
        process.release();
        process.forget_if_settled();
        Ok(remex_proto::call::Empty {})
    }

    pub(crate) fn all_processes(&self) -> Vec<Process> {
        self.processes().by_id.values().cloned().collect()
    }

    /// Returns whether it has processes that a later server would not find.
    pub(crate) fn is_busy(&self) -> bool {
        self.processes().by_id.values().any(|process| !process.is_durable() || process.is_live())
    }

    pub(crate) fn process_count(&self) -> usize {
        self.processes().by_id.len()
    }

    /// Starts a process, or answers with an error; returns at once.
    ///
    /// `max` is how many processes the identity may have, if its credential says so.
    pub(crate) fn start(
        self: &Arc<Self>,
        request: wire::Start,
        responder: Responder,
        bounds: &StartBounds,
        slots: &Arc<Semaphore>,
    ) {
        let start_id = request.start_id.clone();
        let Some(responder) =
            self.replay_start(start_id.as_deref(), &request.process_id, StartKind::Start, responder)
        else {
            return;
        };
        let pending = PendingStart { session: self, start_id: start_id.as_deref() };
        match self.admit(request, Entry::New(responder.outbox().id), bounds) {
            Ok((process, command)) => {
                let start_id = start_id.clone();
                let (id, identity) = (&self.id, &self.owner.identity);
                let span =
                    trace::process(&process.id, id, identity, responder.trace(), self.host.set_parent());
                let slots = Arc::clone(slots);
                let starting =
                    Starting { process: process.into(), command, start_id, caller: responder, slots };
                let owner: Arc<dyn ProcessOwner> = Arc::clone(self) as _;
                let saved = self.save_begun(&starting.process);
                let running = in_phases(async move {
                    match saved::begun(saved, &starting.process).await {
                        Ok(()) => return Some(broken::run(starting, owner)),
                        Err(error) => starting.refuse(&*owner, &error),
                    }
                    None
                });
                self.host.spawn(running.instrument(span));
                pending.hand_over();
            }
            Err(error)
                if self.is_saved() && error.kind == ErrorKind::ShuttingDown && self.host.is_stopping() =>
            {
                drop(pending);
                self.host.leave_to_next(responder);
            }
            Err(error) => {
                drop(pending);
                responder.error(&error);
            }
        }
    }

    fn admit(
        self: &Arc<Self>,
        mut request: wire::Start,
        entry: Entry<'_>,
        bounds: &StartBounds,
    ) -> Result<(Process, Command), RpcError> {
        self.host.starts().check_any()?;
        let limits = self.host.limits();
        let runner = self.runner_of(&request)?;
        let tag = self.tag_at(&runner);
        let snapshot =
            self.snapshots
                .for_start(&request, bounds.floor, limits.shell_snapshot_time, || self.new_tag())?;
        // Not before: a snapshot serves the starts of every login.
        if let Some(login) = &bounds.login {
            login.apply(&mut request);
        }
        let owner: Weak<dyn ProcessOwner> = Arc::<Self>::downgrade(self);
        let context = EngineContext { owner, host: &self.host, account: &self.account, tag };
        let followers = entry.followers(&request.process_id);
        let (process, command) =
            ServerProcess::prepare(request, bounds.start_floor(), context, runner, followers)?;
        let process = Process::from(process);
        self.owner.keep_open(&process, entry.replaced())?;
        let _changing = self.changing();
        let viewer = match &entry {
            Entry::New(connection) => Some(self.controller(*connection).ok_or_else(not_attached)?),
            Entry::Again(_) => self.controlling(),
        };
        if let Some(viewer) = viewer {
            process.controlled_by(&viewer);
        }
        let mut processes = self.processes();
        self.check_starts(&processes)?;
        let known = processes.by_id.get(&process.id);
        let replaced = entry.replaced();
        if let Some(known) = known.filter(|known| replaced.is_none_or(|old| !old.is(known))) {
            let mismatch = known.spec().start_id.is_some() && process.spec().start_id.is_some();
            let kind = if mismatch { ErrorKind::StartIdMismatch } else { ErrorKind::ProcessExists };
            return Err(RpcError::new(kind, format!("process {} already exists", process.id)).with_hint(
                "choose another `processId`; an ended process keeps its id while its output is retained",
            ));
        }
        match entry {
            Entry::New(_) => self.count_start(&mut processes, bounds)?,
            Entry::Again(place) => {
                process.succeeds(place.old());
                place.hand_over();
            }
        }
        process.set_live(true);
        processes.by_id.insert(process.id.clone(), process.clone());
        Ok((process, command.with_snapshot(snapshot)))
    }

    /// Refuses a start while the server or the session ends.
    fn check_starts(&self, processes: &Processes) -> Result<(), RpcError> {
        if processes.ended || self.host.is_stopping() { Err(shutting_down()) } else { Ok(()) }
    }

    /// Counts one more process, unless there are as many as may be.
    fn count_start(&self, processes: &mut Processes, bounds: &StartBounds) -> Result<(), RpcError> {
        if processes.live >= self.host.limits().processes {
            let message = format!("session has {} processes, which is its limit", processes.live);
            return Err(RpcError::new(ErrorKind::TooManyProcesses, message).with_hint("end some first"));
        }
        self.owner.count_start(bounds.max_processes)?;
        processes.live += 1;
        Ok(())
    }

    /// Returns a tag that no process of the session has had.
    fn new_tag(&self) -> Tag {
        self.host.tags().tag(self.number, self.next_process.fetch_add(1, Ordering::Relaxed))
    }

    /// Evicts output of closed processes until `account` has room for `wanted` bytes more.
    fn reclaim_own(&self, account: &Account, wanted: usize) {
        while account.left(Kind::Output) < wanted {
            let next = self.processes().next_to_drain();
            match next {
                Some(process) => process.reclaim(),
                None => return,
            }
        }
    }

    /// Returns the closed process that can be forgotten first, if it is among the oldest `looked_at`.
    ///
    /// A connected client has been sent everything; for one that is away, what is held stays.
    fn oldest_closed(&self, looked_at: usize) -> Option<Process> {
        let is_attached = self.subscribers().controller.is_some();
        let processes = self.processes();
        processes.oldest_free(looked_at, is_attached)
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        lock(&self.changing)
    }

    fn processes(&self) -> MutexGuard<'_, Processes> {
        lock(&self.processes)
    }
}

fn shutting_down() -> RpcError {
    let message = "the server or the session is ending and starts nothing new";
    RpcError::new(ErrorKind::ShuttingDown, message)
        .with_hint("connect to another server, or start a new session")
}

fn not_attached() -> RpcError {
    let message = "the session is no longer attached to this connection";
    RpcError::new(ErrorKind::SessionAttached, message).with_hint("resume it to start processes")
}

impl Owner<Followers> for Session {
    fn id(&self) -> &str {
        &self.id
    }

    fn identity(&self) -> &str {
        &self.owner.identity
    }

    fn has_ended(&self) -> bool {
        self.processes().ended
    }

    fn reclaim(&self, wanted: usize) {
        self.reclaim_own(&self.account, wanted);
        self.owner.reclaim(wanted);
    }

    fn on_started(
        &self,
        process: &ServerProcess<Followers>,
        start_id: Option<&str>,
        started: wire::Started,
        caller: Option<Responder>,
    ) {
        let process = &Process::of(process);
        let pid = started.pid.unwrap_or_default();
        self.finish_start(start_id, &Ok(started.clone()));
        if let Some(mut caller) = caller {
            match caller.take_internal_caller() {
                Some(told) => drop(told.send(Ok(Some(started)))),
                None => caller.ok_then(started, AfterSend::Follow(process.source())),
            }
        }
        self.notify(Capability::ProcessStarted, |session_id| wire::StartedNote {
            process_id: process.id.to_string(),
            session_id,
            pid,
        });
        let observers = self.subscribers().observers.clone();
        for observer in observers {
            process.follow(&observer.viewer(Some(&self.id)), StartAt::After(0));
        }
    }

    fn on_start_failed(&self, process: &ServerProcess<Followers>, start_id: Option<&str>, error: &RpcError) {
        let process = &Process::of(process);
        self.on_broken(process);
        self.finish_start(start_id, &Err(error.clone()));
    }

    fn announce_failure(&self, process: &ServerProcess<Followers>, error: &RpcError) {
        let process = &Process::of(process);
        self.notify(Capability::ProcessFailed, |session_id| wire::Failed {
            process_id: process.id.to_string(),
            session_id,
            kind: error.kind,
            message: error.text(),
        });
    }

    fn on_broken(&self, process: &ServerProcess<Followers>) {
        let process = &Process::of(process);
        let mut processes = self.processes();
        if process.set_live(false) && process.standing() != Standing::Restarting {
            processes.live -= 1;
            self.owner.count_end();
        }
        if processes.has(process) {
            processes.by_id.remove(&process.id);
        }
        drop(processes);
        self.closed_one.notify_waiters();
        self.host.notify_activity();
    }

    fn on_closed(&self, process: &ServerProcess<Followers>) {
        let process = &Process::of(process);
        let limits = self.host.limits();
        let mut processes = self.processes();
        if !process.set_live(false) {
            return;
        }
        // A restart keeps its place and its memory for the next one.
        if process.standing() != Standing::Restarting {
            processes.live -= 1;
            self.owner.count_end();
            process.keep_closed();
        }
        if !processes.has(process) {
            // A client saw the close and forgot the process before its task got here.
            drop(processes);
            return self.closed_one.notify_waiters();
        }
        processes.closed.push_back(process.clone());
        processes.closed_weight += process.spec().weight;
        while let Some(oldest) = processes.excess(&limits) {
            processes.forget(&oldest);
            self.delete_log(oldest);
        }
        drop(processes);
        process.forget_after(process.spec().closed_ttl.max(process.spared_for()));
        if let (Some(durable), ServerProcess::Remote(process)) = (self.host.durable(), &**process) {
            durable.add_closed(&self.id, process);
        }
        self.closed_one.notify_waiters();
    }

    fn ask(&self, request: &PolicyRequest) -> Option<PendingDecision> {
        let controller = self.subscribers().controller.clone();
        let pending = controller?.outbox.ask(request)?;
        Some(Box::pin(pending))
    }

    fn tell(&self, decision: PolicyDecision) {
        let controller = self.subscribers().controller.clone();
        if let Some(controller) = controller {
            controller.outbox.offer_note(decision);
        }
    }
}

impl ProcessOwner for Session {
    fn controller(&self, connection: ConnectionId) -> Option<Viewer> {
        let subscribers = self.subscribers();
        let subscriber =
            subscribers.controller.as_ref().filter(|subscriber| subscriber.outbox.id == connection)?;
        Some(subscriber.viewer(None))
    }

    fn has(&self, process: &Process) -> bool {
        let processes = self.processes();
        processes.has(process) || processes.closed.iter().any(|closed| closed.is(process))
    }

    fn forget(&self, process: &Process) {
        self.processes().forget(process);
        self.delete_log(process.clone());
        self.host.notify_activity();
    }
}

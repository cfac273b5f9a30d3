//! The thread that finds and kills process trees.
//!
//! It exists before anything is started and has its own descriptor table, so it works even if the program has no thread
//! or descriptor left. One scan of `/proc` serves all pending requests; requests complete independently, and a tree
//! that does not die is abandoned after [`KILL_TIMEOUT`] and blocks no other request.
//!
//! The descriptors of the program are not valid in that table, so this thread cannot wake tasks: a second thread calls
//! the callbacks.

use std::{
    collections::{HashMap, HashSet},
    fmt, io,
    os::fd::{AsFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex,
        mpsc::{self, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use remex_base::lock;
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io::Errno,
    process::{PidfdFlags, pidfd_open},
};

use super::{
    Doubtful, Member, Scope, Survivors, Unproven,
    snapshot::{Snapshot, Unclear},
};
use crate::{
    Pid, Signal, Tag,
    base::{
        proc::{self, is_resource_shortage},
        sys,
    },
    kin::adoption::{self, Claim},
};

/// How long to keep killing a tree; after that it is stuck in the kernel, or forks faster than we kill.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// The minimum number of scans before a kill fails, however slow the host is.
const MIN_SCANS: u32 = 20;
/// From this scan on, processes are stopped first: a stopped process cannot fork.
const STOP_FROM: u32 = 3;
/// How long to wait for killed processes to end before the next scan: the first and the longest delay.
const PAUSES: (Duration, Duration) = (Duration::from_millis(25), Duration::from_millis(250));
/// How many rounds of examining the newest processes follow one scan.
const MAX_ROUNDS: u32 = 300;
/// How many of the newest processes are examined in one round.
const MAX_CHASED: i32 = 5_000;
/// How many ancestors of a new process are examined: each of them may have exited in the meantime.
const MAX_ANCESTORS: u32 = 4;
/// How often, and how long each time, to wait for children of this program that are just being created.
const MAX_SETTLING: u32 = 20;
const SETTLING_PAUSE: Duration = Duration::from_millis(1);
/// How many killed processes to wait for.
const MAX_WATCHED: usize = 256;

/// The callback of a request, called on a thread that may run any short code.
///
/// If it is dropped without a result, as in a panic, it is called with an error. That, too, happens on the other
/// thread, because this one cannot wake tasks.
pub(super) struct Done<T: Send + 'static> {
    call: Option<Callback<T>>,
}

type Callback<T> = Box<dyn FnOnce(io::Result<T>) + Send>;

impl<T: Send + 'static> Done<T> {
    pub(super) fn new(call: impl FnOnce(io::Result<T>) + Send + 'static) -> Self {
        Self { call: Some(Box::new(call)) }
    }

    /// Runs the callback on the calling thread.
    fn call(mut self, result: io::Result<T>) {
        if let Some(call) = self.call.take() {
            call(result);
        }
    }
}

impl<T: Send + 'static> Drop for Done<T> {
    fn drop(&mut self) {
        let Some(call) = self.call.take() else { return };
        let killer = lock(&KILL_HANDLE).clone();
        let lost =
            || io::Error::other("the thread that kills processes has failed; see the log of the server");
        // Without the thread, no request was ever submitted.
        _ = killer.map(|killer| killer.answers.send(Box::new(move || call(Err(lost())))));
    }
}

/// A request to the thread.
pub(super) enum Request {
    Members { scope: Scope, done: Done<Vec<Member>> },
    Tagged { tag: Tag, done: Done<Vec<Member>> },
    Signal { scope: Scope, signals: &'static [Signal], done: Done<usize> },
    Kill(Kill),
}

/// A kill and its progress.
pub(super) struct Kill {
    scope: Scope,
    done: Done<usize>,
    since: Instant,
    scans: u32,
    killed: HashSet<(Pid, u64)>,
    empty_scans: u32,
    /// The newest process before the last scan.
    newest: Option<i32>,
    /// Processes that the last scan and the following rounds could not attribute.
    unclear: Unclear,
}

/// The result of chasing processes that were created during a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chase {
    /// None of them belongs to the tree.
    Nothing,
    /// Some belonged to the tree, and were killed.
    Caught,
    /// There were too many to examine.
    Unknown,
}

impl Request {
    pub(super) fn kill(scope: Scope, done: Done<usize>) -> Self {
        let (since, killed) = (Instant::now(), HashSet::new());
        let unclear = Unclear::default();
        Self::Kill(Kill { scope, done, since, scans: 0, killed, empty_scans: 0, newest: None, unclear })
    }

    fn fail(self, error: &io::Error) {
        match self {
            Self::Members { done, .. } | Self::Tagged { done, .. } => done.call(Err(copy(error))),
            Self::Signal { done, .. } | Self::Kill(Kill { done, .. }) => done.call(Err(copy(error))),
        }
    }

    /// Returns whether a process with this tag must be examined.
    fn wants(&self, tag: Option<Tag>) -> bool {
        match self {
            Self::Members { scope, .. } | Self::Signal { scope, .. } | Self::Kill(Kill { scope, .. }) => {
                !scope.excludes(tag)
            }
            Self::Tagged { tag: server, .. } => tag.is_some_and(|tag| tag.same_server(*server)),
        }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Request")
    }
}

/// The state shared by the thread and its callers.
#[derive(Debug)]
struct KillHandle {
    /// Locked to push or to take all. Every caller waits for the result or owns a process that ends, so their number is
    /// bounded by that of processes, sessions and requests.
    requests: Mutex<Vec<Request>>,
    wakeup: OwnedFd,
    /// To the thread that runs callbacks; bounded by the number of requests.
    answers: Sender<Answering>,
}

/// The only such thread of this program; the mutex is held to start it or to clone the handle.
static KILL_HANDLE: Mutex<Option<Arc<KillHandle>>> = Mutex::new(None);

/// Starts the thread once per program.
pub(crate) fn start() -> io::Result<()> {
    killer().map(drop)
}

/// Submits a request; it fails if the thread cannot be started.
pub(super) fn push(request: Request) {
    let killer = match killer() {
        Ok(killer) => killer,
        Err(error) => return request.fail(&error),
    };
    lock(&killer.requests).push(request);
    // Fails only if a wakeup is already pending.
    _ = rustix::io::write(&killer.wakeup, &1_u64.to_ne_bytes());
}

fn killer() -> io::Result<Arc<KillHandle>> {
    let mut started = lock(&KILL_HANDLE);
    if let Some(killer) = &*started {
        return Ok(killer.clone());
    }
    let wakeup = sys::above_stdio(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)?;
    let (answers, waiting) = mpsc::channel::<Answering>();
    let killer = Arc::new(KillHandle { requests: Mutex::default(), wakeup, answers });
    thread::Builder::new().name("remex-answer".into()).spawn(move || {
        sys::block_signals();
        for answer in waiting {
            // A panic in one callback must not affect the others.
            _ = catch_unwind(AssertUnwindSafe(answer));
        }
    })?;
    let shared = killer.clone();
    thread::Builder::new().name("remex-kill".into()).spawn(move || {
        sys::block_signals();
        sys::favour_latency();
        if let Err(error) = sys::unshare_descriptors(shared.wakeup.as_fd()) {
            tracing::warn!(%error, "cannot reserve descriptors for kills: processes cannot be killed when the program runs out of descriptors");
        }
        KillThread { handle: shared, kills: Vec::new(), dying: Vec::new() }.run();
    })?;
    *started = Some(killer.clone());
    Ok(killer)
}

type Answering = Box<dyn FnOnce() + Send>;

/// The state of the thread.
struct KillThread {
    handle: Arc<KillHandle>,
    kills: Vec<Kill>,
    /// Some of the processes killed after the last scan, which may not have ended yet.
    dying: Vec<OwnedFd>,
}

impl KillThread {
    fn run(mut self) {
        loop {
            self.wait_for_next_scan();
            let mut requests = self.take();
            requests.extend(std::mem::take(&mut self.kills).into_iter().map(Request::Kill));
            if requests.is_empty() {
                continue;
            }
            // Only this thread can kill, so a panic fails only the requests that it left unanswered.
            if catch_unwind(AssertUnwindSafe(|| self.scan_once(requests))).is_err() {
                tracing::error!(
                    "scanning processes panicked: this is a defect of the server; pending requests fail"
                );
            }
        }
    }

    fn take(&self) -> Vec<Request> {
        let mut count = [0; 8];
        _ = rustix::io::read(&self.handle.wakeup, &mut count);
        std::mem::take(&mut *lock(&self.handle.requests))
    }

    /// Waits for the next scan: until a request arrives, all killed processes have ended, or a pause is over.
    fn wait_for_next_scan(&mut self) {
        let Some(pause) = self.kills.iter().map(Kill::pause).min() else {
            self.dying.clear();
            let mut wakeup = [PollFd::new(&self.handle.wakeup, PollFlags::IN)];
            // An interrupted poll is a spurious wakeup.
            _ = poll(&mut wakeup, None);
            return;
        };
        let deadline = Instant::now() + pause;
        let dying = std::mem::take(&mut self.dying);
        let mut waiting = vec![PollFd::new(&self.handle.wakeup, PollFlags::IN)];
        waiting.extend(dying.iter().map(|pidfd| PollFd::new(pidfd, PollFlags::IN)));
        let had_dying = !dying.is_empty();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut waiting, Some(&timeout)) {
                Ok(0) => return,
                Ok(_) if waiting.first().is_some_and(|wakeup| !wakeup.revents().is_empty()) => return,
                Ok(_) => waiting.retain(|waited| waited.revents().is_empty()),
                Err(Errno::INTR) => {}
                Err(_) => return thread::sleep(left),
            }
            if had_dying && waiting.len() == 1 {
                return;
            }
        }
    }

    /// Scans once for all requests.
    fn scan_once(&mut self, requests: Vec<Request>) {
        if requests.iter().any(|request| matches!(request, Request::Kill(kill) if kill.scans == 0)) {
            // Forgets starts without live processes, which would make the origin of an orphan ambiguous.
            adoption::reap_orphans();
        }
        let newest =
            requests.iter().any(|request| matches!(request, Request::Kill(_))).then(proc::newest_pid);
        let snapshot = match Snapshot::take(|tag| requests.iter().any(|request| request.wants(tag))) {
            Ok(snapshot) => snapshot,
            Err(error) => return self.fail(requests, &error),
        };
        let copies = |members: Vec<&Member>| members.into_iter().cloned().collect();
        let mut seen = Seen::default();
        for request in requests {
            match request {
                Request::Members { scope, done } => {
                    self.answer(done, Ok(copies(snapshot.members(&scope))));
                }
                Request::Tagged { tag, done } => {
                    self.answer(done, Ok(copies(commands(snapshot.tagged(tag)))));
                }
                Request::Signal { scope, signals, done } => {
                    let reached = self.send_signals(&commands(snapshot.members(&scope)), signals);
                    self.answer(done, reached);
                }
                Request::Kill(mut kill) => {
                    kill.newest = newest.flatten();
                    let members = snapshot.members(&kill.scope);
                    kill.unclear = snapshot.unclear(&kill.scope);
                    self.advance(kill, &members, &mut seen);
                }
            }
        }
    }

    /// Performs the next step of a kill.
    fn advance(&mut self, mut kill: Kill, members: &[&Member], seen: &mut Seen) {
        kill.scans += 1;
        if members.is_empty() {
            match chase(&mut kill, seen) {
                // One scan can miss a process that is being forked while its parent ends.
                Chase::Nothing => kill.empty_scans += 1,
                Chase::Caught => kill.empty_scans = 0,
                Chase::Unknown if kill.is_over() => {
                    return self.answer(kill.done, Err(io::Error::other(Unproven)));
                }
                Chase::Unknown => kill.empty_scans = 0,
            }
            if kill.empty_scans >= 2 {
                if kill.settle() || kill.is_over() {
                    let killed = kill.proven();
                    if killed.is_ok() && kill.scope.is_of_one_start() {
                        adoption::forget_starts(|tag| kill.scope.matches(tag));
                    }
                    return self.answer(kill.done, killed);
                }
                kill.empty_scans = 0;
            }
            return self.kills.push(kill);
        }
        kill.empty_scans = 0;
        if kill.is_over() {
            let left = members.iter().map(|member| member.pid).collect();
            return self.answer(kill.done, Err(io::Error::other(Survivors(left))));
        }
        if kill.scans >= STOP_FROM {
            // A process that may not be stopped may not be killed either; that is reported below.
            _ = self.send_signals(members, &[Signal::STOP]);
        }
        match self.send_signals(members, &[Signal::KILL]) {
            Ok(_) => {
                let commands = commands(members.to_vec());
                kill.killed.extend(commands.iter().map(|member| (member.pid, member.started)));
                chase(&mut kill, seen);
                self.kills.push(kill);
            }
            Err(error) if is_resource_shortage(&error) && !kill.is_over() => self.kills.push(kill),
            Err(error) => self.answer(kill.done, Err(error)),
        }
    }

    /// Fails all requests except kills, which are retried while the host only lacks resources.
    fn fail(&mut self, requests: Vec<Request>, error: &io::Error) {
        for request in requests {
            match request {
                Request::Kill(mut kill) if is_resource_shortage(error) && !kill.is_over() => {
                    kill.scans += 1;
                    kill.empty_scans = 0;
                    self.kills.push(kill);
                }
                request => {
                    let error = copy(error);
                    _ = self.handle.answers.send(Box::new(move || request.fail(&error)));
                }
            }
        }
    }

    fn answer<T: Send + 'static>(&self, done: Done<T>, result: io::Result<T>) {
        // The other thread outlives this one.
        _ = self.handle.answers.send(Box::new(move || done.call(result)));
    }

    /// Sends signals to these processes; fails if none of them may be signalled.
    fn send_signals(&mut self, members: &[&Member], signals: &[Signal]) -> io::Result<usize> {
        let (mut reached, mut refused) = (0, None);
        for member in members {
            let Some(pidfd) = self.open_pidfd(member)? else { continue };
            match signals.iter().try_for_each(|&signal| sys::pidfd_signal(pidfd.as_fd(), signal)) {
                Ok(()) => reached += 1,
                Err(error) => refused = Some(error),
            }
            if signals.contains(&Signal::KILL) && self.dying.len() < MAX_WATCHED {
                self.dying.push(pidfd);
            }
        }
        match refused {
            Some(error) if reached == 0 => Err(error),
            _ => Ok(reached),
        }
    }

    /// Opens the pidfd of a member, unless it has ended and its pid was reused.
    fn open_pidfd(&mut self, member: &Member) -> io::Result<Option<OwnedFd>> {
        let Some(pid) = rustix::process::Pid::from_raw(member.pid.as_raw()) else { return Ok(None) };
        let pidfd = loop {
            match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(pidfd) => break pidfd,
                Err(Errno::SRCH) => return Ok(None),
                // Killing this process is more important than waiting for the others to end.
                Err(Errno::MFILE) if !self.dying.is_empty() => self.dying.clear(),
                Err(errno) => return Err(errno.into()),
            }
        };
        // The descriptor refers to the process that has the pid now, so verify its identity after opening.
        let now = loop {
            match proc::member(member.pid, None) {
                Err(error) if is_resource_shortage(&error) && !self.dying.is_empty() => self.dying.clear(),
                now => break now?,
            }
        };
        Ok(now.filter(|now| now.started == member.started).map(|_| pidfd))
    }
}

/// A cache of processes read since the last scan, for all kills together. The next scan starts without it.
#[derive(Debug, Default)]
struct Seen {
    members: HashMap<Pid, Option<Member>>,
}

impl Seen {
    fn member(&mut self, pid: Pid) -> Option<Member> {
        self.members.entry(pid).or_insert_with(|| read_member(pid)).clone()
    }
}

fn read_member(pid: Pid) -> Option<Member> {
    proc::member(pid, proc::tag(pid).ok()?).ok()?
}

/// Kills the processes that a tree has forked since the scan began.
///
/// A program that keeps forking and exiting is never where a scan has seen it. Its newest process has one of the newest
/// pids, so these are examined one by one until no new ones are assigned.
fn chase(kill: &mut Kill, seen: &mut Seen) -> Chase {
    let mut chase = Chase::Nothing;
    let (Some(mut known), false) = (kill.newest, matches!(kill.scope, Scope::Group(..))) else {
        return chase;
    };
    for _ in 0..MAX_ROUNDS {
        let Some(newest) = proc::newest_pid() else { return chase };
        if newest == known {
            kill.newest = Some(newest);
            return chase;
        }
        // The numbers wrapped, or more were assigned than it makes sense to examine.
        if newest < known || newest - known > MAX_CHASED {
            return Chase::Unknown;
        }
        for pid in (known + 1..=newest).filter_map(Pid::new) {
            if let Some(started) = kill_one(pid, kill, seen) {
                kill.killed.insert((pid, started));
                chase = Chase::Caught;
            }
        }
        known = newest;
    }
    if chase == Chase::Nothing { Chase::Unknown } else { chase }
}

/// Kills a process if it belongs to the tree, by its tag or its parents; returns when it started.
fn kill_one(pid: Pid, kill: &mut Kill, seen: &mut Seen) -> Option<u64> {
    let before = seen.member(pid)?;
    match belongs(before.clone(), kill, seen) {
        Claim::Sure => {}
        claim => {
            kill.unclear.add(&before, claim);
            return None;
        }
    }
    let number = rustix::process::Pid::from_raw(pid.as_raw())?;
    let pidfd = pidfd_open(number, PidfdFlags::empty()).ok()?;
    // The pid may have been reused before the descriptor was opened, so verify the identity of the process.
    let now = read_member(pid).filter(|now| now.started == before.started)?;
    sys::pidfd_signal(pidfd.as_fd(), Signal::KILL).ok()?;
    Some(now.started)
}

/// Returns whether a process belongs to the tree, by its tag, as an orphan, or through one of its next ancestors.
fn belongs(mut member: Member, kill: &Kill, seen: &mut Seen) -> Claim {
    let has_parent = |parent| kill.killed.iter().any(|(killed, _)| *killed == parent);
    for _ in 0..MAX_ANCESTORS {
        if kill.scope.excludes(member.tag) {
            return Claim::No;
        }
        let is_tagged = member.tag.is_some_and(|tag| kill.scope.matches(tag));
        if is_tagged || member.parent.is_some_and(has_parent) {
            return Claim::Sure;
        }
        match kill.scope.claim(&member) {
            Claim::No => {}
            claim => return claim,
        }
        let parent = member.parent.and_then(|pid| seen.member(pid));
        let Some(parent) = parent else { return Claim::No };
        member = parent;
    }
    Claim::No
}

/// Returns the processes that clients have started: all but the first processes of jails.
fn commands(mut members: Vec<&Member>) -> Vec<&Member> {
    members.retain(|member| !member.tag.is_some_and(Tag::is_init));
    members
}

impl Kill {
    fn pause(&self) -> Duration {
        let (shortest, longest) = PAUSES;
        match self.empty_scans {
            0 => (self.since.elapsed() / 8).clamp(shortest, longest),
            _ => Duration::ZERO,
        }
    }

    /// Waits a moment until every process can be attributed; returns whether that succeeded.
    ///
    /// A process that ends meanwhile cannot be attributed: a child of it, which only the next scan finds, may have
    /// replaced it.
    fn settle(&mut self) -> bool {
        let Self { scope, unclear, .. } = self;
        let is_unclear = |pid: &Pid| {
            let member = proc::tag(*pid).and_then(|tag| proc::member(*pid, tag)).ok().flatten();
            // The next scan finds processes that turn out to belong to the tree.
            member.is_some_and(|member| scope.claim(&member) != Claim::No)
        };
        for _ in 0..MAX_SETTLING {
            unclear.pending.retain(is_unclear);
            if unclear.pending.is_empty() {
                // A child of this program that has ended since it was seen looks like an orphan.
                return unclear.doubtful.iter().all(is_unclear);
            }
            thread::sleep(SETTLING_PAUSE);
        }
        false
    }

    /// Returns how many processes were killed, or an error if some may be left.
    fn proven(&self) -> io::Result<usize> {
        let unclear = self.unclear.doubtful.union(&self.unclear.pending);
        let unclear: Vec<Pid> = unclear.copied().collect();
        if self.scope.is_of_one_start() && !unclear.is_empty() {
            return Err(io::Error::other(Doubtful(unclear)));
        }
        Ok(self.killed.len())
    }

    fn is_over(&self) -> bool {
        self.scans > MIN_SCANS && self.since.elapsed() > KILL_TIMEOUT
    }
}

fn copy(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(number) => io::Error::from_raw_os_error(number),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

#[cfg(test)]
mod tests;

//! The thread that looks for trees and ends them.
//!
//! It is there before anything is started, and has a table of descriptors of its own: where the program has no thread
//! and no descriptor left, it works on. One look at `/proc` serves all requests that wait; each is over by itself, and a
//! tree that does not die is abandoned after [`PATIENCE`] and blocks no other request.
//!
//! In that table no descriptor of the program means anything, so the thread wakes no task: a second one calls those who
//! wait.

use std::{
    collections::HashSet,
    fmt, io,
    os::fd::{AsFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io::Errno,
    process::{PidfdFlags, pidfd_open},
};

use super::{Member, Scope, Survivors, snapshot::Snapshot};
use crate::{
    Pid, Signal, Tag,
    descriptors::above_stdio,
    proc::{self, is_resource_shortage},
    sys,
};

/// A tree that is not gone after so long is stuck in the kernel, or bred faster than we kill.
const PATIENCE: Duration = Duration::from_secs(5);
/// It gets at least so many sweeps, however slow the host is.
const MIN_SWEEPS: u32 = 20;
/// From this sweep on what breeds is stopped first: who is stopped has no children.
const STOP_FROM: u32 = 3;
/// How long a sweep waits for what it has killed before the next look, at first and at last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(25), Duration::from_millis(250));
/// How many of the killed it waits for.
const MAX_WATCHED: usize = 256;

/// Takes the outcome of a request, on a thread that may do anything that is short.
///
/// Dropped without one, as by a panic, it gets an error. That too happens on the other thread, because this one wakes no
/// task.
pub(super) struct Done<T: Send + 'static> {
    call: Option<Callback<T>>,
}

type Callback<T> = Box<dyn FnOnce(io::Result<T>) + Send>;

impl<T: Send + 'static> Done<T> {
    pub(super) fn new(call: impl FnOnce(io::Result<T>) + Send + 'static) -> Self {
        Self { call: Some(Box::new(call)) }
    }

    /// Calls it on the calling thread.
    fn call(mut self, result: io::Result<T>) {
        if let Some(call) = self.call.take() {
            call(result);
        }
    }
}

impl<T: Send + 'static> Drop for Done<T> {
    fn drop(&mut self) {
        let Some(call) = self.call.take() else { return };
        let killer = KILLER.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let lost =
            || io::Error::other("the thread that ends processes has failed; the log of the server says why");
        // Without the thread no request was ever handed over.
        _ = killer.map(|killer| killer.answers.send(Box::new(move || call(Err(lost())))));
    }
}

/// What can be asked of the thread.
pub(super) enum Request {
    Members { scope: Scope, done: Done<Vec<Member>> },
    Tagged { tag: Tag, done: Done<Vec<Member>> },
    Signal { scope: Scope, signals: &'static [Signal], done: Done<usize> },
    Kill(Kill),
}

/// A kill, and how far it has got.
pub(super) struct Kill {
    scope: Scope,
    done: Done<usize>,
    since: Instant,
    sweeps: u32,
    killed: HashSet<(Pid, u64)>,
    empty_looks: u32,
}

impl Request {
    pub(super) fn kill(scope: Scope, done: Done<usize>) -> Self {
        let (since, killed) = (Instant::now(), HashSet::new());
        Self::Kill(Kill { scope, done, since, sweeps: 0, killed, empty_looks: 0 })
    }

    fn fail(self, error: &io::Error) {
        match self {
            Self::Members { done, .. } | Self::Tagged { done, .. } => done.call(Err(copy(error))),
            Self::Signal { done, .. } | Self::Kill(Kill { done, .. }) => done.call(Err(copy(error))),
        }
    }

    /// Tells whether a process with this tag needs a closer look.
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

/// What the thread shares with those who ask.
#[derive(Debug)]
struct KillerHandle {
    /// Held to push or to take all. Everybody who asks waits for the answer or has a process that ends, so there are no
    /// more of them than processes, sessions and requests.
    requests: Mutex<Vec<Request>>,
    bell: OwnedFd,
    /// To the thread that calls those who wait; not more of them than requests.
    answers: Sender<Answering>,
}

/// The one thread of this program; the mutex is held to start it or to clone the handle.
static KILLER: Mutex<Option<Arc<KillerHandle>>> = Mutex::new(None);

/// Starts the thread, once in the life of the program.
pub(crate) fn start() -> io::Result<()> {
    killer().map(drop)
}

/// Hands a request over; it fails where the thread cannot be started.
pub(super) fn push(request: Request) {
    let killer = match killer() {
        Ok(killer) => killer,
        Err(error) => return request.fail(&error),
    };
    killer.requests.lock().unwrap_or_else(PoisonError::into_inner).push(request);
    // Fails only when it rings already.
    _ = rustix::io::write(&killer.bell, &1_u64.to_ne_bytes());
}

fn killer() -> io::Result<Arc<KillerHandle>> {
    let mut started = KILLER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(killer) = &*started {
        return Ok(killer.clone());
    }
    let bell = above_stdio(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)?;
    let (answers, waiting) = mpsc::channel::<Answering>();
    let killer = Arc::new(KillerHandle { requests: Mutex::default(), bell, answers });
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
        if let Err(error) = sys::own_descriptors(shared.bell.as_fd()) {
            tracing::warn!(%error, "no descriptors are kept for kills: without a free one nothing can be killed");
        }
        Killer { killer: shared, kills: Vec::new(), dying: Vec::new() }.run();
    })?;
    *started = Some(killer.clone());
    Ok(killer)
}

type Answering = Box<dyn FnOnce() + Send>;

/// The state of the thread.
struct Killer {
    killer: Arc<KillerHandle>,
    kills: Vec<Kill>,
    /// Some of those that were killed in the last round and may not have ended.
    dying: Vec<OwnedFd>,
}

impl Killer {
    fn run(mut self) {
        loop {
            self.rest();
            let mut requests = self.take();
            requests.extend(std::mem::take(&mut self.kills).into_iter().map(Request::Kill));
            if requests.is_empty() {
                continue;
            }
            // Nobody else can kill, so a panic fails only those requests that it has left without an answer.
            if catch_unwind(AssertUnwindSafe(|| self.round(requests))).is_err() {
                tracing::error!(
                    "a look at the processes of this host has failed; what was asked is answered with an error"
                );
            }
        }
    }

    fn take(&self) -> Vec<Request> {
        let mut rings = [0; 8];
        _ = rustix::io::read(&self.killer.bell, &mut rings);
        std::mem::take(&mut *self.killer.requests.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits for the next scan: until a request arrives, all killed processes have ended, or a pause is over.
    fn rest(&mut self) {
        let Some(pause) = self.kills.iter().map(Kill::pause).min() else {
            self.dying.clear();
            let mut bell = [PollFd::new(&self.killer.bell, PollFlags::IN)];
            // An interruption is a ring for nothing.
            _ = poll(&mut bell, None);
            return;
        };
        let deadline = Instant::now() + pause;
        let dying = std::mem::take(&mut self.dying);
        let mut waiting = vec![PollFd::new(&self.killer.bell, PollFlags::IN)];
        waiting.extend(dying.iter().map(|pidfd| PollFd::new(pidfd, PollFlags::IN)));
        let had_dying = !dying.is_empty();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut waiting, Some(&timeout)) {
                Ok(0) => return,
                Ok(_) if waiting.first().is_some_and(|bell| !bell.revents().is_empty()) => return,
                Ok(_) => waiting.retain(|waited| waited.revents().is_empty()),
                Err(Errno::INTR) => {}
                Err(_) => return thread::sleep(left),
            }
            if had_dying && waiting.len() == 1 {
                return;
            }
        }
    }

    /// Looks once, for all of them.
    fn round(&mut self, requests: Vec<Request>) {
        let snapshot = match Snapshot::take(|tag| requests.iter().any(|request| request.wants(tag))) {
            Ok(snapshot) => snapshot,
            Err(error) => return self.fail(requests, &error),
        };
        let copies = |members: Vec<&Member>| members.into_iter().cloned().collect();
        for request in requests {
            match request {
                Request::Members { scope, done } => {
                    self.answer(done, Ok(copies(snapshot.members(&scope))));
                }
                Request::Tagged { tag, done } => self.answer(done, Ok(copies(snapshot.tagged(tag)))),
                Request::Signal { scope, signals, done } => {
                    let reached = self.sweep(&snapshot.members(&scope), signals);
                    self.answer(done, reached);
                }
                Request::Kill(kill) => {
                    let members = snapshot.members(&kill.scope);
                    self.go_on(kill, &members);
                }
            }
        }
    }

    /// Does the next step of a kill.
    fn go_on(&mut self, mut kill: Kill, members: &[&Member]) {
        kill.sweeps += 1;
        if members.is_empty() {
            // One look can miss a daemon in the making: its parent ends, and it is born, while we read.
            kill.empty_looks += 1;
            if kill.empty_looks == 2 {
                return self.answer(kill.done, Ok(kill.killed.len()));
            }
            return self.kills.push(kill);
        }
        kill.empty_looks = 0;
        if kill.is_over() {
            let left = members.iter().map(|member| member.pid).collect();
            return self.answer(kill.done, Err(io::Error::other(Survivors(left))));
        }
        if kill.sweeps >= STOP_FROM {
            // Who may not be stopped may not be killed either, and that is told below.
            _ = self.sweep(members, &[Signal::STOP]);
        }
        match self.sweep(members, &[Signal::KILL]) {
            Ok(_) => {
                kill.killed.extend(members.iter().map(|member| (member.pid, member.started)));
                self.kills.push(kill);
            }
            Err(error) if is_resource_shortage(&error) && !kill.is_over() => self.kills.push(kill),
            Err(error) => self.answer(kill.done, Err(error)),
        }
    }

    /// Answers all but the kills, which try again while the host only lacks something.
    fn fail(&mut self, requests: Vec<Request>, error: &io::Error) {
        for request in requests {
            match request {
                Request::Kill(mut kill) if is_resource_shortage(error) && !kill.is_over() => {
                    kill.sweeps += 1;
                    kill.empty_looks = 0;
                    self.kills.push(kill);
                }
                request => {
                    let error = copy(error);
                    _ = self.killer.answers.send(Box::new(move || request.fail(&error)));
                }
            }
        }
    }

    fn answer<T: Send + 'static>(&self, done: Done<T>, result: io::Result<T>) {
        // The other thread lives as long as this one.
        _ = self.killer.answers.send(Box::new(move || done.call(result)));
    }

    /// Sends signals to these processes; fails when not one of them may be signalled.
    fn sweep(&mut self, members: &[&Member], signals: &[Signal]) -> io::Result<usize> {
        let (mut reached, mut refused) = (0, None);
        for member in members {
            let Some(pidfd) = self.seize(member)? else { continue };
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

    /// Opens a member, unless it has ended and its pid was reused.
    fn seize(&mut self, member: &Member) -> io::Result<Option<OwnedFd>> {
        let Some(pid) = rustix::process::Pid::from_raw(member.pid.as_raw()) else { return Ok(None) };
        let pidfd = loop {
            match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(pidfd) => break pidfd,
                Err(Errno::SRCH) => return Ok(None),
                // Watching the others is a comfort, killing this one is not.
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

impl Kill {
    fn pause(&self) -> Duration {
        let (shortest, longest) = PAUSES;
        match self.empty_looks {
            0 => (self.since.elapsed() / 8).clamp(shortest, longest),
            _ => Duration::ZERO,
        }
    }

    fn is_over(&self) -> bool {
        self.sweeps > MIN_SWEEPS && self.since.elapsed() > PATIENCE
    }
}

fn copy(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(number) => io::Error::from_raw_os_error(number),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_is_dropped_is_answered_with_an_error_on_the_thread_for_answers() {
        start().unwrap();
        let (answer, answered) = mpsc::channel();
        let done = Done::new(move |result: io::Result<usize>| {
            let thread = thread::current().name().map(str::to_owned);
            answer.send((thread, result.is_err())).unwrap();
        });
        let tag = crate::Tags::new().tag(0, 0);
        drop(Request::kill(Scope::Server(tag), done));
        let told = answered.recv_timeout(Duration::from_secs(60)).expect("it is answered");
        assert_eq!(told, (Some("remex-answer".into()), true));
    }
}

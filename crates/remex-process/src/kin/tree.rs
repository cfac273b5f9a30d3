//! The process tree of a start: children, their descendants, and those that moved to sessions of their own.
//!
//! Members are found by the [`Tag`] that they inherit, by session and by parent, in one scan of `/proc`. A process can
//! clear its tag, leave its session and orphan itself; a server that [adopts orphans](crate::adopt_orphans) still finds
//! it, or reports that it may be left. Other servers cannot tell.
//!
//! The work is done by one thread (`tree/thread.rs`) that exists from the start, so that killing needs neither a new
//! thread nor a free descriptor. One scan serves all pending requests. Start at [`kill`].

mod snapshot;
mod thread;

use std::{
    fmt,
    future::Future,
    io,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::Thread,
};

use tokio::sync::oneshot;

pub use crate::base::proc::Member;
use crate::{
    Leader, Pid, Signal, Tag, Tags,
    kin::adoption::{self, Claim},
};
pub(crate) use thread::start;
use thread::{Done, Request};

/// The processes that a scan, a signal or a kill covers. Never this process, never init.
#[derive(Clone, Debug)]
pub enum Scope {
    /// All processes of one start, while its first process may be running.
    ///
    /// Those that lost the tag are found by the session of the first process, until that is reaped: its pid may then
    /// belong to another process.
    Process(Tag, Leader),
    /// Remaining processes in the group or session of a start whose first process may have ended.
    Group(Tag, Pid),
    /// All processes of one start whose first process was reaped: found by the tag and by descent, never by session.
    Start(Tag),
    /// All processes of a session, given the tag of any of its starts.
    Session(Tag),
    /// All processes of a server, given the tag of any of its starts.
    Server(Tag),
}

/// Lists the live processes of a scope; fails if `/proc` cannot be read.
pub fn members(scope: &Scope) -> PendingResult<Vec<Member>> {
    let scope = scope.clone();
    ask(|done| Request::Members { scope, done })
}

/// Lists the live processes of all starts of the server that created a tag, in one scan.
///
/// Processes that have lost their tag are not found. Fails if `/proc` cannot be read.
pub fn tagged(tag: Tag) -> PendingResult<Vec<Member>> {
    ask(|done| Request::Tagged { tag, done })
}

/// Sends signals, in this order, to every process of a scope, and returns the number of processes signalled.
///
/// Fails if `/proc` cannot be read, or if none of them may be signalled.
pub fn signal(scope: &Scope, signals: &'static [Signal]) -> PendingResult<usize> {
    let scope = scope.clone();
    ask(|done| Request::Signal { scope, signals, done })
}

/// Kills the processes of a scope until none is left, and returns how many there were.
///
/// Fails if `/proc` cannot be read, if they may not be signalled, or if some do not die; the error lists those. Also
/// fails, for the scopes of one start, if there are orphans that may belong to it or to others; they are left alone.
pub fn kill(scope: &Scope) -> PendingResult<usize> {
    let scope = scope.clone();
    ask(|done| Request::kill(scope, done))
}

/// Kills every process of the server that creates these tags, with its descendants, and returns how many there were.
///
/// Blocks until they are gone. The server may be another process that has ended; its tags are restored by their
/// [number](Tags::number). Unlike a [`Watchdog`](crate::Watchdog), this also finds descendants that lost their tag, and
/// reports survivors.
///
/// # Errors
/// As [`kill`]. It is not an error if this process cannot see the tags, because its hard limits are so much lower than
/// those of the server that it looks for tags in another limit; then nothing is found.
pub fn kill_server(tags: &Tags) -> io::Result<usize> {
    kill(&Scope::Server(tags.tag(0, 0))).wait()
}

/// Kills all processes of one start, and returns how many there were.
///
/// Stops its group at once and kills it only after the scan: a child that has lost its tag and left the session is
/// found only through its parent. If the tree cannot be killed, at least the group is.
///
/// Fails like [`kill`].
pub fn kill_start(tag: Tag, leader: &Leader) -> PendingResult<usize> {
    // A group that may not be stopped may not be killed either; that is reported below.
    _ = leader.signal_group(Signal::STOP);
    let group = leader.clone();
    let (answer, answered) = oneshot::channel();
    let done = Done::new(move |killed: io::Result<usize>| {
        if killed.is_err() {
            _ = group.signal_group(Signal::KILL);
        }
        _ = answer.send(killed);
    });
    thread::push(Request::kill(Scope::Process(tag, leader.clone()), done));
    PendingResult { answered }
}

/// Kills every process of a scope in the background, and calls `then` afterwards.
pub(crate) fn kill_in_background(scope: &Scope, then: impl FnOnce() + Send + 'static) {
    let about = scope.clone();
    let done = Done::new(move |killed: io::Result<usize>| {
        if let Err(error) = killed {
            tracing::warn!(?about, %error, "cannot kill the tree of an abandoned process");
        }
        then();
    });
    thread::push(Request::kill(scope.clone(), done));
}

/// The future result of a request. The request runs even if the answer is dropped.
#[derive(Debug)]
#[must_use = "only the answer reports a failure"]
pub struct PendingResult<T> {
    answered: oneshot::Receiver<io::Result<T>>,
}

impl<T> PendingResult<T> {
    /// Blocks the calling thread until the result is available; works with and without a runtime.
    ///
    /// # Errors
    /// Those of the request.
    pub fn wait(self) -> io::Result<T> {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let (mut context, mut answer) = (Context::from_waker(&waker), pin!(self));
        loop {
            match answer.as_mut().poll(&mut context) {
                Poll::Ready(result) => return result,
                Poll::Pending => std::thread::park(),
            }
        }
    }
}

impl<T> Future for PendingResult<T> {
    type Output = io::Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        let lost = || io::Error::other("the thread that kills processes has failed");
        Pin::new(&mut self.answered).poll(context).map(|answer| answer.unwrap_or_else(|_| Err(lost())))
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn ask<T: Send + 'static>(request: impl FnOnce(Done<T>) -> Request) -> PendingResult<T> {
    let (answer, answered) = oneshot::channel();
    let done = Done::new(move |result| _ = answer.send(result));
    thread::push(request(done));
    PendingResult { answered }
}

impl Scope {
    /// Returns whether the tag alone shows that a process is outside the scope.
    ///
    /// Most children of a busy server have the tag of another start and need no closer look. A watchdog is outside
    /// every scope, also that of a server that runs on this one.
    fn excludes(&self, tag: Option<Tag>) -> bool {
        match tag {
            // It must survive a kill that ends its server, to kill the processes that the server leaves behind.
            Some(Tag::WATCHDOG) => true,
            // A tag that belongs to no start was made up by the process.
            Some(tag) if self.tag().same_server(tag) => !self.matches(tag) && adoption::is_start(tag),
            _ => matches!(self, Self::Group(..)),
        }
    }

    fn matches(&self, tag: Tag) -> bool {
        match self {
            Self::Process(own, _) | Self::Group(own, _) | Self::Start(own) => *own == tag.of_start(),
            Self::Session(own) => own.same_session(tag),
            Self::Server(own) => own.same_server(tag),
        }
    }

    /// Returns whether the scope covers all processes of a single start.
    fn is_of_one_start(&self) -> bool {
        matches!(self, Self::Process(..) | Self::Start(_))
    }

    /// Returns whether a process was left behind by a start of this scope.
    fn claim(&self, member: &Member) -> Claim {
        match self {
            Self::Group(..) => Claim::No,
            _ => adoption::claim(member, |tag| self.matches(tag)),
        }
    }

    fn tag(&self) -> Tag {
        let (Self::Process(tag, _)
        | Self::Group(tag, _)
        | Self::Start(tag)
        | Self::Session(tag)
        | Self::Server(tag)) = self;
        *tag
    }
}

/// Processes that survived every attempt to kill them.
#[derive(Debug)]
struct Survivors(Vec<Pid>);

impl fmt::Display for Survivors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("some processes are still alive after SIGKILL; check them on the host:")?;
        self.0.iter().try_for_each(|pid| write!(f, " {pid}"))
    }
}

impl std::error::Error for Survivors {}

/// Processes are created faster than they can be examined.
#[derive(Debug)]
struct Unproven;

impl fmt::Display for Unproven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "processes are created faster than they can be looked at, so some may be left; check the host",
        )
    }
}

impl std::error::Error for Unproven {}

/// Orphans that may belong to the tree or to others.
#[derive(Debug)]
struct Doubtful(Vec<Pid>);

impl fmt::Display for Doubtful {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "some processes may be left: they hide which process of the server they come from; check them on the host:",
        )?;
        self.0.iter().try_for_each(|pid| write!(f, " {pid}"))
    }
}

impl std::error::Error for Doubtful {}

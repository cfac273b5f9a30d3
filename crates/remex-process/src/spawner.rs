//! The threads that make children.
//!
//! Making a child stops the thread that does it until the program runs, so no worker of the runtime may do it.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

use rustix::fs::{Mode, OFlags};
use tokio::{
    io::Interest,
    runtime::Handle,
    sync::{Semaphore, oneshot},
};

use crate::{
    ChildIo, Exit, Leader, Pid, Scope, Stage, Start, StartError, Stdio, Tag,
    clone::{self, Birth, Orders, Stack, Terminal},
    descriptors::{Ends, lift},
    exit,
    image::Image,
    mark::Mark,
    reaper, sys, tree,
};

/// Starts that may wait for a thread. A start takes less than a millisecond; whoever comes later waits outside.
const MAX_WAITING_STARTS: usize = 64;

/// Starts programs, on a few threads of its own.
///
/// The threads live until the last clone of the spawner and the last [`Exit`] of its children are gone. They may not
/// end before: the kernel sends the parent-death signal when the thread that made a child ends.
#[derive(Clone, Debug)]
pub struct Spawner {
    lease: Arc<Lease>,
}

/// A process that was started.
#[derive(Debug)]
pub struct Child {
    /// Its number, and that of the session and the group that it leads.
    pub pid: Pid,
    /// Our ends of what it reads and writes.
    pub io: ChildIo,
    /// Its end.
    pub exit: Exit,
}

impl Spawner {
    /// Starts the threads, at least one.
    ///
    /// Also makes sure that this program is told of the end of its children, which it would not be if it was born
    /// with SIGCHLD ignored.
    ///
    /// # Errors
    /// When the host has no room for threads or descriptors.
    pub fn new(threads: usize) -> io::Result<Self> {
        sys::keep_exit_statuses();
        // Says now, and not at the first start, where there is no place for the mark.
        Mark::chosen();
        reaper::start()?;
        tree::start()?;
        let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let site = Arc::new(Site {
            orders: Mutex::default(),
            bell: Condvar::new(),
            room: Semaphore::new(MAX_WAITING_STARTS),
            null: lift(null)?,
        });
        let spawner = Self { lease: Arc::new(Lease { site: site.clone() }) };
        for number in 0..threads.max(1) {
            let (site, stack) = (site.clone(), Stack::new()?);
            thread::Builder::new().name(format!("remex-spawn-{number}")).spawn(move || work(&site, stack))?;
        }
        Ok(spawner)
    }

    /// Starts a program, and returns when it runs. Must be called within a runtime that does I/O.
    ///
    /// Cancel-safe: when the future is dropped, what it started is killed with its tree.
    ///
    /// # Errors
    /// [`StartError`] says what stood in the way; nothing is left of the attempt.
    pub async fn start(&self, start: Start) -> Result<Child, StartError> {
        let image = Image::new(start)?;
        let site = &self.lease.site;
        let room = site.room.acquire().await.expect("the semaphore of a site is never closed");
        // Given back by the thread that takes the order, which happens also if nobody waits for the answer.
        room.forget();
        let (answer, answered) = oneshot::channel();
        let (image, runtime, lease) = (Box::new(image), Handle::current(), self.lease.clone());
        site.push(Order::Start { image, answer, runtime, lease });
        let newborn = answered.await.expect("a thread answers every order whose future lives");
        newborn.map(Newborn::claim)
    }
}

/// Keeps the threads alive.
#[derive(Debug)]
pub(crate) struct Lease {
    site: Arc<Site>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.site.orders().closed = true;
        self.site.bell.notify_all();
    }
}

/// What the threads share.
#[derive(Debug)]
struct Site {
    /// A mutex, because threads that block and tasks that must not meet here; held to push or pop only.
    orders: Mutex<Queue>,
    bell: Condvar,
    /// Bounds the starts in the queue.
    room: Semaphore,
    null: OwnedFd,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Order>,
    closed: bool,
}

#[derive(Debug)]
enum Order {
    Start {
        image: Box<Image>,
        answer: oneshot::Sender<Result<Newborn, StartError>>,
        /// Watches the child for its end.
        runtime: Handle,
        lease: Arc<Lease>,
    },
}

impl Site {
    fn orders(&self) -> MutexGuard<'_, Queue> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, order: Order) {
        self.orders().waiting.push_back(order);
        self.bell.notify_one();
    }

    /// Waits for an order, or returns `None` when there will be no more.
    fn pop(&self) -> Option<Order> {
        let idle = |queue: &mut Queue| queue.waiting.is_empty() && !queue.closed;
        let mut queue = self.bell.wait_while(self.orders(), idle).unwrap_or_else(PoisonError::into_inner);
        queue.waiting.pop_front()
    }
}

fn work(site: &Site, mut stack: Stack) {
    sys::block_signals();
    sys::favour_latency();
    while let Some(order) = site.pop() {
        match order {
            Order::Start { image, answer, runtime, lease } => {
                site.room.add_permits(1);
                if !answer.is_closed() {
                    let _entered = runtime.enter();
                    // Where nobody waits any more, the newborn is dropped and ended.
                    _ = answer.send(make(site, &mut stack, *image, lease));
                }
            }
        }
    }
}

fn make(site: &Site, stack: &mut Stack, image: Image, lease: Arc<Lease>) -> Result<Newborn, StartError> {
    let Start { stdio, tag, parent_death, .. } = image.start;
    let ends = match Ends::open(stdio, site.null.as_fd()) {
        Ok(ends) => ends,
        Err(errno) => return Err(image.error(Stage::Descriptors, errno.raw_os_error())),
    };
    let born = clone::start(
        stack,
        &Orders {
            candidates: &image.candidates.pointers(),
            argv: &image.argv.pointers(),
            env: &image.env.pointers(),
            cwd: &image.cwd,
            targets: ends.targets,
            terminal: match stdio {
                Stdio::Pipes { .. } => Terminal::Absent,
                Stdio::Pty { .. } => Terminal::Controlling,
            },
            mark: Mark::chosen().map(|mark| (mark.resource, mark.limit(tag))),
            file_limit: sys::file_limit_of_children(),
            parent_death,
        },
    );
    let Birth { pid, pidfd, inherited_rss_bytes } = match born {
        Ok(birth) => birth,
        Err((stage, errno)) => return Err(image.error(stage, errno)),
    };
    match sys::watch(pidfd, Interest::READABLE) {
        Ok(pidfd) => {
            let exit = Exit::new(Leader::new(pid), pidfd, inherited_rss_bytes, lease);
            Ok(Newborn { child: Some(Child { pid, io: ends.io, exit }), tag })
        }
        Err(error) => {
            let (pidfd, error) = error.into_parts();
            let leader = Leader::new(pid);
            let scope = Scope::Process(tag, leader.clone());
            tree::kill_later(&scope, move || exit::end(&leader, pidfd));
            Err(image.error(Stage::Descriptors, error.raw_os_error().unwrap_or(libc::EIO)))
        }
    }
}

/// A child on its way to whoever asked for it. If it does not arrive, it is ended with its tree.
#[derive(Debug)]
struct Newborn {
    child: Option<Child>,
    tag: Tag,
}

impl Newborn {
    fn claim(mut self) -> Child {
        self.child.take().expect("only claim takes the child, and it consumes the newborn")
    }
}

impl Drop for Newborn {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            // Not reaped before its tree is gone, so that those in its session are found.
            let scope = Scope::Process(self.tag, child.exit.leader().clone());
            tree::kill_later(&scope, move || drop(child));
        }
    }
}

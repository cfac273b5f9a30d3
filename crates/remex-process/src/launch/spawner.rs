//! The threads that spawn children.
//!
//! Spawning blocks its thread until the program runs, so runtime workers must not do it. On an unresponsive file system
//! the thread stays blocked, and other threads replace it.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};

use remex_base::lock;
use rustix::fs::{Mode, OFlags};
use tokio::{
    io::Interest,
    runtime::Handle,
    sync::{Semaphore, oneshot},
    time::timeout,
};

use crate::{
    Attempt, Cgroup, ChildIo, Exit, Jail, Leader, OwnCgroup, Pid, ProxySocket, Scope, Stage, Start,
    StartError, Tag,
    base::{shared_table, sys, tag_limit::TagLimit},
    kin::{reaper, tree},
    launch::{
        clone::Spawned,
        create::{self, ChildDescriptors, CreateError, CreatedChild},
        descriptors::StdioEnds,
        exit,
        image::Image,
        init::{Init, SpareInits},
        prepared::JailNamespaces,
        resources::ChildResources,
    },
};

/// The capacity of the queue. A start takes less than a millisecond; further callers wait for room.
const MAX_WAITING_STARTS: usize = 64;

/// The maximum number of threads. Each one beyond the first few replaces a thread whose start hangs.
const MAX_THREADS: usize = 512;

/// If starts are queued and no thread has taken one for this long, there are not enough threads.
const STALL: Duration = Duration::from_millis(20);

/// How long a start waits for a thread once the maximum number is reached.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// How long an idle spare thread waits for work before it ends.
const SPARE_TTL: Duration = Duration::from_secs(10);

/// Starts programs on a few dedicated threads, and on more while starts hang.
///
/// The threads live until the last clone of the spawner and the last [`Exit`] of its children are dropped. They must
/// not end earlier: the kernel sends the parent-death signal when the thread that created a child ends.
#[derive(Clone, Debug)]
pub struct Spawner {
    lease: Arc<Lease>,
}

/// A started process.
#[derive(Debug)]
pub struct Child {
    /// Its pid, also the id of the session and group that it leads.
    pub pid: Pid,
    /// Our ends of its standard streams.
    pub io: ChildIo,
    /// Its exit.
    pub exit: Exit,
    /// The cgroup that was created for it, if any.
    pub cgroup: Option<Cgroup>,
    /// The socket through which its jail reaches the proxy of the server, if its policy lists hosts.
    pub proxy: Option<ProxySocket>,
}

impl Spawner {
    /// Starts the threads, at least one.
    ///
    /// Also ensures that this program receives the exit statuses of its children, even if it was started with SIGCHLD
    /// ignored.
    ///
    /// # Errors
    /// If the host has no room for threads or descriptors.
    pub fn new(threads: usize) -> io::Result<Self> {
        sys::keep_exit_statuses();
        // Warns now instead of at the first start if no limit can hold the tag.
        TagLimit::choose();
        // Probed now, so that no start is delayed by it.
        shared_table::flag();
        reaper::start()?;
        tree::start()?;
        let threads = threads.clamp(1, MAX_THREADS);
        let bounds = Bounds { least_threads: threads, most_threads: MAX_THREADS, max_wait: MAX_WAIT };
        let spawner = Self::without_threads(bounds)?;
        for _ in 0..threads {
            spawner.lease.pool.add_thread()?;
        }
        Ok(spawner)
    }

    fn without_threads(bounds: Bounds) -> io::Result<Self> {
        let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let pool = Arc::new(ThreadPool {
            jobs: Mutex::new(JobQueue {
                waiting: VecDeque::new(),
                closed: false,
                threads: 0,
                idle: 0,
                last_taken: Instant::now(),
            }),
            bounds,
            job_available: Condvar::new(),
            room: Semaphore::new(MAX_WAITING_STARTS),
            null: sys::above_stdio(null)?,
            spare_inits: SpareInits::default(),
        });
        Ok(Self { lease: Arc::new(Lease { pool, of_all: None }) })
    }

    /// Starts a program and returns once it runs. Must be called within a tokio runtime with I/O and time enabled.
    ///
    /// Cancel-safe: dropping the future kills the process with its tree.
    ///
    /// # Errors
    /// [`StartError`] says what failed; a failed start leaves no process behind.
    pub async fn start(&self, start: Start) -> Result<Child, StartError> {
        self.attempt(start, &Attempt::default()).await
    }

    /// Starts a program like [`Spawner::start`], with an attempt that any thread can abort.
    ///
    /// The future itself does not observe the abort: await [`Attempt::aborted`] as well.
    ///
    /// # Errors
    /// As [`Spawner::start`].
    pub async fn attempt(&self, start: Start, attempt: &Attempt) -> Result<Child, StartError> {
        let image = Image::new(start)?;
        let pool = &self.lease.pool;
        let Ok(room) = timeout(pool.bounds.max_wait, pool.room.acquire()).await else {
            return Err(image.error(Stage::Queue, libc::EAGAIN));
        };
        // Released when the job leaves the queue, even if no caller waits for the answer.
        room.expect("the semaphore of a pool is never closed").forget();
        let _guard = AbortOnDrop { pool, attempt };
        let (answer, mut answered) = oneshot::channel();
        let (image, runtime, lease) = (Box::new(image), Handle::current(), self.lease.clone());
        pool.push(SpawnJob { image, answer, runtime, lease, attempt: attempt.clone() });
        let asked = Instant::now();
        let unclaimed = loop {
            if let Ok(unclaimed) = timeout(STALL, &mut answered).await {
                break unclaimed;
            }
            if asked.elapsed() >= pool.bounds.max_wait
                && let Some(image) = pool.withdraw(attempt)
            {
                return Err(image.error(Stage::Queue, libc::EAGAIN));
            }
            if !pool.relieve(attempt) {
                break answered.await;
            }
        };
        unclaimed.expect("a thread answers every job whose future is alive").map(UnclaimedChild::claim)
    }
}

/// Aborts an attempt when its caller drops it; has no effect on a completed one.
struct AbortOnDrop<'a> {
    pool: &'a ThreadPool,
    attempt: &'a Attempt,
}

impl Drop for AbortOnDrop<'_> {
    fn drop(&mut self) {
        self.attempt.abort();
        // If all threads hang, none would take it from the queue, and later starts would have no room.
        drop(self.pool.withdraw(self.attempt));
    }
}

/// Keeps threads alive: all of them, and the one that created a child as long as the child lives.
#[derive(Debug)]
pub(crate) struct Lease {
    pool: Arc<ThreadPool>,
    /// The lease of all threads, inside the lease of a single one.
    of_all: Option<Arc<Lease>>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.of_all.is_none() {
            self.pool.jobs().closed = true;
            self.pool.job_available.notify_all();
        }
    }
}

/// The state shared by the threads.
#[derive(Debug)]
struct ThreadPool {
    /// A mutex, because it is used by blocking threads and by tasks; held only to push or pop.
    jobs: Mutex<JobQueue>,
    job_available: Condvar,
    /// Bounds the starts in the queue.
    room: Semaphore,
    bounds: Bounds,
    null: OwnedFd,
    spare_inits: SpareInits,
}

/// Bounds on the number of threads and on the wait for one.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// The threads to keep when idle.
    least_threads: usize,
    /// Including threads whose start hangs.
    most_threads: usize,
    max_wait: Duration,
}

#[derive(Debug)]
struct JobQueue {
    waiting: VecDeque<SpawnJob>,
    closed: bool,
    /// Including threads whose start hangs.
    threads: usize,
    /// Threads that wait for a job.
    idle: usize,
    /// When a thread last took a job, or threads were last added.
    last_taken: Instant,
}

/// A start that waits for a thread.
#[derive(Debug)]
struct SpawnJob {
    image: Box<Image>,
    answer: oneshot::Sender<Result<UnclaimedChild, StartError>>,
    /// The runtime that watches the child for its exit.
    runtime: Handle,
    lease: Arc<Lease>,
    attempt: Attempt,
}

impl SpawnJob {
    fn is_of(&self, attempt: &Attempt) -> bool {
        Arc::ptr_eq(&self.attempt.progress, &attempt.progress)
    }
}

impl ThreadPool {
    fn jobs(&self) -> MutexGuard<'_, JobQueue> {
        lock(&self.jobs)
    }

    fn push(&self, job: SpawnJob) {
        self.jobs().waiting.push_back(job);
        self.job_available.notify_one();
    }

    /// Waits for a job, or returns `None` if this thread should end; its live children hold `made`.
    fn pop(&self, made: &Weak<Lease>) -> Option<SpawnJob> {
        let nothing_to_do = |queue: &mut JobQueue| queue.waiting.is_empty() && !queue.closed;
        let mut queue = self.jobs();
        queue.idle += 1;
        while nothing_to_do(&mut queue) {
            if queue.threads <= self.bounds.least_threads {
                queue = self
                    .job_available
                    .wait_while(queue, nothing_to_do)
                    .unwrap_or_else(PoisonError::into_inner);
                break;
            }
            let waited = self.job_available.wait_timeout_while(queue, SPARE_TTL, nothing_to_do);
            let timed_out;
            (queue, timed_out) = waited.unwrap_or_else(PoisonError::into_inner);
            // A thread whose end would send a child the parent-death signal must stay.
            let is_spare = queue.threads > self.bounds.least_threads && made.strong_count() == 0;
            if timed_out.timed_out() && is_spare {
                queue.threads -= 1;
                queue.idle -= 1;
                return None;
            }
        }
        queue.idle -= 1;
        queue.last_taken = Instant::now();
        queue.waiting.pop_front()
    }

    /// Returns whether no start waits, and the pool still accepts starts.
    fn is_idle(&self) -> bool {
        let queue = self.jobs();
        queue.waiting.is_empty() && !queue.closed
    }

    /// Removes a start from the queue, if no thread has taken it yet.
    fn withdraw(&self, attempt: &Attempt) -> Option<Image> {
        let mut queue = self.jobs();
        let index = queue.waiting.iter().position(|job| job.is_of(attempt))?;
        let job = queue.waiting.remove(index)?;
        drop(queue);
        self.room.add_permits(1);
        Some(*job.image)
    }

    /// Doubles the threads if all are stuck; returns `false` if this start has left the queue and needs no help.
    fn relieve(self: &Arc<Self>, attempt: &Attempt) -> bool {
        let mut queue = self.jobs();
        if !queue.waiting.iter().any(|job| job.is_of(attempt)) {
            return false;
        }
        if queue.idle > 0 || queue.last_taken.elapsed() < STALL {
            return true;
        }
        queue.last_taken = Instant::now();
        let allowed = self.bounds.most_threads.saturating_sub(queue.threads);
        let more = queue.threads.min(queue.waiting.len()).min(allowed);
        drop(queue);
        for _ in 0..more {
            // If the host has no room for a thread, the start waits for one, and fails if none becomes free.
            if let Err(error) = self.add_thread() {
                tracing::debug!(%error, "cannot add a spawner thread");
                break;
            }
        }
        true
    }

    /// Adds a thread, unless the maximum was reached in the meantime.
    fn add_thread(self: &Arc<Self>) -> io::Result<()> {
        let (pool, resources) = (Arc::clone(self), ChildResources::new()?);
        let mut queue = self.jobs();
        if queue.threads >= self.bounds.most_threads {
            return Ok(());
        }
        let name = format!("remex-spawn-{}", queue.threads);
        thread::Builder::new().name(name).spawn(move || run_jobs(&pool, resources))?;
        queue.threads += 1;
        Ok(())
    }
}

fn run_jobs(pool: &Arc<ThreadPool>, mut resources: ChildResources) {
    sys::block_signals();
    sys::favour_latency();
    // Held by the live children of this thread.
    let mut made = Weak::new();
    while let Some(job) = pool.pop(&made) {
        let SpawnJob { image, answer, runtime, lease, attempt } = job;
        pool.room.add_permits(1);
        if attempt.is_aborted() {
            _ = answer.send(Err(image.error(Stage::Setup, libc::ECANCELED)));
        } else if !answer.is_closed() {
            let lease = made
                .upgrade()
                .unwrap_or_else(|| Arc::new(Lease { pool: Arc::clone(pool), of_all: Some(lease) }));
            made = Arc::downgrade(&lease);
            let _entered = runtime.enter();
            let jail = image.start.jail.clone();
            // If the caller has dropped its future, the child is dropped and killed.
            _ = answer.send(spawn(pool, &mut resources, *image, lease, &attempt));
            if let Some(jail) = jail.filter(|_| pool.is_idle()) {
                pool.spare_inits.restock(&mut resources, &jail);
            }
        }
    }
}

fn spawn(
    pool: &ThreadPool,
    resources: &mut ChildResources,
    image: Image,
    lease: Arc<Lease>,
    attempt: &Attempt,
) -> Result<UnclaimedChild, StartError> {
    let Start { stdio, tag, .. } = image.start;
    let cgroup = image.start.cgroup.as_ref().map(own_cgroup).transpose();
    let (cgroup, entry_file) = match cgroup {
        Ok(cgroup) => cgroup.unzip(),
        Err(error) => return Err(image.error(Stage::Cgroup, error.raw_os_error().unwrap_or(libc::EIO))),
    };
    // The host's device is not handed to a confined process, which could change its mode.
    let is_confined = image.start.jail.as_ref().is_some_and(Jail::has_policy);
    let null = (!is_confined).then(|| pool.null.as_fd());
    let ends = match StdioEnds::open(stdio, null) {
        Ok(ends) => ends,
        Err(errno) => return Err(image.error(Stage::Descriptors, errno.raw_os_error())),
    };
    let create = match create::create(
        &pool.spare_inits,
        resources,
        &image,
        &ChildDescriptors { stdio: &ends, cgroup: entry_file.as_ref() },
        attempt,
    ) {
        Ok(create) => create,
        Err(CreateError::Failed(stage, errno)) => return Err(image.error(stage, errno)),
        Err(CreateError::Unconfined(error)) => return Err(image.unconfined(error)),
    };
    let CreatedChild { spawned: Spawned { pid, pidfd, inherited_rss_bytes, proxy }, jail, creation } = create;
    creation.started(tag, pid);
    drop(creation);
    let namespaces = jail.and_then(|jail| jail.namespaces);
    let jail_end =
        namespaces.as_ref().zip(proxy.as_ref()).map(|(namespaces, _)| namespaces.init.watch()).transpose();
    let (init, janitor) = match namespaces {
        Some(JailNamespaces { init, janitor, .. }) => (Some(init.entered()), janitor),
        None => (None, None),
    };
    if attempt.is_aborted() {
        // Usually it was killed before it ran; it may have just started.
        kill_unclaimed(tag, pid, pidfd, init);
        return Err(image.error(Stage::Setup, libc::ECANCELED));
    }
    let proxy = match jail_end.and_then(|end| proxy.zip(end).map(ProxySocket::from_parts).transpose()) {
        Ok(proxy) => proxy,
        Err(error) => {
            kill_unclaimed(tag, pid, pidfd, init);
            return Err(image.error(Stage::Descriptors, error.raw_os_error().unwrap_or(libc::EIO)));
        }
    };
    match sys::register_fd(pidfd, Interest::READABLE) {
        Ok(pidfd) => {
            let exit = Exit::new(Leader::new(pid), pidfd, inherited_rss_bytes, init, lease)
                .with_janitor(janitor.and_then(|janitor| sys::register_fd(janitor, Interest::READABLE).ok()));
            Ok(UnclaimedChild { child: Some(Child { pid, io: ends.io, exit, cgroup, proxy }), tag })
        }
        Err(error) => {
            let (pidfd, error) = error.into_parts();
            kill_unclaimed(tag, pid, pidfd, init);
            Err(image.error(Stage::Descriptors, error.raw_os_error().unwrap_or(libc::EIO)))
        }
    }
}

/// Creates a cgroup, and opens the file through which the child enters it.
fn own_cgroup(wanted: &OwnCgroup) -> io::Result<(Cgroup, OwnedFd)> {
    let cgroup = wanted.cgroups.create(wanted.limits)?;
    let entry_file = cgroup.entry_file()?;
    Ok((cgroup, entry_file))
}

/// Kills a child that no caller will receive, with its tree.
fn kill_unclaimed(tag: Tag, pid: Pid, pidfd: OwnedFd, init: Option<Init>) {
    let leader = Leader::new(pid);
    if init.is_some() {
        // When the first process of its jail ends, the kernel kills all others in the jail.
        drop(init);
        return exit::kill_and_reap(&leader, pidfd);
    }
    let scope = Scope::Process(tag, leader.clone());
    tree::kill_in_background(&scope, move || exit::kill_and_reap(&leader, pidfd));
}

/// A child that its caller has not received yet. Dropped unclaimed, it is killed with its tree.
#[derive(Debug)]
struct UnclaimedChild {
    child: Option<Child>,
    tag: Tag,
}

impl UnclaimedChild {
    fn claim(mut self) -> Child {
        self.child.take().expect("only claim takes the child, and it consumes the value")
    }
}

impl Drop for UnclaimedChild {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            if child.exit.is_confined() {
                // The drop kills its tree, which has not ended before the child is reaped.
                return;
            }
            // Reaped only after its tree has ended, so that processes in its session are found.
            let scope = Scope::Process(self.tag, child.exit.leader().clone());
            tree::kill_in_background(&scope, move || drop(child));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Rlimits, StartErrorKind, Stdin, Stdio, Tags};

    const PATIENCE: Duration = Duration::from_secs(30);

    const BOUNDS: Bounds = Bounds { least_threads: 0, most_threads: 2, max_wait: Duration::from_millis(200) };

    fn start() -> Start {
        Start {
            program: "true".into(),
            arg0: None,
            args: Vec::new(),
            cwd: "/".into(),
            env: vec![("PATH".into(), "/usr/bin:/bin".into())],
            stdio: Stdio::Pipes { stdin: Stdin::Null },
            tag: Tags::new().tag(0, 0),
            parent_death: None,
            rlimits: Rlimits::default(),
            cgroup: None,
            jail: None,
            user: None,
        }
    }

    #[tokio::test]
    async fn an_abandoned_start_makes_room_although_no_thread_takes_it() {
        // A start must not be refused on its own while this test waits for the processor.
        let spawner = Spawner::without_threads(Bounds { max_wait: PATIENCE, ..BOUNDS }).unwrap();
        for _ in 0..2 * MAX_WAITING_STARTS {
            timeout(Duration::ZERO, spawner.start(start())).await.expect_err("no thread exists");
        }
        let pool = &spawner.lease.pool;
        assert!(pool.jobs().waiting.is_empty());
        assert_eq!(pool.room.available_permits(), MAX_WAITING_STARTS);
    }

    #[test]
    fn the_thread_limit_is_never_exceeded() {
        let spawner = Spawner::without_threads(BOUNDS).unwrap();
        let pool = &spawner.lease.pool;
        pool.jobs().threads = BOUNDS.most_threads;
        pool.add_thread().unwrap();
        assert_eq!(pool.jobs().threads, BOUNDS.most_threads);
    }

    #[tokio::test]
    async fn when_the_maximum_of_threads_hangs_a_start_is_refused_after_a_timeout() {
        let spawner = Spawner::without_threads(BOUNDS).unwrap();
        let pool = &spawner.lease.pool;
        // Threads that never take a job behave like threads that hang.
        pool.jobs().threads = BOUNDS.most_threads;
        let refused =
            timeout(PATIENCE, spawner.start(start())).await.expect("the start fails after its wait");
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), StartErrorKind::TooManyHungStarts, "{error}");
        assert_eq!(pool.jobs().threads, BOUNDS.most_threads);
        assert!(pool.jobs().waiting.is_empty());
        assert_eq!(pool.room.available_permits(), MAX_WAITING_STARTS);
        // With room for one more, the same start gets it.
        pool.jobs().threads -= 1;
        timeout(PATIENCE, spawner.start(start())).await.expect("a thread is added").unwrap();
        assert_eq!(pool.jobs().threads, BOUNDS.most_threads);
    }
}

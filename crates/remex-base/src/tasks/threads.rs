//! Threads for work that may hang: one for each piece of work, up to a limit that several parties share.
//!
//! Work has a key, for example the identity that it is done for. A key may occupy as many threads as it leaves free,
//! and keys whose work waits take turns. So even if all work of some keys hangs, a thread is left for the next key.
//!
//! One thread exists from the start and stays. If the host cannot create another, work waits for the existing
//! ones; after its creation, a pool never fails or panics. Start at [`Threads`].

use std::{
    collections::{HashMap, VecDeque},
    future::Future,
    hash::Hash,
    io,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use remex_proto::RpcError;
use tokio::sync::oneshot;

use crate::{
    lock,
    supervise::{Panicked, catch_panic, defect},
    trace::LOG_TARGET,
};

/// How long a thread stays without work, unless it is the last one.
pub const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// A pool of threads. After it is dropped, its threads finish their work and end.
#[derive(Debug)]
pub struct Threads<K: Key> {
    pool: Arc<Pool<K>>,
}

/// The key of the party that work is done for.
pub trait Key: Clone + Eq + Hash + Send + 'static {}

impl<K: Clone + Eq + Hash + Send + 'static> Key for K {}

/// How many threads the work of one key may occupy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// All of them.
    All,
    /// As many as are left free: half of them if all others rest, then half of the rest for the next key.
    AsManyAsLeft,
}

type Job = Box<dyn FnOnce() + Send>;

struct Pool<K> {
    name: &'static str,
    max: usize,
    share: Share,
    /// Shared by the threads and their callers; held briefly. Callers bound the queue: they wait for the
    /// result, or hold a slot that the work releases.
    state: Mutex<PoolState<K>>,
    job_available: Condvar,
}

struct PoolState<K> {
    /// The keys with work.
    keys: HashMap<K, KeyWork>,
    /// Keys whose work waits for their share, in the order of their turns.
    turns: VecDeque<K>,
    /// Work that may run, and for which a thread exists or may be created.
    ready: VecDeque<(K, Job)>,
    /// How much work runs or is ready; `busy <= max`.
    busy: usize,
    threads: usize,
    idle: usize,
    closed: bool,
}

#[derive(Default)]
struct KeyWork {
    /// How much of it runs or is ready.
    busy: usize,
    /// Work that exceeds its share.
    waiting: VecDeque<Job>,
}

impl<K: Key> Threads<K> {
    /// Creates a pool with its first thread.
    pub fn new(name: &'static str, max: usize, share: Share) -> io::Result<Self> {
        let state = PoolState {
            keys: HashMap::new(),
            turns: VecDeque::new(),
            ready: VecDeque::new(),
            busy: 0,
            threads: 0,
            idle: 0,
            closed: false,
        };
        let pool =
            Arc::new(Pool { name, max, share, state: Mutex::new(state), job_available: Condvar::new() });
        pool.add_thread(&mut pool.state())?;
        Ok(Self { pool })
    }

    /// Runs `work` on a thread; it continues if the future is dropped.
    pub fn run<T, W>(
        &self,
        key: K,
        work: W,
    ) -> impl Future<Output = Result<T, Panicked>> + Send + use<T, W, K>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        self.pool.push(key, Box::new(move || _ = answer.send(work())));
        async move { answered.await.map_err(|_| Panicked) }
    }

    /// Runs `work` on a thread, unless the future is dropped before a thread is free.
    pub fn run_if_wanted<T, W>(
        &self,
        key: K,
        work: W,
    ) -> impl Future<Output = Result<T, Panicked>> + Send + use<T, W, K>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let job = move || {
            if !answer.is_closed() {
                _ = answer.send(work());
            }
        };
        self.pool.push(key, Box::new(job));
        async move { answered.await.map_err(|_| Panicked) }
    }
}

impl<K: Key> Drop for Threads<K> {
    fn drop(&mut self) {
        self.pool.state().closed = true;
        self.pool.job_available.notify_all();
    }
}

impl<K: Key> PoolState<K> {
    fn push(&mut self, key: K, job: Job) {
        let own = self.keys.entry(key.clone()).or_default();
        own.waiting.push_back(job);
        if own.waiting.len() == 1 {
            self.turns.push_back(key);
        }
    }

    /// Makes work ready as far as the shares allow, one piece for each key in turn.
    fn admit(&mut self, max: usize, share: Share) {
        let mut refused = 0;
        while refused < self.turns.len() {
            let free = max - self.busy;
            let Some(key) = self.turns.pop_front() else { return };
            let Some(own) = self.keys.get_mut(&key) else { continue };
            let may_run = match share {
                Share::All => free > 0,
                Share::AsManyAsLeft => own.busy < free,
            };
            if !may_run {
                refused += 1;
                self.turns.push_back(key);
                continue;
            }
            refused = 0;
            let Some(job) = own.waiting.pop_front() else { continue };
            own.busy += 1;
            self.busy += 1;
            if !own.waiting.is_empty() {
                self.turns.push_back(key.clone());
            }
            self.ready.push_back((key, job));
        }
    }

    fn on_done(&mut self, key: &K) {
        self.busy -= 1;
        let Some(own) = self.keys.get_mut(key) else { return };
        own.busy -= 1;
        if own.busy == 0 && own.waiting.is_empty() {
            self.keys.remove(key);
        }
    }
}

impl<K: Key> Pool<K> {
    fn push(self: &Arc<Self>, key: K, job: Job) {
        let mut state = self.state();
        state.push(key, job);
        self.provide(&mut state, 0);
    }

    /// Makes work ready, and finds a thread for each piece of it except for `covered`.
    fn provide(self: &Arc<Self>, state: &mut PoolState<K>, covered: usize) {
        let before = state.ready.len();
        state.admit(self.max, self.share);
        for number in before + covered + 1..=state.ready.len() {
            if state.idle + covered >= number {
                self.job_available.notify_one();
            } else if state.threads < self.max
                && let Err(error) = self.add_thread(state)
            {
                return tracing::debug!(
                    target: LOG_TARGET,
                    %error,
                    pool = self.name,
                    "cannot create a thread; work waits for the existing ones"
                );
            }
        }
    }

    fn add_thread(self: &Arc<Self>, state: &mut PoolState<K>) -> io::Result<()> {
        let pool = Arc::clone(self);
        thread::Builder::new().name(self.name.to_owned()).spawn(move || pool.work())?;
        state.threads += 1;
        Ok(())
    }

    fn work(self: &Arc<Self>) {
        let mut state = self.state();
        loop {
            if let Some((key, job)) = state.ready.pop_front() {
                drop(state);
                // The caller learns of a panic because it gets no result.
                _ = catch_panic(job);
                state = self.state();
                state.on_done(&key);
                // This thread takes the next piece.
                self.provide(&mut state, 1);
                continue;
            }
            if state.closed {
                return;
            }
            state.idle += 1;
            let (woken, waited) =
                self.job_available.wait_timeout(state, KEEP_ALIVE).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            if waited.timed_out() && state.ready.is_empty() && state.threads > 1 {
                state.threads -= 1;
                return;
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, PoolState<K>> {
        lock(&self.state)
    }
}

impl<K> std::fmt::Debug for Pool<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The threads for the file work of one identity; a call that hangs occupies its thread.
#[derive(Clone, Debug)]
pub struct ClientThreads {
    threads: Arc<Threads<Arc<str>>>,
    identity: Arc<str>,
}

/// The threads for file work of all clients.
#[derive(Debug)]
pub struct FileThreads {
    threads: Arc<Threads<Arc<str>>>,
}

/// The most threads for file work of clients, and for that of the server itself.
const FILE_THREADS: usize = 2048;

impl FileThreads {
    /// Creates the threads: at most `most`, or [`FILE_THREADS`].
    pub fn new(most: usize) -> io::Result<Self> {
        let threads = Threads::new("remex-file", most.min(FILE_THREADS), Share::AsManyAsLeft)?;
        Ok(FileThreads { threads: Arc::new(threads) })
    }

    /// Returns the share of an identity, given as logs show it.
    pub fn of(&self, identity: &Arc<str>) -> ClientThreads {
        ClientThreads { threads: Arc::clone(&self.threads), identity: Arc::clone(identity) }
    }
}

impl ClientThreads {
    /// Returns the identity that these threads work for.
    pub fn identity(&self) -> &Arc<str> {
        &self.identity
    }

    /// Runs `work` on its own thread; it continues if the future is dropped.
    pub fn run<T, W>(&self, work: W) -> impl Future<Output = Result<T, RpcError>> + Send + use<T, W>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        let running = self.threads.run(Arc::clone(&self.identity), work);
        async move { running.await.map_err(|_| defect()) }
    }
}

/// The threads for work of the server itself, which no client can occupy.
#[derive(Debug)]
pub struct ServerThreads {
    threads: Threads<ServerWork>,
}

/// A kind of work of the server itself. If one kind hangs, the others continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServerWork {
    /// Reads token files and keys.
    Credentials,
    /// Reads certificates.
    Certificates,
    /// Removes cgroups.
    Cgroups,
    /// Starts a keeper, and ends what one has left.
    Keeper,
    /// Brings logs to the disk, and closes those that a keeper has left open.
    Logs,
    /// Deletes the logs of a keeper.
    Deletions,
    /// Creates directories for the next processes of a keeper.
    Spares,
    /// Checks the next program of a keeper, and runs work for the embedding program, such as reloads.
    Program,
    /// Finds out what the host can enforce.
    Probe,
    /// Looks for the processes of local peers.
    Peers,
}

impl ServerThreads {
    /// Creates the threads.
    pub fn new() -> io::Result<Self> {
        Ok(ServerThreads { threads: Threads::new("remex-own", FILE_THREADS, Share::AsManyAsLeft)? })
    }

    /// Runs `work` on its own thread; it continues if the future is dropped.
    pub fn run<T, W>(
        &self,
        kind: ServerWork,
        work: W,
    ) -> impl Future<Output = Result<T, RpcError>> + Send + use<T, W>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        let running = self.threads.run(kind, work);
        async move { running.await.map_err(|_| defect()) }
    }
}

#[cfg(any(test, feature = "testing"))]
impl<K: Key> Threads<K> {
    /// Keeps as many threads busy as a key may occupy, each until its sender is dropped.
    pub fn keep_busy(&self, key: &K) -> Vec<std::sync::mpsc::Sender<()>> {
        let hold = |_| {
            let (release, held) = std::sync::mpsc::channel();
            let (begin, begun) = std::sync::mpsc::channel();
            drop(self.run(key.clone(), move || (begin.send(()), held.recv())));
            begun.recv().expect("a thread takes the work");
            release
        };
        let most = match self.pool.share {
            Share::All => self.pool.max,
            Share::AsManyAsLeft => self.pool.max.div_ceil(2),
        };
        (0..most).map(hold).collect()
    }

    /// Returns how many jobs no thread has taken yet.
    pub fn waiting(&self) -> usize {
        let state = self.pool.state();
        state.ready.len() + state.keys.values().map(|own| own.waiting.len()).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, mpsc};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Runs work that ends when the sender is dropped, and waits until it runs.
    fn hang(threads: &Threads<&'static str>, key: &'static str) -> mpsc::Sender<()> {
        let (held, begun) = queue(threads, key);
        begun.recv_timeout(PATIENCE).expect("a thread takes the work");
        held
    }

    /// Runs work that ends when the sender is dropped; the receiver learns when it runs.
    fn queue(
        threads: &Threads<&'static str>,
        key: &'static str,
    ) -> (mpsc::Sender<()>, mpsc::Receiver<&'static str>) {
        let (release, held) = mpsc::channel();
        let (begin, begun) = mpsc::channel();
        drop(threads.run(key, move || (begin.send(key), held.recv())));
        (release, begun)
    }

    #[tokio::test]
    async fn work_runs_at_the_same_time_up_to_the_bound() {
        let threads = Threads::new("test", 3, Share::All).unwrap();
        let barrier = Arc::new(Barrier::new(3));
        let works: Vec<_> = (0..9)
            .map(|number| {
                let barrier = Arc::clone(&barrier);
                threads.run((), move || {
                    barrier.wait();
                    number
                })
            })
            .collect();
        for (expected, work) in works.into_iter().enumerate() {
            assert_eq!(work.await.unwrap(), expected);
        }
        assert!(threads.pool.state().threads <= 3);
    }

    #[tokio::test]
    async fn work_that_hangs_leaves_a_thread_for_the_next_key() {
        let threads = Threads::new("test", 16, Share::AsManyAsLeft).unwrap();
        let mut hung = Vec::new();
        for (key, share) in [("a", 8), ("b", 4), ("c", 2), ("d", 1)] {
            hung.extend((0..share).map(|_| hang(&threads, key)));
            let before = threads.waiting();
            hung.extend((0..20).map(|_| queue(&threads, key).0));
            assert_eq!(threads.waiting(), before + 20, "`{key}` has no more than its share");
        }
        for _ in 0..100 {
            tokio::time::timeout(PATIENCE, threads.run("e", || ())).await.expect("a thread is left").unwrap();
        }
        assert_eq!(threads.waiting(), 80);
        drop(hung);
        tokio::time::timeout(PATIENCE, threads.run("a", || ())).await.expect("nothing hangs").unwrap();
        assert!(threads.pool.state().threads <= 16);
    }

    #[test]
    fn keys_whose_work_waits_take_turns() {
        let threads = Threads::new("test", 1, Share::AsManyAsLeft).unwrap();
        let gate = hang(&threads, "first");
        let (tell, told) = mpsc::channel();
        for key in ["a", "a", "a", "b", "b", "c"] {
            let tell = tell.clone();
            drop(threads.run(key, move || tell.send(key)));
        }
        drop((tell, gate));
        assert_eq!(told.iter().collect::<Vec<_>>(), ["a", "b", "c", "a", "b", "a"]);
    }

    #[test]
    fn a_share_that_becomes_free_is_used_again() {
        let threads = Threads::new("test", 4, Share::AsManyAsLeft).unwrap();
        let [one, _two] = [(); 2].map(|()| hang(&threads, "a"));
        let other = hang(&threads, "b");
        let (_three, begun) = queue(&threads, "a");
        assert_eq!(threads.waiting(), 1);
        drop(other);
        drop(one);
        begun.recv_timeout(PATIENCE).expect("it runs within the share");
        let state = threads.pool.state();
        assert!(state.threads <= 4 && state.busy <= 4, "{} threads, {} busy", state.threads, state.busy);
    }

    #[tokio::test]
    async fn finished_work_leaves_nothing_behind() {
        let threads = Threads::new("test", 2, Share::AsManyAsLeft).unwrap();
        let works: Vec<_> = (0..50).map(|number| threads.run(number, || ())).collect();
        for work in works {
            work.await.unwrap();
        }
        // The answer comes shortly before the thread is free.
        for key in 0..2 {
            drop(threads.keep_busy(&key));
        }
        while threads.pool.state().busy > 0 {
            thread::yield_now();
        }
        let state = threads.pool.state();
        assert!(state.keys.is_empty() && state.turns.is_empty() && state.ready.is_empty());
    }

    #[tokio::test]
    async fn a_panic_costs_one_answer_and_no_thread() {
        let threads = Threads::new("test", 1, Share::All).unwrap();
        let broken = threads.run((), || panic!("on purpose"));
        let (after, _): (_, Result<(), _>) = (threads.run((), || 5), broken.await);
        assert_eq!(after.await.unwrap(), 5);
    }

    #[tokio::test]
    async fn optional_work_without_a_waiter_is_skipped() {
        let threads = Threads::new("test", 1, Share::All).unwrap();
        let (go, gate) = mpsc::channel::<()>();
        let first = threads.run((), move || _ = gate.recv());
        let (told, heard) = mpsc::channel();
        let also = told.clone();
        drop(threads.run((), move || told.send("has to").unwrap()));
        drop(threads.run_if_wanted((), move || also.send("need not").unwrap()));
        drop(go);
        first.await.unwrap();
        threads.run((), || ()).await.unwrap();
        assert_eq!(heard.iter().collect::<Vec<_>>(), ["has to"]);
    }
}

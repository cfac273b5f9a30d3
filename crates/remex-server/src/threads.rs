//! Threads for work that may hang: one for each piece of work, up to a limit.
//!
//! One thread exists from the start and stays. If the host cannot create another, work waits for the existing
//! ones; after its creation, a pool never fails or panics. Start at [`Threads`].

use std::{
    collections::VecDeque,
    future::Future,
    io,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use remex_proto::RpcError;
use tokio::sync::oneshot;

use crate::supervise::{Panicked, catch_panic, defect};

/// How long a thread stays without work, unless it is the last one.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// A pool of threads. After it is dropped, its threads finish their work and end.
#[derive(Debug)]
pub(crate) struct Threads {
    pool: Arc<Pool>,
}

type Job = Box<dyn FnOnce() + Send>;

struct Pool {
    name: &'static str,
    max: usize,
    /// Shared by the threads and their callers; held briefly. Callers bound the queue: they wait for the
    /// result, or hold a slot that the work releases.
    state: Mutex<PoolState>,
    job_available: Condvar,
}

#[derive(Default)]
struct PoolState {
    waiting: VecDeque<Job>,
    threads: usize,
    idle: usize,
    closed: bool,
}

impl Threads {
    /// Creates a pool with its first thread.
    pub(crate) fn new(name: &'static str, max: usize) -> io::Result<Self> {
        let pool = Arc::new(Pool { name, max, state: Mutex::default(), job_available: Condvar::new() });
        pool.add_thread(&mut pool.state())?;
        Ok(Self { pool })
    }

    /// Runs `work` on a thread; it continues if the future is dropped.
    pub(crate) fn run<T, W>(&self, work: W) -> impl Future<Output = Result<T, Panicked>> + Send + use<T, W>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        self.pool.push(Box::new(move || _ = answer.send(work())));
        async move { answered.await.map_err(|_| Panicked) }
    }

    /// Runs `work` on a thread, unless the future is dropped before a thread is free.
    pub(crate) fn run_if_wanted<T, W>(
        &self,
        work: W,
    ) -> impl Future<Output = Result<T, Panicked>> + Send + use<T, W>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        self.pool.push(Box::new(move || {
            if !answer.is_closed() {
                _ = answer.send(work());
            }
        }));
        async move { answered.await.map_err(|_| Panicked) }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.pool.state().closed = true;
        self.pool.job_available.notify_all();
    }
}

impl Pool {
    fn push(self: &Arc<Self>, job: Job) {
        let mut state = self.state();
        state.waiting.push_back(job);
        if state.idle >= state.waiting.len() {
            drop(state);
            self.job_available.notify_one();
        } else if state.threads < self.max
            && let Err(error) = self.add_thread(&mut state)
        {
            drop(state);
            tracing::debug!(%error, pool = self.name, "cannot create a thread; work waits for the existing ones");
        }
    }

    fn add_thread(self: &Arc<Self>, state: &mut PoolState) -> io::Result<()> {
        let pool = Arc::clone(self);
        thread::Builder::new().name(self.name.to_owned()).spawn(move || pool.work())?;
        state.threads += 1;
        Ok(())
    }

    fn work(&self) {
        let mut state = self.state();
        loop {
            if let Some(job) = state.waiting.pop_front() {
                drop(state);
                // The caller learns of a panic because it gets no result.
                _ = catch_panic(job);
                state = self.state();
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
            if waited.timed_out() && state.waiting.is_empty() && state.threads > 1 {
                state.threads -= 1;
                return;
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The threads for file work of the whole server; a call that hangs occupies its thread.
#[derive(Debug)]
pub(crate) struct FileThreads {
    threads: Threads,
}

/// The most threads for file work.
const FILE_THREADS: usize = 2048;

impl FileThreads {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(FileThreads { threads: Threads::new("remex-file", FILE_THREADS)? })
    }

    /// Runs `work` on its own thread; it continues if the future is dropped.
    pub(crate) fn run<T, W>(&self, work: W) -> impl Future<Output = Result<T, RpcError>> + Send + use<T, W>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        let running = self.threads.run(work);
        async move { running.await.map_err(|_| defect()) }
    }
}

#[cfg(test)]
impl Threads {
    /// Keeps all threads busy, each until its sender is dropped.
    pub(crate) fn keep_busy(&self) -> Vec<std::sync::mpsc::Sender<()>> {
        let hold = |_| {
            let (release, held) = std::sync::mpsc::channel();
            let (begin, begun) = std::sync::mpsc::channel();
            drop(self.run(move || (begin.send(()), held.recv())));
            begun.recv().expect("a thread takes the work");
            release
        };
        (0..self.pool.max).map(hold).collect()
    }

    /// Returns how many jobs no thread has taken yet.
    pub(crate) fn waiting(&self) -> usize {
        self.pool.state().waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[tokio::test]
    async fn work_runs_at_the_same_time_up_to_the_bound() {
        let threads = Threads::new("test", 3).unwrap();
        let barrier = Arc::new(Barrier::new(3));
        let works: Vec<_> = (0..9)
            .map(|number| {
                let barrier = Arc::clone(&barrier);
                threads.run(move || {
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
    async fn a_panic_costs_one_answer_and_no_thread() {
        let threads = Threads::new("test", 1).unwrap();
        let broken = threads.run(|| panic!("on purpose"));
        let (after, _): (_, Result<(), _>) = (threads.run(|| 5), broken.await);
        assert_eq!(after.await.unwrap(), 5);
    }

    #[tokio::test]
    async fn work_without_a_waiter_is_skipped_if_it_may_be() {
        let threads = Threads::new("test", 1).unwrap();
        let (go, gate) = std::sync::mpsc::channel::<()>();
        let first = threads.run(move || _ = gate.recv());
        let (told, heard) = std::sync::mpsc::channel();
        let also = told.clone();
        drop(threads.run(move || told.send("has to").unwrap()));
        drop(threads.run_if_wanted(move || also.send("need not").unwrap()));
        drop(go);
        first.await.unwrap();
        threads.run(|| ()).await.unwrap();
        assert_eq!(heard.iter().collect::<Vec<_>>(), ["has to"]);
    }
}

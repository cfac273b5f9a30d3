//! Threads for CPU-bound work: parsing and encoding large messages, and searching output.
//!
//! The workers of the runtime serve every connection, so a single message must not occupy one for long. Start
//! at [`ComputePool`].

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
};

use tokio::{runtime::Handle, sync::Semaphore};

use crate::threads::{Share, Threads};

/// Messages longer than this are parsed and encoded on the pool.
pub const LARGE_MESSAGE: usize = 64 << 10;

/// A few threads with one queue.
///
/// Callers bound the queue: each connection parses one message and builds one large answer at a time.
#[derive(Debug)]
pub struct ComputePool {
    threads: Threads<()>,
    /// Limits low-priority work, so that it never occupies all threads.
    low_priority: Semaphore,
}

impl ComputePool {
    /// Creates a pool of up to `threads` threads.
    ///
    /// # Errors
    ///
    /// If the first thread cannot be created.
    pub fn new(threads: usize) -> io::Result<Self> {
        let low_priority = Semaphore::new((threads / 2).max(1));
        Ok(ComputePool { threads: Threads::new("remex-compute", threads, Share::All)?, low_priority })
    }

    /// Like [`run`](Self::run), for continuous work: it occupies at most half of the threads, in the order of arrival.
    pub async fn run_low_priority<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let _turn = self.low_priority.acquire().await;
        self.run(work).await
    }

    /// Runs `work` on a thread of the pool, inside the caller's runtime context. The work is skipped if the
    /// caller has stopped waiting before a thread is free.
    ///
    /// A panic in `work` propagates to the caller.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let runtime = Handle::current();
        let work = move || {
            let _runtime = runtime.enter();
            catch_unwind(AssertUnwindSafe(work))
        };
        match self.threads.run_if_wanted((), work).await {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => resume_unwind(panic),
            Err(panicked) => unreachable!("the job catches its own panic, yet {panicked}"),
        }
    }
}

#[cfg(any(test, feature = "testing"))]
impl ComputePool {
    /// Returns the threads, for tests that keep them busy.
    pub fn threads(&self) -> &Threads<()> {
        &self.threads
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use super::*;

    #[tokio::test]
    async fn work_runs_on_the_pool_and_a_panic_reaches_only_its_caller() {
        let pool = Arc::new(ComputePool::new(1).unwrap());
        let asked = Arc::clone(&pool);
        let failed = tokio::spawn(async move { asked.run(|| panic!("as planned")).await });
        let failed: Result<(), _> = failed.await;
        assert!(failed.unwrap_err().is_panic());
        let here = thread::current().id();
        assert!(pool.run(move || thread::current().id() != here).await);
    }
}

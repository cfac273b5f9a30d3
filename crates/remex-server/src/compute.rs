//! Threads for work that keeps a core busy: parsing and encoding of large messages.
//!
//! The workers of the runtime serve every connection, so none of them may be busy for long with one message. Start at
//! [`ComputePool`].

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
};

use tokio::runtime::Handle;

use crate::threads::Threads;

/// Messages of more bytes than this are parsed and encoded here.
pub(crate) const LARGE_MESSAGE: usize = 64 << 10;

/// A few threads with one queue.
///
/// The queue is bounded by its callers: a connection parses one message at a time and makes one large answer at a time.
#[derive(Debug)]
pub(crate) struct ComputePool {
    threads: Threads,
}

impl ComputePool {
    /// Makes a pool of up to so many threads.
    ///
    /// # Errors
    ///
    /// When the host has no room for the first one.
    pub(crate) fn new(threads: usize) -> io::Result<Self> {
        Ok(ComputePool { threads: Threads::new("remex-compute", threads)? })
    }

    /// Does `work` on one of the threads, within the caller's runtime, unless nobody waits for it any more when its turn
    /// has come.
    ///
    /// A panic of `work` is the caller's.
    pub(crate) async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let runtime = Handle::current();
        let work = move || {
            let _runtime = runtime.enter();
            catch_unwind(AssertUnwindSafe(work))
        };
        match self.threads.run_if_wanted(work).await {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => resume_unwind(panic),
            Err(panicked) => unreachable!("the panic of a job was catch_panic, and yet {panicked}"),
        }
    }
}

#[cfg(test)]
impl ComputePool {
    pub(crate) fn threads(&self) -> &Threads {
        &self.threads
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use super::*;

    #[tokio::test]
    async fn work_is_done_elsewhere_and_a_panic_hurts_only_who_asked_for_it() {
        let pool = Arc::new(ComputePool::new(1).unwrap());
        let asked = Arc::clone(&pool);
        let failed = tokio::spawn(async move { asked.run(|| panic!("as planned")).await });
        let failed: Result<(), _> = failed.await;
        assert!(failed.unwrap_err().is_panic());
        let here = thread::current().id();
        assert!(pool.run(move || thread::current().id() != here).await);
    }
}

//! Jobs on file threads: each waits for its lock and for a slot, and holds both until its effect is visible.

use std::{future::Future, sync::Arc, time::Duration};

use remex_base::threads::ClientThreads;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::path_lock::PathLock;

/// Work that takes longer than this may hang, so others stop waiting for it.
pub const HANG_THRESHOLD: Duration = Duration::from_secs(1);

/// Guards that a job holds until its effect is visible.
#[derive(Debug)]
pub struct JobGuards {
    #[expect(dead_code, reason = "releases a resource when dropped")]
    lock: PathLock,
    #[expect(dead_code, reason = "releases a resource when dropped")]
    slot: Option<OwnedSemaphorePermit>,
}

impl JobGuards {
    /// Holds an acquired lock, and a slot if one was free.
    pub fn new(lock: PathLock, slot: Option<OwnedSemaphorePermit>) -> Self {
        JobGuards { lock, slot }
    }
}

impl PathLock {
    /// Runs `job` on a thread once the lock is acquired and a slot is free.
    pub fn job<J: FnOnce(JobGuards) + Send + 'static>(
        self,
        threads: ClientThreads,
        slots: Arc<Semaphore>,
        job: J,
    ) -> impl Future<Output = ()> + Send + use<J> {
        let mut waiting = QueuedJob::new(&threads, job);
        async move {
            self.acquired().await;
            let slot = file_slot(slots).await;
            if let Some(job) = waiting.take() {
                let _ = threads.run(move || job(JobGuards::new(self, slot))).await;
            }
        }
    }
}

/// Waits for a slot. If none is released for a second, all holders hang, and the request proceeds without one.
pub async fn file_slot(slots: Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    tokio::time::timeout(HANG_THRESHOLD, slots.acquire_owned()).await.ok().and_then(Result::ok)
}

/// A job that has not started. It is dropped on a file thread, because it may own open files and closing one
/// may hang.
#[derive(Debug)]
pub struct QueuedJob<J: Send + 'static> {
    threads: ClientThreads,
    job: Option<J>,
}

impl<J: Send + 'static> QueuedJob<J> {
    /// Keeps a job until it starts on one of these threads.
    pub fn new(threads: &ClientThreads, job: J) -> Self {
        QueuedJob { threads: threads.clone(), job: Some(job) }
    }

    /// Takes the job to start it.
    pub fn take(&mut self) -> Option<J> {
        self.job.take()
    }
}

impl<J: Send + 'static> Drop for QueuedJob<J> {
    fn drop(&mut self) {
        if let Some(job) = self.job.take() {
            drop(self.threads.run(move || drop(job)));
        }
    }
}

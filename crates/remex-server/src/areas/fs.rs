//! File requests of one connection: each runs on its own thread, in order of arrival where paths of one session overlap.
//!
//! What they do is in `remex_files`; here are their limits, and the memory of their answers. Start at [`FileCalls`].

mod answer_memory;
mod answer_slot;
mod blocks;
mod discover;
mod read;

use std::sync::Arc;

use remex_access::{
    account::{Charge, Kind},
    budget::{self, PATIENCE},
};
use remex_base::{limits::Limits, threads::ClientThreads};
use remex_files::{
    AnswerSize, FileWork, HANG_THRESHOLD, JobGuards, PathAccess, PathGuard, PathLock, PathLockQueue,
    QueuedJob, handles::Handles,
};
use remex_proto::{HostPath, RequestId, RpcError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    areas::context::CallContext,
    outbox::{Encoding, Outbox, Reply, Responder},
    shared::host::Host,
};
use answer_memory::AnswerMemory;
use answer_slot::{AnswerSlot, AnswerSlotWatch};

const MIB: u64 = 1 << 20;

/// The file calls of one connection.
#[derive(Debug)]
pub(crate) struct FileCalls {
    /// The path locks of the session.
    locks: Arc<PathLockQueue>,
    /// Limits concurrent file work, some of which may hang.
    slots: Arc<Semaphore>,
    making: LargeAnswerLimits,
    handles: Handles,
    guard: PathGuard,
}

impl FileCalls {
    /// Creates the file calls of a connection whose session has these path locks.
    pub(crate) fn new(locks: &Arc<PathLockQueue>, guard: PathGuard, limits: &Limits) -> Self {
        FileCalls {
            locks: Arc::clone(locks),
            slots: Arc::new(Semaphore::new(limits.file_requests)),
            making: LargeAnswerLimits::new(limits),
            handles: Handles::default(),
            guard,
        }
    }

    /// Returns where the connection's file requests may go.
    pub(crate) fn guard(&self) -> &PathGuard {
        &self.guard
    }

    /// Returns the semaphore that limits the connection's file work.
    pub(crate) fn slots(&self) -> &Arc<Semaphore> {
        &self.slots
    }

    /// Carries out a file request, concurrently with all that access other paths.
    pub(crate) fn call<W: FileWork>(
        &self,
        context: &mut CallContext,
        id: RequestId,
        work: W,
        responder: Responder,
    ) where
        W::Reply: Reply,
    {
        let lock = match work.access().and_then(|access| self.lock(access)) {
            Ok(lock) => lock,
            Err(error) => return responder.error(&error),
        };
        let (guard, host) = (self.guard.clone(), Arc::clone(context.host()));
        let job = move |guards: JobGuards, responder: Responder| {
            let guard = guard.confined(host.confinement(), work.sandbox());
            let result = guard.and_then(|guard| work.run(&guard, &responder.cancel_check()));
            drop(guards);
            responder.answer(result);
        };
        match W::ANSWER {
            AnswerSize::Small => self.run_job(context, id, lock, move |guards| job(guards, responder)),
            AnswerSize::Large(bytes) => {
                let large = self.large(context);
                context.spawn_call(id, large.answer(bytes, lock, responder, job));
            }
        }
    }

    /// Runs `job`, which sends the answer itself, on a thread once its lock is acquired.
    ///
    /// The job releases its guards as soon as its effect is visible. If it needs to wait for nothing, it starts
    /// at once, without a task in between.
    fn run_job(
        &self,
        context: &mut CallContext,
        id: RequestId,
        lock: PathLock,
        job: impl FnOnce(JobGuards) + Send + 'static,
    ) {
        let slot = if lock.is_acquired() { Arc::clone(&self.slots).try_acquire_owned().ok() } else { None };
        if slot.is_some() {
            return drop(context.threads().run(move || job(JobGuards::new(lock, slot))));
        }
        let later = lock.job(context.threads().clone(), Arc::clone(&self.slots), job);
        context.spawn_call(id, later);
    }

    /// Returns what is needed to build large answers.
    fn large(&self, context: &CallContext) -> LargeAnswers {
        LargeAnswers {
            host: Arc::clone(context.host()),
            threads: context.threads().clone(),
            locks: Arc::clone(&self.locks),
            outbox: Arc::clone(context.outbox()),
            slots: Arc::clone(&self.slots),
            making: self.making.clone(),
        }
    }

    /// Queues a lock on the paths of a request.
    pub(crate) fn lock(&self, access: PathAccess) -> Result<PathLock, RpcError> {
        self.locks.lock(access)
    }
}

/// Builds the large answers of one connection: few at a time, and only while the client reads them.
#[derive(Clone)]
pub(crate) struct LargeAnswers {
    host: Arc<Host>,
    threads: ClientThreads,
    locks: Arc<PathLockQueue>,
    outbox: Arc<Outbox>,
    slots: Arc<Semaphore>,
    making: LargeAnswerLimits,
}

impl LargeAnswers {
    /// Runs `job`, which answers with about `bytes`, once its lock is acquired and there is memory for the answer.
    pub(crate) async fn answer(
        self,
        bytes: u64,
        lock: PathLock,
        responder: Responder,
        job: impl FnOnce(JobGuards, Responder) + Send + 'static,
    ) {
        let mut waiting = QueuedJob::new(&self.threads, job);
        let permit = self.permit(bytes, &lock).await;
        let charge = match self.charge(bytes).await {
            Ok(charge) => charge,
            Err(error) => return responder.error(&error),
        };
        let Some(job) = waiting.take() else { return };
        let job = move |guards| {
            job(guards, responder);
            // From now on, the answer is charged as it is.
            drop(charge);
        };
        self.run(permit, lock, job).await;
    }

    /// Waits until the account of the connection has room for `bytes`.
    ///
    /// Values passed within the process need none: their memory belongs to the client.
    async fn charge(&self, bytes: u64) -> Result<Option<Charge>, RpcError> {
        if self.outbox.encoding() == Encoding::Value {
            return Ok(None);
        }
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let charge = self.outbox.account().reserve(Kind::Answers, bytes);
        let charge = tokio::time::timeout(PATIENCE, charge).await;
        charge.map(Some).map_err(|_| budget::no_room("ask for less at once, or try again later"))
    }

    /// Runs `job`, which answers with about `bytes`, once its lock is acquired and the client has read what was
    /// queued before.
    pub(crate) async fn make(self, bytes: u64, lock: PathLock, job: impl FnOnce(JobGuards) + Send + 'static) {
        let mut waiting = QueuedJob::new(&self.threads, job);
        let permit = self.permit(bytes, &lock).await;
        let Some(job) = waiting.take() else { return };
        self.run(permit, lock, job).await;
    }

    /// Waits until `lock` is acquired, and until an answer of `bytes` may be built.
    async fn permit(&self, bytes: u64, lock: &PathLock) -> Option<OwnedSemaphorePermit> {
        lock.acquired().await;
        let permit = Arc::clone(&self.making.share).acquire_many_owned(self.share(bytes)).await;
        self.outbox.wait_for_room().await;
        permit.ok()
    }

    async fn run(
        self,
        permit: Option<OwnedSemaphorePermit>,
        lock: PathLock,
        job: impl FnOnce(JobGuards) + Send + 'static,
    ) {
        let slot = Arc::new(AnswerSlot::default());
        slot.put(permit);
        let watch = AnswerSlotWatch::new(&self.host, &slot);
        let job = move |guards| {
            job(guards);
            drop(slot);
        };
        let job = lock.job(self.threads, self.slots, job);
        tokio::pin!(job);
        tokio::select! {
            () = &mut job => {}
            () = tokio::time::sleep(HANG_THRESHOLD) => {
                watch.give_back();
                job.await;
            }
        }
    }

    /// Returns the memory reservation for one answer, still empty.
    ///
    /// Values passed within the process need none: their memory belongs to the client.
    fn room(&self) -> AnswerMemory {
        let free_len = match self.outbox.encoding() {
            Encoding::Json | Encoding::Binary => self.host.limits().making_bytes as u64,
            Encoding::Value => u64::MAX,
        };
        let (lane, budget) = (Arc::clone(&self.making.lane), Arc::clone(self.host.answers()));
        AnswerMemory::new(free_len, lane, budget, Arc::clone(self.outbox.account()))
    }

    /// Takes a lock that blocks no other request.
    fn look_again(&self, path: &HostPath) -> Result<PathLock, RpcError> {
        self.locks.lock(PathAccess::looks(path)?)
    }

    /// Takes a slot for `bytes` if there is room for it now.
    fn permit_for(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        let has_room = self.outbox.has_room();
        Arc::clone(&self.making.share).try_acquire_many_owned(self.share(bytes)).ok().filter(|_| has_room)
    }

    /// Returns how many MiB of the limit an answer counts for; a longer one takes the whole limit.
    fn share(&self, bytes: u64) -> u32 {
        let all = self.host.limits().making_bytes as u64;
        u32::try_from(bytes.min(all).div_ceil(MIB)).unwrap_or(1).max(1)
    }
}

/// Limits the large answers of one connection.
#[derive(Clone, Debug)]
pub(crate) struct LargeAnswerLimits {
    /// Answers being built, in MiB.
    share: Arc<Semaphore>,
    /// One long answer at a time, until it is sent.
    lane: Arc<Semaphore>,
}

impl LargeAnswerLimits {
    pub(crate) fn new(limits: &Limits) -> Self {
        let share = limits.making_bytes.div_ceil(1 << 20);
        LargeAnswerLimits { share: Arc::new(Semaphore::new(share)), lane: Arc::new(Semaphore::new(1)) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::{
        outbox::{Acks, Shared},
        tests::{PATIENCE, TestServer},
    };

    #[tokio::test(flavor = "multi_thread")]
    async fn a_cancelled_job_keeps_its_slot_until_it_ends_or_hangs() {
        let test = TestServer::new().await;
        let (limits, locks) = (Limits::default(), Arc::new(PathLockQueue::new(8)));
        let outbox = Outbox::new(1, Acks::Written, Encoding::Json, limits.clone(), Shared::default());
        let large = LargeAnswers {
            host: Arc::clone(test.server.host()),
            threads: test.server.host().threads_of(&"test".into()),
            locks: Arc::clone(&locks),
            outbox: Arc::new(outbox),
            slots: Arc::new(Semaphore::new(8)),
            making: LargeAnswerLimits::new(&limits),
        };
        let share = Arc::clone(&large.making.share);
        let all = share.available_permits();
        for is_hanging in [false, true] {
            let (begin, begun) = tokio::sync::oneshot::channel();
            let (end, ending) = mpsc::channel::<()>();
            let job = move |_guards: JobGuards| {
                let _ = begin.send(());
                let _ = ending.recv();
            };
            let lock = locks.lock(PathAccess::default()).unwrap();
            let making = tokio::spawn(large.clone().make(u64::MAX, lock, job));
            tokio::time::timeout(PATIENCE, begun).await.expect("the job begins").unwrap();
            let cancelled = std::time::Instant::now();
            making.abort();
            assert!(making.await.unwrap_err().is_cancelled());
            let taken = all - share.available_permits();
            assert!(
                taken == all || cancelled.elapsed() >= HANG_THRESHOLD,
                "the job goes on, and {taken} permits are taken"
            );
            let end = if is_hanging { Some(end) } else { None };
            let free = tokio::time::timeout(PATIENCE, share.acquire_many(u32::try_from(all).unwrap())).await;
            drop(free.expect("the permit is returned"));
            drop(end);
        }
    }
}

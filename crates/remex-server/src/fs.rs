//! Files: what is asked is done on threads of their own, in the order of arrival where paths of one session overlap.
//!
//! Nothing here runs on a worker of the runtime, because any path may lead to a mount that hangs. A
//! call that hangs holds its thread and what overlaps its path in the same session, and nobody else.
//! Start at [`FileWork`].

mod copy;
mod descent;
mod directory;
mod entry;
mod entry_lock;
mod error;
mod file;
mod handles;
mod metadata;
mod names;
mod nofollow;
mod open;
mod place;
mod remove;
mod replace;
mod room;
mod turns;
mod walk;

use std::{future::Future, path::Path, sync::Arc, time::Duration};

use remex_proto::{ErrorKind, HostPath, RequestId, RpcError, call::Request, fs as wire, sandbox::Sandbox};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    config::Limits,
    connection::Connection,
    outbox::{Form, Outbox, Reply, Responder, Wanted},
    server::Server,
    supervise::defect,
    threads::Threads,
};
pub(crate) use error::io_error;
pub(crate) use handles::Handles;
use place::{Place, PlaceWatch};
use room::Room;
pub(crate) use turns::{Claims, Turn, Turns};

/// Threads for file work of the whole server; calls that hang keep theirs.
const THREADS: usize = 2048;

/// Who takes longer may hang, and must not keep others waiting.
const HANGS: Duration = Duration::from_secs(1);

/// What a listing counts for.
const LISTING: u64 = 4 * MIB;

const MIB: u64 = 1 << 20;

/// Something that is done with files in one go.
pub(crate) trait FileWork: Request + Confinable + Send + 'static {
    /// How large an answer may be.
    const ANSWER: AnswerSize = AnswerSize::Small;

    /// Returns what it touches.
    fn claims(&self) -> Result<Claims, RpcError>;

    /// Does it; the thread may hang. What takes long asks now and then whether it is still wanted.
    fn run(&self, wanted: &Wanted) -> Result<Self::Reply, RpcError>;
}

/// Something that can be asked for in a sandbox.
pub(crate) trait Confinable {
    /// Returns the confinement that was asked for.
    fn sandbox(&self) -> &Sandbox;
}

macro_rules! confinable {
    ($($request:ident)*) => {
        $(impl Confinable for wire::$request {
            fn sandbox(&self) -> &Sandbox {
                &self.sandbox
            }
        })*
    };
}

confinable! {
    WriteFile HashFile CreateDirectory GetMetadata Canonicalize ReadDirectory Walk Remove Copy Rename
    SetPermissions SetTimes Symlink ReadLink
}

/// How large an answer may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerSize {
    /// It is queued at once.
    Small,
    /// It waits until the client has taken what was queued before.
    Large,
}

/// What a job holds until its effect is there.
#[derive(Debug)]
pub(crate) struct Held {
    #[expect(dead_code, reason = "others wait for it to be dropped")]
    turn: Turn,
    #[expect(dead_code, reason = "others wait for it to be dropped")]
    slot: Option<OwnedSemaphorePermit>,
}

/// The threads for file work.
#[derive(Debug)]
pub(crate) struct Files {
    threads: Threads,
}

impl Files {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Files { threads: Threads::new("remex-file", THREADS)? })
    }

    /// Runs `work` on a thread of its own; it goes on when the future is dropped.
    pub(crate) fn run<T, W>(&self, work: W) -> impl Future<Output = Result<T, RpcError>> + Send + use<T, W>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        let running = self.threads.run(work);
        async move { running.await.map_err(|_| defect()) }
    }
}

impl Connection {
    /// Does something with files, beside everything that does not touch the same paths.
    pub(crate) fn files<W: FileWork>(&mut self, id: RequestId, work: W, responder: Responder)
    where
        W::Reply: Reply,
    {
        let turn = match self.file_turn(work.sandbox(), work.claims()) {
            Ok(turn) => turn,
            Err(error) => return responder.error(&error),
        };
        let job = move |held: Held| {
            let result = work.run(&responder.wanted());
            drop(held);
            responder.answer(result);
        };
        match W::ANSWER {
            AnswerSize::Small => self.file_job(id, turn, job),
            AnswerSize::Large => {
                let large = self.large();
                self.run_beside(id, async move { large.make(LISTING, turn, job).await });
            }
        }
    }

    /// Runs `job`, which gives the answer itself, on a thread when its turn has come.
    ///
    /// The job gives back what it holds as soon as its effect is there. If nobody is before it, it
    /// starts at once, with no task in between.
    pub(crate) fn file_job(&mut self, id: RequestId, turn: Turn, job: impl FnOnce(Held) + Send + 'static) {
        let slot = if turn.has_come() { Arc::clone(&self.file_slots).try_acquire_owned().ok() } else { None };
        if slot.is_some() {
            return drop(self.server.files().run(move || job(Held { turn, slot })));
        }
        let later = turn.job(Arc::clone(&self.server), Arc::clone(&self.file_slots), job);
        self.run_beside(id, later);
    }

    /// Returns what large answers are made with.
    pub(crate) fn large(&self) -> Large {
        Large {
            server: Arc::clone(&self.server),
            turns: self.turns().cloned(),
            outbox: Arc::clone(&self.outbox),
            slots: Arc::clone(&self.file_slots),
            making: self.making.clone(),
        }
    }

    /// Takes a place in the order of those who touch the same paths, unless the request is to be refused.
    pub(crate) fn file_turn(
        &self,
        sandbox: &Sandbox,
        claims: Result<Claims, RpcError>,
    ) -> Result<Turn, RpcError> {
        if !sandbox.leaves_files_open() {
            return Err(RpcError::new(
                ErrorKind::SandboxUnavailable,
                "sandbox intent cannot be enforced on this executor",
            )
            .with_hint("this server cannot confine file access; ask without `sandbox`, or elsewhere"));
        }
        self.enter(claims?)
    }

    /// Takes a place in the order of those of the session who touch the same paths.
    pub(crate) fn enter(&self, claims: Claims) -> Result<Turn, RpcError> {
        match self.turns() {
            Some(turns) => turns.enter(claims),
            None => {
                Err(RpcError::new(ErrorKind::Handshake, "client must call initialize before using files"))
            }
        }
    }

    fn turns(&self) -> Option<&Arc<Turns>> {
        self.handshake.session().map(|session| &session.file_turns)
    }
}

impl Turn {
    /// Runs `job` on a thread when the turn has come and there is a slot for it.
    pub(crate) fn job<J: FnOnce(Held) + Send + 'static>(
        self,
        server: Arc<Server>,
        slots: Arc<Semaphore>,
        job: J,
    ) -> impl Future<Output = ()> + Send + use<J> {
        let mut waiting = Waiting { server: Arc::clone(&server), job: Some(job) };
        async move {
            self.come().await;
            let slot = file_slot(slots).await;
            if let Some(job) = waiting.job.take() {
                let _ = server.files().run(move || job(Held { turn: self, slot })).await;
            }
        }
    }
}

/// Waits for a slot; where nothing ends for a second, everything that has one hangs, and others go on without.
pub(crate) async fn file_slot(slots: Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    tokio::time::timeout(HANGS, slots.acquire_owned()).await.ok().and_then(Result::ok)
}

/// A job that has not begun; it may own open files, and to close one may hang.
struct Waiting<J: Send + 'static> {
    server: Arc<Server>,
    job: Option<J>,
}

impl<J: Send + 'static> Drop for Waiting<J> {
    fn drop(&mut self) {
        if let Some(job) = self.job.take() {
            drop(self.server.files().run(move || drop(job)));
        }
    }
}

/// What large answers of one connection are made with: few at a time, and only while the client takes them.
#[derive(Clone)]
pub(crate) struct Large {
    server: Arc<Server>,
    turns: Option<Arc<Turns>>,
    outbox: Arc<Outbox>,
    slots: Arc<Semaphore>,
    making: Making,
}

impl Large {
    /// Runs `job`, which answers with about `bytes`, when its turn has come and there is room for that.
    pub(crate) async fn make(self, bytes: u64, turn: Turn, job: impl FnOnce(Held) + Send + 'static) {
        let mut waiting = Waiting { server: Arc::clone(&self.server), job: Some(job) };
        turn.come().await;
        let permit = Arc::clone(&self.making.share).acquire_many_owned(self.share(bytes)).await;
        self.outbox.room().await;
        let Some(job) = waiting.job.take() else { return };
        let place = Arc::new(Place::default());
        place.put(permit.ok());
        let watch = PlaceWatch::new(&self.server, &place);
        let job = move |held| {
            job(held);
            drop(place);
        };
        let job = turn.job(self.server, self.slots, job);
        tokio::pin!(job);
        tokio::select! {
            () = &mut job => {}
            () = tokio::time::sleep(HANGS) => {
                watch.give_back();
                job.await;
            }
        }
    }

    /// Returns the room for one answer, still empty.
    ///
    /// What is handed over within the process needs none: its memory is the client's own.
    fn room(&self) -> Room {
        let free_len = match self.outbox.form() {
            Form::Json => self.server.limits().making_bytes as u64,
            Form::Value => u64::MAX,
        };
        Room::new(free_len, Arc::clone(&self.making.lane), Arc::clone(self.server.answers()))
    }

    /// Takes a turn that holds up nobody.
    fn look_again(&self, path: &HostPath) -> Result<Turn, RpcError> {
        self.turns.as_ref().ok_or_else(defect)?.enter(Claims::looks(path)?)
    }

    /// Takes a place for so much at once, if there is room for it.
    fn place(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        let has_room = self.outbox.has_room();
        Arc::clone(&self.making.share).try_acquire_many_owned(self.share(bytes)).ok().filter(|_| has_room)
    }

    /// Returns how much of what may be in the making an answer takes: what is longer takes everything.
    fn share(&self, bytes: u64) -> u32 {
        let all = self.server.limits().making_bytes as u64;
        u32::try_from(bytes.min(all).div_ceil(MIB)).unwrap_or(1).max(1)
    }
}

/// Bounds the large answers of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Making {
    /// Those in the making, in MiB.
    share: Arc<Semaphore>,
    /// One long one at a time, until it is sent.
    lane: Arc<Semaphore>,
}

impl Making {
    pub(crate) fn new(limits: &Limits) -> Self {
        let share = limits.making_bytes.div_ceil(1 << 20);
        Making { share: Arc::new(Semaphore::new(share)), lane: Arc::new(Semaphore::new(1)) }
    }
}

/// Returns what a path names on this host.
pub(crate) fn native(path: &HostPath) -> Result<&Path, RpcError> {
    path.native().map_err(|error| RpcError::new(ErrorKind::InvalidInput, error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::{
        outbox::{Acks, Shared},
        tests::{PATIENCE, Site},
    };

    #[tokio::test(flavor = "multi_thread")]
    async fn a_cancelled_job_keeps_its_place_until_it_ends_and_no_longer_than_one_that_hangs() {
        let site = Site::new().await;
        let (limits, turns) = (Limits::default(), Arc::new(Turns::new(8)));
        let outbox = Outbox::new(1, Acks::Lag, Form::Json, limits.clone(), Shared::default());
        let large = Large {
            server: Arc::clone(&site.server),
            turns: Some(Arc::clone(&turns)),
            outbox: Arc::new(outbox),
            slots: Arc::new(Semaphore::new(8)),
            making: Making::new(&limits),
        };
        let share = Arc::clone(&large.making.share);
        let all = share.available_permits();
        for is_hanging in [false, true] {
            let (begin, begun) = tokio::sync::oneshot::channel();
            let (end, ending) = mpsc::channel::<()>();
            let job = move |_held: Held| {
                let _ = begin.send(());
                let _ = ending.recv();
            };
            let turn = turns.enter(Claims::default()).unwrap();
            let making = tokio::spawn(large.clone().make(u64::MAX, turn, job));
            tokio::time::timeout(PATIENCE, begun).await.expect("the job begins").unwrap();
            let cancelled = std::time::Instant::now();
            making.abort();
            assert!(making.await.unwrap_err().is_cancelled());
            let taken = all - share.available_permits();
            assert!(
                taken == all || cancelled.elapsed() >= HANGS,
                "the job goes on, and {taken} places are taken"
            );
            let end = if is_hanging { Some(end) } else { None };
            let free = tokio::time::timeout(PATIENCE, share.acquire_many(u32::try_from(all).unwrap())).await;
            drop(free.expect("the place is given back"));
            drop(end);
        }
    }
}

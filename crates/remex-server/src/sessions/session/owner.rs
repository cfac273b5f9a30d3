//! What the sessions of one identity share: its processes, its memory, and what is forgotten to make room.

use std::sync::{
    Arc, Mutex, MutexGuard, Weak,
    atomic::{AtomicUsize, Ordering},
};

use remex_access::account::{self, Account, Kind};
use remex_base::lock;
use remex_proto::{ErrorKind, RpcError};

use super::Session;
use crate::sessions::process::{Process, ProcessOwner as _};

/// How many closed processes of a session are looked at to find one that can be forgotten early.
const LOOKED_AT: usize = 64;

/// On whose behalf a session acts.
#[derive(Clone, Debug)]
pub(crate) struct SessionOwner {
    /// The identity as logs and listings show it.
    pub(crate) identity: Arc<str>,
    pub(crate) shared: Arc<OwnerShared>,
}

/// What the sessions of an identity share.
#[derive(Debug)]
pub(crate) struct OwnerShared {
    /// Number of processes in all sessions of the identity that are not closed.
    live: AtomicUsize,
    account: Arc<Account>,
    /// Held briefly.
    sessions: Mutex<Vec<Weak<Session>>>,
}

impl OwnerShared {
    pub(super) fn new(account: Arc<Account>) -> Self {
        OwnerShared { live: AtomicUsize::new(0), account, sessions: Mutex::default() }
    }

    fn sessions(&self) -> MutexGuard<'_, Vec<Weak<Session>>> {
        lock(&self.sessions)
    }
}

impl SessionOwner {
    /// Adds a session.
    pub(super) fn add(&self, session: &Arc<Session>) {
        let mut sessions = self.shared.sessions();
        sessions.retain(|session| session.strong_count() > 0);
        sessions.push(Arc::downgrade(session));
    }

    pub(super) fn account(&self) -> &Arc<Account> {
        &self.shared.account
    }

    /// Counts one more process, unless the identity has as many as its credential allows.
    pub(super) fn count_start(&self, max: Option<usize>) -> Result<(), RpcError> {
        let max_live = max.unwrap_or(usize::MAX);
        let next = |live: usize| (live < max_live).then_some(live + 1);
        let counted = self.shared.live.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        counted.map(drop).map_err(|live| too_many(live, max_live))
    }

    /// Refuses a start in the place of a process that is counted, if the others are as many as its credential allows.
    pub(super) fn check_instead(&self, max: Option<usize>) -> Result<(), RpcError> {
        let live = self.shared.live.load(Ordering::Relaxed);
        max.filter(|max| live > *max).map_or(Ok(()), |max| Err(too_many(live, max)))
    }

    /// Counts a process that an earlier server started.
    pub(super) fn count_restored(&self) {
        self.shared.live.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_end(&self) {
        self.shared.live.fetch_sub(1, Ordering::Relaxed);
    }

    /// Charges what a new process keeps, and forgets closed processes of the identity if that is necessary.
    pub(super) fn keep_open(&self, process: &Process, replaced: Option<&Process>) -> Result<(), RpcError> {
        self.make_room(|| process.try_keep_open(replaced.map(|replaced| &**replaced)).then_some(()))
            .ok_or_else(|| {
                let what = format!("cannot start process `{}`", process.id);
                account::full(&what, self.account(), Kind::Processes, process.open_bytes())
            })
    }

    /// Repeats `attempt` until it succeeds, and forgets closed processes of the identity until then, the oldest first.
    pub(super) fn make_room<T>(&self, attempt: impl Fn() -> Option<T>) -> Option<T> {
        loop {
            let made = attempt();
            if made.is_some() {
                return made;
            }
            let (session, oldest) = self.oldest_closed()?;
            oldest.host().metrics().forgotten_early.add(1);
            session.forget(&oldest);
        }
    }

    /// Evicts output of closed processes in all sessions of the identity until there is room for `wanted` bytes more.
    pub(super) fn reclaim(&self, wanted: usize) {
        for session in self.all_sessions() {
            if self.account().left(Kind::Output) >= wanted {
                return;
            }
            session.reclaim_own(self.account(), wanted);
        }
    }

    /// Returns the closed process of the identity that closed first, among those that no client has yet to receive
    /// output of.
    fn oldest_closed(&self) -> Option<(Arc<Session>, Process)> {
        let oldest = |session: Arc<Session>| {
            let process = session.oldest_closed(LOOKED_AT)?;
            Some((process.ended_at_ms(), session, process))
        };
        let oldest =
            self.all_sessions().into_iter().filter_map(oldest).min_by_key(|(ended_at, ..)| *ended_at);
        oldest.map(|(_, session, process)| (session, process))
    }

    fn all_sessions(&self) -> Vec<Arc<Session>> {
        self.shared.sessions().iter().filter_map(Weak::upgrade).collect()
    }
}

fn too_many(live: usize, max: usize) -> RpcError {
    let message = format!(
        "this credential has {live} processes, and its scope `processes={max}` allows no more; end some first"
    );
    RpcError::new(ErrorKind::TooManyProcesses, message)
        .with_hint("processes of all sessions of the identity count until their output has ended")
}

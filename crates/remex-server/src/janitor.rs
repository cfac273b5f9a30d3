//! What happens when time is up: closed processes are forgotten, detached sessions expire.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use crate::{clock::steady_ms, process::Process, server::Server};

/// The deadlines of a server, watched by one task.
#[derive(Debug, Default)]
pub(crate) struct Janitor {
    /// Shared by process tasks and the janitor's own task; held for moments only.
    closed: Mutex<Closed>,
    bell: Notify,
}

#[derive(Debug, Default)]
struct Closed {
    by_deadline: BTreeMap<(Instant, u64), Weak<Process>>,
    /// Makes keys unique.
    count: u64,
}

impl Janitor {
    /// Forgets `process` after `ttl`.
    pub(crate) fn forget_later(&self, process: &Arc<Process>, ttl: Duration) {
        let Some(deadline) = Instant::now().checked_add(ttl) else { return };
        let mut closed = self.closed();
        closed.count += 1;
        let key = (deadline, closed.count);
        let is_first = closed.by_deadline.keys().next().is_none_or(|first| key < *first);
        closed.by_deadline.insert(key, Arc::downgrade(process));
        drop(closed);
        if is_first {
            self.bell.notify_one();
        }
    }

    /// Looks at the deadlines again: one may have come nearer.
    pub(crate) fn look(&self) {
        self.bell.notify_one();
    }

    /// Watches the deadlines until the server ends.
    pub(crate) async fn run(server: Arc<Server>) {
        let janitor = server.janitor();
        loop {
            let next = janitor.closed().by_deadline.keys().next().map(|(deadline, _)| *deadline);
            let next_session = server
                .next_expiry_ms()
                .map(|at_ms| Instant::now() + Duration::from_millis(at_ms.saturating_sub(steady_ms())));
            let bell = janitor.bell.notified();
            match [next, next_session].into_iter().flatten().min() {
                None => bell.await,
                Some(deadline) => {
                    tokio::select! {
                        () = bell => {}
                        () = tokio::time::sleep_until(deadline.into()) => {}
                    }
                }
            }
            janitor.forget_due(Instant::now());
            server.expire_sessions();
        }
    }

    fn forget_due(&self, now: Instant) {
        loop {
            let process = {
                let mut closed = self.closed();
                let Some(entry) = closed.by_deadline.first_entry() else { return };
                if entry.key().0 > now {
                    return;
                }
                entry.remove()
            };
            if let Some(process) = process.upgrade() {
                process.expire();
            }
        }
    }

    fn closed(&self) -> MutexGuard<'_, Closed> {
        self.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

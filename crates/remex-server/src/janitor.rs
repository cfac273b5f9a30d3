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
    closed: Deadlines<Process>,
    bell: Notify,
}

impl Janitor {
    /// Forgets `process` after `ttl`, and not when it was to be forgotten before.
    pub(crate) fn forget_later(&self, process: &Arc<Process>, ttl: Duration) {
        let Some(at) = Instant::now().checked_add(ttl) else { return };
        process.forget_at(self.closed.add(process, at));
        if self.closed.first() == Some(at) {
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
            let next = janitor.closed.first();
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
            while let Some(process) = janitor.closed.take_due(Instant::now()) {
                process.expire();
            }
            server.expire_sessions();
        }
    }
}

/// When something is due. Keeps nothing of it in memory: a dropped [`Deadline`] takes its entry along.
#[derive(Debug)]
struct Deadlines<T> {
    /// Shared by process tasks, the janitor's own task and each [`Deadline`]; held for moments only.
    entries: Arc<Mutex<Entries<T>>>,
}

#[derive(Debug)]
struct Entries<T> {
    by_deadline: BTreeMap<Key, Weak<T>>,
    /// Makes keys unique.
    count: u64,
}

type Key = (Instant, u64);

/// An entry among the deadlines, which is there for as long as this is.
#[derive(Debug)]
pub(crate) struct Deadline<T = Process> {
    key: Key,
    entries: Weak<Mutex<Entries<T>>>,
}

impl<T> Default for Deadlines<T> {
    fn default() -> Self {
        Deadlines { entries: Arc::new(Mutex::new(Entries { by_deadline: BTreeMap::new(), count: 0 })) }
    }
}

impl<T> Deadlines<T> {
    fn add(&self, what: &Arc<T>, at: Instant) -> Deadline<T> {
        let mut entries = lock(&self.entries);
        entries.count += 1;
        let key = (at, entries.count);
        entries.by_deadline.insert(key, Arc::downgrade(what));
        Deadline { key, entries: Arc::downgrade(&self.entries) }
    }

    fn first(&self) -> Option<Instant> {
        lock(&self.entries).by_deadline.first_key_value().map(|((deadline, _), _)| *deadline)
    }

    /// Takes out the first entry that is due by `now` and still there.
    fn take_due(&self, now: Instant) -> Option<Arc<T>> {
        loop {
            let due = {
                let mut entries = lock(&self.entries);
                let entry = entries.by_deadline.first_entry().filter(|entry| entry.key().0 <= now)?;
                entry.remove()
            };
            if let Some(due) = due.upgrade() {
                return Some(due);
            }
        }
    }
}

impl<T> Drop for Deadline<T> {
    fn drop(&mut self) {
        if let Some(entries) = self.entries.upgrade() {
            let entry = lock(&entries).by_deadline.remove(&self.key);
            drop(entry);
        }
    }
}

fn lock<T>(entries: &Mutex<Entries<T>>) -> MutexGuard<'_, Entries<T>> {
    entries.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Like a process, it owns its deadline.
    #[derive(Default)]
    struct Owner(Mutex<Option<Deadline<Owner>>>);

    fn add(deadlines: &Deadlines<Owner>, at: Instant) -> Arc<Owner> {
        let owner = Arc::new(Owner::default());
        *owner.0.lock().unwrap() = Some(deadlines.add(&owner, at));
        owner
    }

    #[test]
    fn what_is_forgotten_early_leaves_no_entry_behind() {
        let deadlines = Deadlines::default();
        let tomorrow = Instant::now() + Duration::from_secs(86_400);
        let owners: Vec<_> = (0..100).map(|_| add(&deadlines, tomorrow)).collect();
        let left = Arc::downgrade(&owners[7]);
        drop(owners);
        assert!(lock(&deadlines.entries).by_deadline.is_empty());
        assert_eq!(left.strong_count(), 0);
    }

    #[test]
    fn a_new_deadline_takes_the_place_of_the_old_one() {
        let deadlines = Deadlines::default();
        let now = Instant::now();
        let owner = add(&deadlines, now);
        *owner.0.lock().unwrap() = Some(deadlines.add(&owner, now + Duration::from_secs(1)));
        assert!(deadlines.take_due(now).is_none());
        assert!(
            deadlines.take_due(now + Duration::from_secs(1)).is_some_and(|due| Arc::ptr_eq(&due, &owner))
        );
        assert!(lock(&deadlines.entries).by_deadline.is_empty());
    }
}

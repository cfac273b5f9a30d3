//! Deadlines at which closed processes expire.
//!
//! Start at [`Deadlines`].

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, Weak},
    time::Instant,
};

use crate::lock;
use tokio::sync::Notify;

/// A value that expires at a deadline.
pub trait Expire: Send + Sync {
    /// Called once after the deadline.
    fn expire(self: Arc<Self>);

    /// Expires early to make room for others; returns `false` if it must stay.
    fn expire_early(self: Arc<Self>) -> bool {
        self.expire();
        true
    }
}

/// The deadlines of a server. An entry keeps nothing alive; dropping its [`Deadline`] removes it.
#[derive(Debug, Default)]
pub struct Deadlines {
    /// Shared by process tasks, the task that watches the deadlines and each [`Deadline`]; held briefly.
    entries: Arc<Mutex<Entries>>,
    /// Wakes the task that watches the deadlines.
    changed: Notify,
}

#[derive(Default)]
struct Entries {
    by_deadline: BTreeMap<Key, Weak<dyn Expire>>,
    /// Makes keys unique.
    count: u64,
}

impl fmt::Debug for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entries").field("len", &self.by_deadline.len()).finish_non_exhaustive()
    }
}

type Key = (Instant, u64);

/// One entry, removed when this is dropped.
#[derive(Debug)]
pub struct Deadline {
    key: Key,
    entries: Weak<Mutex<Entries>>,
}

impl Deadlines {
    /// Expires `what` at `at`, as long as the returned entry exists.
    pub fn add<T: Expire + 'static>(&self, what: &Arc<T>, at: Instant) -> Deadline {
        let mut entries = lock(&self.entries);
        entries.count += 1;
        let key = (at, entries.count);
        let what: Weak<dyn Expire> = Arc::<T>::downgrade(what);
        entries.by_deadline.insert(key, what);
        let is_first = entries.by_deadline.first_key_value().is_some_and(|(first, _)| *first == key);
        drop(entries);
        if is_first {
            self.changed.notify_one();
        }
        Deadline { key, entries: Arc::downgrade(&self.entries) }
    }

    /// Wakes the task that watches the deadlines: another deadline may have become earlier.
    pub fn wake(&self) {
        self.changed.notify_one();
    }

    /// Waits until `next`, or until a deadline may have become earlier.
    pub async fn wait(&self, next: Option<Instant>) {
        match [next, self.first()].into_iter().flatten().min() {
            None => self.changed.notified().await,
            Some(at) => {
                let _ = tokio::time::timeout_at(at.into(), self.changed.notified()).await;
            }
        }
    }

    /// Expires every entry that is due by `now`.
    pub fn expire(&self, now: Instant) {
        while let Some(due) = self.take_due(now) {
            due.expire();
        }
    }

    fn first(&self) -> Option<Instant> {
        lock(&self.entries).by_deadline.first_key_value().map(|((deadline, _), _)| *deadline)
    }

    /// Removes the first entry that is due by `now` and still alive.
    fn take_due(&self, now: Instant) -> Option<Arc<dyn Expire>> {
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

impl Drop for Deadline {
    fn drop(&mut self) {
        if let Some(entries) = self.entries.upgrade() {
            let entry = lock(&entries).by_deadline.remove(&self.key);
            drop(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    use super::*;

    /// Owns its deadline, as a process does.
    #[derive(Default)]
    struct Owner {
        deadline: Mutex<Option<Deadline>>,
        expired: AtomicUsize,
    }

    impl Expire for Owner {
        fn expire(self: Arc<Self>) {
            self.expired.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn add(deadlines: &Deadlines, at: Instant) -> Arc<Owner> {
        let owner = Arc::new(Owner::default());
        *owner.deadline.lock().unwrap() = Some(deadlines.add(&owner, at));
        owner
    }

    #[test]
    fn a_dropped_owner_leaves_no_entry_behind() {
        let deadlines = Deadlines::default();
        let tomorrow = Instant::now() + Duration::from_secs(86_400);
        let owners: Vec<_> = (0..100).map(|_| add(&deadlines, tomorrow)).collect();
        let left = Arc::downgrade(&owners[7]);
        drop(owners);
        assert!(lock(&deadlines.entries).by_deadline.is_empty());
        assert_eq!(left.strong_count(), 0);
    }

    #[test]
    fn a_new_deadline_replaces_the_old_one() {
        let deadlines = Deadlines::default();
        let now = Instant::now();
        let owner = add(&deadlines, now);
        *owner.deadline.lock().unwrap() = Some(deadlines.add(&owner, now + Duration::from_secs(1)));
        deadlines.expire(now);
        assert_eq!(owner.expired.load(Ordering::Relaxed), 0);
        deadlines.expire(now + Duration::from_secs(1));
        assert_eq!(owner.expired.load(Ordering::Relaxed), 1);
        assert!(lock(&deadlines.entries).by_deadline.is_empty());
    }
}

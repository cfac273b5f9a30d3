//! Which processes an agent has, and which of them makes room for a new one.
//!
//! Start at [`Table`].

use std::{collections::BTreeMap, sync::Arc};

use tokio::time::Instant;

use super::{Handle, Refusal, open::OpenProcess};

/// The processes of one agent.
#[derive(Debug, Default)]
pub(super) struct Table {
    last: u32,
    /// Counts uses, because a clock may stand still.
    uses: u64,
    /// How many are being started, each with a right to a slot.
    starting: usize,
    slots: BTreeMap<Handle, Slot>,
}

#[derive(Debug)]
struct Slot {
    open: Arc<OpenProcess>,
    /// When it was used last, in the order of uses.
    used: u64,
    used_at: Instant,
}

impl Table {
    /// Sees to it that there will be room for one more; [`Table::insert`] or [`Table::give_up`] follows.
    pub(super) fn reserve(&mut self, limit: usize) -> Result<(), Refusal> {
        let running = self.slots.values().filter(|slot| slot.open.is_running()).count();
        if running + self.starting >= limit {
            return Err(Refusal::Full { open: running + self.starting });
        }
        self.starting += 1;
        Ok(())
    }

    pub(super) fn give_up(&mut self) {
        self.starting -= 1;
    }

    /// Adds what was started in place of a reservation; the finished process that was not used for longest makes
    /// room where that is needed.
    pub(super) fn insert(&mut self, open: &Arc<OpenProcess>, limit: usize, now: Instant) -> Handle {
        self.starting -= 1;
        if self.slots.len() >= limit {
            self.evict();
        }
        self.last += 1;
        self.uses += 1;
        let handle = Handle(self.last);
        self.slots.insert(handle, Slot { open: Arc::clone(open), used: self.uses, used_at: now });
        handle
    }

    fn evict(&mut self) {
        let finished = self.slots.iter().filter(|(_, slot)| !slot.open.is_running());
        if let Some((&handle, _)) = finished.min_by_key(|(_, slot)| slot.used) {
            self.slots.remove(&handle);
        }
    }

    /// Finds a process, and notes that it is used.
    pub(super) fn find(&mut self, handle: Handle, now: Instant) -> Result<Arc<OpenProcess>, Refusal> {
        self.uses += 1;
        let used = self.uses;
        let Some(slot) = self.slots.get_mut(&handle) else {
            return Err(Refusal::Unknown { handle, open: self.slots.keys().copied().collect() });
        };
        (slot.used, slot.used_at) = (used, now);
        Ok(Arc::clone(&slot.open))
    }

    /// Returns all of them, with the time of their last use.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Handle, &OpenProcess, Instant)> {
        self.slots.iter().map(|(handle, slot)| (*handle, &*slot.open, slot.used_at))
    }
}

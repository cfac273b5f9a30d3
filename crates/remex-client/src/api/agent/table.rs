//! The processes of an agent, and which one is evicted for a new one.
//!
//! Start at [`Table`].

use std::{collections::BTreeMap, sync::Arc};

use tokio::time::Instant;

use super::{Handle, Refusal, open::OpenProcess};

/// The processes of one agent.
#[derive(Debug, Default)]
pub(super) struct Table {
    last: u32,
    /// Counts uses, because a simulated clock may stand still.
    uses: u64,
    /// The number of reserved slots, for processes that are being started.
    starting: usize,
    slots: BTreeMap<Handle, Slot>,
}

#[derive(Debug)]
struct Slot {
    open: Arc<OpenProcess>,
    /// The value of the use counter at its last use.
    used: u64,
    used_at: Instant,
}

impl Table {
    /// Reserves a slot; the caller follows up with [`Table::insert`] or [`Table::give_up`].
    pub(super) fn reserve(&mut self, limit: usize) -> Result<(), Refusal> {
        let running = self.slots.values().filter(|slot| slot.open.is_open()).count();
        if running + self.starting >= limit {
            return Err(Refusal::Full { open: running + self.starting });
        }
        self.starting += 1;
        Ok(())
    }

    pub(super) fn give_up(&mut self) {
        self.starting -= 1;
    }

    /// Replaces a reservation with the started process; evicts the least recently used finished process if the table is
    /// full.
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
        let finished = self.slots.iter().filter(|(_, slot)| !slot.open.is_open());
        if let Some((&handle, _)) = finished.min_by_key(|(_, slot)| slot.used) {
            self.slots.remove(&handle);
        }
    }

    /// Finds a process, and records the use.
    pub(super) fn find(&mut self, handle: Handle, now: Instant) -> Result<Arc<OpenProcess>, Refusal> {
        self.uses += 1;
        let used = self.uses;
        let Some(slot) = self.slots.get_mut(&handle) else {
            return Err(Refusal::Unknown { handle, open: self.slots.keys().copied().collect() });
        };
        (slot.used, slot.used_at) = (used, now);
        Ok(Arc::clone(&slot.open))
    }

    /// Returns all processes, with the time of their last use.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Handle, &OpenProcess, Instant)> {
        self.slots.iter().map(|(handle, slot)| (*handle, &*slot.open, slot.used_at))
    }
}

//! The processes that a session knows. Start at [`Processes`].

use std::collections::{HashMap, VecDeque};

use remex_base::limits::Limits;

use super::{Reach, Session};
use crate::sessions::process::{Process, Standing};

/// The processes of a session, by id, and those that have closed.
#[derive(Debug, Default)]
pub(super) struct Processes {
    pub(super) by_id: HashMap<Box<str>, Process>,
    /// Number of processes that are not closed.
    pub(super) live: usize,
    /// Closed processes that are still readable, oldest first.
    pub(super) closed: VecDeque<Process>,
    /// How many of them, from the front, have evicted their output to make room.
    pub(super) drained: usize,
    /// Bytes that they keep besides their output.
    pub(super) closed_weight: usize,
    /// Those that are being restarted, or could not be.
    spared: Vec<Process>,
    pub(super) ended: bool,
}

impl Processes {
    /// Returns how many processes are not closed.
    pub(super) fn live(&self, reach: Reach) -> usize {
        match reach {
            Reach::All => self.live,
            Reach::Ephemeral => {
                self.by_id.values().filter(|process| reach.covers(process) && process.is_live()).count()
            }
        }
    }

    /// Returns whether the session has this process, and not another one with the same id.
    pub(super) fn has(&self, process: &Process) -> bool {
        self.by_id.get(&process.id).is_some_and(|known| known.is(process))
    }

    pub(super) fn forget(&mut self, process: &Process) {
        if self.has(process) {
            self.by_id.remove(&process.id);
        }
        // Processes are forgotten roughly in the order of closing, so it is near the front.
        if let Some(index) = self.closed.iter().position(|closed| closed.is(process)) {
            self.closed.remove(index);
            self.closed_weight -= process.spec().weight;
            self.drained -= usize::from(index < self.drained);
        }
        self.spared.retain(|spared| !spared.is(process));
        process.withdraw();
    }

    /// Returns all of them, with those that another one has replaced and that connections still follow.
    pub(super) fn followed(&self) -> Vec<Process> {
        let replaced = self.closed.iter().filter(|process| process.standing() == Standing::Replaced);
        replaced.chain(self.by_id.values()).cloned().collect()
    }

    /// Spares a process that is being restarted, or could not be.
    pub(super) fn spare(&mut self, process: &Process) {
        if !self.spared.iter().any(|spared| spared.is(process)) {
            self.spared.push(process.clone());
        }
    }

    /// Returns the closed one to forget next if there are too many; those that are spared do not count.
    pub(super) fn excess(&mut self, limits: &Limits) -> Option<Process> {
        self.spared.retain(Process::is_spared);
        let spared = self.spared.iter().filter(|process| !process.is_live());
        let count = self.closed.len().saturating_sub(spared.clone().count());
        let weight = self.closed_weight.saturating_sub(spared.map(|process| process.spec().weight).sum());
        if count <= limits.closed_processes && weight <= limits.closed_bytes {
            return None;
        }
        let mut others = self.closed.iter().filter(|process| !process.is_spared());
        let settled = others.clone().find(|process| process.is_settled());
        settled.or_else(|| others.next()).cloned()
    }

    /// Returns the oldest closed one whose output has not made room yet, and may; the next call returns another.
    pub(super) fn next_to_drain(&mut self) -> Option<Process> {
        let index = (self.drained..self.closed.len()).find(|index| !self.closed[*index].is_spared())?;
        if index > self.drained
            && let Some(next) = self.closed.remove(index)
        {
            // Those that are spared come after it, so that they are not taken for drained.
            self.closed.insert(self.drained, next);
        }
        self.drained += 1;
        self.closed.get(self.drained - 1).cloned()
    }

    /// Returns the oldest closed one that can be forgotten, among the oldest `looked_at`.
    pub(super) fn oldest_free(&self, looked_at: usize, is_attached: bool) -> Option<Process> {
        let mut oldest = self.closed.iter().filter(|process| !process.is_spared()).take(looked_at);
        let is_free = |process: &Process| process.is_settled() && (is_attached || !process.is_held());
        let free = oldest.clone().find(|process| is_free(process));
        // Followers of replaced processes get a gap for what they miss.
        free.or_else(|| oldest.find(|process| process.standing() == Standing::Replaced)).cloned()
    }
}

impl Session {
    /// Returns all processes, with those that another one has replaced and that connections still follow.
    pub(super) fn all_followed(&self) -> Vec<Process> {
        self.processes().followed()
    }
}

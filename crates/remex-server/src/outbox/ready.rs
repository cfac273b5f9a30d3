//! Which processes and streams have something to say on one connection.
//!
//! Start at [`Ready`].

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use tokio::sync::oneshot;

use super::{Parcel, ProcessKey, Urgency};

/// Processes and parts of streams that wait for their turn; a process is there once at most.
#[derive(Debug)]
pub(super) struct Ready<P> {
    processes: HashMap<ProcessKey, Arc<P>>,
    /// Keys without a process are passed over.
    fresh: VecDeque<ProcessKey>,
    bulk: VecDeque<Bulk>,
}

#[derive(Debug)]
enum Bulk {
    Process(ProcessKey),
    Part(Parcel, oneshot::Sender<()>),
}

/// What is next among the floods.
#[derive(Debug)]
pub(super) enum Turn<P> {
    Process(Arc<P>),
    /// A part of a stream, and whom to tell that it was taken.
    Part(Parcel, oneshot::Sender<()>),
}

impl<P> Default for Ready<P> {
    fn default() -> Self {
        Ready { processes: HashMap::new(), fresh: VecDeque::new(), bulk: VecDeque::new() }
    }
}

impl<P> Ready<P> {
    pub(super) fn push(&mut self, process: Arc<P>, urgency: Urgency) {
        let key = ProcessKey::of(&process);
        self.processes.insert(key, process);
        match urgency {
            Urgency::Fresh => self.fresh.push_back(key),
            Urgency::Bulk => self.bulk.push_back(Bulk::Process(key)),
        }
    }

    pub(super) fn push_part(&mut self, part: Parcel, taken: oneshot::Sender<()>) {
        self.bulk.push_back(Bulk::Part(part, taken));
    }

    /// Takes the next process that has only a little to say.
    pub(super) fn take_fresh(&mut self) -> Option<Arc<P>> {
        while let Some(key) = self.fresh.pop_front() {
            if let Some(process) = self.processes.remove(&key) {
                return Some(process);
            }
        }
        None
    }

    /// Takes whose turn it is among the floods.
    pub(super) fn take_bulk(&mut self) -> Option<Turn<P>> {
        while let Some(next) = self.bulk.pop_front() {
            match next {
                Bulk::Part(part, taken) => return Some(Turn::Part(part, taken)),
                Bulk::Process(key) => {
                    if let Some(process) = self.processes.remove(&key) {
                        return Some(Turn::Process(process));
                    }
                }
            }
        }
        None
    }

    /// Takes a process off the list.
    pub(super) fn withdraw(&mut self, process: &Arc<P>) {
        /// So few keys without a process are no matter.
        const FEW: usize = 64;

        let Ready { processes, fresh, bulk } = self;
        processes.remove(&ProcessKey::of(process));
        if fresh.len() + bulk.len() > 2 * processes.len() + FEW {
            fresh.retain(|key| processes.contains_key(key));
            bulk.retain(|next| match next {
                Bulk::Process(key) => processes.contains_key(key),
                Bulk::Part(..) => true,
            });
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.processes.is_empty() && self.bulk.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_take_turns_and_those_that_were_withdrawn_are_passed_over() {
        let processes: [_; 4] = std::array::from_fn(Arc::new);
        let mut ready = Ready::default();
        for process in &processes {
            let urgency = if **process < 2 { Urgency::Fresh } else { Urgency::Bulk };
            ready.push(Arc::clone(process), urgency);
        }
        ready.withdraw(&processes[0]);
        ready.withdraw(&processes[2]);
        assert_eq!(ready.take_fresh().as_deref(), Some(&1));
        assert!(ready.take_fresh().is_none());
        assert!(matches!(ready.take_bulk(), Some(Turn::Process(process)) if *process == 3));
        assert!(ready.take_bulk().is_none() && ready.is_empty());
    }

    #[test]
    fn nothing_is_left_of_a_hundred_thousand_processes_that_came_and_went() {
        let mut ready = Ready::default();
        for urgency in [Urgency::Fresh, Urgency::Bulk].repeat(50_000) {
            let process = Arc::new(());
            ready.push(Arc::clone(&process), urgency);
            ready.withdraw(&process);
            assert_eq!(Arc::strong_count(&process), 1);
        }
        assert!(ready.fresh.len() + ready.bulk.len() < 100);
    }
}

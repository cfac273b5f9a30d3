//! The handles on the processes with one id: one process, and those before its restarts.

use std::sync::Arc;

use crate::core::event_queue::EventQueue;

/// The queues of the processes with one id, the oldest first.
///
/// The server streams the rest of a process that is restarted before the first event of the new one. Meanwhile there
/// may already be a handle on the new one.
#[derive(Debug)]
pub(super) struct ProcessQueues {
    runs: Vec<Run>,
}

#[derive(Debug)]
struct Run {
    queue: Arc<EventQueue>,
    handles: usize,
}

/// The state of a queue after one of its handles was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReleasedQueue {
    /// It has other handles, or was already removed.
    InUse,
    /// It was that of a process before a restart.
    Earlier,
    /// It was the newest, and now there is none.
    Newest,
}

impl ProcessQueues {
    pub(super) fn new(queue: Arc<EventQueue>) -> Self {
        Self { runs: vec![Run { queue, handles: 1 }] }
    }

    /// Returns the newest queue.
    pub(super) fn newest(&self) -> Option<&Arc<EventQueue>> {
        self.runs.last().map(|run| &run.queue)
    }

    /// Returns the queue of a start for one handle more; without an incarnation the newest, unless its process was
    /// restarted.
    pub(super) fn share(&mut self, incarnation: Option<u64>) -> Option<Arc<EventQueue>> {
        let run = match incarnation {
            None => self.runs.last_mut().filter(|run| !run.queue.is_replaced())?,
            Some(_) => self.runs.iter_mut().find(|run| run.queue.incarnation() == incarnation)?,
        };
        run.handles += 1;
        Some(Arc::clone(&run.queue))
    }

    /// Returns whether there may be a queue for another start: the newest is of one before a restart, and this one has none.
    pub(super) fn may_succeed(&self, incarnation: Option<u64>) -> bool {
        let is_known = incarnation.is_some() && self.named(incarnation).is_some();
        !is_known && self.newest().is_none_or(|newest| newest.is_replaced())
    }

    /// Adds the queue of the process after a restart.
    pub(super) fn succeed(&mut self, queue: Arc<EventQueue>) {
        self.runs.push(Run { queue, handles: 1 });
    }

    /// Returns the queue that an event is for, if there is one.
    ///
    /// The events of a restartable process carry its incarnation. A queue without a known incarnation belongs to a start
    /// whose response has not been processed yet. An event without one is for the process that has the id now.
    pub(super) fn receiver(&self, incarnation: Option<u64>) -> Option<&Arc<EventQueue>> {
        let starting = || self.newest().filter(|newest| newest.incarnation().is_none());
        let receiver = self.named(incarnation).or_else(starting);
        receiver.filter(|queue| !queue.has_ended() && (incarnation.is_some() || !queue.is_replaced()))
    }

    /// Returns the queue of the start that a request names, or the newest if it names none.
    pub(super) fn named(&self, incarnation: Option<u64>) -> Option<&Arc<EventQueue>> {
        match incarnation {
            None => self.newest(),
            Some(_) => {
                self.runs.iter().map(|run| &run.queue).find(|queue| queue.incarnation() == incarnation)
            }
        }
    }

    /// Removes the queues of earlier processes, whose rest is lost with the connection.
    pub(super) fn take_earlier(&mut self) -> impl Iterator<Item = Arc<EventQueue>> {
        self.runs.drain(..self.runs.len().saturating_sub(1)).map(|run| run.queue)
    }

    /// Removes a handle of a queue, and the queue with its last one.
    pub(super) fn release(&mut self, queue: &EventQueue) -> ReleasedQueue {
        let position =
            self.runs.iter().position(|run| std::ptr::eq(&raw const *run.queue, &raw const *queue));
        let Some(position) = position else { return ReleasedQueue::InUse };
        let run = &mut self.runs[position];
        run.handles = run.handles.saturating_sub(1);
        if run.handles > 0 {
            return ReleasedQueue::InUse;
        }
        self.runs.remove(position);
        if position == self.runs.len() { ReleasedQueue::Newest } else { ReleasedQueue::Earlier }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    pub(super) fn into_queues(self) -> impl Iterator<Item = Arc<EventQueue>> {
        self.runs.into_iter().map(|run| run.queue)
    }
}

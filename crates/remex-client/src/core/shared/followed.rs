//! The handles on the processes with one id: one process, and those before its restarts.

use std::{collections::VecDeque, sync::Arc};

use crate::core::event_queue::{EventQueue, History};

/// The queues of the processes with one id, the oldest first.
///
/// The server streams the rest of a process that is restarted before the first event of the new one. Meanwhile there
/// may already be a handle on the new one.
#[derive(Debug)]
pub(super) struct Followed {
    runs: VecDeque<Run>,
}

#[derive(Debug)]
struct Run {
    queue: Arc<EventQueue>,
    handles: usize,
}

/// What has become of a queue whose handle is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// It still has handles, or none of its own.
    InUse,
    /// It takes the rest of its process, which no consumer will see.
    Draining,
    /// It was the one of the process that has the id, and is removed.
    Removed { is_last: bool },
}

impl Followed {
    pub(super) fn new(queue: Arc<EventQueue>) -> Self {
        Self { runs: [Run { queue, handles: 1 }].into() }
    }

    /// Returns the queue of the process that has the id.
    pub(super) fn newest(&self) -> Option<&Arc<EventQueue>> {
        self.runs.back().map(|run| &run.queue)
    }

    /// Returns the same for one handle more, unless the process was restarted: its handles stay those of the one before.
    pub(super) fn share(&mut self) -> Option<Arc<EventQueue>> {
        let newest = self.runs.back_mut().filter(|run| !run.queue.is_replaced())?;
        newest.handles += 1;
        Some(Arc::clone(&newest.queue))
    }

    /// Adds the queue of the process after a restart; returns what of that process may have arrived already.
    pub(super) fn succeed(&mut self, queue: Arc<EventQueue>) -> History {
        let history = match self.runs.back() {
            Some(earlier) if !earlier.queue.is_past() => History::None,
            _ => History::Possible,
        };
        self.runs.push_back(Run { queue, handles: 1 });
        history
    }

    /// Returns the queue that the next event is for, if there is one.
    pub(super) fn receiver(&mut self) -> Option<Arc<EventQueue>> {
        while let Some(oldest) = self.runs.front()
            && (self.runs.len() > 1 || oldest.handles == 0)
            && oldest.queue.is_past()
        {
            self.runs.pop_front();
        }
        self.runs.front().map(|run| Arc::clone(&run.queue))
    }

    /// Removes the queues of earlier processes, whose rest is lost with the connection.
    pub(super) fn take_earlier(&mut self) -> impl Iterator<Item = Arc<EventQueue>> {
        self.runs.drain(..self.runs.len().saturating_sub(1)).map(|run| run.queue)
    }

    /// Removes a handle of a queue.
    pub(super) fn release(&mut self, queue: &EventQueue) -> Left {
        let position =
            self.runs.iter().position(|run| std::ptr::eq(&raw const *run.queue, &raw const *queue));
        let Some(position) = position else { return Left::InUse };
        let run = &mut self.runs[position];
        run.handles = run.handles.saturating_sub(1);
        if run.handles > 0 {
            return Left::InUse;
        }
        if position + 1 < self.runs.len() {
            return Left::Draining;
        }
        self.runs.pop_back();
        Left::Removed { is_last: self.runs.is_empty() }
    }

    pub(super) fn into_queues(self) -> impl Iterator<Item = Arc<EventQueue>> {
        self.runs.into_iter().map(|run| run.queue)
    }
}

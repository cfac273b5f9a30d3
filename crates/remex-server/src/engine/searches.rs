//! Searches for text in output that are in progress.

use remex_proto::state::output_log::Seq;

use super::{Audience, Engine, ProcessState};

/// How far the searches have read; output that they have not seen is held for them.
#[derive(Debug, Default)]
pub(super) struct Searches {
    /// Bounded by the number of waits that are permitted.
    looked_at: Vec<(u64, Seq)>,
    last: u64,
}

impl Searches {
    pub(super) fn oldest(&self) -> Option<Seq> {
        self.looked_at.iter().map(|(_, seq)| *seq).min()
    }
}

/// Holds output for one search until dropped.
#[derive(Debug)]
pub(super) struct Searching<'a, A: Audience> {
    process: &'a Engine<A>,
    number: u64,
}

impl<'a, A: Audience> Searching<'a, A> {
    pub(super) fn begin(process: &'a Engine<A>, after: Seq) -> Self {
        let searches = &mut process.state().searches;
        searches.last += 1;
        let number = searches.last;
        searches.looked_at.push((number, after));
        Searching { process, number }
    }

    /// Records that the search has read everything up to `seq`.
    pub(super) fn looked_at(&self, seq: Seq) {
        let mut state = self.process.state();
        if let Some((_, last)) =
            state.searches.looked_at.iter_mut().find(|(number, _)| *number == self.number)
        {
            *last = seq;
        }
        self.wake(&state);
    }

    fn wake(&self, state: &ProcessState<A>) {
        if state.full {
            self.process.wake.notify_one();
        }
    }
}

impl<A: Audience> Drop for Searching<'_, A> {
    fn drop(&mut self) {
        let mut state = self.process.state();
        state.searches.looked_at.retain(|(number, _)| *number != self.number);
        self.wake(&state);
    }
}

//! Searches in the output that run now.

use remex_proto::state::output_log::Seq;

use super::{Audience, Engine, State};

/// How far searches in the output have got; what they have not seen is kept for them.
#[derive(Debug, Default)]
pub(super) struct Searches {
    /// Bounded by those who may wait.
    looked_at: Vec<(u64, Seq)>,
    last: u64,
}

impl Searches {
    pub(super) fn oldest(&self) -> Option<Seq> {
        self.looked_at.iter().map(|(_, seq)| *seq).min()
    }
}

/// Keeps output for one search, until it is dropped.
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

    /// Notes that everything up to `seq` was looked at.
    pub(super) fn looked_at(&self, seq: Seq) {
        let mut state = self.process.state();
        if let Some((_, last)) =
            state.searches.looked_at.iter_mut().find(|(number, _)| *number == self.number)
        {
            *last = seq;
        }
        self.wake(&state);
    }

    fn wake(&self, state: &State<A>) {
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

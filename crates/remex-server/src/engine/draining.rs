//! The rest of the output of a process that nothing writes to any more: it is read even if the log is full.
//!
//! That is at most what two pipes or a terminal can buffer, once. Until it is in the log, the process does not close.
//! Start at [`Engine::read_rest`].

use std::time::Instant;

use remex_base::limits::Limits;
use remex_proto::state::output::Hold;

use super::{Audience, Engine, Holding, Place, ProcessLog as _, ProcessState, Spec};
use crate::state::keeper_link::message::ToKeeper;

impl<A: Audience> Engine<A> {
    /// Has what is left read into the log, whether or not there is room for it, as soon as nothing writes to it any more.
    pub(crate) fn read_rest(&self) {
        self.state().reads_rest = true;
        if let Place::Keeper { link, key } = &self.place {
            link.send(&ToKeeper::ReadRest(*key));
        }
        self.wake();
    }

    /// Waits until the direct child has exited.
    pub(crate) async fn exited(&self) {
        self.until(|state| state.exit.is_some()).await;
    }

    /// Returns whether the direct child has exited.
    pub(crate) fn has_exited(&self) -> bool {
        self.state().exit.is_some()
    }

    /// Returns whether output waits for room in the log.
    pub(crate) fn waits_for_room(&self) -> bool {
        self.state().full
    }
}

impl<A: Audience> ProcessState<A> {
    /// Returns what must stay in the log, and how many bytes may be appended now: `rest` of them even if it is full.
    pub(super) fn room(
        &mut self,
        spec: &Spec,
        limits: &Limits,
        budget: usize,
        rest: usize,
        now: Instant,
    ) -> (Hold, usize) {
        let generous = self.hold(spec, limits, Holding::Generous, now);
        let room = self.log.writer().map_or(0, |log| log.room(generous, budget));
        if room > 0 {
            return (generous, room);
        }
        let least = self.hold(spec, limits, Holding::Least, now);
        let Some(log) = self.log.writer() else { return (least, 0) };
        match log.room(least, budget) {
            0 if rest > 0 => (least, log.room_for_rest(least).min(rest)),
            room => (least, room),
        }
    }
}

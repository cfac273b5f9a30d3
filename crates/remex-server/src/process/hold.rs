//! What the client that controls a process has acknowledged, and what is therefore kept for it.

use std::{sync::Arc, time::Instant};

use remex_proto::{
    process::Overflow,
    state::output_log::{Hold, Seq},
};

use super::{About, Process, State, deliver::Follow};
use crate::{config::Limits, outbox::ConnectionId};

/// Who controls the process, and how far it has acknowledged.
#[derive(Debug)]
pub(super) struct Control {
    holder: Holder,
    /// Everything up to here was got by the controlling client, also by an earlier connection of it.
    acknowledged: Seq,
}

#[derive(Debug)]
enum Holder {
    Attached {
        connection: ConnectionId,
        catch_up: Option<CatchUp>,
    },
    Detached {
        since: Instant,
    },
    /// Nobody will come for it any more.
    Gone,
}

/// After a resume: what lies between the last acknowledgement and the first event streamed again.
///
/// The client fetches it with `process/read`; until it has, or has not asked for a while, it is kept.
#[derive(Debug)]
struct CatchUp {
    until: Seq,
    /// The newest event acknowledged beyond `until`.
    beyond: Seq,
    last_read: Instant,
}

impl Control {
    pub(super) fn attached(connection: ConnectionId) -> Self {
        Control { holder: Holder::Attached { connection, catch_up: None }, acknowledged: 0 }
    }

    pub(super) fn is(&self, connection: ConnectionId) -> bool {
        matches!(self.holder, Holder::Attached { connection: holder, .. } if holder == connection)
    }

    pub(super) fn detach(&mut self, now: Instant) {
        self.holder = Holder::Detached { since: now };
    }

    pub(super) fn let_go(&mut self) {
        self.holder = Holder::Gone;
    }

    pub(super) fn resume(&mut self, connection: ConnectionId, newest: Seq, now: Instant) {
        let catch_up =
            (self.acknowledged < newest).then_some(CatchUp { until: newest, beyond: 0, last_read: now });
        self.holder = Holder::Attached { connection, catch_up };
    }

    pub(super) fn acknowledge(&mut self, seq: Seq) {
        if let Holder::Attached { catch_up: Some(gap), .. } = &mut self.holder {
            if seq > gap.until {
                gap.beyond = gap.beyond.max(seq);
                return;
            }
            if seq == gap.until {
                self.acknowledged = gap.until.max(gap.beyond);
                self.end_catch_up();
                return;
            }
        }
        self.acknowledged = self.acknowledged.max(seq);
    }

    /// Notes that the client reads on its own, having seen everything up to `after`.
    pub(super) fn reads(&mut self, after: Seq, newest: Seq, now: Instant) {
        if let Holder::Attached { catch_up: Some(gap), .. } = &mut self.holder {
            gap.last_read = now;
            // Whoever has seen more than the gap has seen the gap.
            let after = if after > gap.until { gap.until } else { after };
            self.acknowledge(after);
        } else if after <= newest {
            self.acknowledge(after);
        }
    }

    /// Returns what the acknowledgement of a read up to `seq` is worth: after a resume, first of all that
    /// everything before the stream is there; the rest is streamed and acknowledged as well.
    pub(super) fn worth_of_read(&self, seq: Seq) -> Seq {
        match &self.holder {
            Holder::Attached { catch_up: Some(gap), .. } => seq.min(gap.until),
            Holder::Attached { .. } | Holder::Detached { .. } | Holder::Gone => seq,
        }
    }

    fn end_catch_up(&mut self) {
        if let Holder::Attached { catch_up, .. } = &mut self.holder {
            *catch_up = None;
        }
    }

    fn hold(&mut self, limits: &Limits, now: Instant) -> Hold {
        match &self.holder {
            Holder::Gone => return Hold::Nothing,
            Holder::Detached { since } if now >= *since + limits.resume_hold => return Hold::Nothing,
            Holder::Attached { catch_up: Some(gap), .. } if self.gave_up(limits, now) => {
                self.acknowledged = gap.until.max(gap.beyond);
                self.end_catch_up();
            }
            Holder::Detached { .. } | Holder::Attached { .. } => {}
        }
        Hold::After(self.acknowledged)
    }

    /// Tells whether a client that is back has not read what it missed for so long that it never will.
    fn gave_up(&self, limits: &Limits, now: Instant) -> bool {
        matches!(&self.holder, Holder::Attached { catch_up: Some(gap), .. } if now >= gap.last_read + limits.resume_hold)
    }

    /// Returns when the hold loosens by itself.
    fn loosens_at(&self, limits: &Limits) -> Option<Instant> {
        match &self.holder {
            Holder::Detached { since } => Some(*since + limits.resume_hold),
            Holder::Attached { catch_up: Some(gap), .. } => Some(gap.last_read + limits.resume_hold),
            Holder::Attached { catch_up: None, .. } | Holder::Gone => None,
        }
    }
}

/// How far the controlling client's searches in the output have got; what they have not seen is kept for them.
#[derive(Debug, Default)]
pub(super) struct Searches {
    /// Bounded by the waits that a connection may have.
    looked_at: Vec<(u64, Seq)>,
    last: u64,
}

impl Searches {
    fn oldest(&self) -> Option<Seq> {
        self.looked_at.iter().map(|(_, seq)| *seq).min()
    }
}

/// Keeps output for one search, until it is dropped.
#[derive(Debug)]
pub(super) struct Searching<'a> {
    process: &'a Process,
    number: u64,
}

impl<'a> Searching<'a> {
    pub(super) fn begin(process: &'a Process, after: Seq) -> Self {
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

    fn wake(&self, state: &State) {
        if state.full {
            self.process.wake.notify_one();
        }
    }
}

impl Drop for Searching<'_> {
    fn drop(&mut self) {
        let mut state = self.process.state();
        state.searches.looked_at.retain(|(number, _)| *number != self.number);
        self.wake(&state);
    }
}

impl State {
    pub(super) fn hold(&mut self, about: &About, limits: &Limits, now: Instant) -> Hold {
        match about.overflow {
            Overflow::Evict => Hold::Nothing,
            Overflow::Pause => {
                if self.control.gave_up(limits, now) {
                    self.note_abandoned();
                }
                match (self.control.hold(limits, now), self.searches.oldest()) {
                    (Hold::After(seq), Some(looked_at)) => Hold::After(seq.min(looked_at)),
                    (hold, _) => hold,
                }
            }
        }
    }

    /// Counts what was evicted while the client was away and it has not asked for since it is back.
    pub(super) fn note_abandoned(&mut self) {
        if let Holder::Attached { catch_up: Some(_), .. } = self.control.holder {
            let cursor = self.log.cursor_after(self.control.acknowledged);
            if let Some(gap) = self.log.gap(&cursor) {
                self.losses.note(gap);
            }
        }
    }

    /// Returns when a full log should be looked at again although nobody acknowledged.
    pub(super) fn look_again_at(&self, limits: &Limits) -> Option<Instant> {
        self.full.then(|| self.control.loosens_at(limits)).flatten()
    }
}

impl Process {
    /// Notes that `connection` has got everything up to `seq`.
    pub(crate) fn acknowledge(&self, connection: ConnectionId, seq: Seq) {
        let mut state = self.state();
        if !state.control.is(connection) {
            return;
        }
        state.control.acknowledge(seq);
        let wake = state.full;
        drop(state);
        if wake {
            self.wake.notify_one();
        }
    }

    /// Forgets the closed process, unless a client that is here has not got everything: then it is
    /// forgotten as soon as it has.
    pub(crate) fn expire(self: &Arc<Self>) {
        let Some(session) = self.session.upgrade() else { return };
        let mut state = self.state();
        let waits = |follow: &Follow| follow.controls && state.log.has_next(&follow.cursor);
        state.overdue = self.about.overflow == Overflow::Pause && state.follows.iter().any(waits);
        let settled = !state.overdue;
        drop(state);
        if settled {
            session.forget(self);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn resumed(limits: &Limits, now: Instant) -> Control {
        let mut control = Control::attached(1);
        control.acknowledge(5);
        control.detach(now);
        assert_eq!(control.hold(limits, now), Hold::After(5));
        control.resume(2, 9, now);
        control
    }

    #[test]
    fn what_was_not_acknowledged_before_a_cut_is_kept_until_it_was_read() {
        let (limits, now) = (Limits::default(), Instant::now());
        let mut control = resumed(&limits, now);
        control.acknowledge(12);
        assert_eq!(control.hold(&limits, now), Hold::After(5), "12 says nothing about 6 to 9");
        control.reads(7, 12, now);
        assert_eq!(control.hold(&limits, now), Hold::After(7));
        control.acknowledge(9);
        assert_eq!(control.hold(&limits, now), Hold::After(12));
    }

    #[test]
    fn a_read_that_goes_beyond_the_resume_ends_the_catching_up() {
        let (limits, now) = (Limits::default(), Instant::now());
        let mut control = resumed(&limits, now);
        control.acknowledge(control.worth_of_read(12));
        assert_eq!(control.hold(&limits, now), Hold::After(9));
        assert_eq!(control.worth_of_read(12), 12);
    }

    #[test]
    fn a_client_that_never_reads_back_does_not_hold_output_for_ever() {
        let (limits, now) = (Limits::default(), Instant::now());
        let mut control = resumed(&limits, now);
        assert_eq!(control.hold(&limits, now + limits.resume_hold), Hold::After(9));
        control.detach(now);
        let later = now + limits.resume_hold + Duration::from_millis(1);
        assert_eq!(control.hold(&limits, later), Hold::Nothing);
    }
}

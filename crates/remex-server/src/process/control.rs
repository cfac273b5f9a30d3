//! What the controlling client has acknowledged, and what is therefore held for it.

use std::time::Instant;

use remex_proto::state::output_log::{Hold, Seq};

use super::{Followers, Process, Viewer};
use crate::{engine::ProcessLog, limits::Limits, outbox::ConnectionId};

/// Which client controls the process, and how much it has acknowledged.
#[derive(Debug, Default)]
pub(super) struct Control {
    holder: Holder,
    /// The controlling client has received everything up to here, or consumed it if it reports that; includes
    /// earlier connections.
    acknowledged: Seq,
    /// Nothing is held for the client while it is disconnected.
    released: bool,
}

#[derive(Debug, Default)]
enum Holder {
    Attached {
        connection: ConnectionId,
        mode: AckMode,
    },
    Detached {
        since: Instant,
    },
    /// No client has attached yet, or none will any more.
    #[default]
    Gone,
}

/// What counts as acknowledged.
#[derive(Debug)]
enum AckMode {
    /// What the client has received.
    Arrived { catch_up: Option<ResumeBacklog> },
    /// Only what the client reports as consumed.
    Consumed,
}

/// After a resume: the output between the last acknowledgement and the first event that is streamed again.
///
/// The client fetches it with `process/read`. It is held until the client has it, or has not asked for it for a
/// while.
#[derive(Debug)]
struct ResumeBacklog {
    until: Seq,
    /// The newest event acknowledged beyond `until`.
    beyond: Seq,
    last_read: Instant,
    /// The client was sent all of it, after everything streamed up to this event.
    sent_after: Option<Seq>,
}

impl Control {
    /// Returns the control of a client that was connected to an earlier server.
    pub(super) fn restored(acknowledged: Option<Seq>, now: Instant) -> Self {
        let (acknowledged, released) = (acknowledged.unwrap_or(0), acknowledged.is_none());
        Control { holder: Holder::Detached { since: now }, acknowledged, released }
    }

    pub(super) fn acknowledged(&self) -> Seq {
        self.acknowledged
    }

    pub(super) fn is(&self, connection: ConnectionId) -> bool {
        matches!(self.holder, Holder::Attached { connection: holder, .. } if holder == connection)
    }

    /// Returns whether its client is disconnected and expected to resume.
    pub(super) fn is_awaited(&self) -> bool {
        matches!(self.holder, Holder::Detached { .. }) && !self.released
    }

    fn release(&mut self) {
        self.released = true;
    }

    pub(super) fn detach(&mut self, now: Instant) {
        self.holder = Holder::Detached { since: now };
    }

    pub(super) fn on_abandoned(&mut self) {
        self.holder = Holder::Gone;
    }

    /// Attaches a client whose acknowledgements report what it has received.
    fn attach(&mut self, connection: ConnectionId, newest: Seq, now: Instant) {
        let catch_up = (self.acknowledged < newest).then_some(ResumeBacklog {
            until: newest,
            beyond: 0,
            last_read: now,
            sent_after: None,
        });
        self.holder = Holder::Attached { connection, mode: AckMode::Arrived { catch_up } };
    }

    /// Attaches a client that reports what it has consumed.
    fn attach_consumer(&mut self, connection: ConnectionId) {
        self.holder = Holder::Attached { connection, mode: AckMode::Consumed };
    }

    pub(super) fn resume(&mut self, viewer: &Viewer, newest: Seq, now: Instant) {
        self.released = false;
        if viewer.consumes {
            self.attach_consumer(viewer.outbox.id);
        } else {
            self.attach(viewer.outbox.id, newest, now);
        }
    }

    /// Records what the client has consumed; returns `false` if that is nothing new.
    pub(super) fn consume(&mut self, seq: Seq) -> bool {
        let is_new = seq > self.acknowledged && self.is_consumed();
        if is_new {
            self.acknowledged = seq;
        }
        is_new
    }

    pub(super) fn acknowledge(&mut self, seq: Seq) {
        if self.is_consumed() {
            return;
        }
        if let Some(gap) = self.catch_up_mut() {
            if seq > gap.until {
                gap.beyond = gap.beyond.max(seq);
                // Where only streamed output is acknowledged: everything sent before it has arrived as well.
                if gap.sent_after.is_some_and(|streamed| seq > streamed) {
                    self.acknowledged = gap.beyond;
                    self.end_catch_up();
                }
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

    /// Records that the client reads on its own, having seen everything up to `after`.
    pub(super) fn reads(&mut self, after: Seq, newest: Seq, now: Instant) {
        if let Some(gap) = self.catch_up_mut() {
            gap.last_read = now;
            // A client that has seen events beyond the backlog has seen the backlog.
            let after = if after > gap.until { gap.until } else { after };
            self.acknowledge(after);
        } else if after <= newest {
            self.acknowledge(after);
        }
    }

    /// Returns the event that the acknowledgement of a read up to `seq` acknowledges: after a resume, at most
    /// the end of the backlog, because the rest is streamed and acknowledged as well.
    pub(super) fn acknowledged_by_read(&self, seq: Seq) -> Seq {
        self.catch_up().map_or(seq, |gap| seq.min(gap.until))
    }

    /// Records that a read up to `seq` was sent after everything streamed up to `streamed`.
    pub(super) fn sent_read(&mut self, seq: Seq, streamed: Seq) {
        if let Some(gap) = self.catch_up_mut().filter(|gap| seq >= gap.until) {
            gap.sent_after.get_or_insert(streamed);
        }
    }

    /// Returns whether a resumed client has not acknowledged all it missed.
    pub(super) fn is_catching_up(&self) -> bool {
        self.catch_up().is_some()
    }

    fn is_consumed(&self) -> bool {
        matches!(self.holder, Holder::Attached { mode: AckMode::Consumed, .. })
    }

    fn catch_up(&self) -> Option<&ResumeBacklog> {
        match &self.holder {
            Holder::Attached { mode: AckMode::Arrived { catch_up }, .. } => catch_up.as_ref(),
            Holder::Attached { mode: AckMode::Consumed, .. } | Holder::Detached { .. } | Holder::Gone => None,
        }
    }

    fn catch_up_mut(&mut self) -> Option<&mut ResumeBacklog> {
        match &mut self.holder {
            Holder::Attached { mode: AckMode::Arrived { catch_up }, .. } => catch_up.as_mut(),
            Holder::Attached { mode: AckMode::Consumed, .. } | Holder::Detached { .. } | Holder::Gone => None,
        }
    }

    fn end_catch_up(&mut self) {
        if let Holder::Attached { mode: AckMode::Arrived { catch_up }, .. } = &mut self.holder {
            *catch_up = None;
        }
    }

    pub(super) fn hold(&mut self, limits: &Limits, now: Instant) -> Hold {
        match &self.holder {
            Holder::Gone => return Hold::Nothing,
            Holder::Detached { .. } if self.released => return Hold::Nothing,
            Holder::Detached { since } if now >= *since + limits.resume_hold => return Hold::Nothing,
            Holder::Detached { .. } | Holder::Attached { .. } => {}
        }
        if let Some(gap) = self.catch_up().filter(|_| self.is_backlog_expired(limits, now)) {
            self.acknowledged = gap.until.max(gap.beyond);
            self.end_catch_up();
        }
        Hold::After(self.acknowledged)
    }

    /// Returns whether a resumed client has not read its backlog for so long that it is no longer held.
    pub(super) fn is_backlog_expired(&self, limits: &Limits, now: Instant) -> bool {
        self.catch_up().is_some_and(|gap| now >= gap.last_read + limits.resume_hold)
    }

    /// Returns when the hold ends by itself.
    pub(super) fn hold_ends_at(&self, limits: &Limits) -> Option<Instant> {
        match &self.holder {
            Holder::Detached { since } => Some(*since + limits.resume_hold),
            Holder::Attached { .. } => self.catch_up().map(|gap| gap.last_read + limits.resume_hold),
            Holder::Gone => None,
        }
    }
}

impl Followers {
    /// Counts the output that was evicted while the client was disconnected and that it has not read since.
    pub(super) fn note_abandoned(&mut self, log: &mut ProcessLog) {
        if self.control.catch_up().is_some() {
            let cursor = log.cursor_after(self.control.acknowledged);
            if let Some(gap) = log.gap(&cursor) {
                self.losses.note(gap);
            }
        }
    }

    /// Returns whether a connected client has not been sent everything and expects it.
    pub(super) fn is_awaited(&self, log: &ProcessLog) -> bool {
        self.follows.iter().any(|follow| follow.is_waiting(log))
    }
}

impl Process {
    /// Attaches the first controller.
    pub(crate) fn controlled_by(&self, viewer: &Viewer) {
        self.state().audience.control.resume(viewer, 0, Instant::now());
    }

    /// Holds nothing for the controller while it is disconnected.
    pub(crate) fn release(&self) {
        self.state().audience.control.release();
        self.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn resumed(limits: &Limits, now: Instant) -> Control {
        let mut control = Control::default();
        control.attach(1, 0, now);
        control.acknowledge(5);
        control.detach(now);
        assert_eq!(control.hold(limits, now), Hold::After(5));
        control.attach(2, 9, now);
        control
    }

    #[test]
    fn unacknowledged_output_is_held_after_a_disconnect_until_it_is_read() {
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
    fn a_read_beyond_the_resume_point_ends_the_backlog() {
        let (limits, now) = (Limits::default(), Instant::now());
        let mut control = resumed(&limits, now);
        control.acknowledge(control.acknowledged_by_read(12));
        assert_eq!(control.hold(&limits, now), Hold::After(9));
        assert_eq!(control.acknowledged_by_read(12), 12);
    }

    #[test]
    fn a_backlog_is_received_when_later_output_is_acknowledged() {
        let (limits, now) = (Limits::default(), Instant::now());
        let mut control = resumed(&limits, now);
        control.acknowledge(10);
        control.sent_read(control.acknowledged_by_read(8), 11);
        control.sent_read(control.acknowledged_by_read(12), 12);
        control.acknowledge(7);
        control.acknowledge(12);
        assert_eq!(control.hold(&limits, now), Hold::After(7), "12 was sent before the answer");
        control.acknowledge(13);
        assert_eq!(control.hold(&limits, now), Hold::After(13));
    }

    #[test]
    fn received_output_is_held_until_it_is_consumed() {
        let (limits, now) = (Limits::default(), Instant::now());
        let mut control = Control::default();
        control.attach_consumer(1);
        control.acknowledge(7);
        control.reads(8, 9, now);
        assert_eq!(control.hold(&limits, now), Hold::After(0));
        assert!(control.consume(3) && !control.consume(2));
        control.detach(now);
        control.attach_consumer(2);
        assert_eq!(control.hold(&limits, now + 2 * limits.resume_hold), Hold::After(3));
        control.attach(3, 9, now);
        assert!(!control.consume(9), "this connection does not tell");
        control.acknowledge(9);
        assert_eq!(control.hold(&limits, now), Hold::After(9));
    }

    #[test]
    fn a_client_that_never_reads_its_backlog_does_not_hold_it_forever() {
        let (limits, now) = (Limits::default(), Instant::now());
        let mut control = resumed(&limits, now);
        assert_eq!(control.hold(&limits, now + limits.resume_hold), Hold::After(9));
        control.detach(now);
        let later = now + limits.resume_hold + Duration::from_millis(1);
        assert_eq!(control.hold(&limits, later), Hold::Nothing);
    }
}

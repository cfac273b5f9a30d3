//! What the controlling client has received, and what is therefore held for it.

use std::{collections::VecDeque, time::Instant};

use remex_base::limits::Limits;
use remex_engine::{ChildRules, Holding, ServerLog};
use remex_proto::{
    process::Overflow,
    state::output_log::{Hold, Seq},
};

use super::{Followers, Process, Standing, Viewer, follow::Follow};
use crate::outbox::ConnectionId;

/// How much of the output that the operating system has taken last may still be on its way: more than the buffers
/// of a socket and our own.
const IN_TRANSIT_BYTES: u64 = 448 << 10;

/// How many events that were sent and not received have their positions remembered.
const MAX_POSITIONS: usize = 16 << 10;

/// Room for more positions than this is freed when it is no longer needed.
const SMALL: usize = 64;

/// Which client controls the process, and how much it has received.
#[derive(Debug, Default)]
pub(super) struct Control {
    holder: Holder,
    /// How the client of this connection, or of the last one, says what it has.
    receipt: Receipt,
    /// Whether it acknowledges what it has received; otherwise, that is what the operating system has taken.
    acknowledges: bool,
    /// The client has received everything up to here, on this connection or earlier ones.
    received: Seq,
    /// The client has consumed everything up to here, if it reports that; consumed <= received
    consumed: Seq,
    /// The newest of the received events whose position is known: it, and the bytes of output up to it.
    position: (Seq, u64),
    /// The positions of events that were sent after `received`, in order.
    positions: VecDeque<(Seq, u64)>,
    /// Nothing is held for the client while it is disconnected.
    released: bool,
}

#[derive(Debug, Default)]
enum Holder {
    Attached {
        connection: ConnectionId,
        backlog: Option<ResumeBacklog>,
    },
    Detached {
        since: Instant,
    },
    /// No client has attached yet, or none will any more.
    #[default]
    Gone,
}

/// How the server learns what the client has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Receipt {
    /// The client acknowledges what it has received.
    #[default]
    Acknowledged,
    /// It acknowledges nothing: what the operating system has taken counts as received.
    Written,
    /// It also reports what it has consumed, and may read back what it has not.
    Consumed,
}

/// After a resume: the output between the last acknowledgement and the first event that is streamed again.
///
/// The client fetches it with `process/read`. It is held until the client has it, or, with `overflow: "pause"`, has
/// not asked for it for a while.
#[derive(Debug)]
struct ResumeBacklog {
    until: Seq,
    /// The newest event acknowledged beyond `until`.
    beyond: Seq,
    last_read: Instant,
}

impl Control {
    /// Returns the control of a client that was connected to an earlier server and has received everything up to this
    /// event and position; `None` if nothing was held for it.
    pub(super) fn restored(received: Option<(Seq, u64)>, now: Instant) -> Self {
        let (position, released) = (received.unwrap_or_default(), received.is_none());
        Control {
            holder: Holder::Detached { since: now },
            received: position.0,
            consumed: position.0,
            position,
            released,
            ..Control::default()
        }
    }

    pub(super) fn consumed(&self) -> Seq {
        self.consumed
    }

    /// Returns the bytes of output that the client has received, whatever was lost with its connection.
    pub(super) fn surely_received_bytes(&self) -> u64 {
        let in_transit = if self.acknowledges { 0 } else { IN_TRANSIT_BYTES };
        self.position.1.saturating_sub(in_transit)
    }

    /// Returns whether a client that is to get every byte has not acknowledged everything, and may still come for it.
    pub(super) fn is_owed(&self, log: &dyn ServerLog, rules: &ChildRules) -> bool {
        let is_expected = match self.holder {
            Holder::Attached { .. } => true,
            Holder::Detached { .. } => !self.released,
            Holder::Gone => false,
        };
        is_expected && rules.overflow == Overflow::Hold && self.lacks(log.next_seq() - 1)
    }

    /// Returns whether the client has not acknowledged everything up to `seq`.
    pub(super) fn lacks(&self, seq: Seq) -> bool {
        self.received < seq
    }

    pub(super) fn is(&self, connection: ConnectionId) -> bool {
        matches!(self.holder, Holder::Attached { connection: holder, .. } if holder == connection)
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

    pub(super) fn resume(&mut self, viewer: &Viewer, newest: Seq, now: Instant) {
        let receipt = if viewer.consumes {
            Receipt::Consumed
        } else if viewer.outbox.has_acks() {
            Receipt::Acknowledged
        } else {
            Receipt::Written
        };
        self.acknowledges = viewer.outbox.has_acks();
        self.attach(viewer.outbox.id, receipt, newest, now);
    }

    fn attach(&mut self, connection: ConnectionId, receipt: Receipt, newest: Seq, now: Instant) {
        let backlog =
            (self.received < newest).then_some(ResumeBacklog { until: newest, beyond: 0, last_read: now });
        if self.receipt != Receipt::Consumed {
            self.consumed = self.received;
        }
        (self.receipt, self.released) = (receipt, false);
        self.holder = Holder::Attached { connection, backlog };
    }

    /// Records that the client was sent an event, up to which there are this many bytes of output.
    pub(super) fn on_sent(&mut self, seq: Seq, end: u64) {
        if seq <= self.received {
            return;
        }
        let index = self.positions.partition_point(|(known, _)| *known < seq);
        if self.positions.get(index).is_none_or(|(known, _)| *known != seq) {
            self.positions.insert(index, (seq, end));
        }
        if self.positions.len() > MAX_POSITIONS {
            self.positions.pop_front();
        }
    }

    /// Returns the bytes of output up to an event that the client was sent, if that is known.
    pub(super) fn end_of(&self, seq: Seq) -> Option<u64> {
        if seq == self.position.0 {
            return Some(self.position.1);
        }
        let index = self.positions.binary_search_by_key(&seq, |(known, _)| *known).ok()?;
        self.positions.get(index).map(|(_, end)| *end)
    }

    /// Records what the client has consumed; returns `false` if that is nothing new.
    pub(super) fn consume(&mut self, seq: Seq) -> bool {
        if self.receipt != Receipt::Consumed || seq <= self.consumed {
            return false;
        }
        self.consumed = seq;
        // What it has consumed it has received.
        self.acknowledge(self.backlog().map_or(seq, |backlog| seq.min(backlog.until)));
        if self.backlog().is_none() {
            self.set_received(seq);
        }
        true
    }

    /// Records that the client has received everything that was sent up to `seq`.
    pub(super) fn acknowledge(&mut self, seq: Seq) {
        let received = match self.backlog_mut() {
            Some(backlog) if seq > backlog.until => {
                backlog.beyond = backlog.beyond.max(seq);
                return;
            }
            Some(backlog) if seq == backlog.until => {
                let received = backlog.until.max(backlog.beyond);
                self.end_backlog();
                received
            }
            Some(_) | None => seq,
        };
        self.set_received(received);
    }

    fn set_received(&mut self, seq: Seq) {
        if seq <= self.received {
            return;
        }
        self.received = seq;
        let known = self.positions.partition_point(|(known, _)| *known <= seq);
        self.position = self.positions.drain(..known).next_back().unwrap_or(self.position);
        if self.positions.capacity() > SMALL && self.positions.len() < SMALL / 2 {
            self.positions.shrink_to(SMALL);
        }
    }

    /// Records that the client reads on its own, having seen everything up to `after`.
    pub(super) fn reads(&mut self, after: Seq, newest: Seq, now: Instant) {
        if let Some(backlog) = self.backlog_mut() {
            backlog.last_read = now;
            // A client that has seen events beyond the backlog has seen the backlog.
            let after = after.min(backlog.until);
            self.acknowledge(after);
        } else if after <= newest && self.receipt != Receipt::Consumed {
            self.acknowledge(after);
        }
    }

    /// Returns the event that the acknowledgement of a read up to `seq` acknowledges: after a resume, at most
    /// the end of the backlog, because the rest is streamed and acknowledged as well.
    pub(super) fn acknowledged_by_read(&self, seq: Seq) -> Seq {
        match self.backlog() {
            Some(backlog) => seq.min(backlog.until),
            // Its consumers still expect on the stream what another caller has read.
            None if self.receipt == Receipt::Consumed => self.received,
            None => seq,
        }
    }

    /// Returns whether a resumed client has not received all it missed.
    pub(super) fn is_catching_up(&self) -> bool {
        self.backlog().is_some()
    }

    fn backlog(&self) -> Option<&ResumeBacklog> {
        match &self.holder {
            Holder::Attached { backlog, .. } => backlog.as_ref(),
            Holder::Detached { .. } | Holder::Gone => None,
        }
    }

    fn backlog_mut(&mut self) -> Option<&mut ResumeBacklog> {
        match &mut self.holder {
            Holder::Attached { backlog, .. } => backlog.as_mut(),
            Holder::Detached { .. } | Holder::Gone => None,
        }
    }

    fn end_backlog(&mut self) {
        if let Holder::Attached { backlog, .. } = &mut self.holder {
            *backlog = None;
        }
    }

    /// Returns what must stay in the log.
    pub(super) fn hold(
        &mut self,
        log: &dyn ServerLog,
        rules: &ChildRules,
        limits: &Limits,
        holding: Holding,
        now: Instant,
    ) -> Hold {
        let expires = rules.overflow != Overflow::Hold;
        match &self.holder {
            Holder::Gone => return Hold::Nothing,
            Holder::Detached { .. } if self.released => return Hold::Nothing,
            Holder::Detached { since } if expires && now >= *since + limits.resume_hold => {
                return Hold::Nothing;
            }
            Holder::Detached { .. } => return Hold::After(self.kept(log, rules, limits)),
            Holder::Attached { .. } => {}
        }
        if let Some(backlog) = self.backlog()
            && self.backlog_expires_at(rules, limits).is_some_and(|at| now >= at)
        {
            let received = backlog.until.max(backlog.beyond);
            self.end_backlog();
            self.set_received(received);
        }
        let has_all = self.received + 1 >= log.next_seq();
        Hold::After(match holding {
            // Its consumers may still read back what they have not consumed.
            Holding::Least if has_all && self.receipt != Receipt::Consumed => self.received,
            Holding::Least | Holding::Generous => self.kept(log, rules, limits),
        })
    }

    /// Returns the event after which the client may ask for everything again.
    fn kept(&self, log: &dyn ServerLog, rules: &ChildRules, limits: &Limits) -> Seq {
        match self.receipt {
            Receipt::Acknowledged => self.received,
            Receipt::Consumed => self.consumed,
            Receipt::Written => {
                let in_transit = IN_TRANSIT_BYTES.min(rules.retain_bytes as u64 / 2);
                let by_bytes = log.seq_ending_by(self.position.1.saturating_sub(in_transit));
                let by_events = self.received.saturating_sub(limits.retain_events as u64 / 2);
                by_bytes.max(by_events).min(self.received)
            }
        }
    }

    /// Returns when the backlog of a resumed client that does not read it is no longer held.
    fn backlog_expires_at(&self, rules: &ChildRules, limits: &Limits) -> Option<Instant> {
        if rules.overflow == Overflow::Hold || self.receipt == Receipt::Consumed {
            return None;
        }
        self.backlog().map(|backlog| backlog.last_read + limits.resume_hold)
    }

    /// Returns when the hold ends by itself.
    pub(super) fn hold_ends_at(&self, rules: &ChildRules, limits: &Limits) -> Option<Instant> {
        match &self.holder {
            Holder::Detached { .. } if rules.overflow == Overflow::Hold => None,
            Holder::Detached { since } => Some(*since + limits.resume_hold),
            Holder::Attached { .. } => self.backlog_expires_at(rules, limits),
            Holder::Gone => None,
        }
    }
}

impl Followers {
    /// Returns whether a resumed client still reads what it missed.
    pub(super) fn is_catching_up(&self) -> bool {
        self.control.is_catching_up() || self.follows.iter().any(Follow::is_catching_up)
    }

    /// Returns whether a client expects what it has not been sent, or with `overflow: "hold"` has not acknowledged, or a
    /// restart relies on it.
    pub(super) fn is_awaited(&self, log: &dyn ServerLog, rules: &ChildRules) -> bool {
        match self.succession.standing {
            Standing::Current => {
                self.control.is_owed(log, rules) || self.follows.iter().any(|follow| follow.is_waiting(log))
            }
            Standing::Restarting => true,
            // No client can read it any more, or acknowledge what it reads.
            Standing::Replaced => self.follows.iter().any(|follow| log.has_next(&follow.cursor)),
        }
    }

    /// Requests an acknowledgement of what the controlling client was sent.
    pub(super) fn want_mark(&self) {
        self.follows.iter().filter(|follow| follow.controls).for_each(Follow::want_mark);
    }
}

impl Process {
    /// Attaches the first controller.
    pub(crate) fn controlled_by(&self, viewer: &Viewer) {
        self.state().audience.control.resume(viewer, 0, Instant::now());
    }

    /// Returns whether the last input came on this connection, as far as that is recorded.
    pub(crate) fn has_input_of(&self, connection: ConnectionId) -> bool {
        self.state().audience.input_of == Some(connection)
    }

    /// Records the connection that input came on.
    pub(crate) fn set_input_of(&self, connection: ConnectionId) {
        self.state().audience.input_of = Some(connection);
    }

    /// Holds nothing for the controller while it is disconnected.
    pub(crate) fn release(&self) {
        let overdue = {
            let audience = &mut self.state().audience;
            audience.control.release();
            audience.overdue
        };
        self.wake();
        if overdue {
            self.forget_if_settled();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use remex_proto::state::output_log::{self, OutputLog, Stream};

    use super::*;

    const CHUNK: usize = 64;

    /// A process and the client that controls it.
    struct Fixture {
        control: Control,
        log: OutputLog,
        rules: ChildRules,
        limits: Limits,
        now: Instant,
    }

    impl Fixture {
        fn new(overflow: Overflow, receipt: Receipt) -> Self {
            let (limits, now) = (Limits::default(), Instant::now());
            let mut control = Control::default();
            control.attach(1, receipt, 0, now);
            let log = OutputLog::new(output_log::Limits::default());
            Fixture { control, log, rules: rules(overflow), limits, now }
        }

        /// Prints events of [`CHUNK`] bytes each.
        fn print(&mut self, events: usize) {
            for _ in 0..events {
                self.log.newest();
                let fill = &mut |room: &mut [u8]| Ok::<_, std::convert::Infallible>(room.len());
                let Ok(len) = self.log.append(Stream::Stdout, 0, CHUNK, fill);
                assert_eq!(len, CHUNK);
            }
        }

        /// Records that these events were sent.
        fn send(&mut self, events: std::ops::RangeInclusive<Seq>) {
            for seq in events {
                self.control.on_sent(seq, seq * CHUNK as u64);
            }
        }

        fn hold(&mut self, holding: Holding) -> Hold {
            self.control.hold(&self.log, &self.rules, &self.limits, holding, self.now)
        }

        /// Returns what is held if there is no room otherwise.
        fn least(&mut self) -> Hold {
            self.hold(Holding::Least)
        }

        fn resume(&mut self, receipt: Receipt) {
            self.control.detach(self.now);
            let newest = self.log.newest().seq;
            self.control.attach(2, receipt, newest, self.now);
        }

        fn wait_for_the_hold_to_end(&mut self) {
            self.now += self.limits.resume_hold + Duration::from_millis(1);
        }
    }

    fn rules(overflow: Overflow) -> ChildRules {
        ChildRules {
            tty: false,
            overflow,
            linger: None,
            timeout: None,
            idle_timeout: None,
            timeout_grace: None,
            retain_bytes: 10 * CHUNK,
        }
    }

    /// Nine events were printed and five acknowledged before the client resumed.
    fn resumed(overflow: Overflow) -> Fixture {
        let mut fixture = Fixture::new(overflow, Receipt::Acknowledged);
        fixture.print(9);
        fixture.control.acknowledge(5);
        fixture.resume(Receipt::Acknowledged);
        fixture
    }

    #[test]
    fn unacknowledged_output_is_held_after_a_disconnect_until_it_is_read() {
        let mut fixture = resumed(Overflow::Pause);
        fixture.print(3);
        fixture.control.acknowledge(12);
        assert_eq!(fixture.least(), Hold::After(5), "12 says nothing about 6 to 9");
        fixture.control.reads(7, 12, fixture.now);
        assert_eq!(fixture.least(), Hold::After(7));
        fixture.control.acknowledge(9);
        assert_eq!(fixture.least(), Hold::After(12));
    }

    #[test]
    fn a_read_beyond_the_resume_point_ends_the_backlog() {
        let mut fixture = resumed(Overflow::Pause);
        let Fixture { control, .. } = &mut fixture;
        control.acknowledge(control.acknowledged_by_read(12));
        assert_eq!(control.acknowledged_by_read(12), 12);
        assert_eq!(fixture.least(), Hold::After(9));
    }

    #[test]
    fn a_backlog_that_is_not_read_expires_unless_it_must_be_held() {
        for (overflow, expected) in [(Overflow::Pause, 9), (Overflow::Hold, 5)] {
            let mut fixture = resumed(overflow);
            fixture.wait_for_the_hold_to_end();
            assert_eq!(fixture.least(), Hold::After(expected), "{overflow:?}");
        }
    }

    #[test]
    fn output_is_held_for_a_client_that_is_away_as_long_as_it_asked_for() {
        for (overflow, expected) in [(Overflow::Pause, Hold::Nothing), (Overflow::Hold, Hold::After(5))] {
            let mut fixture = resumed(overflow);
            fixture.control.detach(fixture.now);
            assert_eq!(fixture.least(), Hold::After(5));
            fixture.wait_for_the_hold_to_end();
            assert_eq!(fixture.least(), expected, "{overflow:?}");
        }
    }

    #[test]
    fn output_is_retained_while_there_is_room_and_never_blocks_a_client_that_keeps_up() {
        let mut fixture = Fixture::new(Overflow::Pause, Receipt::Written);
        fixture.print(20);
        fixture.send(1..=20);
        fixture.control.acknowledge(20);
        assert_eq!(fixture.hold(Holding::Generous), Hold::After(15), "half of what the log retains");
        assert_eq!(fixture.least(), Hold::After(20));
        fixture.print(1);
        assert_eq!(fixture.least(), Hold::After(15), "the last event is not written yet");
    }

    #[test]
    fn many_small_events_in_transit_do_not_use_up_the_log() {
        let mut fixture = Fixture::new(Overflow::Pause, Receipt::Written);
        fixture.limits.retain_events = 10;
        fixture.rules.retain_bytes = 1 << 20;
        fixture.print(21);
        fixture.send(1..=20);
        fixture.control.acknowledge(20);
        assert_eq!(fixture.least(), Hold::After(15));
    }

    #[test]
    fn received_output_is_held_until_it_is_consumed() {
        let mut fixture = Fixture::new(Overflow::Pause, Receipt::Consumed);
        fixture.print(9);
        fixture.control.acknowledge(7);
        assert_eq!(fixture.least(), Hold::After(0), "two events are not received");
        assert!(fixture.control.consume(3) && !fixture.control.consume(2));
        fixture.control.acknowledge(9);
        assert_eq!((fixture.hold(Holding::Generous), fixture.least()), (Hold::After(3), Hold::After(3)));
        fixture.print(1);
        fixture.resume(Receipt::Consumed);
        fixture.wait_for_the_hold_to_end();
        assert_eq!(fixture.least(), Hold::After(3), "the client reads event 10 when it likes");
        assert!(fixture.control.consume(10));
        assert_eq!(fixture.hold(Holding::Generous), Hold::After(10));
        fixture.resume(Receipt::Acknowledged);
        assert!(!fixture.control.consume(11), "this connection does not report it");
    }

    #[test]
    fn positions_of_events_are_known_until_the_client_has_received_later_ones() {
        let mut fixture = Fixture::new(Overflow::Pause, Receipt::Acknowledged);
        fixture.send(1..=4);
        // Read back out of order.
        fixture.send(7..=8);
        fixture.send(5..=6);
        fixture.control.acknowledge(3);
        let known: Vec<_> =
            (1..=9).filter(|seq| fixture.control.end_of(*seq) == Some(seq * CHUNK as u64)).collect();
        assert_eq!(known, [3, 4, 5, 6, 7, 8]);
        fixture.control.acknowledges = true;
        assert_eq!(fixture.control.surely_received_bytes(), 3 * CHUNK as u64);
    }
}

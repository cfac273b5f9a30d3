//! Successive processes under one id: what a restart means for the previous one and for its followers.
//!
//! A connection is sent all events of the previous process, up to its close, before any event of the next one. Start at
//! [`Succession`].

use std::time::{Duration, Instant};

use remex_engine::ProcessState;
use remex_proto::process::{self as wire, GapCause};

use super::{
    Process, WeakProcess,
    follow::{Follow, queue},
};
use crate::{outbox::ConnectionId, sessions::process::Followers};

/// What a restart means for a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Standing {
    #[default]
    Current,
    /// A restart is ending it, and may still fail: it is not forgotten until then, and the next one gets its slot and
    /// memory.
    Restarting,
    /// The next one runs: this one remains only for connections that have not been sent all of it.
    Replaced,
}

/// The previous and the next process under the same id; the session keeps them alive.
#[derive(Debug, Default)]
pub(super) struct Succession {
    pub(super) standing: Standing,
    /// Until then, only its client can forget it: a restart of it has failed, and may be tried again.
    spared_until: Option<Instant>,
    before: Option<WeakProcess>,
    next: Option<WeakProcess>,
}

impl Succession {
    /// Returns the previous process, if a connection that follows it has not been sent all of it.
    pub(super) fn sent_before(&self, connection: ConnectionId) -> Option<Process> {
        self.before.as_ref()?.upgrade().map(Process::from).filter(|before| before.is_sent_to(connection))
    }
}

impl Process {
    pub(crate) fn standing(&self) -> Standing {
        self.state().audience.succession.standing
    }

    pub(crate) fn set_standing(&self, standing: Standing) {
        self.state().audience.succession.standing = standing;
    }

    /// Retains the process for at least this long after its restart has failed.
    pub(crate) fn spare(&self, time: Duration) {
        let audience = &mut self.state().audience;
        audience.succession.standing = Standing::Current;
        audience.succession.spared_until = Instant::now().checked_add(time);
        audience.overdue = false;
    }

    /// Returns how long only its client can forget it.
    pub(crate) fn spared_for(&self) -> Duration {
        let spared_until = self.state().audience.succession.spared_until;
        spared_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()))
    }

    /// Returns whether it must not make room for others: it is being restarted, or its restart has failed.
    pub(crate) fn is_spared(&self) -> bool {
        let succession = &self.state().audience.succession;
        match succession.standing {
            Standing::Restarting => true,
            Standing::Replaced => false,
            Standing::Current => succession.spared_until.is_some_and(|until| Instant::now() < until),
        }
    }

    /// Orders its events after those of the process that it replaces.
    pub(crate) fn succeeds(&self, old: &Self) {
        self.state().audience.succession.before = Some(old.downgrade());
        old.state().audience.succession.next = Some(self.downgrade());
    }

    /// Returns whether a connection that follows it has not been sent all of its events.
    fn is_sent_to(&self, connection: ConnectionId) -> bool {
        let state = self.state();
        let follow = state.audience.follows.iter().find(|follow| follow.connection == connection);
        follow.is_some_and(|follow| state.kind.log().has_next(&follow.cursor))
    }

    /// Passes a connection that has been sent all events on to the next process.
    pub(super) fn pass_on(&self, connection: ConnectionId) {
        let next = self.state().audience.succession.next.clone();
        if let Some(next) = next.and_then(|next| next.upgrade()).map(Process::from) {
            next.follow_after_previous(connection);
        }
    }

    fn follow_after_previous(&self, connection: ConnectionId) {
        let mut state = self.state();
        // The lock of a process is taken before that of the previous one, never the other way round.
        if state.audience.succession.sent_before(connection).is_some() {
            return;
        }
        let follow = state.audience.follows.iter_mut().find(|follow| follow.connection == connection);
        if let Some(follow) = follow.filter(|follow| follow.waits) {
            follow.waits = false;
            queue(self, &mut state);
        }
    }

    /// Removes the forgotten process from the lists of all connections.
    ///
    /// Reports to followers of a replaced process what they miss, and its end.
    pub(crate) fn withdraw(&self) {
        let mut guard = self.state();
        let state = &mut *guard;
        let follows = std::mem::take(&mut state.audience.follows);
        if state.audience.succession.standing == Standing::Replaced && state.kind.log().is_closed() {
            for follow in &follows {
                self.send_rest(state, follow);
            }
        }
        let Succession { before, next, .. } = std::mem::take(&mut state.audience.succession);
        drop(guard);
        let next = next.and_then(|next| next.upgrade()).map(Process::from);
        if let Some(next) = &next {
            next.state().audience.succession.before.clone_from(&before);
        }
        if let Some(before) = before.and_then(|before| before.upgrade()).map(Process::from) {
            before.state().audience.succession.next = next.as_ref().map(|next| next.downgrade());
        }
        let source = self.source();
        for follow in follows {
            follow.outbox.withdraw(&source);
            if let Some(next) = &next {
                next.follow_after_previous(follow.connection);
            }
        }
    }

    /// Sends the remaining events of a log without their output: a gap, the exit and the close.
    fn send_rest(&self, state: &mut ProcessState<Followers>, follow: &Follow) {
        let ProcessState { kind, exit, audience, .. } = state;
        let (log, denials) = kind.log_and_denials();
        if !log.has_next(&follow.cursor) {
            return;
        }
        let (total, closed) = (log.total(), log.next_seq() - 1);
        let mut missing = follow.cursor.offset.map(|offset| total.saturating_sub(offset));
        let lost = follow.lost + missing.unwrap_or(0);
        if let (true, Some(offset)) = (follow.controls, follow.cursor.offset) {
            audience.ledger.on_missing(offset..total);
        }
        let evicted = if follow.controls { audience.ledger.lost(log.first_offset()) } else { lost };
        let mut seen = follow.cursor.seq;
        for end in log.exited().into_iter().chain([closed]).filter(|end| *end > follow.cursor.seq) {
            if seen + 1 < end {
                // Output after the exit is rare: the first gap reports all bytes.
                let bytes = missing.replace(0);
                self.host().metrics().gaps.add(1);
                if follow.wants_gaps {
                    let cause = Some(GapCause::Evicted);
                    let range = wire::GapRange { from_seq: seen + 1, to_seq: end - 1, bytes, cause };
                    follow.outbox.push_note(self.gap_note(follow, range));
                }
            }
            if end == closed {
                follow.outbox.push_note(self.closed_note(follow, end, log.produced(), evicted));
            } else if let Some(exit) = exit {
                follow.outbox.push_note(self.exited_note(follow, end, exit, denials));
            }
            seen = end;
        }
    }
}

//! Compares what users saw with what happened.
//!
//! Start at [`Check`].

use remex_client::{
    Error, SessionLost,
    process::{Event, Stream},
};

use crate::{
    faults::World,
    process::{Process, Said},
    scenario::{Report, Role},
    server::Dialect,
};

/// What decides about right and wrong.
pub(crate) struct Check<'a> {
    pub(crate) world: &'a World,
    pub(crate) session: &'a str,
    pub(crate) dialect: Dialect,
    /// The way to the server may be gone for longer than the client tries.
    pub(crate) may_give_up: bool,
}

impl Check<'_> {
    /// Checks that a failure is nobody's fault.
    pub(crate) fn failure(&self, error: &Error) {
        match error {
            Error::Lost(SessionLost::Forgotten { .. }) => {
                assert!(
                    self.world.server.has_forgotten(self.session),
                    "the server knows the session: {error}"
                );
            }
            Error::Lost(SessionLost::ReconnectTimedOut { .. }) => {
                assert!(self.may_give_up, "there was a way to the server: {error}");
            }
            other => panic!("nothing may end like this: {other:?}; {}", self.world.server.describe()),
        }
    }

    /// Checks what one user saw.
    pub(crate) fn report(&self, report: &Report) {
        let Report { role, seen, outcome } = report;
        if let Err(error) = outcome {
            self.failure(error);
        }
        let Some(id) = &seen.process else { return };
        let Some(process) = self.world.server.process(id) else {
            assert!(
                outcome.is_err() || role == &Role::StartImpatiently,
                "{role:?}: a process that was started is there"
            );
            return;
        };
        let truth = &process.truth;
        for events in &seen.events {
            self.events(*role, events, process, outcome.is_ok());
        }
        for (seen, said) in [(&seen.stdout, &truth.stdout), (&seen.stderr, &truth.stderr)] {
            let Some(seen) = seen else { continue };
            assert!(said.starts_with(seen), "{role:?}: a stream is byte-exact");
            assert!(outcome.is_err() || seen == said, "{role:?}: a stream is complete");
        }
        if let Some(code) = seen.exit_code {
            assert_eq!(Some(code), truth.exit_code, "{role:?}: an exit code is the process's own");
        }
        let (arrived, unknown) = seen.signals;
        assert!((arrived..=arrived + unknown + 1).contains(&truth.signals), "no signal arrives twice");
        assert!(seen.written.starts_with(&truth.input), "{role:?}: input arrives in order and once");
        if outcome.is_ok() {
            assert_eq!(seen.written.len(), truth.input.len(), "{role:?}: all input arrives");
            let is_over = role.leaves() || process.log.exited().is_some();
            assert!(is_over, "{role:?}: whoever is done has seen the end");
        }
        if matches!(role, Role::DropAndEnd | Role::StartImpatiently)
            && outcome.is_ok()
            && !self.world.server.has_forgotten(self.session)
        {
            assert!(truth.is_terminated || self.may_give_up, "a process that was dropped is ended");
        }
    }

    fn events(&self, role: Role, events: &[Event], process: &Process, is_complete: bool) {
        let truth = &process.truth;
        let mut next = 1_usize;
        for event in events {
            let said = truth.events.get(next - 1).copied();
            match event {
                Event::Output(chunk) => {
                    let Some(Said::Output { stream, start, len }) = said else {
                        panic!("{role:?}: output where there is {said:?}")
                    };
                    let whole = if stream == Stream::Stdout { &truth.stdout } else { &truth.stderr };
                    assert_eq!((chunk.seq as usize, chunk.stream), (next, stream), "{role:?}: in order");
                    assert_eq!(chunk.bytes.len(), len, "{role:?}: chunk {next} is whole");
                    assert!(chunk.bytes == whole[start..start + len], "{role:?}: a chunk is byte-exact");
                    next += 1;
                }
                Event::Gap(gap) => {
                    let may_be_gone = role == Role::FollowEvicting
                        || matches!(role, Role::WaitThenFollow | Role::FollowTwice | Role::ComeBack)
                            && self.dialect == Dialect::Remex;
                    assert!(may_be_gone, "{role:?}: nothing may be missing, but {gap:?} is");
                    assert_eq!(gap.from_seq as usize, next, "{role:?}: a gap is in order");
                    assert!(gap.to_seq >= gap.from_seq);
                    let missing = &truth.events[next - 1..gap.to_seq as usize];
                    let bytes = missing.iter().map(|said| said.len()).sum();
                    assert_eq!(gap.bytes, Some(bytes), "{role:?}: a gap is told exactly");
                    next = gap.to_seq as usize + 1;
                }
                Event::Exited { seq, exit } => {
                    assert_eq!(*seq as usize, next, "{role:?}: in order");
                    assert_eq!((said, Some(exit.code)), (Some(Said::Exited), truth.exit_code), "{role:?}");
                    next += 1;
                }
                Event::Closed(closed) => {
                    assert_eq!(closed.seq as usize, next, "{role:?}: in order");
                    assert_eq!(said, Some(Said::Closed), "{role:?}");
                    next += 1;
                }
                other => panic!("{role:?}: {other:?} is new"),
            }
        }
        if is_complete {
            assert_eq!(next - 1, truth.events.len(), "{role:?}: everything is told");
            assert!(matches!(events.last(), Some(Event::Closed(_))), "{role:?}: the close is the last word");
        }
    }

    /// Checks that nothing was started twice.
    pub(crate) fn starts(&self) {
        let server = &self.world.server;
        for process in server.processes.values().chain(server.past.values()) {
            assert_eq!(process.truth.starts, 1);
        }
    }
}

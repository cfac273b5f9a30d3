//! The time that a process has to end after a signal to this program, or after its timeout.
//!
//! Independent of the process: it decides when to report, to kill and to give up. Start at [`Stopping`].

use std::time::Duration;

use remex_client::process::Exit;
use tokio::{task::JoinHandle, time::Instant};

use crate::render::text::span;

/// How long a killed process may take to end with its output.
const KILLED_TIMEOUT: Duration = Duration::from_secs(5);

/// The same signal within this time is the same request: `timeout` sends it to this program and then to its group.
const REPEATED_WITHIN: Duration = Duration::from_secs(1);

/// How long the wait is not mentioned.
const SILENCE: Duration = Duration::from_secs(1);

/// How long a process may take to end after SIGTERM or SIGHUP to this program, or after its timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grace {
    pub(crate) time: Duration,
    /// The flag of the command that chooses it, if it has one.
    pub(crate) flag: Option<&'static str>,
}

impl Grace {
    /// A signal to this program does not reach the process.
    pub(crate) const NONE: Self = Self { time: Duration::ZERO, flag: None };
}

/// The end of a process, from the first request on.
#[derive(Debug)]
pub(super) struct Stopping {
    grace: Grace,
    request: Option<Request>,
    /// The exit of the process itself, while others of its tree have time to end.
    exit: Option<Box<Exit>>,
    /// Ends when nothing of the tree is left; only after its output has ended.
    rest: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Request {
    at: Instant,
    /// The exit code if that of the process is unknown.
    code: u8,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Silent,
    Waiting,
    Killed { at: Instant },
}

/// The effect of a signal to this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SignalMeaning {
    /// It is passed on to the process.
    Pass,
    /// It is part of an earlier one.
    Same,
    /// The wait is cut short.
    Cut,
}

/// The action that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    Tell(String),
    /// The process is to be killed.
    Kill(String),
    /// The process does not end.
    GiveUp(u8),
    /// The time of what outlives the process is over.
    Finish,
}

impl Stopping {
    pub(super) fn new(grace: Grace) -> Self {
        Self { grace, request: None, exit: None, rest: None }
    }

    /// Returns whether the process was asked to end.
    pub(super) fn is_under_way(&self) -> bool {
        self.request.is_some()
    }

    /// Handles SIGTERM (143) or SIGHUP (129).
    pub(super) fn on_signal(&mut self, code: u8, now: Instant) -> SignalMeaning {
        let Some(request) = &self.request else {
            self.request = Some(Request { at: now, code, phase: Phase::Silent });
            return SignalMeaning::Pass;
        };
        // The end of a terminal comes as several SIGHUPs: from the kernel, and from the shell.
        if code == 129 || now < request.at + REPEATED_WITHIN {
            return SignalMeaning::Same;
        }
        SignalMeaning::Cut
    }

    /// Takes the exit of the process, while others of its tree have time to end.
    pub(super) fn on_exit(&mut self, exit: Exit, now: Instant) {
        self.request.get_or_insert(Request { at: now, code: 0, phase: Phase::Waiting });
        self.exit = Some(Box::new(exit));
    }

    /// Notes that the process was killed, and returns the exit code if that of the process is unknown.
    pub(super) fn on_kill(&mut self, now: Instant) -> u8 {
        let request = self.request.get_or_insert(Request { at: now, code: 137, phase: Phase::Silent });
        request.phase = Phase::Killed { at: now };
        request.code
    }

    /// Takes what waits for the end of the tree, after the end of its output.
    pub(super) fn on_closed(&mut self, rest: JoinHandle<()>) {
        self.rest = Some(rest);
    }

    /// Returns whether the output has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.rest.is_some()
    }

    /// Returns whether the process itself has exited.
    pub(super) fn has_exited(&self) -> bool {
        self.exit.is_some()
    }

    /// Returns the exit of the process.
    pub(super) fn take_exit(&mut self) -> Option<Exit> {
        self.exit.take().map(|exit| *exit)
    }

    /// Waits until nothing of the tree is left, or until something is due. Cancel-safe.
    pub(super) async fn next(&mut self) -> Due {
        let at = self.due_at();
        let due = async {
            match at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let rest = async {
            match &mut self.rest {
                Some(rest) => drop(rest.await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = rest => Due::Finish,
            () = due => self.due(Instant::now()),
        }
    }

    fn due_at(&self) -> Option<Instant> {
        let request = self.request.as_ref()?;
        let time = match request.phase {
            Phase::Silent => SILENCE.min(self.grace.time),
            Phase::Waiting => self.grace.time,
            Phase::Killed { at } => return Some(at + KILLED_TIMEOUT),
        };
        // A grace period may be longer than the clock runs.
        request.at.checked_add(time)
    }

    fn due(&mut self, now: Instant) -> Due {
        let Some(request) = &mut self.request else { return Due::Nothing };
        let signal = if request.code == 129 { "SIGHUP" } else { "SIGTERM" };
        match request.phase {
            Phase::Silent if self.grace.time > SILENCE => {
                request.phase = Phase::Waiting;
                if self.exit.is_some() {
                    return Due::Nothing;
                }
                Due::Tell(format!(
                    "passed {signal} on; the command has {} to end, Ctrl-C ends it at once",
                    span(self.grace.time)
                ))
            }
            _ if self.exit.is_some() => Due::Finish,
            Phase::Silent | Phase::Waiting => {
                request.phase = Phase::Killed { at: now };
                let flag = self.grace.flag.map(|flag| format!(" (`{flag}`)")).unwrap_or_default();
                Due::Kill(format!(
                    "killed the command with everything it started: it did not end within {} of {signal}{flag}",
                    span(self.grace.time)
                ))
            }
            Phase::Killed { .. } => Due::GiveUp(request.code),
        }
    }
}

impl Drop for Stopping {
    fn drop(&mut self) {
        if let Some(rest) = &self.rest {
            rest.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Grace = Grace { time: Duration::from_secs(10), flag: Some("--grace") };

    #[test]
    fn a_process_has_its_grace_period_and_is_killed_then() {
        let mut stopping = Stopping::new(GRACE);
        let start = Instant::now();
        assert_eq!(stopping.due_at(), None);
        assert_eq!(stopping.on_signal(143, start), SignalMeaning::Pass);
        assert_eq!(stopping.due_at(), Some(start + SILENCE));
        assert!(matches!(stopping.due(start + SILENCE), Due::Tell(text) if text.contains("SIGTERM")));
        assert_eq!(stopping.due_at(), Some(start + GRACE.time));
        let killed = stopping.due(start + GRACE.time);
        assert!(matches!(killed, Due::Kill(text) if text.ends_with("within 10 s of SIGTERM (`--grace`)")));
        assert_eq!(stopping.due_at(), Some(start + GRACE.time + KILLED_TIMEOUT));
        assert_eq!(stopping.due(start + GRACE.time + KILLED_TIMEOUT), Due::GiveUp(143));
    }

    #[test]
    fn flags_that_a_command_lacks_are_not_mentioned() {
        let mut stopping = Stopping::new(Grace { flag: None, ..GRACE });
        let start = Instant::now();
        stopping.on_signal(129, start);
        stopping.due(start + SILENCE);
        let killed = stopping.due(start + GRACE.time);
        assert!(matches!(&killed, Due::Kill(text) if text.ends_with("within 10 s of SIGHUP")), "{killed:?}");
    }

    #[test]
    fn a_later_sigterm_cuts_the_wait_short_and_a_repeated_one_does_not() {
        let mut stopping = Stopping::new(GRACE);
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(stopping.on_signal(129, at(0)), SignalMeaning::Pass);
        assert_eq!(stopping.on_signal(143, at(999)), SignalMeaning::Same);
        assert_eq!(stopping.on_signal(129, at(5000)), SignalMeaning::Same);
        assert_eq!(stopping.on_signal(143, at(5000)), SignalMeaning::Cut);
    }

    #[tokio::test]
    async fn descendants_get_the_remaining_grace_period() {
        let mut stopping = Stopping::new(GRACE);
        let start = Instant::now();
        stopping.on_signal(143, start);
        stopping.on_exit(Exit::new(3), start);
        assert_eq!(stopping.due(start + SILENCE), Due::Nothing);
        let end = start + GRACE.time;
        assert_eq!((stopping.due_at(), stopping.due(end)), (Some(end), Due::Finish));
        stopping.on_closed(tokio::spawn(async {}));
        assert_eq!(stopping.next().await, Due::Finish);
        assert_eq!(stopping.take_exit().map(|exit| exit.code), Some(3));
    }
}

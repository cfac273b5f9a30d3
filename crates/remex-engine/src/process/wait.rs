//! `process/wait`: waits for the exit, the close, text in the output, or silence.

use std::time::{Duration, Instant};

use remex_proto::{
    Blob, RpcError,
    process::{self as wire, Until, WaitReason},
    state::output_log::Seq,
};

use super::{
    ProcessState, ServerAudience, ServerProcess,
    searches::{Outcome, Wanted},
    task::NOTIFY_INTERVAL,
};

impl<A: ServerAudience> ServerProcess<A> {
    /// Answers a wait when its condition holds, can no longer hold, or the timeout expires.
    ///
    /// If `waiter` says so, output that a search has not seen is held for it.
    pub async fn wait(
        &self,
        wait: &wire::Wait,
        waiter: Waiter,
        asked: Instant,
    ) -> Result<wire::Waited, RpcError> {
        let deadline = wait.wait_ms.and_then(|ms| asked.checked_add(Duration::from_millis(ms)));
        let condition = match &wait.until {
            Until::Exit => Condition::Exit,
            Until::Closed => Condition::Closed,
            Until::IdleMs(ms) => {
                Condition::Idle { since: Instant::now(), silence: Duration::from_millis(*ms) }
            }
            Until::Output { regex, after_seq } => {
                let (regex, after) = (regex.clone(), after_seq.unwrap_or(0));
                let outcome = self.find_output(Wanted { regex, after, waiter, deadline }).await?;
                let state = self.state();
                let newest = state.kind.log().next_seq() - 1;
                let (reason, seq, matched) = match outcome {
                    Outcome::Found(seq, text) => (WaitReason::Output, seq, Some(Blob::from(text))),
                    Outcome::Closed => (WaitReason::Closed, newest, None),
                    Outcome::TimedOut => (WaitReason::Timeout, newest, None),
                };
                return Ok(waited(&state, reason, seq, matched));
            }
        };
        loop {
            let changed = match condition {
                Condition::Exit | Condition::Closed => self.changed.notified(),
                Condition::Idle { .. } => self.served().output.notified(),
            };
            tokio::pin!(changed);
            changed.as_mut().enable();
            let now = Instant::now();
            let again_at = {
                let state = self.state();
                match condition.check(&state, now) {
                    Check::Met(reason, seq) => return Ok(waited(&state, reason, seq, None)),
                    Check::NotYet(_) if deadline.is_some_and(|at| now >= at) => {
                        let newest = state.kind.log().next_seq() - 1;
                        return Ok(waited(&state, WaitReason::Timeout, newest, None));
                    }
                    Check::NotYet(again_at) => again_at,
                }
            };
            match [deadline, again_at].into_iter().flatten().min() {
                Some(at) => {
                    let _ = tokio::time::timeout_at(at.into(), changed).await;
                }
                None => changed.await,
            }
        }
    }
}

/// Whether a wait may hold output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiter {
    /// Holds output that its search has not seen.
    Keeping,
    /// Holds nothing.
    Observing,
}

enum Condition {
    Exit,
    Closed,
    Idle { since: Instant, silence: Duration },
}

enum Check {
    Met(WaitReason, Seq),
    /// Check again at this time even if nothing changes.
    NotYet(Option<Instant>),
}

impl Condition {
    fn check<A: ServerAudience>(&self, state: &ProcessState<A>, now: Instant) -> Check {
        let newest = state.kind.log().next_seq() - 1;
        match self {
            // A closed process has exited, so report the exit to a wait for the exit.
            Condition::Exit if state.exit.is_some() || state.kind.log().is_closed() => {
                Check::Met(WaitReason::Exit, newest)
            }
            _ if state.kind.log().is_closed() => Check::Met(WaitReason::Closed, newest),
            Condition::Exit | Condition::Closed => Check::NotYet(None),
            // A child that is paused by backpressure is not idle.
            Condition::Idle { .. } if state.full => Check::NotYet(None),
            Condition::Idle { since, silence } => match state.last_output.max(*since).checked_add(*silence) {
                // Output written during a read delay is only seen at its end.
                Some(at) if now >= at && state.kind.delays_reads() => {
                    Check::NotYet(Some(now + NOTIFY_INTERVAL))
                }
                Some(at) if now >= at => Check::Met(WaitReason::Idle, newest),
                at => Check::NotYet(at),
            },
        }
    }
}

fn waited<A: ServerAudience>(
    state: &ProcessState<A>,
    reason: WaitReason,
    seq: Seq,
    matched: Option<Blob>,
) -> wire::Waited {
    let exit = state.exit.as_ref();
    wire::Waited {
        reason,
        seq: Some(seq),
        matched,
        exit_code: exit.map(|exit| exit.code),
        signal: exit.and_then(|exit| exit.signal.clone()),
        cause: exit.map(|exit| exit.cause),
    }
}

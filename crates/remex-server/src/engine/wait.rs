//! `process/wait`: waits for the exit, the close, text in the output, or silence.

use std::time::{Duration, Instant};

use remex_proto::{
    Blob, RpcError,
    process::{self as wire, Stream, Until, WaitReason},
    state::{
        matcher,
        output_log::{Cursor, Next, Seq},
    },
};

use super::{Audience, Engine, ProcessState, searches::Searching, task::GATHER};

impl<A: Audience> Engine<A> {
    /// Answers a wait when its condition holds, can no longer hold, or the timeout expires.
    ///
    /// If `waiter` says so, output that a search has not seen is held for it.
    pub(crate) async fn wait(
        &self,
        wait: &wire::Wait,
        waiter: Waiter,
        asked: Instant,
    ) -> Result<wire::Waited, RpcError> {
        let deadline = wait.wait_ms.and_then(|ms| asked.checked_add(Duration::from_millis(ms)));
        let mut condition = Condition::new(&wait.until, Instant::now())?;
        let searching = match (&condition, waiter) {
            (Condition::Output(search), Waiter::Keeping) => Some(Searching::begin(self, search.after)),
            _ => None,
        };
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Condition::Output(search) = &mut condition
                && let Some((seq, text)) = search.go_on(self, searching.as_ref()).await
            {
                return Ok(waited(&self.state(), WaitReason::Output, seq, Some(Blob::from(text))));
            }
            let now = Instant::now();
            let again_at = {
                let mut state = self.state();
                match condition.check(&mut state, now) {
                    Check::Met(reason, seq, matched) => return Ok(waited(&state, reason, seq, matched)),
                    Check::NotYet(_) if deadline.is_some_and(|at| now >= at) => {
                        let newest = state.log.next_seq() - 1;
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
pub(crate) enum Waiter {
    /// Holds output that its search has not seen.
    Keeping,
    /// Holds nothing.
    Observing,
}

enum Condition {
    Exit,
    Closed,
    Output(Box<Search>),
    Idle { since: Instant, silence: Duration },
}

enum Check {
    Met(WaitReason, Seq, Option<Blob>),
    /// Check again at this time even if nothing changes.
    NotYet(Option<Instant>),
}

impl Condition {
    fn new(until: &Until, now: Instant) -> Result<Self, RpcError> {
        Ok(match until {
            Until::Exit => Condition::Exit,
            Until::Closed => Condition::Closed,
            Until::Output { regex, after_seq } => {
                Condition::Output(Box::new(Search::new(regex, after_seq.unwrap_or(0))?))
            }
            Until::IdleMs(ms) => Condition::Idle { since: now, silence: Duration::from_millis(*ms) },
        })
    }

    fn check<A: Audience>(&mut self, state: &mut ProcessState<A>, now: Instant) -> Check {
        let newest = state.log.next_seq() - 1;
        if let Condition::Output(search) = self
            && search.has_more(state)
        {
            return Check::NotYet(Some(now));
        }
        if state.log.is_closed() {
            return Check::Met(WaitReason::Closed, newest, None).for_exit(self);
        }
        match self {
            Condition::Exit if state.exit.is_some() => Check::Met(WaitReason::Exit, newest, None),
            Condition::Exit | Condition::Closed | Condition::Output(_) => Check::NotYet(None),
            // A child that is paused by backpressure is not idle.
            Condition::Idle { .. } if state.full => Check::NotYet(None),
            Condition::Idle { since, silence } => match state.last_output.max(*since).checked_add(*silence) {
                // Output written during a read delay is only seen at its end.
                Some(at) if now >= at && state.coalescing.until().is_some() => {
                    Check::NotYet(Some(now + GATHER))
                }
                Some(at) if now >= at => Check::Met(WaitReason::Idle, newest, None),
                at => Check::NotYet(at),
            },
        }
    }
}

impl Check {
    /// A closed process has exited, so report the exit to a wait for the exit.
    fn for_exit(self, condition: &Condition) -> Check {
        match (self, condition) {
            (Check::Met(_, seq, matched), Condition::Exit) => Check::Met(WaitReason::Exit, seq, matched),
            (check, _) => check,
        }
    }
}

/// A search that continues where it stopped.
struct Search {
    cursor: Option<Cursor>,
    after: Seq,
    text: matcher::Search,
}

/// Pieces to search before checking the clock.
const PIECES: usize = 16;

impl Search {
    fn new(regex: &str, after: Seq) -> Result<Self, RpcError> {
        Ok(Search { cursor: None, after, text: matcher::Search::new(regex)? })
    }

    /// Searches new output piece by piece, without blocking the process.
    async fn go_on<A: Audience>(
        &mut self,
        process: &Engine<A>,
        searching: Option<&Searching<'_, A>>,
    ) -> Option<(Seq, Vec<u8>)> {
        for _ in 0..PIECES {
            let (seq, stream, bytes) = self.next_piece(&mut process.state())?;
            if let Some(found) = self.text.look_at(stream, &bytes) {
                return Some((seq, found));
            }
            if let (Some(searching), Some(cursor)) = (searching, self.cursor) {
                searching.looked_at(cursor.seq);
            }
            tokio::task::yield_now().await;
        }
        None
    }

    fn has_more<A: Audience>(&self, state: &ProcessState<A>) -> bool {
        self.cursor.is_none_or(|cursor| state.log.has_next(&cursor))
    }

    fn next_piece<A: Audience>(&mut self, state: &mut ProcessState<A>) -> Option<(Seq, Stream, Vec<u8>)> {
        let mut cursor = self.cursor.unwrap_or_else(|| state.log.cursor_after(self.after));
        let piece = loop {
            match state.log.next(&mut cursor) {
                None => break None,
                Some(Next::Output { seq, stream, bytes, .. }) => break Some((seq, stream, bytes.to_vec())),
                Some(Next::Gap(_)) => self.text.restart(),
                Some(Next::Exited(_) | Next::Closed(_)) => {}
            }
        };
        self.cursor = Some(cursor);
        piece
    }
}

fn waited<A: Audience>(
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

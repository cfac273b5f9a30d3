//! `process/read` and `process/snapshot`: reading the log on request.

use std::{
    collections::TryReserveError,
    time::{Duration, Instant},
};

use remex_proto::{
    Blob, process as wire,
    state::output_log::{Gap, Next, Seq},
};

use super::{Audience, Engine, ProcessLog, ProcessState, broken::FAILURE};
use crate::{
    budget::{SHORT, has_memory},
    proxy::Denials,
};

/// The most output that one answer carries, whatever `maxBytes` says.
const READ_BYTES: u64 = 16 << 20;

/// Memory for a chunk besides its bytes while its answer is built and sent.
const CHUNK_COST: u64 = 200;

/// Why a read has no answer yet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotRead {
    /// Its answer may need this many bytes, which do not fit.
    TooLong(u64),
    /// The host has no memory for it.
    NoMemory,
}

impl From<TryReserveError> for NotRead {
    fn from(_: TryReserveError) -> Self {
        NotRead::NoMemory
    }
}

/// The result of a read.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) reply: wire::ReadReply,
    /// The newest event that the reader knows of now.
    pub(crate) up_to: Seq,
    /// Events that the reader missed.
    pub(crate) gaps: Vec<Gap>,
}

impl<A: Audience> Engine<A> {
    /// Waits for events as long as the request asks, counted from `asked`; calls `on_look` at each check.
    pub(crate) async fn until_readable(
        &self,
        read: &wire::Read,
        asked: Instant,
        on_look: impl Fn(&mut ProcessState<A>),
    ) {
        let after = read.after_seq.unwrap_or(0);
        let deadline = asked.checked_add(Duration::from_millis(read.wait_ms.unwrap_or(0)));
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let mut state = self.state();
                on_look(&mut state);
                let exit_beyond = state.log.exited().is_some() && after < state.log.next_seq() - 1;
                let is_due = deadline.is_some_and(|at| Instant::now() >= at);
                if state.log.is_closed() || exit_beyond || is_due || has_output_after(&mut state.log, after) {
                    return;
                }
            }
            match deadline {
                Some(at) => {
                    let _ = tokio::time::timeout_at(at.into(), changed).await;
                }
                None => changed.await,
            }
        }
    }

    /// Returns the beginning and end of the output, unless that may need more than `room`.
    pub(crate) fn snapshot(&self, max_bytes: Option<u64>, room: u64) -> Result<wire::SnapshotReply, NotRead> {
        let state = self.state();
        let max_bytes = limit_of(max_bytes);
        let cost = max_bytes.min(state.log.held_bytes());
        if cost > room {
            return Err(NotRead::TooLong(cost));
        }
        let max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX);
        let snapshot = state.log.snapshot(max_bytes)?;
        let mut reply = wire::SnapshotReply::default();
        reply.stdout = Blob::from(snapshot.stdout);
        reply.stderr = Blob::from(snapshot.stderr);
        reply.terminal = Blob::from(snapshot.pty);
        reply.truncated = snapshot.omitted > 0;
        reply.omitted_bytes = snapshot.omitted;
        reply.exit_code = state.exit.as_ref().map(|exit| exit.code);
        reply.running = state.exit.is_none();
        Ok(reply)
    }
}

impl<A: Audience> ProcessState<A> {
    /// Returns the available output, unless the answer may need more than `room`.
    pub(crate) fn read(&mut self, read: &wire::Read, room: u64) -> Result<Read, NotRead> {
        let after = read.after_seq.unwrap_or(0);
        let extent = Extent::of(&mut self.log, after, read.max_bytes);
        if extent.cost() > room {
            return Err(NotRead::TooLong(extent.cost()));
        }
        reply(self, after, read.max_bytes, &extent)
    }
}

/// The size of an answer to a read, or an upper bound if that is small.
struct Extent {
    bytes: u64,
    chunks: u64,
}

impl Extent {
    fn of(log: &mut ProcessLog, after: Seq, max_bytes: Option<u64>) -> Self {
        let cursor = log.cursor_after(after);
        let events = log.next_seq().saturating_sub(after.max(log.first_seq() - 1).saturating_add(1));
        let most = Extent { bytes: log.behind(&cursor), chunks: events };
        if most.cost() <= SHORT {
            return most;
        }
        let (mut extent, mut cursor) = (Extent { bytes: 0, chunks: 0 }, cursor);
        loop {
            if let Some(len) = log.peek_len(&cursor).filter(|len| *len > 0) {
                if extent.chunks > 0 && extent.bytes.saturating_add(len as u64) > limit_of(max_bytes) {
                    return extent;
                }
                extent.bytes += len as u64;
                extent.chunks += 1;
            }
            if log.next(&mut cursor).is_none() {
                return extent;
            }
        }
    }

    fn cost(&self) -> u64 {
        self.bytes.saturating_add(self.chunks.saturating_mul(CHUNK_COST))
    }
}

fn limit_of(max_bytes: Option<u64>) -> u64 {
    max_bytes.unwrap_or(READ_BYTES).min(READ_BYTES)
}

fn has_output_after(log: &mut ProcessLog, after: Seq) -> bool {
    let mut cursor = log.cursor_after(after);
    while log.has_next(&cursor) {
        if log.gap(&cursor).is_some() || log.peek_len(&cursor).is_some_and(|len| len > 0) {
            return true;
        }
        if log.next(&mut cursor).is_none() {
            return false;
        }
    }
    false
}

fn reply<A: Audience>(
    state: &mut ProcessState<A>,
    after: Seq,
    max_bytes: Option<u64>,
    extent: &Extent,
) -> Result<Read, NotRead> {
    let limit = limit_of(max_bytes);
    let mut cursor = state.log.cursor_after(after);
    let (mut chunks, mut gaps, mut bytes) = (Vec::new(), Vec::new(), 0_u64);
    let [chunk_count, len] =
        [extent.chunks, extent.bytes].map(|most| usize::try_from(most).unwrap_or(usize::MAX));
    chunks.try_reserve_exact(chunk_count)?;
    if !has_memory(len) {
        return Err(NotRead::NoMemory);
    }
    let (mut last_chunk, mut covered) = (None, after);
    let mut cut = false;
    loop {
        if let Some(len) = state.log.peek_len(&cursor)
            && len > 0
            && !chunks.is_empty()
            && bytes.saturating_add(len as u64) > limit
        {
            cut = true;
            break;
        }
        match state.log.next(&mut cursor) {
            None => break,
            // An answer says what is missing before its chunks, once.
            Some(Next::Gap(_)) if !chunks.is_empty() || !gaps.is_empty() => {
                cut = true;
                break;
            }
            Some(Next::Gap(gap)) => {
                covered = gap.to_seq;
                gaps.push(gap);
            }
            Some(Next::Output { seq, stream, at_ms, bytes: chunk }) => {
                bytes += chunk.len() as u64;
                last_chunk = Some(seq);
                covered = seq;
                chunks.push(wire::Chunk { seq, stream, chunk: copy(chunk)?, at_ms: Some(at_ms) });
            }
            Some(Next::Exited(_) | Next::Closed(_)) => {}
        }
    }
    let past_newest = state.log.next_seq();
    let next_seq = match last_chunk {
        // The base dialect reports this whenever the client set a limit, whether or not something was left out.
        Some(seq) if max_bytes.is_some() => seq + 1,
        _ if cut => covered + 1,
        _ => past_newest,
    };
    let read_up_to = if cut { next_seq - 1 } else { past_newest - 1 };
    let exit = state.log.exited().and(state.exit.as_ref());
    let is_closed = state.log.is_closed();
    let reply = wire::ReadReply {
        chunks,
        next_seq,
        exited: state.log.exited().is_some(),
        exit_code: exit.map(|exit| exit.code),
        closed: is_closed,
        failure: state.is_broken.then(|| FAILURE.to_owned()),
        sandbox_denied: exit.is_some_and(|exit| exit.sandbox_denied),
        gap: gaps.last().map(|gap| wire::GapRange {
            from_seq: gap.from_seq,
            to_seq: gap.to_seq,
            bytes: gap.bytes,
            cause: gap.cause,
        }),
        signal: exit.and_then(|exit| exit.signal.clone()),
        cause: exit.map(|exit| exit.cause),
        usage: exit.map(|exit| exit.usage),
        network_denied: Denials::list_of(state.denials.as_deref()),
        produced: is_closed.then(|| state.log.produced()),
        evicted_bytes: None,
    };
    Ok(Read { reply, up_to: read_up_to, gaps })
}

/// Copies a chunk, unless there is no memory for it.
fn copy(bytes: &[u8]) -> Result<Blob, NotRead> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len())?;
    copy.extend_from_slice(bytes);
    Ok(Blob::from(copy))
}

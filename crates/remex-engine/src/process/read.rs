//! `process/read` and `process/snapshot`: reading the log on request.

use std::{
    collections::TryReserveError,
    ops::Range,
    time::{Duration, Instant},
};

use remex_access::budget::{SHORT, has_memory};
use remex_proto::{
    Blob, ErrorKind, RpcError, process as wire,
    state::output_log::{Cursor, Gap, Next, Seq},
};

use super::{
    ProcessState, ServerAudience, ServerProcess,
    broken::FAILURE,
    load::warn_unreadable,
    log::{LogReader, ServerLog, StoredLog, Unread},
};
use crate::shared::proxy::Denials;

/// The most output that one answer carries, whatever `maxBytes` says.
const READ_BYTES: u64 = 16 << 20;

/// Memory for a chunk besides its bytes while its answer is built and sent.
const CHUNK_COST: u64 = 200;

/// Why a read has no answer yet.
#[derive(Debug, PartialEq, Eq)]
pub enum ReadError {
    /// Its answer may need this many bytes, which do not fit.
    TooLong(u64),
    /// The host has no memory for it.
    NoMemory,
    /// It has to be read from the files first.
    OnDisk,
    /// The files of the log cannot be read, for a reason that may pass.
    Unreadable(RpcError),
}

impl From<TryReserveError> for ReadError {
    fn from(_: TryReserveError) -> Self {
        ReadError::NoMemory
    }
}

/// The result of a read.
#[derive(Debug)]
pub struct Read {
    /// The answer.
    pub reply: wire::ReadReply,
    /// The newest event that the reader knows of now.
    pub up_to: Seq,
    /// Which bytes of output it covers, if that is known.
    pub extent: Option<ReadExtent>,
}

/// The bytes that an answer covers, as positions in everything that the process has printed.
#[derive(Clone, Debug)]
pub struct ReadExtent {
    /// Where the missing bytes before its chunks begin, and where they end; `None` if the position of the reader is
    /// unknown.
    pub missing_from: Option<u64>,
    /// The bytes of output that are sent.
    pub sent: Range<u64>,
}

impl<A: ServerAudience> ServerProcess<A> {
    /// Waits for events as long as the request asks, counted from `asked`; calls `on_look` at each check.
    pub async fn until_readable(
        &self,
        read: &wire::Read,
        asked: Instant,
        on_look: impl Fn(&mut ProcessState<A>),
    ) {
        let after = read.after_seq.unwrap_or(0);
        let deadline = asked.checked_add(Duration::from_millis(read.wait_ms.unwrap_or(0)));
        loop {
            let output = self.served().output.notified();
            tokio::pin!(output);
            output.as_mut().enable();
            {
                let mut state = self.state();
                on_look(&mut state);
                let exit_beyond =
                    state.kind.log().exited().is_some() && after < state.kind.log().next_seq() - 1;
                let is_due = deadline.is_some_and(|at| Instant::now() >= at);
                if state.kind.log().is_closed()
                    || exit_beyond
                    || is_due
                    || state.kind.log_mut().has_output_after(after)
                {
                    return;
                }
            }
            match deadline {
                Some(at) => {
                    let _ = tokio::time::timeout_at(at.into(), output).await;
                }
                None => output.await,
            }
        }
    }

    /// Returns the files to read first, if the output that a read asks for is only there.
    pub fn stored(&self, read: &wire::Read) -> Option<StoredOutput> {
        let (mut state, after) = (self.state(), read.after_seq.unwrap_or(0));
        let known_end = state.audience.end_of(after);
        let log = state.kind.log_mut().disk().filter(|view| view.is_on_disk_only(after))?.stored_after(after);
        Some(StoredOutput { process: self.id.clone(), log, known_end })
    }

    /// Returns the beginning and end of the output, unless that may need more than `room`. May read files, but without
    /// holding up anything else.
    pub fn snapshot(&self, max_bytes: Option<u64>, room: u64) -> Result<wire::SnapshotReply, ReadError> {
        let max_bytes = limit_of(max_bytes);
        let max_len = usize::try_from(max_bytes).unwrap_or(usize::MAX);
        let (state, snapshot) = {
            let state = self.state();
            let cost = max_bytes.min(state.kind.log().held_bytes());
            if cost > room {
                return Err(ReadError::TooLong(cost));
            }
            match (state.kind.log().snapshot(max_len), state.kind.log().stored()) {
                (Err(Unread::OnDisk), Some(mut log)) => {
                    drop(state);
                    let snapshot = log.snapshot(max_len);
                    (self.state(), snapshot)
                }
                (snapshot, _) => (state, snapshot),
            }
        };
        let snapshot = snapshot.map_err(|unread| read_error(&self.id, unread))?;
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

impl<A: ServerAudience> ProcessState<A> {
    /// Returns the available output, unless the answer may need more than `room`; `stored` is what was read from files.
    pub fn read(
        &mut self,
        process: &str,
        read: &wire::Read,
        room: u64,
        stored: Option<StoredRead>,
    ) -> Result<Read, ReadError> {
        let builder = self.build(read, room, stored).map_err(|error| match error {
            BuildError::TooLong(needed) => ReadError::TooLong(needed),
            BuildError::Unread(unread) => read_error(process, unread),
        })?;
        Ok(reply(self, read, builder))
    }

    fn build(
        &mut self,
        read: &wire::Read,
        room: u64,
        stored: Option<StoredRead>,
    ) -> Result<ReadBuilder, BuildError> {
        let mut builder = match stored {
            None => {
                let known_end = self.audience.end_of(read.after_seq.unwrap_or(0));
                ReadBuilder::begin(self.kind.log_mut(), read, known_end, room)?
            }
            Some(StoredRead { builder }) => {
                if let Some(own) = self.kind.log_mut().disk() {
                    own.learn_ends(builder.ends.iter().copied());
                }
                builder
            }
        };
        builder.catch_up(self.kind.log_mut(), limit_of(read.max_bytes))?;
        Ok(builder)
    }
}

/// A log on disk, to be read without holding up anything else.
#[derive(Debug)]
pub struct StoredOutput {
    process: Box<str>,
    log: StoredLog,
    /// The bytes of output up to the position of the reader, if they are known.
    known_end: Option<u64>,
}

/// What was read from files.
#[derive(Debug)]
pub struct StoredRead {
    builder: ReadBuilder,
}

impl StoredOutput {
    /// Reads the files, unless the answer may need more than `room`. Waits for the disk.
    pub fn read(mut self, read: &wire::Read, room: u64) -> Result<StoredRead, ReadError> {
        let known_end = self.known_end;
        let builder = ReadBuilder::begin(&mut self.log, read, known_end, room).and_then(|mut builder| {
            builder.fill(&mut self.log, limit_of(read.max_bytes))?;
            Ok(builder)
        });
        match builder {
            Ok(builder) => Ok(StoredRead { builder }),
            Err(BuildError::TooLong(needed)) => Err(ReadError::TooLong(needed)),
            Err(BuildError::Unread(unread)) => Err(read_error(&self.process, unread)),
        }
    }
}

/// Why output could not be collected.
#[derive(Debug)]
enum BuildError {
    TooLong(u64),
    Unread(Unread),
}

impl From<Unread> for BuildError {
    fn from(unread: Unread) -> Self {
        BuildError::Unread(unread)
    }
}

impl From<TryReserveError> for BuildError {
    fn from(error: TryReserveError) -> Self {
        BuildError::Unread(error.into())
    }
}

/// Returns why a process cannot be read.
fn read_error(process: &str, unread: Unread) -> ReadError {
    match unread {
        Unread::OnDisk => ReadError::OnDisk,
        Unread::NoMemory => ReadError::NoMemory,
        Unread::Failed(error) => {
            warn_unreadable(process, &error);
            ReadError::Unreadable(unreadable(process, Some(&error.to_string())))
        }
    }
}

/// Returns the error of a process whose log cannot be read.
pub fn unreadable(process: &str, cause: Option<&str>) -> RpcError {
    let cause = cause.map_or_else(String::new, |cause| format!(": {cause}"));
    RpcError::new(ErrorKind::Internal, format!("cannot read the log of process `{process}`{cause}"))
        .with_hint("check the disk of the state directory and the log of the server")
}

/// The size of an answer to a read, or an upper bound if that is small.
struct ReadSize {
    bytes: u64,
    chunks: u64,
}

impl ReadSize {
    fn of(log: &mut (impl LogReader + ?Sized), after: Seq, max_bytes: Option<u64>) -> Result<Self, Unread> {
        let cursor = log.cursor_after(after);
        let events = log.next_seq().saturating_sub(after.max(log.first_seq() - 1).saturating_add(1));
        let most = ReadSize { bytes: log.behind(&cursor), chunks: events };
        if most.cost() <= SHORT {
            return Ok(most);
        }
        let (mut size, mut cursor) = (ReadSize { bytes: 0, chunks: 0 }, cursor);
        loop {
            if let Some(len) = log.peek_len(&cursor)?.filter(|len| *len > 0) {
                if size.chunks > 0 && size.bytes.saturating_add(len as u64) > limit_of(max_bytes) {
                    return Ok(size);
                }
                size.bytes += len as u64;
                size.chunks += 1;
            }
            if log.next(&mut cursor)?.is_none() {
                return Ok(size);
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

/// The output of an answer.
#[derive(Debug)]
struct ReadBuilder {
    chunks: Vec<wire::Chunk>,
    /// Of which an answer has at most one, before its chunks.
    gaps: Vec<Gap>,
    bytes: u64,
    cursor: Cursor,
    /// The last event that it covers, and the bytes of output up to it.
    covered: Seq,
    covered_bytes: Option<u64>,
    /// Where its events end in the output.
    ends: Vec<(Seq, u64)>,
    /// Whether more is available.
    is_cut: bool,
    /// Whether more came after the files were read: then the answer is as of that moment, when the process had not ended.
    is_early: bool,
}

impl ReadBuilder {
    fn begin(
        log: &mut (impl LogReader + ?Sized),
        read: &wire::Read,
        known_end: Option<u64>,
        room: u64,
    ) -> Result<Self, BuildError> {
        let after = read.after_seq.unwrap_or(0);
        let size = ReadSize::of(log, after, read.max_bytes)?;
        if size.cost() > room {
            return Err(BuildError::TooLong(size.cost()));
        }
        let [chunk_count, len] =
            [size.chunks, size.bytes].map(|most| usize::try_from(most).unwrap_or(usize::MAX));
        let mut chunks = Vec::new();
        chunks.try_reserve_exact(chunk_count)?;
        if !has_memory(len) {
            return Err(Unread::NoMemory.into());
        }
        let (gaps, ends, mut cursor) = (Vec::new(), Vec::new(), log.cursor_after(after));
        cursor.offset = cursor.offset.or(known_end);
        Ok(ReadBuilder {
            chunks,
            gaps,
            bytes: 0,
            cursor,
            covered: after,
            covered_bytes: cursor.offset,
            ends,
            is_cut: false,
            is_early: false,
        })
    }

    /// Returns the bytes that it covers, if its position is known.
    fn extent(&self) -> Option<ReadExtent> {
        let end = self.covered_bytes?;
        let start = end.saturating_sub(self.bytes);
        let missing = self.gaps.last().map_or(Some(0), |gap| gap.bytes);
        let missing_from = missing.map(|bytes| start.saturating_sub(bytes));
        Some(ReadExtent { missing_from, sent: start..end })
    }

    /// Adds what is in memory, and came after files were read if they were; `log` is the process's own.
    fn catch_up(&mut self, log: &mut dyn ServerLog, limit: u64) -> Result<(), BuildError> {
        match self.fill(log, limit) {
            // The rest is for the next request.
            Err(BuildError::Unread(Unread::OnDisk)) if !self.chunks.is_empty() || !self.gaps.is_empty() => {
                (self.is_early, self.is_cut) = (true, true);
                Ok(())
            }
            filled => filled,
        }
    }

    /// Adds what is available, up to `limit` bytes in all.
    fn fill(&mut self, log: &mut (impl LogReader + ?Sized), limit: u64) -> Result<(), BuildError> {
        while !self.is_cut {
            if let Some(len) = log.peek_len(&self.cursor)?
                && len > 0
                && !self.chunks.is_empty()
                && self.bytes.saturating_add(len as u64) > limit
            {
                self.is_cut = true;
                break;
            }
            match log.next(&mut self.cursor)? {
                None => break,
                // An answer says what is missing before its chunks, once.
                Some(Next::Gap(_)) if !self.chunks.is_empty() || !self.gaps.is_empty() => self.is_cut = true,
                Some(Next::Gap(gap)) => {
                    (self.covered, self.covered_bytes) = (gap.to_seq, self.cursor.offset);
                    self.gaps.push(gap);
                }
                Some(Next::Output { seq, stream, at_ms, bytes }) => {
                    self.bytes += bytes.len() as u64;
                    (self.covered, self.covered_bytes) = (seq, self.cursor.offset);
                    let chunk = copy(bytes)?;
                    self.chunks.push(wire::Chunk { seq, stream, chunk, at_ms: Some(at_ms) });
                }
                Some(Next::Exited(_) | Next::Closed(_)) => {}
            }
            self.ends.extend(self.cursor.offset.map(|offset| (self.cursor.seq, offset)));
        }
        Ok(())
    }
}

fn reply<A: ServerAudience>(state: &mut ProcessState<A>, read: &wire::Read, builder: ReadBuilder) -> Read {
    let extent = builder.extent();
    let ReadBuilder { chunks, gaps, covered, is_cut, is_early, .. } = builder;
    let failure = state.failure();
    let (log, denials) = state.kind.log_and_denials();
    let past_newest = log.next_seq();
    let next_seq = match chunks.last() {
        // The base dialect reports this whenever the client set a limit, whether or not something was left out.
        Some(last) if read.max_bytes.is_some() => last.seq + 1,
        _ if is_cut => covered + 1,
        _ => past_newest,
    };
    let read_up_to = if is_cut { next_seq - 1 } else { past_newest - 1 };
    let has_exited = log.exited().is_some() && !is_early;
    let exit = state.exit.as_ref().filter(|_| has_exited);
    let is_closed = log.is_closed() && !is_early;
    let reply = wire::ReadReply {
        chunks,
        next_seq,
        incarnation: None,
        exited: has_exited,
        exit_code: exit.map(|exit| exit.code),
        closed: is_closed,
        failure,
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
        network_denied: Denials::list_of(denials),
        produced: is_closed.then(|| log.produced()),
        evicted_bytes: None,
    };
    Read { reply, up_to: read_up_to, extent }
}

impl<A: ServerAudience> ProcessState<A> {
    /// Returns why the server could not follow the process, or not keep what it promised about its output.
    fn failure(&self) -> Option<String> {
        if self.is_broken { Some(FAILURE.to_owned()) } else { self.kind.log().sync_failure().cloned() }
    }
}

/// Copies a chunk, unless there is no memory for it.
fn copy(bytes: &[u8]) -> Result<Blob, TryReserveError> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len())?;
    copy.extend_from_slice(bytes);
    Ok(Blob::from(copy))
}

#[cfg(test)]
mod tests {
    use std::{io, sync::Arc};

    use remex_log::{Hold, Options, Room, Stream, Unlimited, Writer};

    use super::*;
    use crate::{process::DiskLogView, state::keeper_link::message::Progress};

    /// Appends three events, and returns how far the log has come.
    fn append(writer: &mut Writer) -> Progress {
        for _ in 0..3 {
            let Room::Bytes(room) = writer.room(Hold::Nothing) else { panic!("it is full") };
            writer.append(Stream::Stdout, 1, room, |spare| io::Result::Ok(spare.len().min(1000))).unwrap();
        }
        writer.flush().unwrap();
        let mut known = Progress::start();
        (known.newest, known.produced.stdout) = (writer.position().written_seq, writer.position().offset);
        known
    }

    #[test]
    fn an_answer_from_files_is_as_of_the_moment_at_which_they_were_read() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { retain_bytes: 1 << 20, segment_bytes: None };
        let mut writer = Writer::create(dir.path(), options, Arc::new(Unlimited)).unwrap();
        let mut own = DiskLogView::new(dir.path().to_owned(), append(&mut writer));
        let stored = StoredOutput { process: "p".into(), log: own.files(), known_end: None };
        let read = wire::Read {
            process_id: "p".to_owned(),
            session_id: None,
            incarnation: None,
            after_seq: None,
            max_bytes: None,
            wait_ms: None,
        };
        let mut builder = stored.read(&read, u64::MAX).unwrap().builder;
        // Then the process writes on and ends, before the answer is complete.
        let mut known = append(&mut writer);
        (known.newest, known.exited, known.is_closed) = (known.newest + 2, Some(known.newest + 1), true);
        own.advance(known);
        builder.catch_up(&mut own, READ_BYTES).unwrap();
        assert_eq!((builder.chunks.len(), builder.is_cut, builder.is_early), (3, true, true));
    }
}

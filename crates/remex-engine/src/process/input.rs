//! Input queued for the stdin of a process, in order of arrival.

use std::{collections::VecDeque, ops::Range, sync::Arc};

use bytes::{Buf as _, Bytes, BytesMut};
use remex_access::account::{Account, FLOOR, Kind};
use remex_base::limits::Limits;
use remex_proto::{
    Blob, ErrorKind, RpcError,
    call::Empty,
    process::{WriteReply, WriteStatus},
    state::stdin_ledger::{self, Offer, StdinLedger},
};

use serde::{Deserialize, Serialize};

use super::Caller;

/// A `process/write` that has not been answered.
#[derive(Debug)]
pub struct StdinWrite<C> {
    /// The bytes.
    pub chunk: Bytes,
    /// The id of the write, by which a repeated one is recognised.
    pub write_id: Option<String>,
    /// The process that is meant.
    pub process_id: Box<str>,
    /// Who is answered.
    pub caller: C,
}

impl<C: Caller> StdinWrite<C> {
    /// Answers in the base dialect, or in `exec-server.v0` if there is no write id.
    pub fn answer(self, status: WriteStatus) {
        let refusal = match (&self.write_id, status) {
            (None, WriteStatus::UnknownProcess) => super::unknown_process(&self.process_id),
            (None, WriteStatus::StdinClosed) => RpcError::new(
                ErrorKind::StdinClosed,
                format!("stdin is closed for process {}", self.process_id),
            )
            .with_hint("start it with `pipeStdin` to write to it; an ended process accepts no input"),
            _ => return self.caller.ok(WriteReply::from(status)),
        };
        self.caller.error(&refusal);
    }
}

/// Writes that wait for room, accepted bytes that wait for the child, and the end of input.
#[derive(Debug)]
pub(super) struct Input<C> {
    ledger: StdinLedger,
    /// Not accepted yet, or only in part: the child has to read first. Their connections count them as requests
    /// in progress.
    waiting: VecDeque<PendingInput<C>>,
    /// Accepted bytes; the ledger limits them.
    accepted: Accepted,
    /// Answered when everything accepted has reached the child.
    closing: Vec<C>,
    state: InputState,
    /// The account that it is charged to.
    account: Arc<Account>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum InputState {
    Open,
    /// Closes after what was accepted.
    Ending,
    /// The descriptor is closed or never existed.
    Closed,
}

#[derive(Debug)]
enum PendingInput<C> {
    Write {
        write: StdinWrite<C>,
        /// How many of its bytes were accepted.
        accepted: u64,
    },
    Close(C),
}

impl<C> PendingInput<C> {
    fn caller(&self) -> &C {
        match self {
            PendingInput::Write { write, .. } => &write.caller,
            PendingInput::Close(caller) => caller,
        }
    }

    fn into_caller(self) -> C {
        match self {
            PendingInput::Write { write, .. } => write.caller,
            PendingInput::Close(caller) => caller,
        }
    }
}

/// Accepted input that the child has not taken, as plain data; whatever waits has to be sent again.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct InputRecord {
    ledger: stdin_ledger::Record,
    accepted: Blob,
    state: InputState,
}

fn ledger_limits(limits: &Limits) -> stdin_ledger::Limits {
    stdin_ledger::Limits {
        ids: limits.write_ids,
        id_bytes: limits.write_ids * 64,
        queue_bytes: limits.stdin_bytes as u64,
    }
}

impl<C: Caller> Input<C> {
    pub(super) fn new(limits: &Limits, account: &Arc<Account>) -> Self {
        Input {
            ledger: StdinLedger::new(ledger_limits(limits)),
            waiting: VecDeque::new(),
            accepted: Accepted::default(),
            closing: Vec::new(),
            state: InputState::Open,
            account: Arc::clone(account),
        }
    }

    /// Returns about how many bytes it keeps, apart from writes that wait.
    pub(super) fn memory(&self) -> usize {
        self.queued() + self.ledger.remembered_bytes()
    }

    fn queued(&self) -> usize {
        usize::try_from(self.ledger.queued()).unwrap_or(usize::MAX)
    }

    pub(super) fn record(&self) -> InputRecord {
        let accepted: Vec<u8> = self.accepted.blocks.iter().flatten().copied().collect();
        InputRecord { ledger: self.ledger.record(), accepted: accepted.into(), state: self.state }
    }

    /// Restores the input from a record.
    pub(super) fn resume(limits: &Limits, account: &Arc<Account>, record: &InputRecord) -> Self {
        let mut input = Self::new(limits, account);
        input.ledger = StdinLedger::resume(ledger_limits(limits), &record.ledger);
        input.accepted.push(&record.accepted);
        input.state = record.state;
        input
    }

    pub(super) fn write(&mut self, write: StdinWrite<C>) {
        self.waiting.push_back(PendingInput::Write { write, accepted: 0 });
        self.admit();
    }

    pub(super) fn close(&mut self, caller: C) {
        self.waiting.push_back(PendingInput::Close(caller));
        self.admit();
    }

    /// Returns the bytes to write next.
    pub(super) fn next(&self) -> Option<&[u8]> {
        self.accepted.front()
    }

    /// Records that the child has read `len` bytes of [`Self::next`].
    pub(super) fn delivered(&mut self, len: usize) {
        self.accepted.advance(len);
        self.ledger.delivered(len as u64);
        self.admit();
    }

    /// Returns whether the descriptor must be closed now.
    pub(super) fn is_done(&self) -> bool {
        self.state == InputState::Ending && self.accepted.front().is_none()
    }

    /// Records that the descriptor is closed, and answers everything still open.
    pub(super) fn closed(&mut self) {
        self.state = InputState::Closed;
        self.ledger.fail();
        self.accepted = Accepted::default();
        for caller in self.closing.drain(..) {
            caller.ok(Empty {});
        }
        self.admit();
    }

    /// Removes the waiting requests that `is_cancelled` selects.
    ///
    /// If a write was accepted in part, only the rest is removed; the ledger knows where it continues when it
    /// is sent again.
    pub(super) fn cancel(&mut self, is_cancelled: impl Fn(&C) -> bool) -> Vec<C> {
        let (cancelled, kept) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition::<VecDeque<_>, _>(|waiting| is_cancelled(waiting.caller()));
        self.waiting = kept;
        cancelled.into_iter().map(PendingInput::into_caller).collect()
    }

    fn admit(&mut self) {
        while let Some(waiting) = self.waiting.pop_front() {
            match waiting {
                PendingInput::Close(caller) => {
                    self.ledger.close();
                    if self.state == InputState::Closed {
                        caller.ok(Empty {});
                    } else {
                        self.state = InputState::Ending;
                        self.closing.push(caller);
                    }
                }
                // Without room, the child has to read first.
                PendingInput::Write { .. }
                    if self.queued() >= FLOOR && self.account.left(Kind::Input) == 0 =>
                {
                    self.waiting.push_front(waiting);
                    return;
                }
                PendingInput::Write { write, accepted } => {
                    let len = write.chunk.len() as u64;
                    let id = write.write_id.as_deref();
                    match self.ledger.offer(stdin_ledger::Write { id, len, accepted }) {
                        Offer::Full => {
                            self.waiting.push_front(PendingInput::Write { write, accepted });
                            return;
                        }
                        Offer::Part(range) => {
                            self.accepted.push(&part(&write.chunk, range.clone()));
                            self.waiting.push_front(PendingInput::Write { write, accepted: range.end });
                            return;
                        }
                        Offer::Accepted(range) => {
                            self.accepted.push(&part(&write.chunk, range));
                            write.answer(WriteStatus::Accepted);
                        }
                        Offer::Repeated => write.answer(WriteStatus::Accepted),
                        Offer::Closed => write.answer(WriteStatus::StdinClosed),
                    }
                }
            }
        }
    }
}

fn part(chunk: &Bytes, range: Range<u64>) -> Bytes {
    let at = |offset: u64| usize::try_from(offset).unwrap_or(chunk.len()).min(chunk.len());
    chunk.slice(at(range.start)..at(range.end))
}

/// Accepted bytes in order, stored in blocks: a million writes of one byte cost little more than one write of a
/// million.
#[derive(Debug, Default)]
struct Accepted {
    /// No block is empty.
    blocks: VecDeque<BytesMut>,
}

/// Shorter writes are appended to the previous block.
const BLOCK_BYTES: usize = 16 << 10;

impl Accepted {
    /// Copies `bytes`, so that a short piece does not keep a long message in memory.
    fn push(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        match self.blocks.back_mut() {
            Some(last) if last.len() + bytes.len() <= BLOCK_BYTES => last.extend_from_slice(bytes),
            _ => self.blocks.push_back(BytesMut::from(bytes)),
        }
    }

    fn front(&self) -> Option<&[u8]> {
        self.blocks.front().map(AsRef::as_ref)
    }

    fn advance(&mut self, len: usize) {
        if let Some(front) = self.blocks.front_mut() {
            front.advance(len);
            if front.is_empty() {
                self.blocks.pop_front();
            }
        }
        if self.blocks.is_empty() {
            self.blocks = VecDeque::new();
        }
    }
}

//! What is on its way to the stdin of a process, in the order of arrival.

use std::collections::VecDeque;

use bytes::Bytes;
use remex_proto::{
    ErrorKind, RpcError,
    call::Empty,
    process::{WriteReply, WriteStatus},
    state::stdin_ledger::{self, Offer, StdinLedger},
};

use crate::{config::Limits, outbox::Responder};

/// One `process/write` that has not been answered.
#[derive(Debug)]
pub(crate) struct Feed {
    pub(crate) chunk: Bytes,
    pub(crate) write_id: Option<String>,
    pub(crate) process_id: Box<str>,
    pub(crate) responder: Responder,
}

impl Feed {
    /// Answers as today's dialect does, or as the oldest did when there is no write id.
    pub(crate) fn answer(self, status: WriteStatus) {
        let refusal = match (&self.write_id, status) {
            (None, WriteStatus::UnknownProcess) => super::unknown_process(&self.process_id),
            (None, WriteStatus::StdinClosed) => RpcError::new(
                ErrorKind::StdinClosed,
                format!(
                    "stdin is closed for process {}; start it with `pipeStdin` to write to it",
                    self.process_id
                ),
            ),
            _ => return self.responder.ok(WriteReply::from(status)),
        };
        self.responder.error(&refusal);
    }
}

/// Writes that wait for room, accepted bytes that wait for the child, and the end of input.
#[derive(Debug)]
pub(super) struct Input {
    ledger: StdinLedger,
    /// Not accepted yet: the child has to take something first. Bounded by the requests a connection may have open.
    waiting: VecDeque<Waiting>,
    /// Accepted; bounded by the ledger.
    accepted: VecDeque<Bytes>,
    /// Accepted writes that are larger than what may wait: answered when little enough of them is left, so that
    /// their connection counts them until then.
    large: Vec<Feed>,
    /// Answered when everything accepted has reached the child.
    closing: Vec<Responder>,
    /// What may wait for the child, in bytes.
    cap: u64,
    state: InputState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InputState {
    Open,
    /// Ends after what was accepted.
    Ending,
    /// The descriptor is closed, or never was.
    Closed,
}

#[derive(Debug)]
enum Waiting {
    Write(Feed),
    Close(Responder),
}

impl Input {
    pub(super) fn new(limits: &Limits) -> Self {
        Input {
            ledger: StdinLedger::new(stdin_ledger::Limits {
                ids: limits.write_ids,
                id_bytes: limits.write_ids * 64,
                queue_bytes: limits.stdin_bytes as u64,
            }),
            waiting: VecDeque::new(),
            accepted: VecDeque::new(),
            large: Vec::new(),
            closing: Vec::new(),
            cap: limits.stdin_bytes as u64,
            state: InputState::Open,
        }
    }

    pub(super) fn write(&mut self, feed: Feed) {
        self.waiting.push_back(Waiting::Write(feed));
        self.admit();
    }

    pub(super) fn close(&mut self, responder: Responder) {
        self.waiting.push_back(Waiting::Close(responder));
        self.admit();
    }

    /// Returns the bytes to write next.
    pub(super) fn next(&self) -> Option<&Bytes> {
        self.accepted.front()
    }

    /// Notes that the child took `len` bytes of what [`Self::next`] gave.
    pub(super) fn delivered(&mut self, len: usize) {
        if let Some(front) = self.accepted.front_mut() {
            let _ = front.split_to(len);
            if front.is_empty() {
                self.accepted.pop_front();
            }
        }
        self.ledger.delivered(len as u64);
        if self.ledger.queued() <= self.cap {
            self.answer_large();
        }
        self.admit();
    }

    /// Tells whether the descriptor is to be closed now.
    pub(super) fn is_done(&self) -> bool {
        self.state == InputState::Ending && self.accepted.is_empty()
    }

    /// Notes that the descriptor is closed: everything unanswered is answered.
    pub(super) fn closed(&mut self) {
        self.state = InputState::Closed;
        self.ledger.fail();
        self.accepted = VecDeque::new();
        self.answer_large();
        for responder in self.closing.drain(..) {
            responder.ok(Empty {});
        }
        self.admit();
    }

    /// Takes out the waiting requests that `is_cancelled` names.
    pub(super) fn cancel(&mut self, is_cancelled: impl Fn(&Responder) -> bool) -> Vec<Responder> {
        let (mut kept, mut cancelled) = (VecDeque::new(), Vec::new());
        for waiting in self.waiting.drain(..) {
            let responder = match &waiting {
                Waiting::Write(feed) => &feed.responder,
                Waiting::Close(responder) => responder,
            };
            if !is_cancelled(responder) {
                kept.push_back(waiting);
                continue;
            }
            cancelled.push(match waiting {
                Waiting::Write(feed) => feed.responder,
                Waiting::Close(responder) => responder,
            });
        }
        self.waiting = kept;
        cancelled
    }

    fn answer_large(&mut self) {
        for feed in self.large.drain(..) {
            feed.answer(WriteStatus::Accepted);
        }
    }

    fn admit(&mut self) {
        while let Some(waiting) = self.waiting.pop_front() {
            match waiting {
                Waiting::Close(responder) => {
                    self.ledger.close();
                    if self.state == InputState::Closed {
                        responder.ok(Empty {});
                    } else {
                        self.state = InputState::Ending;
                        self.closing.push(responder);
                    }
                }
                Waiting::Write(feed) => {
                    match self.ledger.offer(feed.write_id.as_deref(), feed.chunk.len() as u64) {
                        Offer::Full => {
                            self.waiting.push_front(Waiting::Write(feed));
                            return;
                        }
                        Offer::Repeated => feed.answer(WriteStatus::Accepted),
                        Offer::Closed => feed.answer(WriteStatus::StdinClosed),
                        Offer::Accepted => {
                            if !feed.chunk.is_empty() {
                                self.accepted.push_back(feed.chunk.clone());
                            }
                            feed.answer(WriteStatus::Accepted);
                        }
                    }
                }
            }
        }
    }
}

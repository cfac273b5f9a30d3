//! The client's half: one consumer per process, and the calls that wait for an answer.

use std::{collections::BTreeMap, ops::RangeInclusive};

use remex_proto::state::{
    output_log::Seq,
    pending::{self, AfterDisconnect, Pending},
    replay::{self, Reach, Replay, Step},
};

use crate::wire::{Answer, Call, Connection, Event, ToClient, ToServer, printed};

const REPLAY: replay::Limits = replay::Limits { events: 6, bytes: 96 };
const PENDING: pending::Limits = pending::Limits { calls: 16, bytes: 512 };
/// What one read asks for.
const READ_BYTES: usize = 100;

pub(crate) struct Client {
    pub(crate) state: State,
    pub(crate) consumers: Vec<Consumer>,
    /// What was written to each process, as its child should read it.
    pub(crate) written: Vec<Vec<u8>>,
    pub(crate) pending: Pending<Call>,
    /// How each call ended, by request id.
    pub(crate) outcomes: BTreeMap<u64, Outcome>,
    pub(crate) calls_made: usize,
    /// What goes out on the connection that is up; the link takes it away.
    pub(crate) outbox: Vec<ToServer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Up(Connection),
    Resuming(Connection),
    Down,
    /// The session is lost permanently.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Answered,
    Failed,
}

/// Checks what comes out of a [`Replay`] against what the process printed.
pub(crate) struct Consumer {
    process: usize,
    replay: Replay<Event>,
    pub(crate) seen: Seq,
    /// Bytes of output accounted for, delivered or lost.
    pub(crate) position: u64,
    pub(crate) lost: u64,
    /// Exit and close, seen as events or told as state.
    pub(crate) ends: Vec<Seq>,
    pub(crate) gaps: Vec<RangeInclusive<Seq>>,
}

impl Client {
    /// Returns a client that holds its session on `connection`.
    pub(crate) fn new(processes: usize, connection: Connection) -> Self {
        let consumer = |process| Consumer {
            process,
            replay: Replay::new(REPLAY),
            seen: 0,
            position: 0,
            lost: 0,
            ends: Vec::new(),
            gaps: Vec::new(),
        };
        let mut pending = Pending::new(PENDING);
        assert_eq!(pending.connect().count(), 0);
        Client {
            state: State::Up(connection),
            consumers: (0..processes).map(consumer).collect(),
            written: vec![Vec::new(); processes],
            pending,
            outcomes: BTreeMap::new(),
            calls_made: 0,
            outbox: Vec::new(),
        }
    }

    pub(crate) fn connection(&self) -> Option<Connection> {
        match self.state {
            State::Up(connection) | State::Resuming(connection) => Some(connection),
            State::Down | State::Gone => None,
        }
    }

    pub(crate) fn start_resume(&mut self, connection: Connection, takeover: bool) {
        self.state = State::Resuming(connection);
        self.outbox.push(ToServer::Resume { takeover });
    }

    /// Records that the connection is lost.
    pub(crate) fn lose(&mut self) {
        if let State::Up(_) = self.state {
            let failed = self.pending.disconnect();
            failed.into_iter().for_each(|(id, _)| self.note(id, Outcome::Failed));
            self.consumers.iter_mut().for_each(|consumer| consumer.replay.interrupt());
        }
        self.state = State::Down;
    }

    pub(crate) fn receive(&mut self, message: ToClient) {
        match message {
            ToClient::Resumed => self.resumed(),
            ToClient::Held => self.state = State::Down,
            ToClient::UnknownSession => {
                self.state = State::Gone;
                let failed = self.pending.abandon();
                failed.into_iter().for_each(|(id, _)| self.note(id, Outcome::Failed));
            }
            ToClient::Answer { id, answer } => {
                assert!(self.pending.complete(id).is_some(), "an answer belongs to a call");
                self.note(id, Outcome::Answered);
                if let Answer::Read { process, gap, chunks, next_seq, is_partial } = answer {
                    self.consumers[process].replay.feed_read(replay::ReadBatch {
                        gap: gap.map(Into::into),
                        events: chunks
                            .into_iter()
                            .map(|(seq, bytes)| (seq, bytes.len(), Event::Output(bytes))),
                        next_seq,
                        reach: if is_partial { Reach::Partial } else { Reach::Newest },
                    });
                }
            }
            ToClient::Event { process, seq, event } => {
                let len = if let Event::Output(bytes) = &event { bytes.len() } else { 0 };
                self.consumers[process].replay.feed(seq, len, event);
            }
            ToClient::Gap { process, gap } => {
                self.consumers[process].replay.feed_gap(gap.into());
            }
        }
        self.catch_up();
    }

    /// Makes a call, now or with the next connection, unless too many wait.
    pub(crate) fn call(&mut self, call: Call, after_disconnect: AfterDisconnect) -> bool {
        let len = if let Call::Write { chunk, .. } = &call { chunk.len() } else { 0 };
        let Ok(id) = self.pending.register(call.clone(), len, after_disconnect) else { return false };
        self.calls_made += 1;
        if let State::Up(_) = self.state {
            self.outbox.push(ToServer::Call { id, call });
        }
        true
    }

    pub(crate) fn write(&mut self, process: usize, chunk: Vec<u8>) {
        let write_id = format!("w{}", self.calls_made);
        if self.call(Call::Write { process, write_id, chunk: chunk.clone() }, AfterDisconnect::Resend) {
            self.written[process].extend(chunk);
        }
    }

    pub(crate) fn acknowledge(&mut self, process: usize) {
        if let State::Up(_) = self.state {
            self.outbox.push(ToServer::Acknowledge { process, seq: self.consumers[process].seen });
        }
    }

    /// Consumes what is in order and reads what is missing.
    pub(crate) fn catch_up(&mut self) {
        for process in 0..self.consumers.len() {
            let consumer = &mut self.consumers[process];
            consumer.consume();
            let State::Up(_) = self.state else { continue };
            if let Some(after_seq) = consumer.replay.wanted_read() {
                assert_eq!(after_seq, consumer.seen);
                let read = Call::Read { process, after_seq, max_bytes: READ_BYTES };
                if !self.call(read, AfterDisconnect::Fail) {
                    self.consumers[process].replay.interrupt();
                }
            }
        }
    }

    fn resumed(&mut self) {
        let State::Resuming(connection) = self.state else { panic!("nobody asked for a resume") };
        self.state = State::Up(connection);
        let calls = self.pending.connect().map(|(id, call)| ToServer::Call { id, call: call.clone() });
        self.outbox.extend(calls);
    }

    fn note(&mut self, id: u64, outcome: Outcome) {
        assert_eq!(self.outcomes.insert(id, outcome), None, "a call completes once");
    }
}

impl Consumer {
    fn consume(&mut self) {
        while let Some(step) = self.replay.next() {
            let (from_seq, to_seq) = match step {
                Step::Event { seq, event } => {
                    match event {
                        Event::Output(bytes) => self.check(&bytes),
                        Event::Exited | Event::Closed => self.ends.push(seq),
                    }
                    (seq, seq)
                }
                Step::Gap(gap) => {
                    let bytes = gap.bytes.expect("the log remembers more than this test evicts");
                    self.position += bytes;
                    self.lost += bytes;
                    self.gaps.push(gap.from_seq..=gap.to_seq);
                    (gap.from_seq, gap.to_seq)
                }
                Step::Unlisted { from_seq, to_seq } => {
                    self.ends.extend(from_seq..=to_seq);
                    (from_seq, to_seq)
                }
            };
            assert_eq!(from_seq, self.seen + 1, "events come in order and once");
            self.seen = to_seq;
        }
    }

    fn check(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            assert_eq!(byte, printed(self.process, self.position), "output is what was printed at its place");
            self.position += 1;
        }
    }
}

//! The server's half: one session with a few processes, managed by the state machines under test.

use std::{
    collections::{HashSet, VecDeque},
    ops::Range,
};

use remex_proto::state::{
    output_log::{self, Cursor, Hold, Next, OutputLog, Seq, Stream},
    session_table::{Detached, NewSession, OnDetach, ResumeOutcome, ResumeRequest, SessionTable, Takeover},
    stdin_ledger::{self, Offer, StdinLedger},
};

use crate::wire::{Answer, Call, Connection, Event, ToClient, ToServer, printed};

const LOG: output_log::Limits = output_log::Limits {
    retain_bytes: 256,
    retain_events: 24,
    chunk_bytes: 32,
    chunk_ms: 100,
    head_bytes: 16,
};
/// As many ids as the client leaves unanswered at most: just enough.
const STDIN: stdin_ledger::Limits = stdin_ledger::Limits { ids: 16, id_bytes: 1_024, queue_bytes: 48 };
/// Bytes that may be sent and not acknowledged.
const WINDOW: u64 = 128;
const SESSION: &str = "session";
const IDENTITY: u8 = 1;

/// What a full log does while a client is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overflow {
    Pause,
    Evict,
}

pub(crate) struct Server {
    sessions: SessionTable<u8, Connection>,
    pub(crate) processes: Vec<Process>,
    /// Outgoing messages, which the link takes.
    pub(crate) outbox: Vec<(Connection, ToClient)>,
    /// Connections that the server closes, which the link takes.
    pub(crate) hung_up: Vec<Connection>,
    /// Request ids of the pings that arrived.
    pings: HashSet<u64>,
    /// How often a session was removed.
    pub(crate) given_up: usize,
    /// Whether the session was ever without a controller.
    pub(crate) was_detached: bool,
    pub(crate) now_ms: u64,
}

pub(crate) struct Process {
    pub(crate) log: OutputLog,
    pub(crate) overflow: Overflow,
    /// The cursor of the controller's live stream.
    live: Cursor,
    acknowledged: Seq,
    ledger: StdinLedger,
    /// Accepted and not yet read by the child.
    stdin: VecDeque<u8>,
    /// What the child has read.
    pub(crate) input: Vec<u8>,
    /// Writes that found no room, in order of arrival.
    waiting: VecDeque<Write>,
}

struct Write {
    connection: Connection,
    id: u64,
    write_id: String,
    chunk: Vec<u8>,
}

impl Server {
    /// Returns a server with one session that `connection` holds.
    pub(crate) fn new(overflows: &[Overflow], on_detach: OnDetach, connection: Connection) -> Self {
        let mut sessions = SessionTable::new();
        let session = NewSession {
            id: SESSION.into(),
            identity: IDENTITY,
            name: None,
            client_name: "link".into(),
            on_detach,
            connection,
        };
        sessions.create(session, 0).expect("the first session takes nobody's name");
        let process = |&overflow| Process {
            log: OutputLog::new(LOG),
            overflow,
            live: Cursor::START,
            acknowledged: 0,
            ledger: StdinLedger::new(STDIN),
            stdin: VecDeque::new(),
            input: Vec::new(),
            waiting: VecDeque::new(),
        };
        Server {
            sessions,
            processes: overflows.iter().map(process).collect(),
            outbox: Vec::new(),
            hung_up: Vec::new(),
            pings: HashSet::new(),
            given_up: 0,
            was_detached: false,
            now_ms: 0,
        }
    }

    pub(crate) fn controller(&self) -> Option<Connection> {
        self.sessions.session(SESSION, &IDENTITY, self.now_ms)?.controller()
    }

    pub(crate) fn receive(&mut self, connection: Connection, message: ToServer) {
        match message {
            ToServer::Resume { takeover } => {
                let takeover = if takeover { Takeover::Yes } else { Takeover::No };
                let reply = self.resume(connection, takeover);
                self.outbox.push((connection, reply));
            }
            _ if self.controller() != Some(connection) => {}
            ToServer::Call { id, call } => self.call(connection, id, call),
            ToServer::Acknowledge { process, seq } => {
                let process = &mut self.processes[process];
                process.acknowledged = process.acknowledged.max(seq);
            }
        }
    }

    /// Attaches a connection, which will read the events that it has not seen.
    pub(crate) fn resume(&mut self, connection: Connection, takeover: Takeover) -> ToClient {
        let claim = ResumeRequest {
            identity: &IDENTITY,
            client_name: "link",
            connection,
            takeover,
            name: None,
            on_detach: None,
        };
        match self.sessions.resume(SESSION, &claim, self.now_ms) {
            ResumeOutcome::Unknown | ResumeOutcome::NameTaken => return ToClient::UnknownSession,
            ResumeOutcome::Held { .. } => return ToClient::Held,
            ResumeOutcome::TookOver { previous } => {
                self.cancel_requests(previous);
                self.hung_up.push(previous);
            }
            ResumeOutcome::Attached => {}
        }
        for process in &mut self.processes {
            process.live = process.log.newest();
        }
        ToClient::Resumed
    }

    /// Records that a connection is lost.
    pub(crate) fn lose(&mut self, connection: Connection) {
        match self.sessions.detach(SESSION, connection, self.now_ms) {
            Detached::Waiting { .. } => {
                self.was_detached = true;
                self.cancel_requests(connection);
            }
            Detached::NotController => {}
            Detached::Ended => self.given_up += 1,
        }
    }

    pub(crate) fn pass_time(&mut self, ms: u64) {
        self.now_ms += ms;
        self.given_up += self.sessions.expire(self.now_ms).len();
    }

    /// Lets a process print up to `max` bytes, as far as its log has room.
    pub(crate) fn print(&mut self, index: usize, stream: Stream, max: usize) {
        let hold = self.hold(index);
        let process = &mut self.processes[index];
        let max = max.min(process.log.room(hold, usize::MAX));
        if max == 0 || process.log.is_closed() {
            return;
        }
        let start = process.log.total();
        let filled = process.log.append(stream, self.now_ms, max, |spare| {
            let positions = start..;
            spare.iter_mut().zip(positions).for_each(|(byte, at)| *byte = printed(index, at));
            Ok::<_, ()>(spare.len())
        });
        assert!(filled.is_ok_and(|len| len > 0), "a log with room takes something");
        process.log.evict(hold, usize::MAX);
        assert!(process.log.held_bytes() <= LOG.retain_bytes, "the log keeps its cap");
    }

    /// Advances the end of a process: first it exits, then it closes.
    pub(crate) fn wind_up(&mut self, index: usize) {
        let hold = self.hold(index);
        let log = &mut self.processes[index].log;
        if log.exited().is_none() {
            log.push_exited(self.now_ms);
        } else if !log.is_closed() {
            log.push_closed(self.now_ms);
        }
        log.evict(hold, usize::MAX);
    }

    /// Sends the controller up to `count` events of a process, within the window.
    pub(crate) fn stream(&mut self, index: usize, count: usize) {
        let Some(connection) = self.controller() else { return };
        let process = &mut self.processes[index];
        for _ in 0..count {
            let acknowledged = process.log.cursor_after(process.acknowledged).offset.unwrap_or(0);
            if process.live.offset.unwrap_or(0).saturating_sub(acknowledged) > WINDOW {
                break;
            }
            let Some(next) = process.log.next(&mut process.live) else { break };
            let message = match next {
                Next::Gap(gap) => ToClient::Gap { process: index, gap: gap.into() },
                Next::Output { seq, bytes, .. } => event(index, seq, Event::Output(bytes.to_vec())),
                Next::Exited(seq) => event(index, seq, Event::Exited),
                Next::Closed(seq) => event(index, seq, Event::Closed),
            };
            self.outbox.push((connection, message));
        }
    }

    /// Lets the child read up to `max` bytes of its stdin, and continues writes that waited for room.
    pub(crate) fn read_stdin(&mut self, index: usize, max: usize) {
        let process = &mut self.processes[index];
        let len = max.min(process.stdin.len());
        process.input.extend(process.stdin.drain(..len));
        process.ledger.delivered(len as u64);
        assert_eq!(process.ledger.queued(), process.stdin.len() as u64);
        self.write_waiting(index);
    }

    fn call(&mut self, connection: Connection, id: u64, call: Call) {
        let answer = match call {
            Call::Read { process, after_seq, max_bytes } => self.read(process, after_seq, max_bytes),
            Call::Write { process, write_id, chunk } => {
                self.processes[process].waiting.push_back(Write { connection, id, write_id, chunk });
                return self.write_waiting(process);
            }
            Call::Ping => {
                assert!(self.pings.insert(id), "a call that may not be repeated arrives once at most");
                Answer::Pong
            }
        };
        self.outbox.push((connection, ToClient::Answer { id, answer }));
    }

    fn read(&mut self, index: usize, after_seq: Seq, max_bytes: usize) -> Answer {
        let log = &mut self.processes[index].log;
        let mut cursor = log.cursor_after(after_seq);
        let (mut gap, mut chunks, mut len) = (None, Vec::new(), 0);
        let is_partial = loop {
            if !chunks.is_empty() && log.peek_len(&cursor).is_some_and(|next| len + next > max_bytes) {
                break true;
            }
            match log.next(&mut cursor) {
                None => break false,
                Some(Next::Gap(found)) => gap = Some(found.into()),
                Some(Next::Output { seq, bytes, .. }) => {
                    len += bytes.len();
                    chunks.push((seq, bytes.to_vec()));
                }
                Some(Next::Exited(_) | Next::Closed(_)) => {}
            }
        };
        Answer::Read { process: index, gap, chunks, next_seq: cursor.seq + 1, is_partial }
    }

    fn write_waiting(&mut self, index: usize) {
        let process = &mut self.processes[index];
        while let Some(Write { connection, id, write_id, chunk }) = process.waiting.pop_front() {
            let part = |range: Range<u64>| {
                let at = |offset: u64| usize::try_from(offset).expect("a chunk is in memory");
                &chunk[at(range.start)..at(range.end)]
            };
            let offer = stdin_ledger::Write { id: Some(&write_id), len: chunk.len() as u64, accepted: 0 };
            match process.ledger.offer(offer) {
                Offer::Accepted(range) => process.stdin.extend(part(range)),
                Offer::Repeated => {}
                Offer::Part(range) => {
                    process.stdin.extend(part(range));
                    process.waiting.push_front(Write { connection, id, write_id, chunk });
                    continue;
                }
                Offer::Full => {
                    process.waiting.push_front(Write { connection, id, write_id, chunk });
                    break;
                }
                Offer::Closed => unreachable!("nobody closes stdin here"),
            }
            self.outbox.push((connection, ToClient::Answer { id, answer: Answer::Written }));
        }
    }

    fn cancel_requests(&mut self, connection: Connection) {
        for process in &mut self.processes {
            process.waiting.retain(|write| write.connection != connection);
        }
    }

    fn hold(&self, index: usize) -> Hold {
        let process = &self.processes[index];
        match (self.controller(), process.overflow) {
            (Some(_), Overflow::Pause) => Hold::After(process.acknowledged),
            _ => Hold::Nothing,
        }
    }
}

fn event(process: usize, seq: Seq, event: Event) -> ToClient {
    ToClient::Event { process, seq, event }
}

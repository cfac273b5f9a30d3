//! A server without sockets and children: sessions and processes kept by the pure machines, the real wire.
//!
//! Start at [`Server`].

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bytes::Bytes;
use remex_proto::{
    Call, ClientNote, ErrorKind, Message, MessageLimits, RequestId, RpcError, ServerNote, attachment,
    binary::{self, Binary},
    call::Empty,
    environment,
    error::{INVALID_REQUEST, METHOD_NOT_FOUND, SESSION_ATTACHED},
    flow,
    initialize::{self, Capability, Initialize},
    message, process as wire,
    state::{
        output_log::{Cursor, Next},
        session_table::{
            Detached, EndOutcome, NewSession, OnDetach, ResumeOutcome, ResumeRequest, SessionTable, Takeover,
        },
    },
};
use serde::Serialize;
use tokio::time::Instant;

use crate::{
    process::{Input, Process, Wish, range},
    random::Random,
};

const IDENTITY: u8 = 1;
/// A connection of another client with the same identity.
const RIVAL: u32 = u32::MAX;

/// What the server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Remex,
    /// No ids for starts, no word about what was used up or is missing.
    Base,
}

pub(crate) struct Server {
    dialect: Dialect,
    random: Random,
    ttl: Duration,
    began: Instant,
    sessions: SessionTable<u8, u32>,
    next_session: u32,
    connections: BTreeMap<u32, Connection>,
    pub(crate) processes: BTreeMap<String, Process>,
    /// Processes of sessions that are gone.
    pub(crate) past: BTreeMap<String, Process>,
    /// Answers that take their time.
    answers: Vec<(Instant, u32, Vec<u8>)>,
    /// What goes out, in order.
    pub(crate) outbox: Vec<(u32, Vec<u8>)>,
    /// Connections that the server hangs up.
    pub(crate) hung_up: Vec<u32>,
    /// Sessions that were given up.
    forgotten: BTreeSet<String>,
    pub(crate) resumed: usize,
    /// How often a start came again.
    pub(crate) repeated_starts: usize,
}

#[derive(Default)]
struct Connection {
    session: Option<String>,
    enabled: BTreeSet<Capability>,
    is_ready: bool,
    marks: u64,
    unmarked: usize,
}

impl Server {
    pub(crate) fn new(dialect: Dialect, ttl: Duration, random: Random) -> Self {
        Server {
            dialect,
            random,
            ttl,
            began: Instant::now(),
            sessions: SessionTable::new(),
            next_session: 1,
            connections: BTreeMap::new(),
            processes: BTreeMap::new(),
            past: BTreeMap::new(),
            answers: Vec::new(),
            outbox: Vec::new(),
            hung_up: Vec::new(),
            forgotten: BTreeSet::new(),
            resumed: 0,
            repeated_starts: 0,
        }
    }

    pub(crate) fn process(&self, id: &str) -> Option<&Process> {
        self.processes.get(id).or_else(|| self.past.get(id))
    }

    /// Tells how things stand, for those who look for a failure.
    pub(crate) fn describe(&self) -> String {
        let process = |(id, process): (&String, &Process)| {
            let log = &process.log;
            let (next, exited, closed) = (log.next_seq(), log.exited(), log.is_closed());
            let Process { live, consumed, is_running, .. } = process;
            format!(
                "{id}: running {is_running}, next {next}, exited {exited:?}, closed {closed}, live {live:?}, consumed {consumed}, {} wishes",
                process.waiting.len()
            )
        };
        let processes: Vec<String> = self.processes.iter().map(process).collect();
        format!("{:?} forgot {:?}, resumed {}: {processes:#?}", self.dialect, self.forgotten, self.resumed)
    }

    pub(crate) fn repeated_writes(&self) -> usize {
        self.processes.values().chain(self.past.values()).map(|process| process.truth.repeated_writes).sum()
    }

    pub(crate) fn accept(&mut self, connection: u32) {
        self.connections.insert(connection, Connection::default());
    }

    /// Forgets everything, as a server that was started again.
    pub(crate) fn restart(&mut self, now: Instant) {
        for id in self.session_ids(now) {
            self.forget(id);
        }
        self.sessions = SessionTable::new();
        self.hung_up.extend(std::mem::take(&mut self.connections).into_keys());
        self.answers.clear();
    }

    /// Lets another client take the session for a while.
    pub(crate) fn rob(&mut self, now: Instant) {
        let now_ms = self.millis(now);
        for id in self.session_ids(now) {
            let claim = ResumeRequest {
                identity: &IDENTITY,
                client_name: "rival",
                connection: RIVAL,
                takeover: Takeover::Yes,
                name: None,
                on_detach: None,
            };
            if let ResumeOutcome::TookOver { previous } = self.sessions.resume(&id, &claim, now_ms) {
                self.lose(previous, now);
                self.hung_up.push(previous);
            }
        }
    }

    pub(crate) fn stop_robbing(&mut self, now: Instant) {
        let now_ms = self.millis(now);
        for id in self.session_ids(now) {
            assert_ne!(self.sessions.detach(&id, RIVAL, now_ms), Detached::Ended, "sessions outlive a rival");
        }
    }

    /// Notes that a connection is gone.
    pub(crate) fn lose(&mut self, connection: u32, now: Instant) {
        let Some(Connection { session: Some(session), .. }) = self.connections.remove(&connection) else {
            return;
        };
        self.answers.retain(|(_, to, _)| *to != connection);
        let detached = self.sessions.detach(&session, connection, self.millis(now));
        assert_ne!(detached, Detached::Ended, "sessions outlive a connection");
        for process in self.processes.values_mut() {
            process.waiting.retain(|wish| wish.connection != connection);
            process.starters.retain(|(to, _)| *to != connection);
        }
    }

    pub(crate) fn is_connected(&self, connection: u32) -> bool {
        self.connections.contains_key(&connection)
    }

    fn session_ids(&self, now: Instant) -> Vec<String> {
        let sessions = self.sessions.list(&IDENTITY, self.millis(now));
        sessions.into_iter().map(|session| session.id.clone()).collect()
    }

    /// Forgets a session with its processes.
    fn forget(&mut self, session: String) {
        let (gone, left): (BTreeMap<_, _>, _) = std::mem::take(&mut self.processes)
            .into_iter()
            .partition(|(_, process)| process.session == session);
        self.processes = left;
        self.past.extend(gone);
        self.forgotten.insert(session);
    }

    pub(crate) fn has_forgotten(&self, session: &str) -> bool {
        self.forgotten.contains(session)
    }

    fn millis(&self, now: Instant) -> u64 {
        (now - self.began).as_millis() as u64
    }

    pub(crate) fn receive(&mut self, connection: u32, line: &[u8], now: Instant) {
        if !self.connections.contains_key(&connection) {
            return;
        }
        let (json, attached) = if binary::is_binary(line) {
            assert!(self.is_binary(connection), "binary messages were not given");
            match Binary::parse(&Bytes::copy_from_slice(line)) {
                Ok(Binary::Message { json, attached }) => (json, attached),
                other => panic!("the client sends binary messages: {other:?}"),
            }
        } else {
            (Bytes::copy_from_slice(line), Bytes::new())
        };
        match Message::parse(&json, MessageLimits::WIRE).expect("the client writes messages") {
            Message::Request { id, method, params, .. } => {
                let call = attachment::with(attached, || Call::parse(&method, params));
                self.call(connection, id, call.expect("the client asks for what there is"), now);
            }
            Message::Notification { method, params } => {
                let note = ClientNote::parse(&method, params).expect("the client tells what there is");
                self.note(connection, note);
            }
            Message::Response { .. } => panic!("nobody asked the client"),
        }
    }

    fn is_binary(&self, connection: u32) -> bool {
        self.connections
            .get(&connection)
            .is_some_and(|connection| connection.enabled.contains(&Capability::BinaryFrames))
    }

    fn note(&mut self, connection: u32, note: ClientNote) {
        let about = self.connections.get_mut(&connection).unwrap();
        let needs = match note {
            ClientNote::Initialized(_) => return about.is_ready = about.session.is_some(),
            ClientNote::RequestCancel(_) => Capability::Cancel,
            ClientNote::FlowAck(_) => Capability::Acks,
            ClientNote::FlowConsumed(_) => Capability::Consumed,
            ClientNote::FlowBodyConsumed(_) => panic!("there are no bodies"),
        };
        assert!(
            about.enabled.contains(&needs),
            "{needs:?} was not given, and a foreign server would hang up"
        );
        match note {
            ClientNote::FlowConsumed(flow::Consumed { process_id, seq, .. }) => {
                if let Some(process) = self.processes.get_mut(&process_id) {
                    assert!(seq < process.log.next_seq(), "nobody can use up what was not said");
                    process.consumed = process.consumed.max(seq);
                }
            }
            ClientNote::RequestCancel(cancel) => {
                let is_cancelled = |wish: &Wish| wish.connection == connection && wish.id == cancel.id;
                for process in self.processes.values_mut() {
                    process.waiting.retain(|wish| !is_cancelled(wish));
                }
            }
            ClientNote::Initialized(_) | ClientNote::FlowAck(_) | ClientNote::FlowBodyConsumed(_) => {}
        }
    }

    fn call(&mut self, connection: u32, id: RequestId, call: Call, now: Instant) {
        if let Call::Initialize(initialize) = call {
            let outcome = self.initialize(connection, &initialize, now);
            let mut line = Vec::new();
            match outcome {
                Ok(reply) => message::write_result(&mut line, &id, &reply),
                Err(error) => message::write_error(&mut line, &id, &error),
            }
            return self.outbox.push((connection, line));
        }
        assert!(self.connections[&connection].is_ready, "the handshake comes first");
        let is_foreign = matches!(call, Call::ProcessCloseStdin(_) | Call::SessionEnd(_));
        if is_foreign && self.dialect == Dialect::Base {
            let error = RpcError::new(ErrorKind::Other, "no such method").with_code(METHOD_NOT_FOUND);
            return self.refuse(connection, &id, &error, now);
        }
        match call {
            Call::EnvironmentStatus(_) => {
                let reply = environment::StatusReply { status: environment::Status::Ready };
                self.answer(connection, &id, &reply, now);
            }
            Call::ProcessStart(start) => self.start(connection, id, &start, now),
            Call::ProcessRead(read) => match self.processes.get_mut(&read.process_id) {
                Some(process) if process.is_running => {
                    let reply = process.read(&read);
                    self.answer(connection, &id, &reply, now);
                }
                Some(_) => {
                    let text = format!("process id {} is starting", read.process_id);
                    let error = self.error(ErrorKind::ProcessStarting, text);
                    self.refuse(connection, &id, &error, now);
                }
                None => {
                    let error = self.unknown(&read.process_id);
                    self.refuse(connection, &id, &error, now);
                }
            },
            Call::ProcessWrite(write) => self.write(connection, id, write, now),
            Call::ProcessCloseStdin(close) => match self.processes.get_mut(&close.process_id) {
                Some(process) => {
                    process.waiting.push_back(Wish { connection, id, what: Input::Close });
                    self.take_input(&close.process_id, now);
                }
                None => {
                    let error = self.unknown(&close.process_id);
                    self.refuse(connection, &id, &error, now);
                }
            },
            Call::ProcessTerminate(terminate) => {
                let process = self.processes.get_mut(&terminate.process_id);
                let running = process.is_some_and(Process::terminate);
                self.take_input(&terminate.process_id, now);
                self.answer(connection, &id, &wire::Terminated { running }, now);
            }
            Call::ProcessSignal(signal) => {
                let process = self.processes.get_mut(&signal.process_id).expect("signals go to processes");
                process.truth.signals += 1;
                self.answer(connection, &id, &Empty {}, now);
            }
            Call::SessionEnd(end) => {
                let ended = self.sessions.end(&end.session_id, &IDENTITY, self.millis(now));
                if matches!(ended, EndOutcome::Ended { .. }) {
                    self.forget(end.session_id);
                }
                self.answer(connection, &id, &Empty {}, now);
            }
            other => panic!("`{}` is no part of the story", other.method()),
        }
    }

    fn initialize(
        &mut self,
        connection: u32,
        initialize: &Initialize,
        now: Instant,
    ) -> Result<initialize::Reply, RpcError> {
        let now_ms = self.millis(now);
        let resumed = initialize.resume_session_id.session();
        let session_id = match resumed {
            None => {
                let id = format!("s-{}", self.next_session);
                self.next_session += 1;
                let session = NewSession {
                    id: id.clone(),
                    identity: IDENTITY,
                    name: None,
                    client_name: initialize.client_name.clone(),
                    on_detach: OnDetach::ExpireAfterMs(self.ttl.as_millis() as u64),
                    connection,
                };
                self.sessions.create(session, now_ms).expect("every id is new");
                id
            }
            Some(id) => {
                self.resume(id, connection, now_ms)?;
                id.to_owned()
            }
        };
        let wanted = initialize.capabilities.clone().unwrap_or_default();
        let mut enabled = if self.dialect == Dialect::Remex { wanted } else { BTreeSet::new() };
        // As if servers of different versions took turns.
        if self.random.chance(30) {
            enabled.remove(&Capability::BinaryFrames);
        }
        let connection = self.connections.get_mut(&connection).unwrap();
        connection.session = Some(session_id.clone());
        connection.enabled.clone_from(&enabled);
        let mut reply = initialize::Reply::new(session_id);
        reply.capabilities.enabled = enabled;
        reply.resumed = resumed.is_some();
        Ok(reply)
    }

    fn resume(&mut self, id: &str, connection: u32, now_ms: u64) -> Result<(), RpcError> {
        let claim = ResumeRequest {
            identity: &IDENTITY,
            client_name: "client",
            connection,
            takeover: Takeover::No,
            name: None,
            on_detach: None,
        };
        match self.sessions.resume(id, &claim, now_ms) {
            ResumeOutcome::Attached => {}
            ResumeOutcome::Held { .. } => {
                let text = format!("session {id} is already attached to another connection");
                return Err(self.error(ErrorKind::SessionAttached, text).with_code(SESSION_ATTACHED));
            }
            ResumeOutcome::Unknown | ResumeOutcome::NameTaken | ResumeOutcome::TookOver { .. } => {
                return Err(self.error(ErrorKind::UnknownSession, format!("unknown session id {id}")));
            }
        }
        self.resumed += 1;
        for process in self.processes.values_mut().filter(|process| process.session == id) {
            process.live = Some(process.log.newest());
        }
        Ok(())
    }

    fn start(&mut self, connection: u32, id: RequestId, start: &wire::Start, now: Instant) {
        let Some(process) = self.processes.get_mut(&start.process_id) else {
            let session = self.connections[&connection].session.clone().unwrap_or_default();
            let mut process = Process::new(start, session, self.dialect, self.random.fork(), now);
            process.starters.push((connection, id));
            // In one of the two ways events may come before the answer.
            process.live = self.random.chance(30).then_some(Cursor::START);
            self.processes.insert(start.process_id.clone(), process);
            return;
        };
        let is_repeated = process.start_id.is_some() && process.start_id == start.start_id;
        if self.dialect == Dialect::Base || !is_repeated {
            let error = self.error(ErrorKind::ProcessExists, "process p already exists".to_owned());
            return self.refuse(connection, &id, &error, now);
        }
        self.repeated_starts += 1;
        if process.is_running {
            let reply = started(&start.process_id, true);
            self.answer(connection, &id, &reply, now);
        } else {
            process.starters.push((connection, id));
        }
    }

    fn write(&mut self, connection: u32, id: RequestId, write: wire::Write, now: Instant) {
        let process_id = write.process_id.clone();
        match self.processes.get_mut(&process_id) {
            Some(process) => {
                process.waiting.push_back(Wish { connection, id, what: Input::Write(write) });
                self.take_input(&process_id, now);
            }
            None => {
                let reply = wire::WriteReply::from(wire::WriteStatus::UnknownProcess);
                self.answer(connection, &id, &reply, now);
            }
        }
    }

    fn take_input(&mut self, process_id: &str, now: Instant) {
        let Some(process) = self.processes.get_mut(process_id) else { return };
        for (connection, id, status) in process.take_input() {
            match status {
                Some(status) => self.answer(connection, &id, &wire::WriteReply::from(status), now),
                None => self.answer(connection, &id, &Empty {}, now),
            }
        }
    }

    /// Lets time pass; tells whether something happened.
    pub(crate) fn live(&mut self, now: Instant) -> bool {
        let mut happened = false;
        for session in self.sessions.expire(self.millis(now)) {
            self.forget(session);
        }
        let ids: Vec<String> = self.processes.keys().cloned().collect();
        for id in &ids {
            let process = self.processes.get_mut(id).unwrap();
            if !process.is_running && now >= process.starts_at {
                process.is_running = true;
                happened = true;
                process.live.get_or_insert(Cursor::START);
                for (index, (connection, request)) in std::mem::take(&mut process.starters).iter().enumerate()
                {
                    self.answer(*connection, request, &started(id, index > 0), now);
                }
            }
            happened |= self.processes.get_mut(id).unwrap().live(now);
            self.take_input(id, now);
        }
        let (due, later) = std::mem::take(&mut self.answers).into_iter().partition(|(at, _, _)| *at <= now);
        self.answers = later;
        let due: Vec<_> = due;
        happened |= !due.is_empty();
        self.outbox.extend(due.into_iter().map(|(_, connection, line)| (connection, line)));
        happened
    }

    /// Streams a little of what the controller of the session has not seen, the processes in any order.
    pub(crate) fn stream(&mut self, connection: u32) -> bool {
        let Some(about) = self.connections.get_mut(&connection).filter(|about| about.session.is_some())
        else {
            return false;
        };
        let mut happened = false;
        let is_theirs = |process: &Process| about.session.as_ref() == Some(&process.session);
        let theirs = self.processes.iter().filter(|(_, process)| is_theirs(process));
        let mut ids: Vec<String> = theirs.map(|(id, _)| id.clone()).collect();
        for at in 1..ids.len() {
            ids.swap(at, self.random.below(at + 1));
        }
        for id in ids {
            if self.random.chance(20) {
                continue;
            }
            let process = self.processes.get_mut(&id).unwrap();
            for _ in 0..self.random.between(1, 6) {
                let is_open = !about.enabled.contains(&Capability::Consumed)
                    || process.unconsumed() < flow::WINDOW_BYTES;
                let Some(mut cursor) = process.live.filter(|_| is_open) else { break };
                let Some(note) = next_note(&id, process, &mut cursor) else { break };
                process.live = Some(cursor);
                if matches!(note, ServerNote::ProcessGap(_))
                    && !about.enabled.contains(&Capability::ProcessGap)
                {
                    continue;
                }
                let mut line = Vec::new();
                match &note {
                    ServerNote::ProcessOutput(output)
                        if about.enabled.contains(&Capability::BinaryFrames) =>
                    {
                        let output = binary::Output {
                            process_id: &output.process_id,
                            session_id: output.session_id.as_deref(),
                            incarnation: output.incarnation,
                            seq: output.seq,
                            stream: output.stream,
                            bytes: &output.chunk,
                        };
                        output.write(&mut line);
                    }
                    note => note.write(&mut line),
                }
                about.unmarked += line.len();
                self.outbox.push((connection, line));
                happened = true;
            }
        }
        if about.enabled.contains(&Capability::Acks) && about.unmarked > 16 << 10 {
            about.unmarked = 0;
            about.marks += 1;
            let mut line = Vec::new();
            ServerNote::from(flow::Mark { mark: about.marks }).write(&mut line);
            self.outbox.push((connection, line));
        }
        happened
    }

    fn answer(&mut self, connection: u32, id: &RequestId, reply: &impl Serialize, now: Instant) {
        let write = || {
            let mut line = Vec::new();
            message::write_result(&mut line, id, reply);
            line
        };
        let line = if self.is_binary(connection) {
            let (json, attached) = attachment::collect(write);
            let mut line = Vec::new();
            if !attached.pieces.is_empty() {
                binary::write_head(&mut line, json.len());
            }
            binary::write_rest(&mut line, &json, &attached);
            line
        } else {
            write()
        };
        self.post(connection, line, now);
    }

    fn refuse(&mut self, connection: u32, id: &RequestId, error: &RpcError, now: Instant) {
        let mut line = Vec::new();
        message::write_error(&mut line, id, error);
        self.post(connection, line, now);
    }

    /// Sends an answer now, or later and so after others.
    fn post(&mut self, connection: u32, line: Vec<u8>, now: Instant) {
        if self.random.chance(70) {
            self.outbox.push((connection, line));
        } else {
            self.answers.push((now + self.random.millis(1, 400), connection, line));
        }
    }

    fn unknown(&self, process_id: &str) -> RpcError {
        self.error(ErrorKind::UnknownProcess, format!("unknown process id {process_id}"))
    }

    /// Makes an error; those of the base dialect have no kind.
    fn error(&self, kind: ErrorKind, message: String) -> RpcError {
        match self.dialect {
            Dialect::Remex => RpcError::new(kind, message),
            Dialect::Base => RpcError::new(ErrorKind::Other, message).with_code(INVALID_REQUEST),
        }
    }
}

fn started(process_id: &str, replayed: bool) -> wire::Started {
    wire::Started {
        process_id: process_id.to_owned(),
        sandbox_type: wire::SandboxType::None,
        pid: None,
        started_at_ms: None,
        incarnation: None,
        replayed,
    }
}

fn next_note(id: &str, process: &mut Process, cursor: &mut Cursor) -> Option<ServerNote> {
    let exit_code = process.truth.exit_code;
    let (process_id, session_id, incarnation) = (id.to_owned(), None, None);
    Some(match process.log.next(cursor)? {
        Next::Gap(gap) => wire::Gap { process_id, session_id, incarnation, range: range(gap) }.into(),
        Next::Output { seq, stream, bytes, .. } => {
            wire::Output { process_id, session_id, incarnation, seq, stream, chunk: bytes.to_vec().into() }
                .into()
        }
        Next::Exited(seq) => wire::Exited {
            process_id,
            session_id,
            incarnation,
            seq,
            exit_code: exit_code.unwrap_or(-1),
            sandbox_denied: false,
            network_denied: Vec::new(),
            signal: None,
            cause: None,
            usage: None,
        }
        .into(),
        Next::Closed(seq) => {
            wire::Closed { process_id, session_id, incarnation, seq, produced: None, evicted_bytes: None }
                .into()
        }
    })
}

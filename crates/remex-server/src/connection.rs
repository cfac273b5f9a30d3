//! One connection: a reader that turns messages into calls, and a writer that empties the outbox.
//!
//! A client in the same process says values instead of messages; everything behind the reader is the same.
//!
//! The two never wait for each other, except that the reader stops while too much is waiting to be
//! sent. Start at [`run`].

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use remex_proto::{
    Call, ClientNote, ErrorKind, Malformed, Message, MessageLimits, ParseError, RequestId, RpcError,
    initialize::Capability, message::Source,
};
use remex_rpc::{
    FrameReader, Framing, Incoming, WriteHalf,
    memory::{ServerEnd, ToServer},
};
use tokio::{
    sync::{Semaphore, mpsc},
    task::{AbortHandle, JoinSet},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    budget::{self, Budget, PROGRESS, SHORT, Share},
    calls::Handshake,
    compute::LARGE_MESSAGE,
    config::Limits,
    fs::{Handles, Making},
    http::Streams,
    identity::Identity,
    outbox::{self, Acks, Goodbye, Out, Outbox, Responder},
    server::{POLICY, Server},
    supervise::supervised,
    watch::Watches,
};

/// How long a client gets to take what is left when its connection ends.
const FAREWELL: Duration = Duration::from_secs(2);

/// How long requests that were read before the end of input may take to be answered.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// WebSocket close codes.
const NORMAL: u16 = 1000;
const TOO_LONG: u16 = 1009;
const INTERNAL: u16 = 1011;
const TRY_AGAIN: u16 = 1013;

/// Why a connection ends that met a panic.
const FAILED: &str = "the server failed on a request; its log says why";

/// A connection as it comes from a transport.
pub(crate) struct Link {
    pub(crate) way: Way,
    pub(crate) identity: Identity,
}

/// What a connection runs over.
pub(crate) enum Way {
    Wire { reader: FrameReader, writer: WriteHalf, framing: Framing, source: Source },
    Memory(ServerEnd),
}

/// The incoming side of a connection.
enum Reader {
    Wire(FrameReader, Source),
    Memory(mpsc::Receiver<ToServer>),
}

impl Reader {
    fn transport(&self) -> &'static str {
        match self {
            Reader::Wire(_, Source::WebSocket) => "websocket",
            Reader::Wire(_, Source::Unix) => "unix",
            Reader::Wire(_, Source::Stdio) => "stdio",
            Reader::Memory(_) => "memory",
        }
    }

    /// Tells whether the client may still listen when nothing can be read any more.
    fn is_half(&self) -> bool {
        matches!(self, Reader::Wire(_, Source::Stdio | Source::Unix))
    }

    /// Takes what still comes: a TCP socket that is closed with unread bytes takes our last words with it.
    async fn drain(&mut self, stop: Stop) {
        match (self, stop) {
            (Reader::Wire(reader, _), Stop::Violation) => reader.discard().await,
            (Reader::Wire(reader, Source::WebSocket), _) => {
                loop {
                    match reader.next().await {
                        Incoming::End | Incoming::Failed(_) => break,
                        // No memory is kept for what nobody will read.
                        Incoming::Long { .. } => break reader.discard().await,
                        _ => {}
                    }
                }
            }
            (Reader::Wire(..) | Reader::Memory(_), _) => {}
        }
    }
}

/// What the calls of one connection share.
pub(crate) struct Connection {
    pub(crate) server: Arc<Server>,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) identity: Identity,
    pub(crate) handshake: Handshake,
    /// Bounds what runs at once.
    pub(crate) slots: Arc<Semaphore>,
    /// Calls that take their time; they end with the connection.
    pub(crate) running: JoinSet<()>,
    /// How to cancel them.
    pub(crate) cancels: Vec<(RequestId, AbortHandle)>,
    /// Ends parked reads and waits when the client sends no more.
    pub(crate) ending: CancellationToken,
    /// Bounds waits for a text in the output.
    pub(crate) searches: Arc<Semaphore>,
    /// Bounds file work, of which some may hang.
    pub(crate) file_slots: Arc<Semaphore>,
    /// Bounds large answers in the making.
    pub(crate) making: Making,
    pub(crate) handles: Handles,
    pub(crate) watches: Watches,
    pub(crate) streams: Streams,
}

/// Why the reader stopped.
enum Stop {
    /// The client sends no more but may still listen.
    EndOfInput,
    /// We or the client said goodbye.
    Goodbye,
    /// The client broke the framing: what follows makes no sense.
    Violation,
    /// Nobody is there any more.
    Lost,
}

/// Serves one connection until it ends; then its session is detached.
pub(crate) async fn run(server: Arc<Server>, link: Link) {
    let Link { way, identity } = link;
    let (mut reader, out) = match way {
        Way::Wire { reader, writer, framing, source } => {
            (Reader::Wire(reader.announcing(SHORT as usize), source), Out::wire(framing, writer))
        }
        Way::Memory(ServerEnd { sender, receiver }) => (Reader::Memory(receiver), Out::memory(sender)),
    };
    let acks = if out.has_pings() { Acks::Ping } else { Acks::Lag };
    let (form, limits) = (out.form(), server.limits().clone());
    let (shared, answers) = (server.shared(), Arc::clone(server.answers()));
    let outbox = server.connect(|id| Arc::new(Outbox::new(id, acks, form, limits.clone(), shared)));
    let writing = tokio::spawn(supervised(write(Arc::clone(&outbox), out, limits, answers)));
    let slots = Arc::new(Semaphore::new(server.limits().concurrent_requests));
    let searches = Arc::new(Semaphore::new(server.limits().output_waits));
    let file_slots = Arc::new(Semaphore::new(server.limits().file_requests));
    let making = Making::new(server.limits());
    let streams = Streams::new(server.limits());
    let mut connection = Connection {
        server,
        outbox,
        identity,
        handshake: Handshake::Expected,
        slots,
        running: JoinSet::new(),
        cancels: Vec::new(),
        ending: CancellationToken::new(),
        searches,
        file_slots,
        making,
        handles: Handles::default(),
        watches: Watches::default(),
        streams,
    };
    tracing::info!(connection = connection.outbox.id, transport = reader.transport(), "connection opened");
    let stop = connection.read(&mut reader).await;
    connection.end(&stop, reader.is_half()).await;
    let (outbox, server) = (Arc::clone(&connection.outbox), Arc::clone(&connection.server));
    drop(connection);
    let _ = tokio::time::timeout(FAREWELL, async {
        let _ = writing.await;
        reader.drain(stop).await;
    })
    .await;
    server.disconnect(outbox.id);
    outbox.close();
    tracing::info!(connection = outbox.id, "connection closed");
}

impl Connection {
    async fn read(&mut self, reader: &mut Reader) -> Stop {
        let mut receiving = None::<Receiving>;
        loop {
            if receiving.is_none() {
                self.outbox.may_read().await;
            }
            let stop = match reader {
                Reader::Wire(reader, source) => {
                    let incoming = tokio::select! {
                        biased;
                        () = self.outbox.leaving() => return Stop::Goodbye,
                        // Before the next frame: pings and empty fragments may come without end.
                        () = Receiving::due(receiving.as_ref()) => {
                            let period = self.server.limits().slow_transfer;
                            let len = reader.unfinished_len();
                            if len <= SHORT as usize {
                                // It was a blank line, which is no message.
                                receiving = None;
                            }
                            if receiving.as_mut().is_some_and(|receiving| !receiving.gets_on(len, period)) {
                                return self.too_slow(period, *source);
                            }
                            continue;
                        }
                        incoming = reader.next() => incoming,
                    };
                    if let Incoming::Long { max_len } = incoming {
                        // Of a blank line, if any: nobody waits for a share while it holds one.
                        drop(receiving.take());
                        // Nothing is read meanwhile: what a client sends beyond this waits on its side.
                        let share = tokio::select! {
                            () = self.outbox.leaving() => return Stop::Goodbye,
                            share = self.server.incoming().take(max_len as u64) => share,
                        };
                        let len = reader.unfinished_len();
                        receiving = Some(Receiving::new(share, len, self.server.limits().slow_transfer));
                        continue;
                    }
                    let is_message = !matches!(incoming, Incoming::Ping(_) | Incoming::Pong(_));
                    let stop = self.frame(incoming, *source).await;
                    if is_message {
                        // Parsed by now.
                        receiving = None;
                    }
                    stop
                }
                Reader::Memory(values) => {
                    let value = tokio::select! {
                        biased;
                        () = self.outbox.leaving() => return Stop::Goodbye,
                        value = values.recv() => value,
                    };
                    self.value(value).await
                }
            };
            if let Some(stop) = stop {
                return stop;
            }
            self.reap();
        }
    }

    /// Takes what came over a wire; returns why nothing more is to be read, if so.
    async fn frame(&mut self, incoming: Incoming, source: Source) -> Option<Stop> {
        if !matches!(incoming, Incoming::End | Incoming::Failed(_)) {
            self.outbox.heard();
        }
        match incoming {
            Incoming::Message(bytes) => self.message(bytes, source).await,
            Incoming::TooLong { limit } => return self.too_long(limit, source),
            Incoming::NoMemory { .. } => return self.no_memory(source),
            // The reader has taken note.
            Incoming::Long { .. } => {}
            Incoming::Ping(payload) => self.outbox.pong(payload),
            Incoming::Pong(payload) => self.pong(&payload),
            Incoming::Close { code, .. } => {
                self.outbox.say_goodbye(code.unwrap_or(NORMAL), "");
                return Some(Stop::Goodbye);
            }
            Incoming::Violation { code, reason } => {
                self.outbox.say_goodbye(code, reason);
                return Some(Stop::Violation);
            }
            Incoming::End => {
                return Some(if source == Source::WebSocket { Stop::Lost } else { Stop::EndOfInput });
            }
            Incoming::Failed(error) => {
                tracing::debug!(connection = self.outbox.id, error = %error, "connection lost");
                return Some(Stop::Lost);
            }
        }
        None
    }

    /// Takes what a client in this process said; without an end of its own, the link is gone.
    async fn value(&mut self, value: Option<ToServer>) -> Option<Stop> {
        let Some(value) = value else { return Some(Stop::Lost) };
        self.outbox.heard();
        match value {
            ToServer::Call { id, call } => {
                let responder = Responder::new(&self.outbox, id.clone(), outbox::of_call(&call));
                self.call(id, call, responder).await;
            }
            ToServer::Note(note) => self.note(note),
        }
        None
    }

    async fn message(&mut self, bytes: Bytes, source: Source) {
        let len = bytes.len();
        let parsed = if len > LARGE_MESSAGE {
            self.server.compute().run(move || Parsed::of(&bytes)).await
        } else {
            Parsed::of(&bytes)
        };
        match parsed {
            Parsed::Malformed(malformed) => self.complain(&malformed.into_error(source)),
            Parsed::NoMemory { id } => {
                let error = RpcError::new(
                    ErrorKind::LimitExceeded,
                    format!("the server has no memory for a request of {len} bytes"),
                );
                self.outbox.push_error(&id, &error.with_hint("send less at once, or try again later"));
            }
            Parsed::Request { id, call } => {
                let responder = Responder::new(&self.outbox, id.clone(), len);
                match *call {
                    Ok(call) => self.call(id, call, responder).await,
                    Err(error) => responder.error(&error.into()),
                }
            }
            Parsed::Note(note) => self.note(note),
            Parsed::UnexpectedNote { method } => {
                self.violation(&format!("unexpected notification `{method}`"));
            }
            Parsed::Response { id } => {
                self.violation(&format!("response to request {id}, which was never sent"));
            }
        }
    }

    fn note(&mut self, note: ClientNote) {
        match note {
            ClientNote::Initialized(_) => {
                if !self.handshake.complete() {
                    self.violation("`initialized` before `initialize`");
                }
            }
            ClientNote::RequestCancel(cancel) if self.handshake.enabled(Capability::Cancel) => {
                self.cancel(&cancel.id);
            }
            ClientNote::FlowAck(ack) if self.handshake.enabled(Capability::Acks) => {
                self.outbox.acknowledged(ack.mark);
            }
            ClientNote::FlowConsumed(consumed) if self.handshake.enabled(Capability::Consumed) => {
                let session = self.handshake.session();
                if let Some(process) = session.and_then(|session| session.process(&consumed.process_id)) {
                    process.consumed(self.outbox.id, consumed.seq);
                }
            }
            ClientNote::RequestCancel(_) => {
                self.violation("`request/cancel` without the capability `cancel`");
            }
            ClientNote::FlowAck(_) => self.violation("`flow/ack` without the capability `acks`"),
            ClientNote::FlowConsumed(_) => {
                self.violation("`flow/consumed` without the capability `consumed`");
            }
            ClientNote::FlowBodyConsumed(consumed) if self.handshake.enabled(Capability::Consumed) => {
                self.streams.consumed(&consumed.request_id, consumed.seq);
            }
            ClientNote::FlowBodyConsumed(_) => {
                self.violation("`flow/bodyConsumed` without the capability `consumed`");
            }
        }
    }

    fn cancel(&mut self, id: &RequestId) {
        self.reap();
        let running = self.cancels.iter().rposition(|(running, _)| running == id);
        let is_found = match running {
            Some(index) => {
                self.cancels.remove(index).1.abort();
                true
            }
            None => self.streams.cancel(id, false),
        };
        let connection = self.outbox.id;
        let process = self.outbox.input_of(id);
        if process.is_some_and(|process| process.cancel(|responder| responder.is_for(connection, id))) {
            return;
        }
        // Of a request that has its answer only a stream can be left.
        if !self.outbox.cancel(id) && !is_found {
            self.streams.cancel(id, true);
        }
    }

    /// Runs a call that may take its time, beside the others.
    pub(crate) fn run_beside(&mut self, id: RequestId, call: impl Future<Output = ()> + Send + 'static) {
        let handle = self.running.spawn(async {
            // Its responder has answered.
            let _ = supervised(call).await;
        });
        self.cancels.push((id, handle));
    }

    /// Runs what goes on after its request was answered; if it panics, only the end of the connection tells the client.
    pub(crate) fn run_on(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        let outbox = Arc::clone(&self.outbox);
        self.running.spawn(async move {
            if supervised(task).await.is_err() {
                outbox.say_goodbye(INTERNAL, FAILED);
            }
        });
    }

    fn reap(&mut self) {
        while self.running.try_join_next().is_some() {}
        self.cancels.retain(|(_, handle)| !handle.is_finished());
    }

    fn pong(&self, payload: &[u8]) {
        if let Ok(mark) = payload.try_into() {
            self.outbox.acknowledged(u64::from_be_bytes(mark));
        }
    }

    fn too_long(&self, limit: usize, source: Source) -> Option<Stop> {
        let message = format!("message is longer than {limit} bytes; send it in several");
        if source == Source::WebSocket {
            self.outbox.say_goodbye(TOO_LONG, message);
            return Some(Stop::Violation);
        }
        self.complain(&RpcError::new(ErrorKind::LimitExceeded, message));
        None
    }

    fn no_memory(&self, source: Source) -> Option<Stop> {
        let message =
            "the server has no memory for a message of this length; send less at once, or try again later";
        if source == Source::WebSocket {
            self.outbox.say_goodbye(TRY_AGAIN, message);
            return Some(Stop::Violation);
        }
        self.complain(&RpcError::new(ErrorKind::LimitExceeded, message));
        None
    }

    /// Ends a connection that keeps memory for a message which does not come.
    fn too_slow(&self, period: Duration, source: Source) -> Stop {
        let message = format!(
            "less than 1 MiB of a long message came in {period:?} while others waited to send theirs; send it in shorter ones"
        );
        tracing::debug!(connection = self.outbox.id, error = message, "connection closed");
        if source != Source::WebSocket {
            self.complain(&RpcError::new(ErrorKind::LimitExceeded, message.as_str()));
        }
        self.outbox.say_goodbye(TRY_AGAIN, message);
        Stop::Violation
    }

    fn complain(&self, error: &RpcError) {
        self.outbox.push_error(&RequestId::MALFORMED, error);
    }

    fn violation(&self, what: &str) {
        tracing::debug!(connection = self.outbox.id, error = what, "connection closed for a violation");
        self.outbox.say_goodbye(POLICY, what);
    }

    async fn end(&mut self, stop: &Stop, may_listen: bool) {
        if let Stop::EndOfInput = stop {
            self.finish().await;
        }
        let connection = self.outbox.id;
        self.outbox.let_go();
        for process in self.outbox.inputs() {
            process.cancel(|responder| responder.outbox().id == connection);
        }
        let session = self.handshake.session().cloned();
        if let Some(session) = session {
            self.server.detach(&session, self.outbox.id);
        }
        for session in self.handshake.observed() {
            session.unobserve(self.outbox.id);
        }
        self.running.shutdown().await;
        self.close_files();
        match stop {
            Stop::Lost if !may_listen => self.outbox.close(),
            Stop::Lost | Stop::EndOfInput | Stop::Goodbye | Stop::Violation => {
                self.outbox.say_goodbye(NORMAL, "");
            }
        }
    }

    /// Answers what was asked before the end of input; whoever only waits is told that it is over.
    async fn finish(&mut self) {
        self.ending.cancel();
        let answered = async {
            while self.running.join_next().await.is_some() {}
            self.outbox.all_answered().await;
        };
        let _ = tokio::time::timeout(LAST_ANSWERS, answered).await;
    }
}

impl Drop for Connection {
    /// Sees to it that a defect of ours ends the one connection that met it, and leaves its session to be resumed.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let connection = self.outbox.id;
        if let Some(session) = self.handshake.session() {
            self.server.detach(session, connection);
        }
        for session in self.handshake.observed() {
            session.unobserve(connection);
        }
        self.outbox.say_goodbye(INTERNAL, FAILED);
        self.server.disconnect(connection);
    }
}

/// A long message on its way, with the memory that is kept for it.
struct Receiving {
    share: Share,
    /// How much of it had come when it was last looked at.
    len: usize,
    next_look: Instant,
}

impl Receiving {
    fn new(share: Share, len: usize, period: Duration) -> Self {
        Receiving { share, len, next_look: Instant::now() + period }
    }

    /// Waits until it is to be looked at again.
    async fn due(receiving: Option<&Self>) {
        match receiving {
            Some(receiving) => tokio::time::sleep_until(receiving.next_look).await,
            None => std::future::pending().await,
        }
    }

    /// Tells whether enough has come, or nobody else waits for the memory.
    fn gets_on(&mut self, len: usize, period: Duration) -> bool {
        let is_slow = (len.saturating_sub(self.len) as u64) < PROGRESS;
        (self.len, self.next_look) = (len, Instant::now() + period);
        !is_slow || !self.share.is_wanted()
    }
}

/// How a client takes long answers, looked at now and then while something is being sent.
struct Taking {
    /// How much it had taken at the last look, if it was owed a long answer then.
    written: Option<u64>,
    next_look: Instant,
}

impl Taking {
    /// Begins anew: nothing is owed.
    fn new() -> Self {
        Taking { written: None, next_look: Instant::now() }
    }

    /// Tells whether the client has taken enough since the last look, or was not owed a long answer all the time.
    fn gets_on(&mut self, outbox: &Outbox, out: &Out, period: Duration) -> bool {
        let written = outbox.owes_more_than(SHORT, out).then(|| outbox.written());
        let is_slow = self.written.zip(written).is_some_and(|(before, now)| now < before + PROGRESS);
        *self = Taking { written, next_look: Instant::now() + period };
        !is_slow
    }
}

/// Closes an outbox, however its writer ends.
struct Closing(Arc<Outbox>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// What a client said.
enum Parsed {
    Malformed(Malformed),
    /// There is no memory for what it says.
    NoMemory {
        id: RequestId,
    },
    Request {
        id: RequestId,
        call: Box<Result<Call, ParseError>>,
    },
    Note(ClientNote),
    UnexpectedNote {
        method: String,
    },
    Response {
        id: RequestId,
    },
}

impl Parsed {
    fn of(bytes: &[u8]) -> Self {
        match Message::parse(bytes, MessageLimits::WIRE) {
            Err(malformed) => Parsed::Malformed(malformed),
            // What it says is copied out of it. To see at once whether there is memory for that.
            Ok(Message::Request { id, .. })
                if bytes.len() > LARGE_MESSAGE && !budget::has_memory(bytes.len()) =>
            {
                Parsed::NoMemory { id }
            }
            Ok(Message::Request { id, method, params }) => {
                Parsed::Request { id, call: Box::new(Call::parse(&method, params)) }
            }
            Ok(Message::Notification { method, params }) => match ClientNote::parse(&method, params) {
                Ok(note) => Parsed::Note(note),
                Err(_) => Parsed::UnexpectedNote { method: method.into_owned() },
            },
            Ok(Message::Response { id, .. }) => Parsed::Response { id },
        }
    }
}

/// Empties the outbox into the connection until it ends.
async fn write(outbox: Arc<Outbox>, mut out: Out, limits: Limits, answers: Arc<Budget>) {
    let closing = Closing(Arc::clone(&outbox));
    let mut taking = Taking::new();
    let goodbye = loop {
        if let Some(goodbye) = outbox.fill(&mut out) {
            break Some(goodbye);
        }
        if outbox.is_closed() {
            break None;
        }
        if out.is_empty() {
            out.reset_if_idle();
            taking = Taking::new();
            tokio::select! {
                () = outbox.bell() => {}
                () = tokio::time::sleep(limits.keep_alive), if out.has_pings() => out.ping(b""),
            }
            continue;
        }
        let (before, period) = (out.len(), limits.slow_transfer);
        let is_sent = tokio::select! {
            biased;
            is_sent = out.send() => is_sent,
            // Once it is over, a client that takes nothing has a moment left.
            () = overdue(&outbox) => false,
            () = outbox.stalled() => {
                let reason = format!("nothing was read for {:?} while answers were waiting", limits.stalled_writer);
                outbox.say_goodbye(POLICY, reason.as_str());
                break Some(Goodbye { code: POLICY, reason });
            }
            () = tokio::time::sleep_until(taking.next_look) => {
                if taking.gets_on(&outbox, &out, period) || !answers.is_wanted() {
                    continue;
                }
                let reason =
                    format!("less than 1 MiB of long answers was taken in {period:?} while others waited for room");
                outbox.say_goodbye(TRY_AGAIN, reason.as_str());
                break Some(Goodbye { code: TRY_AGAIN, reason });
            }
        };
        if !is_sent {
            break None;
        }
        outbox.progress(before.saturating_sub(out.len()), out.has_unfinished());
    };
    if let Some(goodbye) = goodbye {
        let _ = tokio::time::timeout(FAREWELL, out.farewell(goodbye)).await;
    }
    drop(closing);
}

/// Waits until the farewell has taken too long.
async fn overdue(outbox: &Outbox) {
    outbox.leaving().await;
    tokio::time::sleep(FAREWELL).await;
}

//! One connection: a reader that turns messages into calls, and a writer that empties the outbox.
//!
//! A client in the same process sends values instead of messages; everything after the reader is the same.
//!
//! Reader and writer never wait for each other, except that the reader stops while too much waits to be sent.
//! Start at [`run`].

mod parsed;
mod receiving;
mod validity;
mod writing;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use remex_access::{
    account::FLOOR,
    audit::{self, PeerInfo},
    rate::Rate,
};
use remex_base::{compute::LARGE_MESSAGE, supervise::supervise};
use remex_proto::{ClientNote, ErrorKind, RequestId, RpcError, binary, message::Source};
use remex_rpc::{
    FrameReader, Framing, Incoming, WriteHalf,
    memory::{ServerEnd, ToServer},
};
use tokio::{sync::mpsc, time::Instant};

use crate::{
    areas::context::FAILED,
    calls::Calls,
    outbox::{
        self, Acks, Encoding, Outbox, Responder, Sink,
        close_code::{INTERNAL, NORMAL, POLICY, TOO_LONG, TRY_AGAIN},
    },
    sessions::session::SessionRegistry,
};

use parsed::Parsed;
use receiving::Receiving;
pub(crate) use validity::Validity;
use writing::write;

/// Hint for a message that the server has no memory for.
const SEND_LESS: &str = "send less at once, or try again later";

/// How long a client has to read pending messages when its connection closes.
const CLOSE_GRACE: Duration = Duration::from_secs(2);

/// How long requests received before the end of input may take to be answered.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// A connection as a transport delivers it.
pub(crate) struct Link {
    pub(crate) transport: Transport,
    pub(crate) validity: Validity,
    /// The address of the peer, `unix`, `stdio` or `memory`.
    pub(crate) peer: Arc<str>,
}

/// The transport of a connection.
pub(crate) enum Transport {
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

    /// Returns whether the client may still read after it has stopped sending.
    fn is_half(&self) -> bool {
        matches!(self, Reader::Wire(_, Source::Stdio | Source::Unix))
    }

    /// Reads and discards what still arrives: closing a TCP socket with unread bytes would discard our last
    /// messages.
    async fn drain(&mut self, stop: Stop) {
        match (self, stop) {
            (Reader::Wire(reader, _), Stop::Violation) => reader.discard().await,
            (Reader::Wire(reader, Source::WebSocket), _) => {
                loop {
                    match reader.next().await {
                        Incoming::End | Incoming::Failed(_) => break,
                        // Discarded without buffering, because nothing will parse it.
                        Incoming::Long { .. } => break reader.discard().await,
                        _ => {}
                    }
                }
            }
            (Reader::Wire(..) | Reader::Memory(_), _) => {}
        }
    }
}

/// One connection, as its reader sees it.
struct Connection {
    sessions: Arc<SessionRegistry>,
    outbox: Arc<Outbox>,
    calls: Calls,
    /// Shared by all connections of the identity.
    rate: Arc<Rate>,
}

/// The reason why the reader stopped.
enum Stop {
    /// The client sends no more but may still read.
    EndOfInput,
    /// The server or the client closed the connection.
    Closed,
    /// The client broke the framing, so the rest cannot be parsed.
    Violation,
    /// The peer has disconnected.
    Lost,
}

/// Returns what serves one connection until it ends, then detaches its session.
pub(crate) fn run(sessions: Arc<SessionRegistry>, link: Link) -> impl Future<Output = ()> + Send {
    let Link { transport, mut validity, peer } = link;
    let (mut reader, sink) = match transport {
        Transport::Wire { reader, writer, framing, source } => {
            (Reader::Wire(reader.announcing(FLOOR), source), Sink::wire(framing, writer))
        }
        Transport::Memory(ServerEnd { sender, receiver }) => (Reader::Memory(receiver), Sink::memory(sender)),
    };
    let acks = if sink.has_pings() { Acks::Ping } else { Acks::Written };
    let host = Arc::clone(sessions.host());
    let (encoding, limits) = (sink.encoding(), host.limits());
    let account = host.accounts().of(&validity.credential().identity);
    let outbox = sessions
        .connections()
        .open(|id, shared| Outbox::new(id, acks, encoding, Arc::clone(&limits), shared.of(account)));
    host.notify_activity();
    let writing =
        tokio::spawn(supervise(write(Arc::clone(&outbox), sink, limits, Arc::clone(host.answers()))));
    let identity: Arc<str> = validity.credential().identity.to_string().into();
    let claims = validity.credential().identity.claims();
    let peer = Arc::new(PeerInfo { connection: outbox.id, peer, identity: Arc::clone(&identity), claims });
    let opened = Instant::now();
    host.metrics().connections.add(1);
    let mut calls = Calls::new(&sessions, &outbox, validity.credential().clone(), Arc::clone(&peer));
    calls.login = validity.login().cloned();
    let rate = sessions.rates().of(&validity.credential().identity);
    let mut connection = Connection { sessions, outbox: Arc::clone(&outbox), calls, rate };
    tracing::info!(connection = outbox.id, %identity, transport = reader.transport(), "connection opened");
    drop(identity);
    // Only this lives as long as the connection. An async function would have its arguments twice.
    async move {
        let stop = {
            let reading = connection.read(&mut reader);
            tokio::pin!(reading);
            tokio::select! {
                stop = &mut reading => stop,
                reason = validity.ended() => {
                    tracing::info!(connection = outbox.id, error = reason.as_str(), "connection closed");
                    outbox.request_close(POLICY, reason);
                    // Finishes the message it is at.
                    reading.await
                }
            }
        };
        connection.end(&stop, reader.is_half()).await;
        let sessions = Arc::clone(&connection.sessions);
        drop(connection);
        let _ = tokio::time::timeout(CLOSE_GRACE, async {
            let _ = writing.await;
            reader.drain(stop).await;
        })
        .await;
        sessions.connections().close(outbox.id);
        host.notify_activity();
        outbox.close();
        if host.audit().is_on() {
            host.audit().record(audit::connection(&peer, opened.elapsed(), outbox.written()));
        }
        tracing::info!(connection = outbox.id, identity = %peer.identity, "connection closed");
    }
}

impl Connection {
    async fn read(&mut self, reader: &mut Reader) -> Stop {
        let mut receiving = None::<Receiving>;
        let deadline = Instant::now() + self.sessions.host().limits().initialize_timeout;
        loop {
            if receiving.is_none() {
                self.outbox.wait_until_readable().await;
            }
            let stop = match reader {
                Reader::Wire(reader, source) => {
                    let incoming = tokio::select! {
                        biased;
                        () = self.outbox.wait_until_closing() => return Stop::Closed,
                        // Checked before the next frame, because pings and empty fragments may arrive without
                        // end.
                        () = Receiving::due(receiving.as_ref()) => {
                            let period = self.sessions.host().limits().slow_transfer;
                            let len = reader.unfinished_len();
                            if len <= FLOOR {
                                // It was a blank line, not a message.
                                receiving = None;
                                reader.announce_from(FLOOR);
                            }
                            if receiving.as_mut().is_some_and(|receiving| !receiving.is_progressing(len, period)) {
                                return self.on_slow_message(period, *source);
                            }
                            continue;
                        }
                        () = self.initialize_due(deadline, *source) => return self.on_no_initialize(*source),
                        incoming = reader.next() => incoming,
                    };
                    if let Incoming::Long { max_len } = incoming {
                        // A task must not wait for a share while it holds one.
                        drop(receiving.take());
                        // The server reads nothing while it waits, so backpressure reaches the client.
                        receiving = tokio::select! {
                            () = self.outbox.wait_until_closing() => return Stop::Closed,
                            begun = Receiving::begin(self.sessions.host(), &self.outbox, reader, max_len) => Some(begun),
                        };
                        continue;
                    }
                    let is_message = !matches!(incoming, Incoming::Ping(_) | Incoming::Pong(_));
                    let stop = self.on_frame(incoming, *source).await;
                    if self.accepts_binary() {
                        reader.accept_binary();
                    }
                    if is_message {
                        // The message has been parsed.
                        receiving = None;
                        reader.announce_from(FLOOR);
                    }
                    stop
                }
                Reader::Memory(values) => {
                    let value = tokio::select! {
                        biased;
                        () = self.outbox.wait_until_closing() => return Stop::Closed,
                        value = values.recv() => value,
                    };
                    self.on_value(value).await
                }
            };
            if let Some(stop) = stop {
                return stop;
            }
            self.calls.reap();
        }
    }

    /// Waits until a client has had its time to send `initialize`; forever once it has, and on stdio, where it keeps no
    /// one else out.
    async fn initialize_due(&self, deadline: Instant, source: Source) {
        if self.calls.is_initialized() || source == Source::Stdio {
            return std::future::pending().await;
        }
        tokio::time::sleep_until(deadline).await;
    }

    /// Handles what arrived over a wire; returns why reading must stop, if it must.
    async fn on_frame(&mut self, incoming: Incoming, source: Source) -> Option<Stop> {
        if !matches!(incoming, Incoming::End | Incoming::Failed(_)) {
            self.outbox.on_sign_of_life();
        }
        match incoming {
            Incoming::Message(bytes) => self.message(bytes, source).await,
            Incoming::TooLong { limit } => return self.too_long(limit, source),
            Incoming::NoMemory { .. } => return self.no_memory(source),
            // The reader has recorded it.
            Incoming::Long { .. } => {}
            Incoming::Ping(payload) => self.outbox.pong(payload),
            Incoming::Pong(payload) => self.pong(&payload),
            Incoming::Close { code, .. } => {
                self.outbox.request_close(code.unwrap_or(NORMAL), "");
                return Some(Stop::Closed);
            }
            Incoming::Violation { code, reason } => {
                self.outbox.request_close(code, reason);
                return Some(Stop::Violation);
            }
            Incoming::End => {
                return Some(if source == Source::WebSocket { Stop::Lost } else { Stop::EndOfInput });
            }
            Incoming::Failed(error) => {
                tracing::debug!(connection = self.outbox.id, identity = %self.calls.identity(), error = %error, "connection lost");
                return Some(Stop::Lost);
            }
        }
        None
    }

    /// Handles a value from a client in this process; `None` means that the link has closed.
    async fn on_value(&mut self, value: Option<ToServer>) -> Option<Stop> {
        let Some(value) = value else { return Some(Stop::Lost) };
        self.outbox.on_sign_of_life();
        match value {
            ToServer::Call { id, call, trace } => {
                if !self.turn().await {
                    return None;
                }
                let responder = Responder::new(&self.outbox, id.clone(), outbox::of_call(&call));
                self.calls.call(id, call, trace, responder).await;
            }
            ToServer::Note(note) => self.note(note),
        }
        None
    }

    /// Returns whether the client may send binary messages.
    fn accepts_binary(&self) -> bool {
        self.outbox.encoding() == Encoding::Binary
    }

    async fn message(&mut self, bytes: Bytes, source: Source) {
        let len = bytes.len();
        let is_binary = self.accepts_binary() && binary::is_binary(&bytes);
        let json_len = if is_binary { binary::json_len(&bytes) } else { len };
        let parse = if is_binary { Parsed::of_binary } else { |bytes: &Bytes| Parsed::of(bytes) };
        let parsed = if json_len > LARGE_MESSAGE {
            self.sessions.host().compute().run(move || parse(&bytes)).await
        } else {
            parse(&bytes)
        };
        match parsed {
            Parsed::Malformed(malformed) => self.complain(&malformed.into_error(source)),
            Parsed::NoMemory { id } => {
                let error = RpcError::new(
                    ErrorKind::LimitExceeded,
                    format!("the server has no memory for a request of {len} bytes"),
                );
                self.outbox.push_error(&id, &error.with_hint(SEND_LESS));
            }
            Parsed::Request { id, call, trace } => {
                let trace = trace.unwrap_or_else(|error| {
                    let identity = self.calls.identity();
                    tracing::debug!(connection = self.outbox.id, %identity, request = %id, %error, "trace ignored");
                    None
                });
                if !self.turn().await {
                    return;
                }
                let responder = Responder::new(&self.outbox, id.clone(), len);
                match *call {
                    Ok(call) => self.calls.call(id, call, trace.map(Box::new), responder).await,
                    Err(error) => responder.error(&error.into()),
                }
            }
            Parsed::Note(note) => self.note(note),
            Parsed::UnexpectedNote { method } => {
                self.violation(&format!("unexpected notification `{method}`"));
            }
            Parsed::Response { id, decision } => {
                if !self.outbox.on_response(&id, decision) {
                    self.violation(&format!("response to request {id}, which was never sent"));
                }
            }
        }
    }

    /// Waits until the identity may send another request, and reads nothing meanwhile; false if the connection closes.
    async fn turn(&self) -> bool {
        let Some(per_second) = self.sessions.host().limits().requests_per_second else { return true };
        let wait = self.rate.take(per_second, std::time::Instant::now());
        if !wait.is_zero() {
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.outbox.wait_until_closing() => return false,
            }
        }
        true
    }

    fn note(&mut self, note: ClientNote) {
        if let Err(violation) = self.calls.on_note(note) {
            self.violation(violation);
        }
    }

    fn pong(&self, payload: &[u8]) {
        if let Ok(mark) = payload.try_into() {
            self.outbox.acknowledged(u64::from_be_bytes(mark));
        }
    }

    fn too_long(&self, limit: usize, source: Source) -> Option<Stop> {
        let message = format!("message is longer than {limit} bytes");
        let error = RpcError::new(ErrorKind::LimitExceeded, message).with_hint("send it in several");
        if source == Source::WebSocket {
            self.outbox.request_close(TOO_LONG, error.to_string());
            return Some(Stop::Violation);
        }
        self.complain(&error);
        None
    }

    fn no_memory(&self, source: Source) -> Option<Stop> {
        let message = "the server has no memory for a message of this length";
        let error = RpcError::new(ErrorKind::LimitExceeded, message).with_hint(SEND_LESS);
        if source == Source::WebSocket {
            self.outbox.request_close(TRY_AGAIN, error.to_string());
            return Some(Stop::Violation);
        }
        self.complain(&error);
        None
    }

    /// Closes a connection that reserves memory for a message that does not arrive.
    fn on_slow_message(&self, period: Duration, source: Source) -> Stop {
        let message = format!(
            "received less than 1 MiB of a long message in {period:?} while other connections waited for memory"
        );
        tracing::debug!(connection = self.outbox.id, identity = %self.calls.identity(), error = message, "connection closed");
        let error = RpcError::new(ErrorKind::LimitExceeded, message).with_hint("send shorter messages");
        if source != Source::WebSocket {
            self.complain(&error);
        }
        self.outbox.request_close(TRY_AGAIN, error.to_string());
        Stop::Violation
    }

    /// Closes a connection whose client occupies a place for nothing.
    fn on_no_initialize(&self, source: Source) -> Stop {
        let time = self.sessions.host().limits().initialize_timeout;
        let error =
            RpcError::new(ErrorKind::Handshake, format!("no successful `initialize` within {time:?}"));
        tracing::debug!(connection = self.outbox.id, identity = %self.calls.identity(), %error, "connection closed");
        if source != Source::WebSocket {
            self.complain(&error);
        }
        self.outbox.request_close(POLICY, error.to_string());
        Stop::Closed
    }

    fn complain(&self, error: &RpcError) {
        self.outbox.push_error(&RequestId::MALFORMED, error);
    }

    fn violation(&self, what: &str) {
        tracing::debug!(
            connection = self.outbox.id,
            identity = %self.calls.identity(),
            error = what,
            "connection closed after a protocol violation"
        );
        self.outbox.request_close(POLICY, what);
    }

    async fn end(&mut self, stop: &Stop, may_listen: bool) {
        if let Stop::EndOfInput = stop {
            let _ = tokio::time::timeout(LAST_ANSWERS, self.calls.finish()).await;
        }
        self.calls.end().await;
        match stop {
            Stop::Lost if !may_listen => self.outbox.close(),
            Stop::Lost | Stop::EndOfInput | Stop::Closed | Stop::Violation => {
                self.outbox.request_close(NORMAL, "");
            }
        }
    }
}

impl Drop for Connection {
    /// After a panic, closes this connection only and leaves its session to be resumed.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        self.calls.detach();
        self.outbox.request_close(INTERNAL, FAILED);
        self.sessions.connections().close(self.outbox.id);
        self.sessions.host().notify_activity();
    }
}

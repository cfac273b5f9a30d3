//! The connection task of a client: it owns the connection, and reconnects after a disconnect.
//!
//! Start at [`start`].

use std::{sync::Arc, time::Duration};

use remex_proto::{
    Call, ErrorKind, Message, MessageLimits, RequestId, RpcError, TraceContext,
    call::{Initialized, Request as _},
    environment,
    error::SESSION_ATTACHED,
    initialize::{Capability, Initialize, PROTOCOL_VERSION, Reply as Welcome, Resume},
    message,
    session::TAKEN_OVER,
};
use remex_rpc::{
    FrameReader, Framing, Incoming, SendBuffer, WriteHalf,
    memory::{ClientEnd, ToClient, ToServer},
};
use tokio::{
    io::AsyncWriteExt,
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use crate::{
    ConnectionState, Error, Prompts, Session, SessionLost,
    base::error::{self, CONNECTING, is_unknown_session, usage},
    core::shared::{Body, Core, MessageForm, OutgoingItem, RawReply},
    transport::{
        dial::dial,
        link::{Link, Transport},
        program::Child,
    },
};

/// A send buffer is filled up to here before it is written.
const SEND_BYTES: usize = 64 << 10;

/// The first and the longest backoff between attempts; after a connection that lasted longer, the client reconnects at
/// once.
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const MAX_BACKOFF: Duration = Duration::from_secs(2);

/// The backoff after a program could not log in without the user: the host counts failed logins, and may lock the user out.
const LOGIN_BACKOFF: Duration = Duration::from_secs(60);

/// A server that sends but never answers counts as unresponsive after this many keep-alive timeouts.
const UNRESPONSIVE: u32 = 6;

/// How long closing a connection may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// WebSocket close code of an orderly end.
const NORMAL: u16 = 1000;

/// The id of the handshake; those of calls begin at 1.
const HANDSHAKE: RequestId = RequestId::Integer(0);

/// Makes the first connection, and starts the task that owns it.
pub(crate) async fn start(core: &Arc<Core>, closing: watch::Receiver<bool>) -> Result<JoinHandle<()>, Error> {
    let (link, welcome) = first_connection(core).await?;
    core.on_connected(&welcome, link.mode())?;
    let engine =
        Engine { core: Arc::clone(core), session: welcome.session_id, closing, backoff: Duration::ZERO };
    Ok(tokio::spawn(engine.run(link)))
}

/// Makes the first connection, with retries if the options ask for them.
async fn first_connection(core: &Core) -> Result<(Link, Welcome), Error> {
    let (began, mut backoff) = (Instant::now(), FIRST_BACKOFF);
    loop {
        let error = match connect_session(core).await {
            Ok(connected) => return Ok(connected),
            Err(error) => error,
        };
        let left = core.options.connect_retry.saturating_sub(began.elapsed());
        if !error.is_retryable() || left.is_zero() {
            return Err(error);
        }
        tracing::debug!(target = %core.target, error = %error, "connecting failed, trying again");
        // The last attempt begins at the end of the time.
        sleep(jittered(backoff).min(left)).await;
        backoff = (backoff * 2).min(MAX_BACKOFF);
    }
}

/// Makes a connection to the session that the options ask for.
async fn connect_session(core: &Core) -> Result<(Link, Welcome), Error> {
    let Session::Named(name) = &core.options.session else {
        let (link, welcome) = connect(core, &core.options.session, core.options.prompts).await?;
        return match &core.options.session {
            Session::Resume { id, .. } if !welcome.has_sessions() => {
                drop_link(link).await;
                Err(no_session(id))
            }
            _ => Ok((link, welcome)),
        };
    };
    // Between a resume and a start another client may create the session, so one of them may be needed twice.
    let resumed = resume(core, name).await?;
    if let Some(connected) = resumed {
        return Ok(connected);
    }
    match connect(core, &core.options.session, core.options.prompts).await {
        Err(error) if error.kind() == Some(ErrorKind::SessionNameTaken) => {
            resume(core, name).await?.ok_or(error)
        }
        connected => connected,
    }
}

fn no_session(id: &str) -> Error {
    usage(
        format!("cannot resume session `{id}`: a server of the oldest dialect has no sessions"),
        "start a new session, or use `remex serve` there",
    )
}

/// Resumes the session with this name; `None` if there is none.
async fn resume(core: &Core, name: &str) -> Result<Option<(Link, Welcome)>, Error> {
    let session = Session::Resume { id: name.to_owned(), takeover: false };
    match connect(core, &session, core.options.prompts).await {
        Ok(connected) => Ok(Some(connected)),
        Err(error) if is_unknown_session(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

struct Engine {
    core: Arc<Core>,
    session: String,
    closing: watch::Receiver<bool>,
    /// The backoff before the next attempt: doubled after each one, and reduced by the time that a connection lasted.
    backoff: Duration,
}

/// However the task ends, pending calls fail instead of waiting forever.
impl Drop for Engine {
    fn drop(&mut self) {
        if !matches!(*self.core.connection_state.borrow(), ConnectionState::Lost(_)) {
            self.core.on_lost(&SessionLost::Stopped);
        }
    }
}

/// Why a connection ended.
enum Ending {
    /// The owner disconnected.
    Closing,
    Disconnected(Error),
}

impl Engine {
    async fn run(mut self, mut link: Link) {
        let lost = loop {
            let connected = Instant::now();
            let end = self.run_connection(&mut link).await;
            self.backoff = self.backoff.saturating_sub(connected.elapsed());
            let error = match end {
                Ending::Closing => {
                    close(link, &self.core).await;
                    break SessionLost::Closed;
                }
                Ending::Disconnected(error) => error,
            };
            if self.core.has_ended() {
                drop_link(link).await;
                break SessionLost::Closed;
            }
            if let Error::Lost(lost) = error {
                drop_link(link).await;
                break lost;
            }
            if !self.core.welcome().has_sessions() {
                drop_link(link).await;
                break SessionLost::NotResumable { reason: error.what() };
            }
            tracing::debug!(session = %self.session, error = %error, "connection lost");
            self.core.on_disconnected(Instant::now(), &error);
            drop_link(link).await;
            let mut closing = self.closing.clone();
            let reconnected = tokio::select! {
                biased;
                reconnected = self.reconnect(error) => reconnected,
                _ = closing.wait_for(|closing| *closing) => Err(SessionLost::Closed),
            };
            match reconnected {
                Ok(reconnected) => link = reconnected,
                Err(lost) => break lost,
            }
        };
        tracing::debug!(session = %self.session, error = %lost, "session left");
        self.core.on_lost(&lost);
    }

    /// Sends and receives until the connection ends.
    async fn run_connection(&mut self, link: &mut Link) -> Ending {
        let core = &self.core;
        let disconnected = async {
            match &mut link.transport {
                Transport::Wire { reader, writer, framing } => tokio::select! {
                    biased;
                    error = receive(core, reader) => error,
                    error = send(core, writer, *framing) => error,
                    error = keep_alive(core) => error,
                },
                Transport::Memory(ClientEnd { sender, receiver }) => tokio::select! {
                    biased;
                    error = receive_values(core, receiver) => error,
                    error = send_values(core, sender) => error,
                },
            }
        };
        tokio::select! {
            biased;
            error = disconnected => Ending::Disconnected(error),
            _ = self.closing.wait_for(|closing| *closing) => Ending::Closing,
        }
    }

    /// Reconnects and resumes the session, with retries.
    async fn reconnect(&mut self, cause: Error) -> Result<Link, SessionLost> {
        let began = Instant::now();
        let limit = self.core.options.reconnect_timeout;
        let mut last = cause;
        let mut permit = self.core.prompt_permit.subscribe();
        self.core.prompt_permit.send_replace(false);
        loop {
            // There is time for an attempt afterwards, however little is left.
            let left = limit.saturating_sub(began.elapsed());
            let backoff = if needs_login(&last) { LOGIN_BACKOFF } else { self.backoff };
            // By now the terminal belongs to the running process, unless its owner gives it away.
            let prompts = tokio::select! {
                biased;
                Ok(_) = permit.wait_for(|permitted| *permitted) => Prompts::Allow,
                () = sleep(jittered(backoff).min(left / 2)) => Prompts::Refuse,
            };
            self.core.prompt_permit.send_replace(false);
            self.backoff = (self.backoff * 2).clamp(FIRST_BACKOFF, MAX_BACKOFF);
            let left = limit.saturating_sub(began.elapsed());
            let session = Session::Resume { id: self.session.clone(), takeover: false };
            match timeout(left, connect(&self.core, &session, prompts)).await {
                Err(_) => return Err(SessionLost::ReconnectTimedOut { after: limit, last: Box::new(last) }),
                Ok(Ok((link, welcome))) if welcome.session_id == self.session => {
                    return match self.core.on_connected(&welcome, link.mode()) {
                        Ok(()) => Ok(link),
                        Err(error) => Err(SessionLost::Rejected(Box::new(error))),
                    };
                }
                Ok(Ok(_)) => {
                    return Err(SessionLost::Forgotten {
                        message: "the server started another session".to_owned(),
                    });
                }
                Ok(Err(error)) => last = retryable(error)?,
            }
            self.core.on_attempt_failed(&last);
            tracing::debug!(session = %self.session, error = %last, elapsed = ?began.elapsed(), "reconnecting failed");
            if began.elapsed() + FIRST_BACKOFF >= limit {
                return Err(SessionLost::ReconnectTimedOut { after: limit, last: Box::new(last) });
            }
        }
    }
}

/// Returns the error if another attempt may succeed.
fn retryable(error: Error) -> Result<Error, SessionLost> {
    match error {
        error if is_unknown_session(&error) => Err(SessionLost::Forgotten { message: error.what() }),
        // The server has not detected the disconnect yet.
        Error::Refused(RpcError { code: SESSION_ATTACHED, .. }) => Ok(error),
        Error::Refused(_) | Error::Unauthorized { .. } | Error::Address { .. } | Error::Protocol { .. } => {
            Err(SessionLost::Rejected(Box::new(error)))
        }
        other => Ok(other),
    }
}

/// Returns whether the program of a connection cannot log in before the user has done something.
fn needs_login(error: &Error) -> bool {
    match error {
        Error::PromptRefused { .. } => true,
        Error::ProgramEnded { stderr, .. } => {
            stderr.contains("Permission denied (") || stderr.contains("Host key verification failed")
        }
        _ => false,
    }
}

/// Returns between half of the backoff and all of it, so that the clients of one server do not reconnect at once.
fn jittered(pause: Duration) -> Duration {
    let mut random = [0; 4];
    // Without random bytes they reconnect at once, which is acceptable.
    let _ = getrandom::fill(&mut random);
    let share = f64::from(u32::from_ne_bytes(random)) / f64::from(u32::MAX);
    pause.mul_f64(0.5 + share / 2.0)
}

/// Connects and performs the handshake, each within its timeout.
async fn connect(core: &Core, session: &Session, prompts: Prompts) -> Result<(Link, Welcome), Error> {
    let options = &core.options;
    let too_long = |what, after| Error::TimedOut { what, after };
    let mut link = timeout(options.connect_timeout, dial(&core.target, prompts))
        .await
        .map_err(|_| too_long(CONNECTING, options.connect_timeout))??;
    let (resume_session_id, takeover) = match session {
        Session::New | Session::Create(_) | Session::Named(_) => (Resume::New, None),
        Session::Resume { id, takeover } => (Resume::Session(id.clone()), takeover.then_some(true)),
    };
    let initialize = Initialize {
        client_name: options.name.clone(),
        resume_session_id,
        capabilities: Some(capabilities(&link)),
        takeover,
        detach_ttl_ms: options.detach_ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)),
        session_name: match session {
            Session::Create(name) | Session::Named(name) => Some(name.clone()),
            Session::New | Session::Resume { .. } => None,
        },
    };
    let limit = options.handshake_timeout;
    let prompt = link.child.as_ref().map(Child::prompt);
    let overdue = async {
        match prompt {
            Some(prompt) => prompt.handshake_overdue(limit).await,
            None => {
                sleep(limit).await;
                too_long(error::HANDSHAKE, limit)
            }
        }
    };
    let outcome = tokio::select! {
        biased;
        outcome = link.handshake(initialize, core.options.trace.as_ref()) => outcome,
        error = overdue => Err(HandshakeError::Answered(error)),
    };
    match outcome {
        Ok(mut welcome) => {
            if !welcome.has_sessions() {
                on_oldest_dialect(&mut welcome)?;
            }
            if let Some(child) = &mut link.child {
                child.connected().await;
            }
            Ok((link, welcome))
        }
        Err(HandshakeError::Closed(reason)) => Err(match &mut link.child {
            Some(child) => child.exit_error().await,
            None => disconnected(core, reason),
        }),
        Err(HandshakeError::Malformed { what, line }) => Err(match &link.child {
            Some(child) => child.unexpected_output_error(&line),
            None => Error::Protocol { what },
        }),
        Err(HandshakeError::Answered(error)) => Err(error),
    }
}

/// Checks the reply of a server without sessions: only the oldest dialect has none.
fn on_oldest_dialect(welcome: &mut Welcome) -> Result<(), Error> {
    if welcome.protocol_version != PROTOCOL_VERSION {
        let what = "cannot decode the response to `initialize`: missing field `sessionId`".to_owned();
        return Err(Error::Protocol { what });
    }
    // Processes end with the connection.
    welcome.detach_ttl_ms = Some(0);
    Ok(())
}

fn capabilities(link: &Link) -> std::collections::BTreeSet<Capability> {
    let mut wanted = [Capability::ProcessGap, Capability::Cancel, Capability::Consumed].into();
    // On a WebSocket, ping and pong serve this purpose.
    if !matches!(link.transport, Transport::Wire { framing: Framing::WebSocket(_), .. }) {
        std::collections::BTreeSet::insert(&mut wanted, Capability::Acks);
    }
    wanted
}

enum HandshakeError {
    /// The server closed the connection.
    Closed(String),
    /// The server sent an invalid message.
    Malformed {
        what: String,
        line: Vec<u8>,
    },
    Answered(Error),
}

impl Link {
    fn mode(&self) -> MessageForm {
        match self.transport {
            Transport::Wire { .. } => MessageForm::Wire,
            Transport::Memory(_) => MessageForm::Memory,
        }
    }

    async fn handshake(
        &mut self,
        initialize: Initialize,
        trace: Option<&TraceContext>,
    ) -> Result<Welcome, HandshakeError> {
        match &mut self.transport {
            Transport::Wire { reader, writer, framing } => {
                let mut out = SendBuffer::new(*framing);
                out.message(256, |buffer| {
                    message::write_request(buffer, &HANDSHAKE, &initialize);
                    if let Some(trace) = trace {
                        message::write_trace(buffer, trace);
                    }
                });
                write_out(writer, &mut out).await?;
                let welcome = read_welcome(reader, writer, &mut out).await?;
                out.message(64, |buffer| message::write_notification(buffer, &Initialized {}));
                write_out(writer, &mut out).await?;
                Ok(welcome)
            }
            Transport::Memory(ClientEnd { sender, receiver }) => {
                let closed = || HandshakeError::Closed("the server has ended".to_owned());
                let call = ToServer::Call {
                    id: HANDSHAKE,
                    call: Call::Initialize(initialize),
                    trace: trace.cloned().map(Box::new),
                };
                sender.send(call).await.map_err(|_| closed())?;
                let outcome = loop {
                    match receiver.recv().await.ok_or_else(closed)? {
                        ToClient::Answer { id: HANDSHAKE, outcome } => break outcome,
                        ToClient::Answer { .. } | ToClient::Note(_) => {}
                        ToClient::Close { reason } => return Err(HandshakeError::Closed(reason)),
                    }
                };
                let welcome = outcome.map(RawReply::Value).map_err(Error::Refused);
                let welcome = welcome
                    .and_then(|arrived| arrived.decode(Initialize::METHOD))
                    .map_err(HandshakeError::Answered)?;
                sender.send(ToServer::Note(Initialized {}.into())).await.map_err(|_| closed())?;
                Ok(welcome)
            }
        }
    }
}

async fn read_welcome(
    reader: &mut FrameReader,
    writer: &mut WriteHalf,
    out: &mut SendBuffer,
) -> Result<Welcome, HandshakeError> {
    let nonsense = |what: String| HandshakeError::Answered(Error::Protocol { what });
    loop {
        let bytes = match reader.next().await {
            Incoming::Message(bytes) => bytes,
            Incoming::Ping(payload) => {
                out.pong(&payload);
                write_out(writer, out).await?;
                continue;
            }
            Incoming::Pong(_) => continue,
            other => return Err(HandshakeError::Closed(describe(&other))),
        };
        match Message::parse(&bytes, MessageLimits::FROM_SERVER) {
            Ok(Message::Response { id: HANDSHAKE, outcome: Ok(result) }) => {
                return serde_json::from_str(result).map_err(|error| {
                    nonsense(format!("cannot decode the response to `initialize`: {error}"))
                });
            }
            Ok(Message::Response { id: HANDSHAKE | RequestId::MALFORMED, outcome: Err(error) }) => {
                let error: RpcError = serde_json::from_str(error)
                    .map_err(|error| nonsense(format!("cannot decode an error response: {error}")))?;
                return Err(HandshakeError::Answered(error.into()));
            }
            Ok(_) => {}
            Err(_) if reader.has_ended() => return Err(HandshakeError::Closed(describe(&Incoming::End))),
            Err(malformed) => {
                return Err(HandshakeError::Malformed { what: malformed.to_string(), line: bytes.to_vec() });
            }
        }
    }
}

async fn write_out(writer: &mut WriteHalf, out: &mut SendBuffer) -> Result<(), HandshakeError> {
    while !out.is_empty() {
        match writer.write(out.pending()).await {
            Ok(len) if len > 0 => out.advance(len),
            Ok(_) => return Err(HandshakeError::Closed("the server accepts no data".to_owned())),
            Err(error) => return Err(HandshakeError::Closed(error.to_string())),
        }
    }
    writer.flush().await.map_err(|error| HandshakeError::Closed(error.to_string()))
}

/// Describes how a connection ended.
fn describe(incoming: &Incoming) -> String {
    match incoming {
        Incoming::Close { code, reason } if reason.is_empty() => {
            format!("the server closed the connection (code {})", code.unwrap_or(NORMAL))
        }
        Incoming::Close { reason, .. } => format!("the server closed the connection: {reason}"),
        Incoming::Violation { reason, .. } => format!("the server sent an invalid frame: {reason}"),
        Incoming::TooLong { limit } => format!("the server sent a message of more than {limit} bytes"),
        Incoming::NoMemory { .. } => "out of memory for a message from the server".to_owned(),
        Incoming::Failed(error) => error.to_string(),
        Incoming::End
        | Incoming::Message(_)
        | Incoming::Long { .. }
        | Incoming::Ping(_)
        | Incoming::Pong(_) => "the server closed the connection".to_owned(),
    }
}

/// Handles incoming messages until the connection ends.
async fn receive(core: &Core, reader: &mut FrameReader) -> Error {
    loop {
        let incoming = reader.next().await;
        core.on_receive();
        match incoming {
            Incoming::Message(bytes) => {
                match core.on_message(&bytes) {
                    Ok(()) => {}
                    // A truncated message at the end of the stream.
                    Err(Error::Protocol { .. }) if reader.has_ended() => {
                        return disconnected(core, describe(&Incoming::End));
                    }
                    Err(Error::Protocol { what }) => {
                        return core
                            .on_protocol_error(&what)
                            .err()
                            .map_or(Error::Protocol { what }, Error::Lost);
                    }
                    Err(error) => return error,
                }
            }
            Incoming::Ping(payload) => core.pong(payload),
            Incoming::Pong(_) => core.on_answer(),
            Incoming::Close { reason, .. } if reason == TAKEN_OVER => return SessionLost::TakenOver.into(),
            other => return disconnected(core, describe(&other)),
        }
    }
}

fn disconnected(core: &Core, reason: String) -> Error {
    Error::unreachable(core.target.to_string(), reason)
}

async fn receive_values(core: &Core, receiver: &mut tokio::sync::mpsc::Receiver<ToClient>) -> Error {
    while let Some(value) = receiver.recv().await {
        if let Err(error) = core.on_value(value) {
            return error;
        }
    }
    disconnected(core, "the server has ended".to_owned())
}

/// Sends queued messages until that fails.
async fn send(core: &Core, writer: &mut WriteHalf, framing: Framing) -> Error {
    let mut out = SendBuffer::new(framing);
    loop {
        let mut item = Some(core.next_item().await);
        while let Some(next) = item.take() {
            append(next, &mut out, framing);
            if out.len() < SEND_BYTES {
                item = core.take_item();
            }
        }
        if let Err(HandshakeError::Closed(reason)) = write_out(writer, &mut out).await {
            return disconnected(core, reason);
        }
        out.reset_if_idle();
    }
}

fn append(item: OutgoingItem, out: &mut SendBuffer, framing: Framing) {
    match item {
        OutgoingItem::Pong(payload) => out.pong(&payload),
        OutgoingItem::Ping if framing == Framing::Lines => {
            let probe = environment::GetStatus {};
            out.message(64, |buffer| message::write_request(buffer, &HANDSHAKE, &probe));
        }
        OutgoingItem::Ping => out.ping(b""),
        OutgoingItem::Note(note) => out.message(128, |buffer| note.write(buffer)),
        OutgoingItem::Refusal(id) => {
            let error = RpcError::new(ErrorKind::UnknownMethod, "this client accepts no requests");
            out.message(128, |buffer| message::write_error(buffer, &id, &error));
        }
        OutgoingItem::Request(id, Body::Wire(body)) => {
            let id = RequestId::Integer(id.cast_signed());
            out.message(body.len() + 32, |buffer| {
                message::write_request_with(buffer, &id, |buffer| buffer.extend_from_slice(&body));
            });
        }
        OutgoingItem::Request(_, Body::Memory(_)) => {}
    }
}

async fn send_values(core: &Core, sender: &tokio::sync::mpsc::Sender<ToServer>) -> Error {
    loop {
        let value = match core.next_item().await {
            OutgoingItem::Note(note) => ToServer::Note(note),
            OutgoingItem::Request(id, Body::Memory(Some((call, trace)))) => {
                ToServer::Call { id: RequestId::Integer(id.cast_signed()), call: *call, trace }
            }
            OutgoingItem::Request(_, _)
            | OutgoingItem::Refusal(_)
            | OutgoingItem::Ping
            | OutgoingItem::Pong(_) => continue,
        };
        if sender.send(value).await.is_err() {
            return disconnected(core, "the server has ended".to_owned());
        }
    }
}

/// Pings the server regularly, and returns when it does not answer.
///
/// Unsolicited messages show that the server is alive, not that it receives: they extend the timeout, but not forever.
async fn keep_alive(core: &Core) -> Error {
    let silence = core.options.keep_alive_timeout;
    loop {
        sleep(core.options.keep_alive_interval).await;
        let asked = Instant::now();
        let answers = core.ping();
        loop {
            let heard = core.received();
            sleep(silence).await;
            if core.answers() != answers {
                break;
            }
            if core.received() == heard || asked.elapsed() >= silence * UNRESPONSIVE {
                return disconnected(core, format!("the server did not respond for {:?}", asked.elapsed()));
            }
        }
    }
}

/// Sends the remaining messages and closes the connection.
async fn close(mut link: Link, core: &Core) {
    let remaining = async {
        match &mut link.transport {
            Transport::Wire { writer, framing, .. } => {
                let mut out = SendBuffer::new(*framing);
                while let Some(item) = core.take_item() {
                    append(item, &mut out, *framing);
                }
                out.close(NORMAL, "");
                let _ = write_out(writer, &mut out).await;
                let _ = writer.shutdown().await;
            }
            Transport::Memory(ClientEnd { sender, .. }) => {
                while let Some(item) = core.take_item() {
                    let value = match item {
                        OutgoingItem::Request(id, Body::Memory(Some((call, trace)))) => {
                            ToServer::Call { id: RequestId::Integer(id.cast_signed()), call: *call, trace }
                        }
                        OutgoingItem::Note(note) => ToServer::Note(note),
                        OutgoingItem::Request(_, _)
                        | OutgoingItem::Refusal(_)
                        | OutgoingItem::Ping
                        | OutgoingItem::Pong(_) => continue,
                    };
                    if sender.send(value).await.is_err() {
                        break;
                    }
                }
            }
        }
    };
    let _ = timeout(CLOSE_TIMEOUT, remaining).await;
    drop_link(link).await;
}

/// Drops a connection with its program and guard.
async fn drop_link(link: Link) {
    let Link { transport, child, guard } = link;
    drop(transport);
    if let Some(child) = child {
        child.end().await;
    }
    drop(guard);
}

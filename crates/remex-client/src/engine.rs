//! The one task of a client: it has the connection, and makes a new one when that is cut.
//!
//! Start at [`begin`].

use std::{sync::Arc, time::Duration};

use remex_proto::{
    Call, ErrorKind, Message, MessageLimits, RequestId, RpcError,
    call::{Initialized, Request as _},
    environment,
    error::SESSION_ATTACHED,
    initialize::{Capability, Initialize, Reply as Welcome, Resume},
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
    Condition, Error, Loss, Prompts, Session,
    core::{Arrived, Body, Core, Item, Mode},
    dial::dial,
    link::{Link, Way},
    program::Child,
};

/// A send buffer is filled up to here before it is written.
const SEND_BYTES: usize = 64 << 10;

/// The pause before the second try to connect, and the longest one; a connection that lasted longer is repaired at once.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// A server that speaks but does not answer is deaf after this many times of silence.
const DEAF: u32 = 6;

/// How long a server gets to take the last words.
const FAREWELL: Duration = Duration::from_secs(2);

/// WebSocket close code of an orderly end.
const NORMAL: u16 = 1000;

/// The id of the handshake; those of calls begin at 1.
const HANDSHAKE: RequestId = RequestId::Integer(0);

/// Makes the first connection, and starts the task that has it from then on.
pub(crate) async fn begin(core: &Arc<Core>, closing: watch::Receiver<bool>) -> Result<JoinHandle<()>, Error> {
    let (link, welcome) = open(core, &core.options.session, core.options.prompts).await?;
    core.connected(&welcome, link.mode())?;
    let engine =
        Engine { core: Arc::clone(core), session: welcome.session_id, closing, pause: Duration::ZERO };
    Ok(tokio::spawn(engine.run(link)))
}

struct Engine {
    core: Arc<Core>,
    session: String,
    closing: watch::Receiver<bool>,
    /// How long to wait before the next try to connect: longer after each one, and shorter by as long as a connection
    /// has lasted.
    pause: Duration,
}

/// Whatever ends the task, nobody waits for it any longer.
impl Drop for Engine {
    fn drop(&mut self) {
        if !matches!(*self.core.condition.borrow(), Condition::Lost(_)) {
            self.core.lost(&Loss::Stopped);
        }
    }
}

/// Why a connection is over.
enum End {
    /// The owner wants it.
    Closing,
    Cut(Error),
}

impl Engine {
    async fn run(mut self, mut link: Link) {
        let loss = loop {
            let connected = Instant::now();
            let end = self.converse(&mut link).await;
            self.pause = self.pause.saturating_sub(connected.elapsed());
            let error = match end {
                End::Closing => {
                    part(link, &self.core).await;
                    break Loss::Closed;
                }
                End::Cut(error) => error,
            };
            if self.core.has_ended() {
                end_link(link).await;
                break Loss::Closed;
            }
            if let Error::Lost(loss) = error {
                end_link(link).await;
                break loss;
            }
            tracing::debug!(session = %self.session, error = %error, "connection cut");
            self.core.disconnected(Instant::now());
            end_link(link).await;
            let mut closing = self.closing.clone();
            let recovered = tokio::select! {
                biased;
                recovered = self.recover(error) => recovered,
                _ = closing.wait_for(|closing| *closing) => Err(Loss::Closed),
            };
            match recovered {
                Ok(recovered) => link = recovered,
                Err(loss) => break loss,
            }
        };
        tracing::debug!(session = %self.session, error = %loss, "session left");
        self.core.lost(&loss);
    }

    /// Sends and receives until the connection is over.
    async fn converse(&mut self, link: &mut Link) -> End {
        let core = &self.core;
        let cut = async {
            match &mut link.way {
                Way::Wire { reader, writer, framing } => tokio::select! {
                    biased;
                    error = receive(core, reader) => error,
                    error = send(core, writer, *framing) => error,
                    error = watch_silence(core) => error,
                },
                Way::Memory(ClientEnd { sender, receiver }) => tokio::select! {
                    biased;
                    error = receive_values(core, receiver) => error,
                    error = send_values(core, sender) => error,
                },
            }
        };
        tokio::select! {
            biased;
            error = cut => End::Cut(error),
            _ = self.closing.wait_for(|closing| *closing) => End::Closing,
        }
    }

    /// Connects and resumes the session, again and again.
    async fn recover(&mut self, cause: Error) -> Result<Link, Loss> {
        let began = Instant::now();
        let limit = self.core.options.recover_for;
        let mut last = cause;
        loop {
            // There is time for one try, however short the whole time is.
            sleep(jittered(self.pause.min(limit / 2))).await;
            self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
            let left = limit.saturating_sub(began.elapsed());
            let session = Session::Resume(self.session.clone());
            // By now the terminal shows and reads what runs there.
            match timeout(left, open(&self.core, &session, Prompts::Refuse)).await {
                Err(_) => return Err(Loss::GaveUp { after: limit, last: Box::new(last) }),
                Ok(Ok((link, welcome))) if welcome.session_id == self.session => {
                    return match self.core.connected(&welcome, link.mode()) {
                        Ok(()) => Ok(link),
                        Err(error) => Err(Loss::Rejected(Box::new(error))),
                    };
                }
                Ok(Ok(_)) => {
                    return Err(Loss::Forgotten { message: "the server began another session".to_owned() });
                }
                Ok(Err(error)) => last = hopeful(error)?,
            }
            tracing::debug!(session = %self.session, error = %last, elapsed = ?began.elapsed(), "still cut off");
            if began.elapsed() + self.pause >= limit {
                return Err(Loss::GaveUp { after: limit, last: Box::new(last) });
            }
        }
    }
}

/// Returns the error when another try makes sense.
fn hopeful(error: Error) -> Result<Error, Loss> {
    match error {
        Error::Refused(RpcError { kind, message, .. })
            if kind == ErrorKind::UnknownSession || message.starts_with("unknown session id") =>
        {
            Err(Loss::Forgotten { message })
        }
        // The server has not noticed yet that the old connection is gone.
        Error::Refused(RpcError { code: SESSION_ATTACHED, .. }) => Ok(error),
        Error::Refused(_) | Error::Unauthorized { .. } | Error::Address { .. } | Error::Protocol { .. } => {
            Err(Loss::Rejected(Box::new(error)))
        }
        other => Ok(other),
    }
}

/// Takes between half of the pause and all of it, so that the clients of one server do not come back at once.
fn jittered(pause: Duration) -> Duration {
    let mut random = [0; 4];
    // Without random bytes they come back at once, which is bearable.
    let _ = getrandom::fill(&mut random);
    let share = f64::from(u32::from_ne_bytes(random)) / f64::from(u32::MAX);
    pause.mul_f64(0.5 + share / 2.0)
}

/// Connects and shakes hands, each within its limit.
async fn open(core: &Core, session: &Session, prompts: Prompts) -> Result<(Link, Welcome), Error> {
    let options = &core.options;
    let too_long = |what, after| Error::TimedOut { what, after };
    let mut link = timeout(options.connect_timeout, dial(&core.target, prompts))
        .await
        .map_err(|_| too_long("connecting", options.connect_timeout))??;
    let (resume_session_id, takeover) = match session {
        Session::New => (Resume::New, None),
        Session::Resume(id) => (Resume::Session(id.clone()), None),
        Session::TakeOver(id) => (Resume::Session(id.clone()), Some(true)),
    };
    let initialize = Initialize {
        client_name: options.name.clone(),
        resume_session_id,
        capabilities: Some(capabilities(&link)),
        takeover,
        detach_ttl_ms: options.detach_ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)),
        session_name: options.session_name.clone().filter(|_| *session == Session::New),
    };
    let limit = options.initialize_timeout;
    let prompt = link.child.as_ref().map(Child::prompt);
    let overdue = async {
        match prompt {
            Some(prompt) => prompt.handshake_overdue(limit).await,
            None => {
                sleep(limit).await;
                too_long("the handshake", limit)
            }
        }
    };
    let shaken = tokio::select! {
        biased;
        shaken = link.shake_hands(initialize) => shaken,
        error = overdue => Err(HandshakeError::Answered(error)),
    };
    match shaken {
        Ok(welcome) => {
            if let Some(child) = &mut link.child {
                child.connected().await;
            }
            Ok((link, welcome))
        }
        Err(HandshakeError::Gone(reason)) => Err(match &mut link.child {
            Some(child) => child.obituary().await,
            None => Error::Unreachable { target: core.target.to_string(), reason },
        }),
        Err(HandshakeError::Malformed { what, line }) => Err(match &link.child {
            Some(child) => child.noise(&line),
            None => Error::Protocol { what },
        }),
        Err(HandshakeError::Answered(error)) => Err(error),
    }
}

fn capabilities(link: &Link) -> std::collections::BTreeSet<Capability> {
    let mut wanted = [Capability::ProcessGap, Capability::Cancel, Capability::Consumed].into();
    // On a WebSocket ping and pong do it.
    if !matches!(link.way, Way::Wire { framing: Framing::WebSocket(_), .. }) {
        std::collections::BTreeSet::insert(&mut wanted, Capability::Acks);
    }
    wanted
}

enum HandshakeError {
    /// The server is not there any more.
    Gone(String),
    /// It said something that is no message.
    Malformed {
        what: String,
        line: Vec<u8>,
    },
    Answered(Error),
}

impl Link {
    fn mode(&self) -> Mode {
        match self.way {
            Way::Wire { .. } => Mode::Wire,
            Way::Memory(_) => Mode::Memory,
        }
    }

    async fn shake_hands(&mut self, initialize: Initialize) -> Result<Welcome, HandshakeError> {
        match &mut self.way {
            Way::Wire { reader, writer, framing } => {
                let mut out = SendBuffer::new(*framing);
                out.message(256, |buffer| message::write_request(buffer, &HANDSHAKE, &initialize));
                write_out(writer, &mut out).await?;
                let welcome = read_welcome(reader, writer, &mut out).await?;
                out.message(64, |buffer| message::write_notification(buffer, &Initialized {}));
                write_out(writer, &mut out).await?;
                Ok(welcome)
            }
            Way::Memory(ClientEnd { sender, receiver }) => {
                let gone = || HandshakeError::Gone("the server has ended".to_owned());
                let call = ToServer::Call { id: HANDSHAKE, call: Call::Initialize(initialize) };
                sender.send(call).await.map_err(|_| gone())?;
                let outcome = loop {
                    match receiver.recv().await.ok_or_else(gone)? {
                        ToClient::Answer { id: HANDSHAKE, outcome } => break outcome,
                        ToClient::Answer { .. } | ToClient::Note(_) => {}
                        ToClient::Goodbye { reason } => return Err(HandshakeError::Gone(reason)),
                    }
                };
                let welcome = outcome.map(Arrived::Value).map_err(Error::Refused);
                let welcome = welcome
                    .and_then(|arrived| arrived.decode(Initialize::METHOD))
                    .map_err(HandshakeError::Answered)?;
                sender.send(ToServer::Note(Initialized {}.into())).await.map_err(|_| gone())?;
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
            other => return Err(HandshakeError::Gone(ending(&other))),
        };
        match Message::parse(&bytes, MessageLimits::WIRE) {
            Ok(Message::Response { id: HANDSHAKE, outcome: Ok(result) }) => {
                return serde_json::from_str(result).map_err(|error| {
                    nonsense(format!("the answer to `initialize` does not decode: {error}"))
                });
            }
            Ok(Message::Response { id: HANDSHAKE | RequestId::MALFORMED, outcome: Err(error) }) => {
                let error: RpcError = serde_json::from_str(error)
                    .map_err(|error| nonsense(format!("an error does not decode: {error}")))?;
                return Err(HandshakeError::Answered(error.into()));
            }
            Ok(_) => {}
            Err(_) if reader.has_ended() => return Err(HandshakeError::Gone(ending(&Incoming::End))),
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
            Ok(_) => return Err(HandshakeError::Gone("it takes nothing".to_owned())),
            Err(error) => return Err(HandshakeError::Gone(error.to_string())),
        }
    }
    writer.flush().await.map_err(|error| HandshakeError::Gone(error.to_string()))
}

/// Says in words how a connection ended.
fn ending(incoming: &Incoming) -> String {
    match incoming {
        Incoming::Close { code, reason } if reason.is_empty() => {
            format!("the server closed the connection (code {})", code.unwrap_or(NORMAL))
        }
        Incoming::Close { reason, .. } => format!("the server closed the connection: {reason}"),
        Incoming::Violation { reason, .. } => format!("the server broke the framing: {reason}"),
        Incoming::TooLong { limit } => format!("the server sent a message of more than {limit} bytes"),
        Incoming::NoMemory { .. } => "there is no memory for a message of the server".to_owned(),
        Incoming::Failed(error) => error.to_string(),
        Incoming::End
        | Incoming::Message(_)
        | Incoming::Long { .. }
        | Incoming::Ping(_)
        | Incoming::Pong(_) => "the server closed the connection".to_owned(),
    }
}

/// Hands over what arrives until nothing does any more.
async fn receive(core: &Core, reader: &mut FrameReader) -> Error {
    loop {
        let incoming = reader.next().await;
        core.hear();
        match incoming {
            Incoming::Message(bytes) => {
                match core.message(&bytes) {
                    Ok(()) => {}
                    // It is the beginning of a message that was cut off.
                    Err(Error::Protocol { .. }) if reader.has_ended() => {
                        return gone(core, ending(&Incoming::End));
                    }
                    Err(Error::Protocol { what }) => {
                        return core.breach(&what).err().map_or(Error::Protocol { what }, Error::Lost);
                    }
                    Err(error) => return error,
                }
            }
            Incoming::Ping(payload) => core.pong(payload),
            Incoming::Pong(_) => core.answered(),
            Incoming::Close { reason, .. } if reason == TAKEN_OVER => return Loss::TakenOver.into(),
            other => return gone(core, ending(&other)),
        }
    }
}

fn gone(core: &Core, reason: String) -> Error {
    Error::Unreachable { target: core.target.to_string(), reason }
}

async fn receive_values(core: &Core, receiver: &mut tokio::sync::mpsc::Receiver<ToClient>) -> Error {
    while let Some(value) = receiver.recv().await {
        if let Err(error) = core.value(value) {
            return error;
        }
    }
    gone(core, "the server has ended".to_owned())
}

/// Sends what is to be sent until that fails.
async fn send(core: &Core, writer: &mut WriteHalf, framing: Framing) -> Error {
    let mut out = SendBuffer::new(framing);
    loop {
        let mut item = Some(core.next_item().await);
        while let Some(next) = item.take() {
            put(next, &mut out, framing);
            if out.len() < SEND_BYTES {
                item = core.take_item();
            }
        }
        if let Err(HandshakeError::Gone(reason)) = write_out(writer, &mut out).await {
            return gone(core, reason);
        }
        out.reset_if_idle();
    }
}

fn put(item: Item, out: &mut SendBuffer, framing: Framing) {
    match item {
        Item::Pong(payload) => out.pong(&payload),
        Item::Ping if framing == Framing::Lines => {
            let probe = environment::GetStatus {};
            out.message(64, |buffer| message::write_request(buffer, &HANDSHAKE, &probe));
        }
        Item::Ping => out.ping(b""),
        Item::Note(note) => out.message(128, |buffer| note.write(buffer)),
        Item::Request(id, Body::Wire(body)) => {
            let id = RequestId::Integer(id.cast_signed());
            out.message(body.len() + 32, |buffer| {
                message::write_request_with(buffer, &id, |buffer| buffer.extend_from_slice(&body));
            });
        }
        Item::Request(_, Body::Memory(_)) => {}
    }
}

async fn send_values(core: &Core, sender: &tokio::sync::mpsc::Sender<ToServer>) -> Error {
    loop {
        let value = match core.next_item().await {
            Item::Note(note) => ToServer::Note(note),
            Item::Request(id, Body::Memory(Some(call))) => {
                ToServer::Call { id: RequestId::Integer(id.cast_signed()), call: *call }
            }
            Item::Request(_, _) | Item::Ping | Item::Pong(_) => continue,
        };
        if sender.send(value).await.is_err() {
            return gone(core, "the server has ended".to_owned());
        }
    }
}

/// Asks for a sign of life now and then, and returns when none comes.
///
/// What the server says by itself proves that it is there, not that it hears: so it is given more time while it
/// speaks, but not for ever.
async fn watch_silence(core: &Core) -> Error {
    let silence = core.options.silence;
    loop {
        sleep(core.options.keep_alive).await;
        let asked = Instant::now();
        let answers = core.ping();
        loop {
            let heard = core.heard();
            sleep(silence).await;
            if core.answers() != answers {
                break;
            }
            if core.heard() == heard || asked.elapsed() >= silence * DEAF {
                return gone(core, format!("it gave no sign of life for {:?}", asked.elapsed()));
            }
        }
    }
}

/// Sends what is left, says goodbye, and ends what lives as long as the connection.
async fn part(mut link: Link, core: &Core) {
    let last_words = async {
        match &mut link.way {
            Way::Wire { writer, framing, .. } => {
                let mut out = SendBuffer::new(*framing);
                while let Some(item) = core.take_item() {
                    put(item, &mut out, *framing);
                }
                out.close(NORMAL, "");
                let _ = write_out(writer, &mut out).await;
                let _ = writer.shutdown().await;
            }
            Way::Memory(ClientEnd { sender, .. }) => {
                while let Some(item) = core.take_item() {
                    let value = match item {
                        Item::Request(id, Body::Memory(Some(call))) => {
                            ToServer::Call { id: RequestId::Integer(id.cast_signed()), call: *call }
                        }
                        Item::Note(note) => ToServer::Note(note),
                        Item::Request(_, _) | Item::Ping | Item::Pong(_) => continue,
                    };
                    if sender.send(value).await.is_err() {
                        break;
                    }
                }
            }
        }
    };
    let _ = timeout(FAREWELL, last_words).await;
    end_link(link).await;
}

/// Ends a connection with what lives as long as it.
async fn end_link(link: Link) {
    let Link { way, child, guard } = link;
    drop(way);
    if let Some(child) = child {
        child.end().await;
    }
    drop(guard);
}

//! Messages between the connection and the state of the client, until the connection ends.

use std::time::Duration;

use remex_proto::{ErrorKind, RequestId, RpcError, environment, message, session::TAKEN_OVER};
use remex_rpc::{
    FrameReader, Framing, Incoming, SendBuffer, WriteHalf,
    memory::{ClientEnd, ToClient, ToServer},
};
use tokio::{
    io::AsyncWriteExt,
    time::{Instant, sleep, timeout},
};

use crate::{
    Error, SessionLost,
    core::shared::{Body, Core, OutgoingItem},
    transport::link::{Link, Transport},
};

/// A send buffer is filled up to here before it is written.
const SEND_BYTES: usize = 64 << 10;

/// A server that sends but never answers counts as unresponsive after this many keep-alive timeouts.
const UNRESPONSIVE: u32 = 6;

/// How long closing a connection may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// WebSocket close code of an orderly end.
const NORMAL: u16 = 1000;

/// The id of the handshake; those of calls begin at 1.
pub(super) const HANDSHAKE: RequestId = RequestId::Integer(0);

/// Handles incoming messages until the connection ends.
pub(super) async fn receive(core: &Core, reader: &mut FrameReader) -> Error {
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

pub(super) fn disconnected(core: &Core, reason: String) -> Error {
    Error::unreachable(core.target.to_string(), reason)
}

pub(super) async fn receive_values(
    core: &Core,
    receiver: &mut tokio::sync::mpsc::Receiver<ToClient>,
) -> Error {
    while let Some(value) = receiver.recv().await {
        if let Err(error) = core.on_value(value) {
            return error;
        }
    }
    disconnected(core, "the server has ended".to_owned())
}

/// Sends queued messages until that fails.
pub(super) async fn send(core: &Core, writer: &mut WriteHalf, framing: Framing) -> Error {
    let mut out = SendBuffer::new(framing);
    loop {
        let mut item = Some(core.next_item().await);
        while let Some(next) = item.take() {
            append(core, next, &mut out, framing);
            if out.len() < SEND_BYTES {
                item = core.take_item();
            }
        }
        if let Err(reason) = write_out(writer, &mut out).await {
            return disconnected(core, reason);
        }
        out.reset_if_idle();
    }
}

fn append(core: &Core, item: OutgoingItem, out: &mut SendBuffer, framing: Framing) {
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
        OutgoingItem::Request(id, body) => body.append(id, out, core.is_binary()),
    }
}

pub(super) async fn send_values(core: &Core, sender: &tokio::sync::mpsc::Sender<ToServer>) -> Error {
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
pub(super) async fn keep_alive(core: &Core) -> Error {
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
pub(super) async fn close(mut link: Link, core: &Core) {
    let remaining = async {
        match &mut link.transport {
            Transport::Wire { writer, framing, .. } => {
                let mut out = SendBuffer::new(*framing);
                while let Some(item) = core.take_item() {
                    append(core, item, &mut out, *framing);
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
pub(super) async fn drop_link(link: Link) {
    let Link { transport, child, guard } = link;
    drop(transport);
    if let Some(child) = child {
        child.end().await;
    }
    drop(guard);
}

/// Writes what is in a buffer; fails with the reason why the connection is of no use.
pub(super) async fn write_out(writer: &mut WriteHalf, out: &mut SendBuffer) -> Result<(), String> {
    while !out.is_empty() {
        match writer.write(out.pending()).await {
            Ok(len) if len > 0 => out.advance(len),
            Ok(_) => return Err("the server accepts no data".to_owned()),
            Err(error) => return Err(error.to_string()),
        }
    }
    writer.flush().await.map_err(|error| error.to_string())
}

/// Describes how a connection ended.
pub(super) fn describe(incoming: &Incoming) -> String {
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

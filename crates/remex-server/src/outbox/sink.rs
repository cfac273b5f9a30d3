//! Where the messages of a connection leave: encoded as bytes for a wire, or passed on as values.
//!
//! Start at [`Sink`].

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use remex_access::account::{Account, Charge, Kind};
use remex_proto::{
    RequestId, RpcError, ServerNote,
    attachment::{self, Attached},
    binary,
    call::Note,
    message::{self, OutputFrame},
    process,
};
use remex_rpc::{
    Framing, SendBuffer, WriteHalf,
    memory::{Reply, ToClient},
};
use tokio::{io::AsyncWriteExt, sync::mpsc};

use super::{CloseReason, LongMessage, SEND_BYTES, size};

/// How a connection represents messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Json,
    /// JSON, and binary messages for everything with bytes.
    Binary,
    Value,
}

/// One queued message, in the encoding of its connection.
#[derive(Debug)]
pub(crate) enum QueuedMessage {
    /// A complete JSON message.
    Json(Vec<u8>),
    /// A message that is encoded while it is sent.
    Long(LongMessage),
    /// A value, with the approximate number of bytes it holds.
    Value(ToClient, usize),
}

impl QueuedMessage {
    /// Creates a message from a notification.
    pub(super) fn note<N: Note + Into<ServerNote>>(encoding: Encoding, note: N) -> Self {
        let written = || {
            let mut json = Vec::with_capacity(128);
            message::write_notification(&mut json, &note);
            json
        };
        match encoding {
            Encoding::Json => QueuedMessage::Json(written()),
            Encoding::Binary => {
                let (json, attached) = attachment::collect(written);
                QueuedMessage::with_attached(json, attached)
            }
            Encoding::Value => QueuedMessage::note_value(note.into()),
        }
    }

    /// Creates a message from JSON and the bytes beside it, if there are any.
    pub(super) fn with_attached(json: Vec<u8>, attached: Attached) -> Self {
        if attached.pieces.is_empty() {
            QueuedMessage::Json(json)
        } else {
            QueuedMessage::Long(LongMessage::binary(&json, attached))
        }
    }

    pub(super) fn note_value(note: ServerNote) -> Self {
        let size = size::of_note(&note);
        QueuedMessage::Value(ToClient::Note(note), size)
    }

    pub(super) fn error(encoding: Encoding, id: &RequestId, error: &RpcError) -> Self {
        match encoding {
            Encoding::Json | Encoding::Binary => {
                let mut json = Vec::with_capacity(128);
                message::write_error(&mut json, id, error);
                QueuedMessage::Json(json)
            }
            Encoding::Value => {
                let outcome = Err(error.clone());
                QueuedMessage::Value(ToClient::Answer { id: id.clone(), outcome }, error.text().len())
            }
        }
    }

    /// Creates a message from an answer that is passed as a value.
    pub(super) fn reply_value<R: size::Reply>(id: RequestId, reply: R) -> Self {
        let size = reply.size();
        QueuedMessage::Value(ToClient::Answer { id, outcome: Ok(Reply::new(reply)) }, size)
    }

    /// Charges its memory to `account`; a message that is sent piece by piece keeps the charge itself.
    pub(super) fn charge(&mut self, account: &Arc<Account>) -> Option<Charge> {
        if let QueuedMessage::Json(json) = self
            && json.len() > SEND_BYTES
        {
            *self = QueuedMessage::Long(LongMessage::text(std::mem::take(json), None));
        }
        match self {
            QueuedMessage::Long(message) => {
                message.charge(account);
                None
            }
            QueuedMessage::Json(_) | QueuedMessage::Value(..) => {
                Some(account.take(Kind::Answers, self.size()))
            }
        }
    }

    /// Returns its length, or approximately how many bytes it holds.
    pub(super) fn size(&self) -> usize {
        match self {
            QueuedMessage::Json(json) => json.len(),
            QueuedMessage::Long(message) => message.len(),
            QueuedMessage::Value(_, size) => *size,
        }
    }
}

/// Collects the messages that the writer of a connection sends next, and sends them.
pub(crate) enum Sink {
    Wire {
        buffer: SendBuffer,
        framing: Framing,
        writer: WriteHalf,
        /// Whether output is sent as binary messages.
        is_binary: bool,
        /// A message that is not completely in the buffer yet.
        unfinished: Option<LongMessage>,
        /// Whether the writer holds nothing that it has accepted.
        is_flushed: bool,
    },
    Memory {
        values: Values,
        sender: mpsc::Sender<ToClient>,
    },
}

/// Values to be sent; bounded like a send buffer, because callers check [`Sink::len`] first.
#[derive(Debug, Default)]
pub(crate) struct Values {
    due: VecDeque<(ToClient, usize)>,
    bytes: usize,
}

impl Values {
    fn push(&mut self, value: ToClient, size: usize) {
        self.bytes += size;
        self.due.push_back((value, size));
    }

    pub(super) fn pop(&mut self) -> Option<ToClient> {
        let (value, size) = self.due.pop_front()?;
        self.bytes -= size;
        Some(value)
    }
}

impl Sink {
    pub(crate) fn wire(framing: Framing, writer: WriteHalf) -> Self {
        let buffer = SendBuffer::new(framing);
        Sink::Wire { buffer, framing, writer, is_binary: false, unfinished: None, is_flushed: true }
    }

    pub(crate) fn memory(sender: mpsc::Sender<ToClient>) -> Self {
        Sink::Memory { values: Values::default(), sender }
    }

    pub(crate) fn encoding(&self) -> Encoding {
        match self {
            Sink::Wire { .. } => Encoding::Json,
            Sink::Memory { .. } => Encoding::Value,
        }
    }

    /// From now on, output is sent in this encoding.
    pub(crate) fn set_encoding(&mut self, encoding: Encoding) {
        if let Sink::Wire { is_binary, .. } = self {
            *is_binary = encoding == Encoding::Binary;
        }
    }

    /// Returns whether the client answers pings.
    pub(crate) fn has_pings(&self) -> bool {
        matches!(self, Sink::Wire { framing: Framing::WebSocket(_), .. })
    }

    /// Returns the number of bytes to send.
    pub(crate) fn len(&self) -> usize {
        match self {
            Sink::Wire { buffer, .. } => buffer.len(),
            Sink::Memory { values, .. } => values.bytes,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Sink::Wire { buffer, unfinished, is_flushed, .. } => {
                buffer.is_empty() && unfinished.is_none() && *is_flushed
            }
            Sink::Memory { values, .. } => values.due.is_empty(),
        }
    }

    /// Returns the length of the unfinished message.
    pub(super) fn begun_len(&self) -> usize {
        match self {
            Sink::Wire { unfinished: Some(message), .. } => message.len(),
            Sink::Wire { .. } | Sink::Memory { .. } => 0,
        }
    }

    /// Returns whether a message is unfinished.
    pub(crate) fn has_unfinished(&self) -> bool {
        matches!(self, Sink::Wire { unfinished: Some(_), .. })
    }

    /// Adds more of the unfinished message. Returns whether it is still unfinished; then nothing else may be
    /// added.
    pub(super) fn is_within_message(&mut self) -> bool {
        let Sink::Wire { buffer, unfinished, .. } = self else { return false };
        while buffer.len() < SEND_BYTES
            && let Some(message) = unfinished
        {
            if !message.encode(buffer) {
                *unfinished = None;
            }
        }
        unfinished.is_some()
    }

    /// Adds a queued message.
    pub(super) fn message(&mut self, message: QueuedMessage) {
        match (&mut *self, message) {
            (Sink::Wire { .. }, QueuedMessage::Json(json)) if json.len() > SEND_BYTES => {
                self.message(QueuedMessage::Long(LongMessage::text(json, None)));
            }
            (Sink::Wire { buffer, .. }, QueuedMessage::Json(json)) => {
                buffer.message(json.len(), |bytes| bytes.extend_from_slice(&json));
            }
            (Sink::Wire { buffer, unfinished, .. }, QueuedMessage::Long(message)) => {
                message.begin(buffer);
                *unfinished = Some(message);
                self.is_within_message();
            }
            (Sink::Memory { values, .. }, QueuedMessage::Value(value, size)) => values.push(value, size),
            (Sink::Wire { .. }, QueuedMessage::Value(..))
            | (Sink::Memory { .. }, QueuedMessage::Json(_) | QueuedMessage::Long(_)) => {
                debug_assert!(false, "an outbox makes messages in the encoding of its connection");
            }
        }
    }

    /// Adds a notification of about `len_hint` bytes.
    pub(crate) fn note<N: Note + Into<ServerNote>>(&mut self, len_hint: usize, note: N) {
        match self {
            Sink::Wire { buffer, .. } => {
                buffer.message(len_hint, |bytes| message::write_notification(bytes, &note));
            }
            Sink::Memory { .. } => self.message(QueuedMessage::note_value(note.into())),
        }
    }

    /// Adds output, encoded in one step or as an equivalent value; `quoted` has its ids as JSON strings.
    pub(crate) fn output(&mut self, output: &binary::Output<'_>, quoted: (&str, Option<&str>)) {
        match self {
            Sink::Wire { buffer, is_binary: true, .. } if output.fits() => {
                buffer.binary(output.len(), |bytes| output.write(bytes));
            }
            Sink::Wire { buffer, .. } => {
                let &binary::Output { incarnation, seq, stream, bytes, .. } = output;
                let (process_id, session_id) = quoted;
                let frame = OutputFrame { process_id, session_id, incarnation, seq, stream, bytes };
                buffer.message(frame.len(), |bytes| frame.write(bytes));
            }
            Sink::Memory { .. } => {
                let value = process::Output {
                    process_id: output.process_id.to_owned(),
                    session_id: output.session_id.map(str::to_owned),
                    incarnation: output.incarnation,
                    seq: output.seq,
                    stream: output.stream,
                    chunk: Bytes::copy_from_slice(output.bytes).into(),
                };
                self.message(QueuedMessage::note_value(value.into()));
            }
        }
    }

    /// Sends a ping to a WebSocket peer; other transports have none.
    pub(crate) fn ping(&mut self, payload: &[u8]) {
        if let Sink::Wire { buffer, .. } = self {
            buffer.ping(payload);
        }
    }

    pub(super) fn pong(&mut self, payload: &[u8]) {
        if let Sink::Wire { buffer, .. } = self {
            buffer.pong(payload);
        }
    }

    /// Frees memory of an idle connection.
    pub(crate) fn reset_if_idle(&mut self) {
        match self {
            Sink::Wire { buffer, .. } => buffer.reset_if_idle(),
            Sink::Memory { values, .. } if values.due.is_empty() => *values = Values::default(),
            Sink::Memory { .. } => {}
        }
    }

    /// Sends some of the pending bytes as soon as the client accepts any; returns `false` if it never will.
    ///
    /// Cancel-safe: what was not sent stays.
    pub(crate) async fn send(&mut self) -> bool {
        match self {
            Sink::Wire { buffer, writer, is_flushed, .. } => {
                if !buffer.is_empty() {
                    match writer.write(buffer.pending()).await {
                        Ok(len) if len > 0 => buffer.advance(len),
                        Ok(_) | Err(_) => return false,
                    }
                    *is_flushed = false;
                }
                // A TLS stream has encrypted the bytes, but may still hold some of them.
                if buffer.is_empty() {
                    if writer.flush().await.is_err() {
                        return false;
                    }
                    *is_flushed = true;
                }
                true
            }
            Sink::Memory { values, sender } => {
                let Ok(mut permit) = sender.reserve().await else { return false };
                while let Some(value) = values.pop() {
                    permit.send(value);
                    match sender.try_reserve() {
                        Ok(next) => permit = next,
                        Err(_) => break,
                    }
                }
                true
            }
        }
    }

    /// Sends the rest and the close reason, which cannot be sent within a message.
    pub(crate) async fn close(mut self, close_reason: CloseReason) {
        match &mut self {
            Sink::Wire { buffer, writer, unfinished, .. } => {
                if unfinished.is_none() {
                    buffer.close(close_reason.code, &close_reason.reason);
                }
                if writer.write_all(buffer.pending()).await.is_ok() {
                    let _ = writer.shutdown().await;
                }
            }
            Sink::Memory { values, .. } => {
                values.push(ToClient::Close { reason: close_reason.reason }, 0);
                while !self.is_empty() && self.send().await {}
            }
        }
    }
}

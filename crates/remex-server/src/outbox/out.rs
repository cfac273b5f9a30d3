//! The last step of what a connection sends: encoded into bytes for a wire, or handed over as values.
//!
//! Start at [`Out`].

use std::collections::VecDeque;

use remex_proto::{
    RequestId, RpcError, ServerNote,
    call::Note,
    message::{self, OutputFrame},
    process,
};
use remex_rpc::{
    Framing, SendBuffer, WriteHalf,
    memory::{Reply, ToClient},
};
use tokio::{io::AsyncWriteExt, sync::mpsc};

use super::{Goodbye, LongMessage, SEND_BYTES, size};

/// In which form a connection carries what is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Json,
    Value,
}

/// One message that waits, in the form of its connection.
#[derive(Debug)]
pub(crate) enum Parcel {
    /// A complete message.
    Json(Vec<u8>),
    /// A message that is encoded while it is sent.
    Long(LongMessage),
    /// A message as it is, with about the number of bytes it holds.
    Value(ToClient, usize),
}

impl Parcel {
    /// Makes one of a notification.
    pub(super) fn note<N: Note + Into<ServerNote>>(form: Form, note: N) -> Self {
        match form {
            Form::Json => {
                let mut json = Vec::with_capacity(128);
                message::write_notification(&mut json, &note);
                Parcel::Json(json)
            }
            Form::Value => Parcel::note_value(note.into()),
        }
    }

    pub(super) fn note_value(note: ServerNote) -> Self {
        let size = size::of_note(&note);
        Parcel::Value(ToClient::Note(note), size)
    }

    pub(super) fn error(form: Form, id: &RequestId, error: &RpcError) -> Self {
        match form {
            Form::Json => {
                let mut json = Vec::with_capacity(128);
                message::write_error(&mut json, id, error);
                Parcel::Json(json)
            }
            Form::Value => {
                let outcome = Err(error.clone());
                Parcel::Value(ToClient::Answer { id: id.clone(), outcome }, error.message.len())
            }
        }
    }

    /// Makes one of an answer that is handed over.
    pub(super) fn reply_value<R: size::Reply>(id: RequestId, reply: R) -> Self {
        let size = reply.size();
        Parcel::Value(ToClient::Answer { id, outcome: Ok(Reply::new(reply)) }, size)
    }

    /// Returns how many bytes it has, or about how many it holds.
    pub(super) fn size(&self) -> usize {
        match self {
            Parcel::Json(json) => json.len(),
            Parcel::Long(message) => message.len(),
            Parcel::Value(_, size) => *size,
        }
    }
}

/// Where the writer of a connection collects what is due, and the way it leaves.
pub(crate) enum Out {
    Wire {
        buffer: SendBuffer,
        framing: Framing,
        writer: WriteHalf,
        /// A message that has begun and is not in the buffer to its end.
        unfinished: Option<LongMessage>,
    },
    Memory {
        values: Values,
        sender: mpsc::Sender<ToClient>,
    },
}

/// Values that are due; bounded like a send buffer, because whoever adds one looks at [`Out::len`] first.
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

    fn pop(&mut self) -> Option<ToClient> {
        let (value, size) = self.due.pop_front()?;
        self.bytes -= size;
        Some(value)
    }
}

impl Out {
    pub(crate) fn wire(framing: Framing, writer: WriteHalf) -> Self {
        Out::Wire { buffer: SendBuffer::new(framing), framing, writer, unfinished: None }
    }

    pub(crate) fn memory(sender: mpsc::Sender<ToClient>) -> Self {
        Out::Memory { values: Values::default(), sender }
    }

    pub(crate) fn form(&self) -> Form {
        match self {
            Out::Wire { .. } => Form::Json,
            Out::Memory { .. } => Form::Value,
        }
    }

    /// Tells whether the client answers pings.
    pub(crate) fn has_pings(&self) -> bool {
        matches!(self, Out::Wire { framing: Framing::WebSocket(_), .. })
    }

    /// Returns how many bytes are to be sent.
    pub(crate) fn len(&self) -> usize {
        match self {
            Out::Wire { buffer, .. } => buffer.len(),
            Out::Memory { values, .. } => values.bytes,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Out::Wire { buffer, unfinished, .. } => buffer.is_empty() && unfinished.is_none(),
            Out::Memory { values, .. } => values.due.is_empty(),
        }
    }

    /// Returns how many bytes are to be sent up to the end of what has begun.
    pub(super) fn len_to_end(&self) -> usize {
        let unfinished = match self {
            // With the end of the line.
            Out::Wire { unfinished: Some(message), .. } => message.left() + 1,
            Out::Wire { .. } | Out::Memory { .. } => 0,
        };
        self.len() + unfinished
    }

    /// Returns how long the message is that has begun and whose end is still to be added.
    pub(super) fn begun_len(&self) -> usize {
        match self {
            Out::Wire { unfinished: Some(message), .. } => message.len(),
            Out::Wire { .. } | Out::Memory { .. } => 0,
        }
    }

    /// Tells whether a message has begun and its end is still to be added.
    pub(crate) fn has_unfinished(&self) -> bool {
        matches!(self, Out::Wire { unfinished: Some(_), .. })
    }

    /// Adds more of a message that has begun; tells whether its end is still to come, before which nothing else may be
    /// added.
    pub(super) fn is_within_message(&mut self) -> bool {
        let Out::Wire { buffer, unfinished, .. } = self else { return false };
        while buffer.len() < SEND_BYTES
            && let Some(message) = unfinished
        {
            if !message.encode(buffer) {
                *unfinished = None;
            }
        }
        unfinished.is_some()
    }

    /// Adds a message that was made before.
    pub(super) fn parcel(&mut self, parcel: Parcel) {
        match (&mut *self, parcel) {
            (Out::Wire { .. }, Parcel::Json(json)) if json.len() > SEND_BYTES => {
                self.parcel(Parcel::Long(LongMessage::text(json, None)));
            }
            (Out::Wire { buffer, .. }, Parcel::Json(json)) => {
                buffer.message(json.len(), |bytes| bytes.extend_from_slice(&json));
            }
            (Out::Wire { buffer, unfinished, .. }, Parcel::Long(message)) => {
                buffer.begin(message.len());
                *unfinished = Some(message);
                self.is_within_message();
            }
            (Out::Memory { values, .. }, Parcel::Value(value, size)) => values.push(value, size),
            (Out::Wire { .. }, Parcel::Value(..))
            | (Out::Memory { .. }, Parcel::Json(_) | Parcel::Long(_)) => {
                debug_assert!(false, "an outbox makes parcels in the form of its connection");
            }
        }
    }

    /// Adds a notification of about `len_hint` bytes.
    pub(crate) fn note<N: Note + Into<ServerNote>>(&mut self, len_hint: usize, note: N) {
        match self {
            Out::Wire { buffer, .. } => {
                buffer.message(len_hint, |bytes| message::write_notification(bytes, &note));
            }
            Out::Memory { .. } => self.parcel(Parcel::note_value(note.into())),
        }
    }

    /// Adds output, encoded in one step or as the value that says the same.
    pub(crate) fn output(&mut self, frame: &OutputFrame<'_>, value: impl FnOnce() -> process::Output) {
        match self {
            Out::Wire { buffer, .. } => buffer.message(frame.len(), |bytes| frame.write(bytes)),
            Out::Memory { .. } => self.parcel(Parcel::note_value(value().into())),
        }
    }

    /// Asks a WebSocket peer for a pong; others have no such thing.
    pub(crate) fn ping(&mut self, payload: &[u8]) {
        if let Out::Wire { buffer, .. } = self {
            buffer.ping(payload);
        }
    }

    pub(super) fn pong(&mut self, payload: &[u8]) {
        if let Out::Wire { buffer, .. } = self {
            buffer.pong(payload);
        }
    }

    /// Gives memory back, for a connection that has fallen silent.
    pub(crate) fn reset_if_idle(&mut self) {
        match self {
            Out::Wire { buffer, .. } => buffer.reset_if_idle(),
            Out::Memory { values, .. } if values.due.is_empty() => *values = Values::default(),
            Out::Memory { .. } => {}
        }
    }

    /// Sends some of it, as soon as the client takes any; `false` when it never will.
    ///
    /// Cancel-safe: what was not sent stays.
    pub(crate) async fn send(&mut self) -> bool {
        match self {
            Out::Wire { buffer, writer, .. } => match writer.write(buffer.pending()).await {
                Ok(len) if len > 0 => {
                    buffer.advance(len);
                    true
                }
                Ok(_) | Err(_) => false,
            },
            Out::Memory { values, sender } => {
                let Ok(mut place) = sender.reserve().await else { return false };
                while let Some(value) = values.pop() {
                    place.send(value);
                    match sender.try_reserve() {
                        Ok(next) => place = next,
                        Err(_) => break,
                    }
                }
                true
            }
        }
    }

    /// Sends what is left and the farewell, for which there is no place within a message.
    pub(crate) async fn farewell(mut self, goodbye: Goodbye) {
        match &mut self {
            Out::Wire { buffer, writer, unfinished, .. } => {
                if unfinished.is_none() {
                    buffer.close(goodbye.code, &goodbye.reason);
                }
                if writer.write_all(buffer.pending()).await.is_ok() {
                    let _ = writer.shutdown().await;
                }
            }
            Out::Memory { values, .. } => {
                values.push(ToClient::Goodbye { reason: goodbye.reason }, 0);
                while !self.is_empty() && self.send().await {}
            }
        }
    }
}

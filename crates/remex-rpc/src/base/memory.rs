//! Connections within one process, of values or of bytes.
//!
//! Start at [`link`].

use std::any::Any;

use remex_proto::{Call, ClientNote, RequestId, RpcError, ServerNote, TraceContext};
use tokio::sync::mpsc;

use crate::{ReadHalf, WriteHalf};

/// The buffer of a byte pipe; as on a socket, a writer waits when it is full.
const CAPACITY: usize = 64 * 1024;

/// The messages that a link buffers in each direction; a chunk of output has up to 64 KiB.
const LINK_MESSAGES: usize = 32;

/// Returns the two ends of a link that passes values without encoding or copying them.
///
/// Dropping one end closes the link for the other.
pub fn link() -> (ClientEnd, ServerEnd) {
    let (calls, called) = mpsc::channel(LINK_MESSAGES);
    let (answers, answered) = mpsc::channel(LINK_MESSAGES);
    (ClientEnd { sender: calls, receiver: answered }, ServerEnd { sender: answers, receiver: called })
}

/// The client's end of a link.
#[derive(Debug)]
pub struct ClientEnd {
    /// Sends to the server.
    pub sender: mpsc::Sender<ToServer>,
    /// Receives from the server.
    pub receiver: mpsc::Receiver<ToClient>,
}

/// The server's end of a link.
#[derive(Debug)]
pub struct ServerEnd {
    /// Sends to the client.
    pub sender: mpsc::Sender<ToClient>,
    /// Receives from the client.
    pub receiver: mpsc::Receiver<ToServer>,
}

/// A message from the client on a link.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // Few are alive at a time, and starts are not rare.
pub enum ToServer {
    /// A call, which expects an answer.
    Call {
        /// The id that the answer repeats.
        id: RequestId,
        /// The decoded request.
        call: Call,
        /// The trace it belongs to.
        trace: Option<Box<TraceContext>>,
    },
    /// A notification, which expects no answer.
    Note(ClientNote),
}

/// A message from the server on a link.
#[derive(Debug)]
pub enum ToClient {
    /// The answer to a call.
    Answer {
        /// The id of the call.
        id: RequestId,
        /// The reply or the error.
        outcome: Result<Reply, RpcError>,
    },
    /// A notification.
    Note(ServerNote),
    /// The last message: the server closes the connection.
    Close {
        /// Why it is closed.
        reason: String,
    },
}

/// The answer to a call; its type is the [`Reply`](remex_proto::call::Request::Reply) of the request.
#[derive(Debug)]
pub struct Reply(Box<dyn Any + Send>);

impl Reply {
    /// Wraps a reply.
    pub fn new(reply: impl Any + Send) -> Self {
        Self(Box::new(reply))
    }

    /// Returns the reply, or `None` if it has another type.
    pub fn take<R: Any>(self) -> Option<R> {
        self.0.downcast().ok().map(|reply| *reply)
    }
}

/// Returns the two ends of a bidirectional byte pipe within this process.
///
/// Both ends use line framing, like stdio.
pub fn pipe() -> ((ReadHalf, WriteHalf), (ReadHalf, WriteHalf)) {
    let (left, right) = tokio::io::duplex(CAPACITY);
    let (left_read, left_write) = tokio::io::split(left);
    let (right_read, right_write) = tokio::io::split(right);
    ((Box::new(left_read), Box::new(left_write)), (Box::new(right_read), Box::new(right_write)))
}

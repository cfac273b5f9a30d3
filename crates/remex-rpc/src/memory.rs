//! Connections inside one process: values that cross as they are, or bytes.
//!
//! Start at [`link`].

use std::any::Any;

use remex_proto::{Call, ClientNote, RequestId, RpcError, ServerNote};
use tokio::sync::mpsc;

use crate::{ReadHalf, WriteHalf};

/// What may lie between the two ends of a byte pipe; as on a socket, a writer waits when it is full.
const CAPACITY: usize = 64 * 1024;

/// How many messages may lie in a link in each direction; a chunk of output has up to 64 KiB.
const LINK_MESSAGES: usize = 32;

/// Returns the two ends of a link that carries values as they are: nothing is encoded, no byte is copied.
///
/// Dropping one end ends the link for the other.
pub fn link() -> (ClientEnd, ServerEnd) {
    let (calls, called) = mpsc::channel(LINK_MESSAGES);
    let (answers, answered) = mpsc::channel(LINK_MESSAGES);
    (ClientEnd { sender: calls, receiver: answered }, ServerEnd { sender: answers, receiver: called })
}

/// The end of a link at which calls are made.
#[derive(Debug)]
pub struct ClientEnd {
    /// Takes what the server is to hear.
    pub sender: mpsc::Sender<ToServer>,
    /// Has what the server says.
    pub receiver: mpsc::Receiver<ToClient>,
}

/// The end of a link at which calls are answered.
#[derive(Debug)]
pub struct ServerEnd {
    /// Takes what the client is to hear.
    pub sender: mpsc::Sender<ToClient>,
    /// Has what the client says.
    pub receiver: mpsc::Receiver<ToServer>,
}

/// What a client says on a link.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // Few are alive at a time, and starts are not rare.
pub enum ToServer {
    /// Wants an answer.
    Call {
        /// Goes into the answer.
        id: RequestId,
        /// What is asked.
        call: Call,
    },
    /// Wants none.
    Note(ClientNote),
}

/// What a server says on a link.
#[derive(Debug)]
pub enum ToClient {
    /// Is an answer.
    Answer {
        /// From the call.
        id: RequestId,
        /// What came of it.
        outcome: Result<Reply, RpcError>,
    },
    /// Is told unasked.
    Note(ServerNote),
    /// Is the last word.
    Goodbye {
        /// Why it is over.
        reason: String,
    },
}

/// The answer to a call; its type is the [`Reply`](remex_proto::call::Request::Reply) of the request.
#[derive(Debug)]
pub struct Reply(Box<dyn Any + Send>);

impl Reply {
    /// Wraps an answer.
    pub fn new(reply: impl Any + Send) -> Self {
        Self(Box::new(reply))
    }

    /// Returns the answer, `None` when it is of another type.
    pub fn take<R: Any>(self) -> Option<R> {
        self.0.downcast().ok().map(|reply| *reply)
    }
}

/// Returns the two ends of a byte pipe inside this process; what one writes the other reads.
///
/// Both ends speak lines, like stdio.
pub fn pipe() -> ((ReadHalf, WriteHalf), (ReadHalf, WriteHalf)) {
    let (left, right) = tokio::io::duplex(CAPACITY);
    let (left_read, left_write) = tokio::io::split(left);
    let (right_read, right_write) = tokio::io::split(right);
    ((Box::new(left_read), Box::new(left_write)), (Box::new(right_read), Box::new(right_write)))
}

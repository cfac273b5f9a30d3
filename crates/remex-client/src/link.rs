//! One connection, whatever it runs over.
//!
//! Start at [`Link`].

use std::{any::Any, fmt};

use remex_rpc::{FrameReader, Framing, ReadHalf, WriteHalf, memory::ClientEnd};

use crate::program::Child;

/// The longest message that is taken from a server.
pub(crate) const MAX_MESSAGE_LEN: usize = 1 << 30;

/// One connection to a server.
pub struct Link {
    pub(crate) way: Way,
    /// The program at the other end. After `way`, because its input has to be closed before it is ended.
    pub(crate) child: Option<Child>,
    /// What lives as long as the connection.
    pub(crate) guard: Option<Box<dyn Any + Send>>,
}

pub(crate) enum Way {
    Wire { reader: FrameReader, writer: WriteHalf, framing: Framing },
    Memory(ClientEnd),
}

impl Link {
    /// Returns a connection that carries values as they are, to a server in this process.
    pub fn memory(end: ClientEnd) -> Self {
        Self { way: Way::Memory(end), child: None, guard: None }
    }

    /// Returns a connection that speaks lines.
    pub fn lines(reader: ReadHalf, writer: WriteHalf) -> Self {
        let reader = FrameReader::new(reader, Framing::Lines, MAX_MESSAGE_LEN);
        Self { way: Way::Wire { reader, writer, framing: Framing::Lines }, child: None, guard: None }
    }

    /// Returns a WebSocket connection after its handshake.
    pub(crate) fn websocket(reader: FrameReader, writer: WriteHalf) -> Self {
        let framing = Framing::WebSocket(remex_rpc::Role::Client);
        Self { way: Way::Wire { reader, writer, framing }, child: None, guard: None }
    }

    /// Keeps the program at the other end alive as long as the connection.
    pub(crate) fn with_child(mut self, child: Child) -> Self {
        self.child = Some(child);
        self
    }

    /// Keeps something alive as long as the connection.
    pub fn with(mut self, guard: impl Any + Send) -> Self {
        self.guard = Some(Box::new(guard));
        self
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = match &self.way {
            Way::Wire { framing, .. } => format!("{framing:?}"),
            Way::Memory(_) => "Memory".to_owned(),
        };
        f.debug_struct("Link").field("way", &way).finish_non_exhaustive()
    }
}

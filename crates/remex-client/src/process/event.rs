//! What a process says, in order.

use bytes::Bytes;
use remex_proto::process::{self as wire, ExitCause, Produced, Stream, Usage};

/// One thing that happened to a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It said something.
    Output(Chunk),
    /// It has exited; what it said before that has been told.
    Exited(Exit),
    /// Everything has been said; the last event.
    Closed(Closed),
    /// Something is missing here.
    Gap(Gap),
}

/// A piece of output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Its place among the events of the process, from 1.
    pub seq: u64,
    /// Where it came from.
    pub stream: Stream,
    /// Raw bytes; characters and lines may be split.
    pub bytes: Bytes,
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// The exit status, or 128 + the number of the signal.
    pub code: i32,
    /// The signal that ended it, such as `SIGKILL`.
    pub signal: Option<String>,
    /// Why it ended; unknown from servers of the base dialect, and after a cut at the wrong moment.
    pub cause: Option<ExitCause>,
    /// What it used; unknown like the cause.
    pub usage: Option<Usage>,
}

impl Exit {
    /// Tells whether it ended by itself with status 0.
    pub fn is_success(&self) -> bool {
        self.code == 0 && self.signal.is_none()
    }
}

/// The ledger of a process: what it said in its life.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Closed {
    /// Bytes per stream; unknown from servers of the base dialect.
    pub produced: Option<Produced>,
    /// How much of that was dropped before this client got it; unknown like the rest.
    pub evicted_bytes: Option<u64>,
}

/// Output that the server no longer had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// The first event that is missing.
    pub from_seq: u64,
    /// The last event that is missing.
    pub to_seq: u64,
    /// Bytes of output in them, where the server knows it.
    pub bytes: Option<u64>,
}

impl Event {
    /// Returns how many bytes of output it carries.
    pub(crate) fn len(&self) -> usize {
        match self {
            Event::Output(chunk) => chunk.bytes.len(),
            Event::Exited(_) | Event::Closed(_) | Event::Gap(_) => 0,
        }
    }
}

impl From<wire::Exited> for Exit {
    fn from(note: wire::Exited) -> Self {
        Exit { code: note.exit_code, signal: note.signal, cause: note.cause, usage: note.usage }
    }
}

//! The messages of both sides: one JSON object per line, as much of the protocol as the test needs.

use remex_proto::state::output_log::{Gap, Seq};
use serde::{Deserialize, Serialize};

/// The name of a connection.
pub(crate) type Connection = u32;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToServer {
    Resume { takeover: bool },
    Call { id: u64, call: Call },
    Acknowledge { process: usize, seq: Seq },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Call {
    Read { process: usize, after_seq: Seq, max_bytes: usize },
    Write { process: usize, write_id: String, chunk: Vec<u8> },
    Ping,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToClient {
    Resumed,
    Held,
    UnknownSession,
    Answer { id: u64, answer: Answer },
    Event { process: usize, seq: Seq, event: Event },
    Gap { process: usize, gap: WireGap },
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Read {
        process: usize,
        gap: Option<WireGap>,
        chunks: Vec<(Seq, Vec<u8>)>,
        next_seq: Seq,
        is_partial: bool,
    },
    Written,
    Pong,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Event {
    Output(Vec<u8>),
    Exited,
    Closed,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct WireGap {
    from_seq: Seq,
    to_seq: Seq,
    bytes: Option<u64>,
}

impl From<Gap> for WireGap {
    fn from(Gap { from_seq, to_seq, bytes, .. }: Gap) -> Self {
        WireGap { from_seq, to_seq, bytes }
    }
}

impl From<WireGap> for Gap {
    fn from(WireGap { from_seq, to_seq, bytes }: WireGap) -> Self {
        Gap { from_seq, to_seq, bytes, cause: None }
    }
}

/// The byte that a process prints at a place in its output.
pub(crate) fn printed(process: usize, position: u64) -> u8 {
    (position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 ^ process as u8
}

//! What all logs of output have in common, in memory or on disk: numbers, cursors, holds and gaps.

use serde::{Deserialize, Serialize};

pub use crate::areas::process::{GapCause, Produced, Stream};

/// The sequence number of an event in its process, from 1; output, exit and close are events.
pub type Seq = u64;

/// The end of an event in the output of its process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    /// The event; 0 before the first.
    pub seq: Seq,
    /// Bytes of output up to and including it.
    pub offset: u64,
}

/// The events that eviction must keep.
///
/// A log in memory knows where each event ends; for a log on disk, a [`Point`] says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hold<P = Seq> {
    /// None: the oldest output is evicted to make room.
    #[default]
    Nothing,
    /// Events after this one, which are not acknowledged; a full log then has no room.
    After(P),
}

impl Hold<Point> {
    /// Everything.
    pub const ALL: Self = Hold::After(Point { seq: 0, offset: 0 });
}

/// The position of one reader in one log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The last event seen; 0 before the first.
    pub seq: Seq,
    /// Bytes of output up to and including that event; `None` if the log does not know.
    pub offset: Option<u64>,
}

impl Cursor {
    /// Before the first event.
    pub const START: Cursor = Cursor { seq: 0, offset: Some(0) };
}

/// Events that are missing for a reader, because they were evicted before it reached them or for another reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap<C = Option<GapCause>> {
    /// The first missing event.
    pub from_seq: Seq,
    /// The last missing event.
    pub to_seq: Seq,
    /// Bytes of output in them; `None` if the log does not know.
    pub bytes: Option<u64>,
    /// Why they are missing; `None` if they were evicted.
    pub cause: C,
}

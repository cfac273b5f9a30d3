//! The notifications of the server about processes of the session.

use remex_proto::{process as wire, state::output_log as log};

use crate::base::event::{Chunk, Closed, Event, Gap};

/// A notification about a process of this session.
#[derive(Debug)]
pub(crate) enum ProcessEvent {
    Output(wire::Output),
    Exited(wire::Exited),
    Closed(wire::Closed),
    Gap(wire::Gap),
}

impl ProcessEvent {
    /// Returns the session that it belongs to if that is another one, whose processes may have the same ids.
    pub(crate) fn observed_session(&self) -> Option<&str> {
        let session_id = match self {
            ProcessEvent::Output(note) => &note.session_id,
            ProcessEvent::Exited(note) => &note.session_id,
            ProcessEvent::Closed(note) => &note.session_id,
            ProcessEvent::Gap(note) => &note.session_id,
        };
        session_id.as_deref()
    }

    /// Returns the start that it names.
    pub(crate) fn incarnation(&self) -> Option<u64> {
        match self {
            ProcessEvent::Output(note) => note.incarnation,
            ProcessEvent::Exited(note) => note.incarnation,
            ProcessEvent::Closed(note) => note.incarnation,
            ProcessEvent::Gap(note) => note.incarnation,
        }
    }

    /// Returns the process and what happened to it.
    pub(crate) fn into_event(self) -> (String, Event) {
        match self {
            ProcessEvent::Output(note) => {
                let chunk = Chunk { seq: note.seq, stream: note.stream, bytes: note.chunk.0 };
                (note.process_id, Event::Output(chunk))
            }
            ProcessEvent::Exited(mut note) => {
                let process_id = std::mem::take(&mut note.process_id);
                (process_id, Event::Exited { seq: note.seq, exit: note.into() })
            }
            ProcessEvent::Closed(note) => {
                let (produced, evicted_bytes) = (note.produced, note.evicted_bytes);
                (note.process_id, Event::Closed(Closed { seq: note.seq, produced, evicted_bytes }))
            }
            ProcessEvent::Gap(note) => {
                let log::Gap { from_seq, to_seq, bytes, cause } = gap(note.range);
                (note.process_id, Event::Gap(Gap { from_seq, to_seq, bytes, cause }))
            }
        }
    }

    /// Returns the process, and the last event that this covers.
    pub(crate) fn position(&self) -> (&str, u64) {
        match self {
            ProcessEvent::Output(note) => (&note.process_id, note.seq),
            ProcessEvent::Exited(note) => (&note.process_id, note.seq),
            ProcessEvent::Closed(note) => (&note.process_id, note.seq),
            ProcessEvent::Gap(note) => (&note.process_id, note.range.to_seq),
        }
    }
}

pub(super) fn gap(range: wire::GapRange) -> log::Gap {
    let wire::GapRange { from_seq, to_seq, bytes, cause } = range;
    log::Gap { from_seq, to_seq, bytes, cause }
}

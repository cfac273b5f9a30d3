//! `process/seek`: finds positions in the log by time, by offset and from the end.
//!
//! A log in memory is searched at once. One on disk is searched by a reader of its own on a file thread, so that a slow
//! disk delays nothing else.

use std::{io, path::PathBuf};

use remex_log::Reader;
use remex_proto::{
    RpcError,
    process::{SeekTo, Sought},
    state::output::{Point, Seq},
};

use super::{
    Audience, Engine, ProcessLog,
    load::{Backoff, warn_unreadable},
    read::unreadable,
};
use crate::{supervise::defect, threads::ClientThreads};

/// A search in the files of a log.
struct DiskSearch {
    dir: PathBuf,
    newest: Seq,
    produced_bytes: u64,
}

impl<A: Audience> Engine<A> {
    /// Finds a position in the output.
    pub(crate) async fn seek(&self, to: SeekTo, threads: &ClientThreads) -> Result<Sought, RpcError> {
        let mut backoff = Backoff::default();
        loop {
            let search = {
                let mut state = self.state();
                match DiskSearch::of(&state.log) {
                    Some(search) => search,
                    None => return Ok(in_memory(&mut state.log, to)),
                }
            };
            match threads.run(move || search.run(to)).await.map_err(|_| defect())? {
                Ok(found) => return Ok(found),
                Err(error) if remex_log::is_lasting(&error) || !backoff.brief().await => {
                    warn_unreadable(&self.id, &error);
                    return Err(unreadable(&self.id, Some(&error.to_string())));
                }
                Err(_) => {}
            }
        }
    }
}

fn in_memory(log: &mut ProcessLog, to: SeekTo) -> Sought {
    let (newest_seq, produced_bytes) = (log.next_seq() - 1, log.total());
    let (oldest, oldest_offset) = (log.first_seq() - 1, log.evicted_bytes());
    let (after_seq, is_evicted) = match to {
        SeekTo::AtMs(at_ms) => {
            let seq = log.seq_before(at_ms);
            (seq, seq <= oldest)
        }
        SeekTo::Offset(offset) => (log.seq_ending_by(offset), offset < oldest_offset),
        SeekTo::TailBytes(bytes) => {
            let offset = produced_bytes.saturating_sub(bytes);
            (log.seq_ending_by(offset), offset < oldest_offset)
        }
    };
    if is_evicted {
        return Sought { after_seq: 0, offset: Some(0), newest_seq, produced_bytes };
    }
    Sought { after_seq, offset: log.cursor_after(after_seq).offset, newest_seq, produced_bytes }
}

impl DiskSearch {
    fn of(log: &ProcessLog) -> Option<Self> {
        let ProcessLog::Mirror(mirror) = log else { return None };
        let Point { seq: newest, offset: produced_bytes } = mirror.newest();
        Some(DiskSearch { dir: mirror.dir().to_owned(), newest, produced_bytes })
    }

    fn run(self, to: SeekTo) -> io::Result<Sought> {
        let mut reader = Reader::open(&self.dir)?;
        let (found, is_evicted) = match to {
            SeekTo::AtMs(at_ms) => {
                let found = reader.cursor_since(at_ms)?;
                (found, found.seq <= reader.oldest().seq)
            }
            SeekTo::TailBytes(0) => return Ok(self.at_the_end()),
            SeekTo::TailBytes(bytes) if bytes < self.produced_bytes => {
                let from = self.produced_bytes - bytes;
                (reader.tail(bytes)?, reader.oldest().offset > Some(from))
            }
            SeekTo::TailBytes(_) => (reader.oldest(), true),
            SeekTo::Offset(offset) if offset < self.produced_bytes => {
                (reader.cursor_at_offset(offset)?, reader.oldest().offset > Some(offset))
            }
            SeekTo::Offset(_) => return Ok(self.at_the_end()),
        };
        // The keeper may have written more than it has announced.
        if found.seq >= self.newest {
            return Ok(self.at_the_end());
        }
        let (after_seq, offset) = if is_evicted { (0, Some(0)) } else { (found.seq, found.offset) };
        Ok(Sought { after_seq, offset, ..self.at_the_end() })
    }

    fn at_the_end(&self) -> Sought {
        let DiskSearch { newest, produced_bytes, .. } = *self;
        Sought { after_seq: newest, offset: Some(produced_bytes), newest_seq: newest, produced_bytes }
    }
}

//! `process/list`, encoded entry by entry, because there may be a million processes.

use std::{collections::HashMap, io, sync::Arc, time::Duration};

use remex_access::budget::SHORT;
use remex_engine::ReadError;
use remex_process::{Tag, tree::Member};
use remex_proto::{RequestId, message, process as wire};
use serde::{Serialize, Serializer, ser::SerializeStruct as _};

use crate::{
    outbox::Fallible,
    sessions::{process::Process, session::Session},
};

/// The processes of some sessions, oldest first.
pub(crate) struct ProcessList {
    processes: Vec<(Arc<Session>, Process)>,
    living: HashMap<Tag, TreeUsage>,
    identities: Identities,
}

/// Whether entries name the identity of their session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Identities {
    /// All belong to the client's own.
    Known,
    Named,
}

/// Resource use of one process and its descendants.
#[derive(Default)]
struct TreeUsage {
    cpu: Duration,
    resident_bytes: u64,
    /// In ascending order.
    pids: Vec<u32>,
}

impl ProcessList {
    pub(crate) fn new(sessions: &[Arc<Session>], members: &[Member], identities: Identities) -> Self {
        let mut living = HashMap::<_, TreeUsage>::new();
        for member in members {
            if let Some(tag) = member.tag {
                let tree = living.entry(tag).or_default();
                tree.cpu += member.cpu;
                tree.resident_bytes += member.resident_bytes;
                tree.pids.push(member.pid.as_raw().unsigned_abs());
            }
        }
        for tree in living.values_mut() {
            tree.pids.sort_unstable();
            tree.pids.truncate(wire::LIVING_PIDS);
        }
        let of = |session: &Arc<Session>| {
            let session = Arc::clone(session);
            session.all_processes().into_iter().map(move |process| (Arc::clone(&session), process))
        };
        let mut processes: Vec<_> = sessions.iter().flat_map(of).collect();
        // Several may have started in one millisecond.
        processes.sort_by_cached_key(|(_, process)| {
            let tag = process.tag;
            (process.started_at_ms(), tag.session(), tag.process())
        });
        ProcessList { processes, living, identities }
    }

    pub(crate) fn to_listing(&self) -> wire::Listing {
        wire::Listing { processes: self.entries().collect() }
    }

    /// Encodes the answer, unless it needs more than `room`; one that needs more than `most` is never built.
    pub(crate) fn encode(&self, id: &RequestId, room: u64, most: u64) -> Result<Vec<u8>, ReadError> {
        let mut len = Count(0);
        serde_json::to_writer(&mut len, self).map_err(|_| ReadError::NoMemory)?;
        let needed = len.0 + len.0 / 64 + ENVELOPE;
        if needed > most.max(SHORT) {
            return Err(ReadError::NoMemory);
        }
        if needed > room {
            return Err(ReadError::TooLong(needed));
        }
        let mut json = Vec::new();
        json.try_reserve_exact(usize::try_from(needed).unwrap_or(usize::MAX))?;
        let mut written = Ok(());
        message::write_result_with(&mut json, id, |json| {
            written = serde_json::to_writer(Fallible(json), self);
        });
        written.map_err(|_| ReadError::NoMemory)?;
        // The processes keep running, so their numbers may have grown by a few digits.
        Ok(json)
    }

    fn entries(&self) -> impl Iterator<Item = wire::Entry> {
        self.processes.iter().map(|(session, process)| {
            let mut entry = process.entry(&session.id);
            entry.identity =
                (self.identities == Identities::Named).then(|| session.owner.identity.to_string());
            if let Some(tree) = self.living.get(&process.tag) {
                entry.cpu_ms = Some(u64::try_from(tree.cpu.as_millis()).unwrap_or(u64::MAX));
                entry.resident_bytes = Some(tree.resident_bytes);
                entry.living_pids.clone_from(&tree.pids);
            }
            entry
        })
    }
}

/// Size of the response around the result, including the request id.
const ENVELOPE: u64 = 8 << 10;

/// Serializes like [`wire::Listing`].
impl Serialize for ProcessList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct Entries<'a>(&'a ProcessList);

        impl Serialize for Entries<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_seq(self.0.entries())
            }
        }

        let mut listing = serializer.serialize_struct("Listing", 1)?;
        listing.serialize_field("processes", &Entries(self))?;
        listing.end()
    }
}

/// A writer that only counts bytes.
struct Count(u64);

impl io::Write for Count {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

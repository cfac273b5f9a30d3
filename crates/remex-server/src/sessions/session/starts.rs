//! Starts by `startId`: a repeated start is answered with the result of the first.

use std::{
    collections::{HashMap, VecDeque},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::MutexGuard,
};

use remex_access::account::{self, Charge, Kind};
use remex_base::lock;
use remex_proto::{ErrorKind, RpcError, process as wire};

use super::Session;
use crate::outbox::Responder;

/// How many restarts of a process have their results remembered.
const KEPT_RESTARTS: usize = 16;

/// How many older restarts of a session are known as such, so that they are not repeated.
const KNOWN_RESTARTS: usize = 1024;

/// What an id is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartKind {
    Start,
    Restart,
}

/// The results of the starts of a session, by id.
#[derive(Debug, Default)]
pub(super) struct Starts {
    by_id: HashMap<String, Record>,
    /// How many there were.
    count: u64,
    /// The ids of restarts whose results are forgotten, as hashes, the oldest first.
    older_restarts: VecDeque<u64>,
}

impl Starts {
    fn insert(
        &mut self,
        start_id: String,
        asked: StartKind,
        process_id: String,
        outcome: Outcome,
        charge: Charge,
    ) {
        self.count += 1;
        let record = Record { process_id, asked, number: self.count, outcome, charge };
        self.by_id.insert(start_id, record);
    }

    /// Forgets the result of the oldest restart of a process before another one, if there are many.
    fn forget_older_restart(&mut self, process_id: &str, limit: usize) {
        let is_older = |record: &Record| {
            record.asked == StartKind::Restart
                && record.process_id == process_id
                && matches!(record.outcome, Outcome::Known(_))
        };
        let older = self.by_id.iter().filter(|(_, record)| is_older(record));
        if older.clone().count() < KEPT_RESTARTS && self.by_id.len() < limit {
            return;
        }
        let oldest = older.min_by_key(|(_, record)| record.number).map(|(start_id, _)| start_id.clone());
        let Some(oldest) = oldest else { return };
        self.by_id.remove(&oldest);
        self.older_restarts.push_back(hash(&oldest, process_id));
        if self.older_restarts.len() > KNOWN_RESTARTS {
            self.older_restarts.pop_front();
        }
    }
}

#[derive(Debug)]
struct Record {
    process_id: String,
    asked: StartKind,
    /// Counts the starts of the session.
    number: u64,
    outcome: Outcome,
    charge: Charge,
}

#[derive(Debug)]
enum Outcome {
    /// Repeated starts wait here; bounded by the open requests of a connection.
    Pending(Vec<Responder>),
    Known(Result<wire::Started, RpcError>),
}

/// A start that has not been attempted yet. Dropping it forgets the start, which was refused or panicked.
#[derive(Debug)]
pub(super) struct PendingStart<'a> {
    pub(super) session: &'a Session,
    pub(super) start_id: Option<&'a str>,
}

impl PendingStart<'_> {
    /// Leaves it to the process task to record the result.
    pub(super) fn hand_over(mut self) {
        self.start_id = None;
    }
}

impl Drop for PendingStart<'_> {
    fn drop(&mut self) {
        self.session.forget_start(self.start_id);
    }
}

/// The result of a start that an earlier server knew; `None` while the process starts.
#[derive(Debug)]
pub(super) struct SavedRecord {
    pub(super) process_id: String,
    pub(super) asked: StartKind,
    pub(super) outcome: Option<Result<wire::Started, RpcError>>,
}

impl Session {
    /// Remembers a start of an earlier server.
    pub(super) fn restore_start(&self, start_id: String, saved: SavedRecord) {
        let SavedRecord { process_id, asked, outcome } = saved;
        let charge = self.account.take(Kind::Sessions, weight(&start_id, &process_id));
        let outcome = outcome.map_or_else(|| Outcome::Pending(Vec::new()), Outcome::Known);
        let mut starts = self.starts();
        if asked == StartKind::Restart {
            starts.forget_older_restart(&process_id, usize::MAX);
        }
        starts.insert(start_id, asked, process_id, outcome, charge);
    }

    /// Answers a repeated start; returns the responder if the start is new.
    pub(super) fn replay_start(
        &self,
        start_id: Option<&str>,
        process_id: &str,
        asked: StartKind,
        responder: Responder,
    ) -> Option<Responder> {
        let Some(start_id) = start_id else { return Some(responder) };
        let bytes = weight(start_id, process_id);
        let is_known = {
            let mut starts = self.starts();
            let is_known = starts.by_id.contains_key(start_id);
            if !is_known && asked == StartKind::Restart {
                if starts.older_restarts.contains(&hash(start_id, process_id)) {
                    drop(starts);
                    responder.error(&older_restart(start_id, process_id));
                    return None;
                }
                starts.forget_older_restart(process_id, self.host.limits().start_ids);
            }
            is_known
        };
        // Not while the starts are locked, because it may forget processes.
        let charge = (!is_known)
            .then(|| self.owner.make_room(|| self.account.try_take(Kind::Sessions, bytes)))
            .flatten();
        let mut starts = self.starts();
        let limit = self.host.limits().start_ids;
        let known = starts.by_id.len();
        match starts.by_id.get_mut(start_id) {
            Some(record) if record.process_id != process_id => {
                let message = format!("startId `{start_id}` belongs to process `{}`", record.process_id);
                drop(starts);
                let hint = format!("use a new startId for `{process_id}`");
                responder.error(&RpcError::new(ErrorKind::StartIdMismatch, message).with_hint(hint));
                None
            }
            Some(Record { outcome: Outcome::Pending(waiting), .. }) => {
                waiting.push(responder);
                None
            }
            Some(Record { outcome: Outcome::Known(outcome), .. }) => {
                let outcome = outcome.clone();
                drop(starts);
                responder.answer(outcome.map(replayed));
                None
            }
            None if known >= limit => {
                drop(starts);
                let message = format!("session remembers {limit} startIds, which is its limit");
                let error = RpcError::new(ErrorKind::LimitExceeded, message);
                responder.error(&error.with_hint("start a new session"));
                None
            }
            None => {
                let process_id = process_id.to_owned();
                let Some(charge) = charge else {
                    drop(starts);
                    let what = format!("cannot start process `{process_id}` and remember its startId");
                    let error = account::full(&what, self.owner.account(), Kind::Sessions, bytes);
                    responder.error(&error);
                    return None;
                };
                let outcome = Outcome::Pending(Vec::new());
                starts.insert(start_id.to_owned(), asked, process_id, outcome, charge);
                Some(responder)
            }
        }
    }

    pub(super) fn forget_start(&self, start_id: Option<&str>) {
        let Some(start_id) = start_id else { return };
        let record = self.starts().by_id.remove(start_id);
        drop(record);
    }

    pub(super) fn finish_start(&self, start_id: Option<&str>, outcome: &Result<wire::Started, RpcError>) {
        let Some(start_id) = start_id else { return };
        let mut starts = self.starts();
        let Some(record) = starts.by_id.get_mut(start_id) else { return };
        let before = std::mem::replace(&mut record.outcome, Outcome::Known(outcome.clone()));
        if let Err(error) = outcome {
            record.charge.set(weight(start_id, &record.process_id) + error.text().len());
        }
        drop(starts);
        if let Outcome::Pending(waiting) = before {
            for responder in waiting {
                responder.answer(outcome.clone().map(replayed));
            }
        }
    }

    /// Returns whether an id is that of a restart.
    pub(super) fn is_restart(&self, start_id: &str, process_id: &str) -> bool {
        let starts = self.starts();
        let known = starts.by_id.get(start_id).map(|record| record.asked == StartKind::Restart);
        known.unwrap_or_else(|| starts.older_restarts.contains(&hash(start_id, process_id)))
    }

    fn starts(&self) -> MutexGuard<'_, Starts> {
        lock(&self.starts)
    }
}

fn hash(start_id: &str, process_id: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (start_id, process_id).hash(&mut hasher);
    hasher.finish()
}

fn older_restart(restart_id: &str, process_id: &str) -> RpcError {
    let message = format!(
        "restart `{restart_id}` of process `{process_id}` was carried out, and later ones followed: its result is no longer known"
    );
    RpcError::new(ErrorKind::StartIdMismatch, message).with_hint("use a new restartId to restart it again")
}

/// Returns about how many bytes a remembered start needs.
fn weight(start_id: &str, process_id: &str) -> usize {
    /// An entry with its result, and what allocations need besides their contents.
    const RECORD_BYTES: usize = 640;

    RECORD_BYTES + start_id.len() + 2 * process_id.len()
}

fn replayed(started: wire::Started) -> wire::Started {
    wire::Started { replayed: true, ..started }
}

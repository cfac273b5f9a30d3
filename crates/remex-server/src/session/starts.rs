//! Starts by `startId`: a repeated start is answered with the result of the first.

use std::{
    collections::HashMap,
    sync::{MutexGuard, PoisonError},
};

use remex_proto::{ErrorKind, RpcError, process as wire};

use super::Session;
use crate::outbox::Responder;

/// The results of the starts of a session, by id.
#[derive(Debug, Default)]
pub(super) struct Starts {
    by_id: HashMap<String, Record>,
}

#[derive(Debug)]
struct Record {
    process_id: String,
    outcome: Outcome,
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
    pub(super) outcome: Option<Result<wire::Started, RpcError>>,
}

impl Session {
    /// Remembers a start of an earlier server.
    pub(super) fn restore_start(&self, start_id: String, saved: SavedRecord) {
        let SavedRecord { process_id, outcome } = saved;
        let outcome = outcome.map_or_else(|| Outcome::Pending(Vec::new()), Outcome::Known);
        self.starts().by_id.insert(start_id, Record { process_id, outcome });
    }

    /// Answers a repeated start; returns the responder if the start is new.
    pub(super) fn replay_start(&self, request: &wire::Start, responder: Responder) -> Option<Responder> {
        let Some(start_id) = &request.start_id else { return Some(responder) };
        let mut starts = self.starts();
        let limit = self.host.limits().start_ids;
        let known = starts.by_id.len();
        match starts.by_id.get_mut(start_id) {
            Some(record) if record.process_id != request.process_id => {
                let message = format!("startId `{start_id}` belongs to process `{}`", record.process_id);
                drop(starts);
                let hint = format!("use a new startId for `{}`", request.process_id);
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
                let record =
                    Record { process_id: request.process_id.clone(), outcome: Outcome::Pending(Vec::new()) };
                starts.by_id.insert(start_id.clone(), record);
                Some(responder)
            }
        }
    }

    fn forget_start(&self, start_id: Option<&str>) {
        let Some(start_id) = start_id else { return };
        let record = self.starts().by_id.remove(start_id);
        drop(record);
    }

    pub(super) fn finish_start(&self, start_id: Option<&str>, outcome: &Result<wire::Started, RpcError>) {
        let Some(start_id) = start_id else { return };
        let mut starts = self.starts();
        let Some(record) = starts.by_id.get_mut(start_id) else { return };
        let before = std::mem::replace(&mut record.outcome, Outcome::Known(outcome.clone()));
        drop(starts);
        if let Outcome::Pending(waiting) = before {
            for responder in waiting {
                responder.answer(outcome.clone().map(replayed));
            }
        }
    }

    fn starts(&self) -> MutexGuard<'_, Starts> {
        self.starts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn replayed(started: wire::Started) -> wire::Started {
    wire::Started { replayed: true, ..started }
}

//! `process/collect`: deletes the logs of closed durable processes on request.

use std::{collections::HashSet, path::PathBuf, sync::Arc};

use remex_base::{
    clock::{now_ms, steady_ms},
    supervise::defect,
};
use remex_engine::{ClosedLog, Rule, ServerProcess, disk_space};
use remex_proto::{ErrorKind, RequestId, RpcError, process as wire};

use super::{Calls, permission};
use crate::{
    outbox::Responder,
    sessions::{process::Process, session::Session},
};

/// The client of a session that ends this soon may still return for the output.
const SOON_MS: u64 = 60 * 60 * 1000;

/// A closed durable process.
struct Candidate {
    session: Arc<Session>,
    process: Process,
    dir: PathBuf,
    log: ClosedLog,
    /// Whether a client may still want its output.
    is_wanted: bool,
}

impl Calls {
    pub(super) fn collect(
        &mut self,
        id: RequestId,
        own: &Arc<Session>,
        request: &wire::Collect,
        responder: Responder,
    ) {
        let sessions = match self.sessions_to_collect(own, request.scope) {
            Ok(sessions) => sessions,
            Err(error) => return responder.error(&error),
        };
        let returning = self.sessions.expiring_by(steady_ms().saturating_add(SOON_MS));
        let threads = self.context.threads().clone();
        let request = request.clone();
        self.context.spawn_call(id, async move {
            let listed = threads.run(move || candidates(&sessions, &returning)).await;
            match listed {
                Ok(candidates) => responder.ok(collected(candidates, &request)),
                Err(_) => responder.error(&defect()),
            }
        });
    }

    fn sessions_to_collect(
        &self,
        own: &Arc<Session>,
        scope: wire::Scope,
    ) -> Result<Vec<Arc<Session>>, RpcError> {
        if scope == wire::Scope::All {
            permission::check_admin(&self.credential.scopes, "process/collect")?;
        }
        if self.context.host().durable().is_none() {
            let message = "this server has no state directory, so no logs on disk";
            return Err(RpcError::new(ErrorKind::NotSupported, message)
                .with_hint("start it with `remex serve --state DIR`; processes in memory are removed one by one, or with `remex prune`"));
        }
        Ok(match scope {
            wire::Scope::Session => vec![Arc::clone(own)],
            wire::Scope::Identity => self.sessions.all_of(&self.credential.identity),
            wire::Scope::All => self.sessions.all(),
        })
    }
}

/// Returns the closed durable processes, the ones that ended first at the front. Reads directories.
fn candidates(sessions: &[Arc<Session>], returning: &HashSet<String>) -> Vec<Candidate> {
    let mut found = Vec::new();
    for session in sessions {
        let may_return = returning.contains(&session.id);
        for process in session.all_processes() {
            let ServerProcess::Remote(remote) = &*process else { continue };
            let Some((dir, ended_at_ms)) = remote.closed_log() else { continue };
            let is_wanted = may_return || !process.is_settled();
            let log = ClosedLog { ended_at_ms, bytes: disk_space(&dir) };
            found.push(Candidate { session: Arc::clone(session), process, dir, log, is_wanted });
        }
    }
    found.sort_by(|one, other| (one.log.ended_at_ms, &one.dir).cmp(&(other.log.ended_at_ms, &other.dir)));
    found
}

/// Forgets the processes that the request selects, and returns them.
fn collected(candidates: Vec<Candidate>, request: &wire::Collect) -> wire::Collected {
    let (wanted, unwanted): (Vec<_>, Vec<_>) = candidates.into_iter().partition(|one| one.is_wanted);
    let space = |candidates: &[Candidate]| candidates.iter().map(|one| one.log.bytes).sum::<u64>();
    let rule = Rule { older_than_ms: request.older_than_ms, keep_bytes: request.keep_bytes };
    let logs: Vec<_> = unwanted.iter().map(|one| one.log).collect();
    let (gone, kept) = unwanted.split_at(rule.select(&logs, space(&wanted), now_ms()));
    let mut collected = wire::Collected::default();
    collected.count = gone.len() as u64;
    collected.bytes = space(gone);
    collected.kept_count = (kept.len() + wanted.len()) as u64;
    collected.kept_bytes = space(kept) + space(&wanted);
    collected.processes =
        gone.iter().take(wire::COLLECTED_NAMES).map(|one| one.entry(request.scope)).collect();
    if !request.dry_run {
        for one in gone {
            one.process.forget_if_settled();
        }
    }
    collected
}

impl Candidate {
    fn entry(&self, scope: wire::Scope) -> wire::CollectedProcess {
        let Candidate { session, process, log, .. } = self;
        let mut entry = wire::CollectedProcess::new(&*process.id, &session.id, log.ended_at_ms, log.bytes);
        entry.identity = (scope == wire::Scope::All).then(|| session.owner.identity.to_string());
        entry
    }
}

//! What only the keeper does with an engine: it has a log on disk, and its start and requests come from a server.

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use remex_access::account::Account;
use remex_base::{clock::now_ms, limits::Limits};
use remex_process::{Attempt, Child, Tag};
use remex_proto::{
    HostPath, process as wire,
    state::output::{Hold, Point},
};

use super::{
    Audience, DiskLogWriter, Engine, Input, Lifecycle, Place, Placement, Request, Spec,
    start::{Announce, Confined},
    task, terminate,
};
use crate::{
    shared::host::Host,
    state::keeper_link::message::{Progress, Rules},
};

/// What the keeper knows about a process.
#[derive(Debug)]
pub(crate) struct KeptSpec {
    pub(crate) rules: Rules,
    pub(crate) tag: Tag,
}

impl<A: Audience<Log = DiskLogWriter>> Engine<A> {
    /// Creates the handle of a process that starts in the keeper, and what aborts its start.
    pub(crate) fn kept(
        spec: KeptSpec,
        host: &Arc<Host>,
        owner: Weak<A::Owner>,
        account: &Arc<Account>,
        log: DiskLogWriter,
        audience: A,
    ) -> (Arc<Self>, Attempt) {
        let KeptSpec { rules, tag } = spec;
        let limits = limits_of(&rules, host);
        let (id, spec) = (rules.id.clone(), spec_of(&rules));
        let placement = Placement { owner, host, account, tag, place: Place::Here };
        let process = Engine::new(id, spec, placement, log, audience);
        let attempt = Attempt::default();
        {
            let mut state = process.state();
            state.input = Input::new(&limits, account);
            state.lifecycle = Lifecycle::Starting(attempt.clone());
        }
        (Arc::new(process), attempt)
    }

    /// Runs until all output of a new child, whose start is recorded, is in the log.
    pub(crate) async fn run_kept(
        self: Arc<Self>,
        child: Child,
        started_at_ms: u64,
        owner: Arc<A::Owner>,
        caller: A::Caller,
    ) {
        let announce = Announce { start_id: None, caller: Some(caller), started_at_ms: Some(started_at_ms) };
        // What it is kept from matters only to the server.
        task::run_child(self, owner, child, (Confined::No, None), announce).await;
    }

    /// Kills a child whose start cannot be recorded.
    pub(crate) async fn kill_unrecorded(&self, child: Child) {
        terminate::unwatched(self, child.exit).await;
    }

    /// Records that the process did not start.
    pub(crate) fn fail_kept(&self) {
        let requests = {
            let mut state = self.state();
            state.lifecycle = Lifecycle::Failed;
            std::mem::take(&mut state.requests)
        };
        requests.into_iter().for_each(Request::answer_unknown);
    }

    /// Uses the log on disk.
    pub(crate) fn with_log<R>(&self, work: impl FnOnce(&mut DiskLogWriter) -> R) -> R {
        work(&mut self.state().log)
    }

    pub(crate) fn with_audience<R>(&self, work: impl FnOnce(&mut A) -> R) -> R {
        work(&mut self.state().audience)
    }

    /// Returns what the server has to learn, and what the log holds for it.
    pub(crate) fn progress_and_hold(&self) -> (Progress, Hold<Point>) {
        let mut state = self.state();
        let is_full = state.full;
        (state.log.take_progress(is_full), state.log.hold())
    }
}

/// Returns the limits on the input of a process.
pub(super) fn limits_of(rules: &Rules, host: &Host) -> Limits {
    let number = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    Limits {
        write_ids: number(rules.write_ids),
        stdin_bytes: number(rules.stdin_bytes),
        ..Limits::clone(&host.limits())
    }
}

pub(super) fn spec_of(rules: &Rules) -> Spec {
    Spec {
        argv: Vec::new(),
        cwd: HostPath::from(PathBuf::from("/")),
        home: OnceLock::new(),
        user: None,
        tty: rules.tty,
        labels: std::collections::BTreeMap::new(),
        asked_at_ms: now_ms(),
        overflow: if rules.evicts { wire::Overflow::Evict } else { wire::Overflow::Pause },
        closed_ttl: Duration::MAX,
        linger: rules.linger_ms.map(Duration::from_millis),
        timeout: rules.timeout_ms.map(Duration::from_millis),
        idle_timeout: rules.idle_timeout_ms.map(Duration::from_millis),
        timeout_grace: rules.timeout_grace_ms.map(Duration::from_millis),
        retain_bytes: usize::try_from(rules.retain_bytes).unwrap_or(usize::MAX),
        start_id: None,
        // The server knows.
        incarnation: None,
        request: None,
        sync: rules.sync,
        weight: 0,
    }
}

//! The audience of a process in the keeper: announces new events to the server.

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use remex_base::{limits::Limits, threads::ServerWork, trace::LOG_TARGET};
use remex_proto::{process::Overflow, state::output_log::Hold};

use super::{Keeper, LinkCaller, Process};
use crate::{
    process::{Audience, ChildRules, Holding, KeeperAudience, KeeperState, ProcessState, SyncJob, SyncStep},
    state::keeper_link::message::Key,
};

/// Gathering ends once this much is not announced.
const NOTIFY_BYTES: u64 = 64 << 10;

/// A log without room is looked at again after this time: a disk or quota has room again without notice.
const RECHECK: Duration = Duration::from_millis(100);

/// The server, as the audience of one process.
#[derive(Debug)]
pub(super) struct Announcer {
    key: Key,
    keeper: Weak<Keeper>,
    /// Whether the process is on the list of those with something to announce.
    pub(super) is_queued: bool,
    pub(super) is_abandoned: bool,
}

impl Announcer {
    pub(super) fn new(key: Key, keeper: Weak<Keeper>) -> Self {
        Announcer { key, keeper, is_queued: false, is_abandoned: false }
    }
}

impl Audience for Announcer {
    type Caller = LinkCaller;
    type State = KeeperState<Self>;
    type Handle = Arc<Process>;
    type Owner = Keeper;

    fn hold(
        &mut self,
        _state: &KeeperState<Self>,
        rules: &ChildRules,
        _limits: &Limits,
        _holding: Holding,
        _now: Instant,
    ) -> Hold {
        // What exactly is held the log knows from the server.
        match rules.overflow {
            Overflow::Evict => Hold::Nothing,
            _ if self.is_abandoned => Hold::Nothing,
            _ => Hold::After(0),
        }
    }

    fn hold_changes_at(&self, _rules: &ChildRules, _limits: &Limits) -> Option<Instant> {
        Some(Instant::now() + RECHECK)
    }

    fn on_events(process: &Arc<Process>, state: &mut ProcessState<Self>) {
        match state.kind.log.begin_sync() {
            SyncStep::Run(job) => sync(process, state, job),
            // It announces them when it ends.
            SyncStep::Wait => {}
            SyncStep::Done => queue(process, state),
        }
    }

    fn on_change(process: &Arc<Process>, state: &mut ProcessState<Self>) {
        Self::on_events(process, state);
    }

    fn has_large_backlog(&self, state: &KeeperState<Self>) -> bool {
        state.log.unannounced() >= NOTIFY_BYTES
    }

    fn on_abandoned(&mut self) {
        self.is_abandoned = true;
    }
}

impl KeeperAudience for Announcer {}

/// Announces a process when the link has room.
fn queue(process: &Arc<Process>, state: &mut ProcessState<Announcer>) {
    if state.audience.is_queued {
        return;
    }
    let Some(link) = state.audience.keeper.upgrade().and_then(|keeper| keeper.link()) else { return };
    state.audience.is_queued = true;
    link.queue(state.audience.key, process);
}

/// Brings events to the disk on another thread, then announces them; repeats that while there are newer ones.
fn sync(process: &Arc<Process>, state: &ProcessState<Announcer>, job: Box<SyncJob>) {
    let Some(keeper) = state.audience.keeper.upgrade() else { return };
    let (process, host) = (Arc::clone(process), Arc::clone(&keeper.host));
    host.spawn(async move {
        let mut next = Some(job);
        while let Some(job) = next.take() {
            let wait = move || {
                let waited = job.wait();
                (job, waited)
            };
            let Ok((job, waited)) = keeper.host.own_threads().run(ServerWork::Logs, wait).await else { return };
            let mut state = process.state();
            // Once: after that, every sync fails.
            if let Err(error) = &waited
                && !state.kind.log.has_sync_failed()
            {
                tracing::error!(target: LOG_TARGET, %error, process = %process.id, "cannot sync a log: output may not survive a power failure");
            }
            if let SyncStep::Run(job) = state.kind.log.end_sync(job, &waited) {
                next = Some(job);
            }
            queue(&process, &mut state);
        }
    });
}

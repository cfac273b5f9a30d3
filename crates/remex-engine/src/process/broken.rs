//! Cleans up after a process task that panicked: kills the process and fails everything that waits for it.

use std::sync::Arc;

use remex_base::{
    clock::now_ms,
    supervise::{Running, catch_panic, defect, in_phases, supervise},
};
use remex_process::Scope;
use remex_proto::process::{self as wire, ExitCause};
use tracing::Instrument as _;

use super::{
    Audience, Engine, Exit, Kind, Lifecycle, Owner as _, Request, ServerAudience, ServerProcess, Starting,
    launch, terminate,
};
use crate::{process::LOG_TARGET, state::keeper_link::message::UNKNOWN_CODE};

/// The text that readers get in `failure`.
pub const FAILURE: &str =
    "the server's task for this process panicked, so the process was killed; see the server's log";

/// Runs the task of a process; if it panics, ends the process.
pub fn run<A: ServerAudience>(starting: Starting<A>, owner: Arc<A::Owner>) -> Running {
    let (process, start_id) = (starting.process.clone(), starting.start_id.clone());
    let running = in_phases(launch::run(starting, Arc::clone(&owner)));
    match process {
        ServerProcess::Local(process) => Box::pin(guard(process, owner, start_id, running)),
        ServerProcess::Remote(process) => Box::pin(guard(process, owner, start_id, running)),
    }
}

/// Runs something for a process; if it panics, ends the process.
pub async fn guard<A: Audience, K: Kind<A>>(
    process: Arc<Engine<A, K>>,
    owner: Arc<A::Owner>,
    start_id: Option<String>,
    running: Running,
) {
    if supervise(running).await.is_ok() {
        return;
    }
    // The child died with the task, which held its descriptor; this kills its remaining descendants.
    let leader = K::leader(&process.state().kind);
    if let Some(leader) = leader {
        let scope = Scope::Process(process.tag, leader);
        let killing = async move {
            if let Err(error) = terminate::kill(&scope).await {
                tracing::error!(target: LOG_TARGET, error = %error.message, "process tree is still alive after its task panicked");
            }
        };
        process.host.spawn(killing.in_current_span());
    }
    let answered = catch_panic(|| process.give_up(&*owner, start_id.as_deref()));
    if answered.is_err() {
        owner.on_broken(&K::handle(&process));
    }
}

impl<A: Audience, K: Kind<A>> Engine<A, K> {
    fn give_up(self: &Arc<Self>, owner: &A::Owner, start_id: Option<&str>) {
        let mut state = self.state();
        if let Lifecycle::Starting(_) | Lifecycle::Failed = state.lifecycle {
            state.lifecycle = Lifecycle::Failed;
            let requests = std::mem::take(&mut state.requests);
            drop(state);
            owner.on_start_failed(&K::handle(self), start_id, &defect());
            requests.into_iter().for_each(Request::answer_unknown);
            self.changed.notify_waiters();
            return;
        }
        state.is_broken = true;
        if state.exit.is_none() {
            let (code, cause, usage) = (UNKNOWN_CODE, ExitCause::ServerLost, wire::Usage::default());
            state.exit = Some(Exit { code, signal: None, cause, usage, sandbox_denied: false });
            state.ended_at_ms = Some(now_ms());
        }
        K::end_log(&mut state);
        state.full = false;
        self.charge(&mut state);
        self.notify(&mut state);
        drop(state);
        self.retire();
        self.changed.notify_waiters();
        owner.on_closed(&K::handle(self));
    }
}

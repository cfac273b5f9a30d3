//! Ends processes whose keeper does not answer, perhaps because it waits for the disk of the state directory.

use std::{sync::Arc, time::Duration};

use remex_process::Scope;
use remex_proto::process::{ExitCause, TerminateMode, TerminateScope, Terminated};
use tokio::sync::oneshot;

use super::{Audience, Engine};
use crate::{
    engine::{Caller as _, Lifecycle, Request, terminate},
    keeper_link::message::RequestNumber,
};

/// How long the keeper has to answer a termination.
const KEEPER_PATIENCE: Duration = Duration::from_millis(500);

impl<A: Audience> Engine<A> {
    /// Terminates the process without the keeper, unless that answers the request in time: then what this returns has to
    /// be dropped. The keeper learns of the end when it goes on.
    pub(super) fn insist(self: &Arc<Self>, number: RequestNumber) -> oneshot::Sender<()> {
        let (sender, answered) = oneshot::channel();
        let process = Arc::clone(self);
        self.host.spawn(async move {
            if tokio::time::timeout(KEEPER_PATIENCE, answered).await.is_err() {
                process.terminate_without_keeper(number).await;
            }
        });
        sender
    }

    async fn terminate_without_keeper(self: &Arc<Self>, number: RequestNumber) {
        let (request, running, pid) = {
            let mut state = self.state();
            let request = state.forwarded.requests.remove(&number).map(|unanswered| unanswered.request);
            let pid = match &state.lifecycle {
                Lifecycle::Running { child, .. } => Some(child.pid()),
                _ => None,
            };
            (request, state.exit.is_none(), pid)
        };
        let Some(Request::Terminate(mode, scope, caller)) = request else { return };
        tracing::warn!(process = %self.id, "the keeper does not answer; terminating a process without it");
        let scope = match (scope, pid) {
            (TerminateScope::Usual, Some(pid)) if !running => Scope::Group(self.tag, pid),
            _ => Scope::Start(self.tag),
        };
        self.will_end_for(ExitCause::Terminated);
        match mode {
            TerminateMode::Force => {
                caller.answer(terminate::kill(&scope).await.map(|()| Terminated { running }.into()));
            }
            TerminateMode::Graceful { timeout_ms } => {
                terminate::terminate_gracefully(scope, self, Duration::from_millis(timeout_ms));
                caller.ok(Terminated { running });
            }
        }
    }
}

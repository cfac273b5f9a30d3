//! Ends processes whose keeper does not answer, perhaps because it waits for the disk of the state directory.

use std::{io, sync::Arc, time::Duration};

use remex_base::threads::ServerWork;
use remex_process::{HiddenChildren, HiddenScan, Pid, Scope, Signal, tree};
use remex_proto::{
    ErrorKind, RpcError,
    call::Empty,
    process::{ExitCause, TerminateMode, TerminateScope, Terminated},
};
use tokio::{sync::oneshot, time::Instant};

use super::{Remote, RemoteProcess, ServerAudience};
use crate::{
    process::LOG_TARGET,
    process::{Caller as _, Lifecycle, Request, terminate},
    shared::host::Phase,
    state::keeper_link::message::RequestNumber,
};

/// How long the keeper has to answer a request that ends a process.
const KEEPER_PATIENCE: Duration = Duration::from_secs(1);

/// How long to look at the children of a keeper, while some of them are just starting or ending.
const LOOKING_PATIENCE: Duration = Duration::from_secs(4);

/// Nothing announces that a child has started or ended.
const TIME_BETWEEN_LOOKS: Duration = Duration::from_millis(5);

impl<A: ServerAudience> RemoteProcess<A> {
    /// Ends the process without the keeper, unless the returned sender is dropped in time, which must happen when the
    /// keeper answers the request. A keeper that was suspended notices the end when it resumes.
    pub(super) fn end_unless_answered(self: &Arc<Self>, number: RequestNumber) -> oneshot::Sender<()> {
        let (sender, answered) = oneshot::channel();
        let process = Arc::clone(self);
        self.host.spawn(async move {
            tokio::select! {
                answered = tokio::time::timeout(KEEPER_PATIENCE, answered) => {
                    if answered.is_err() {
                        process.end_without_keeper(number).await;
                    }
                }
                // The keeper is no longer listened to, and what it does is for the next server to find.
                () = process.host.reaches(Phase::Disconnecting) => {}
            }
        });
        sender
    }

    async fn end_without_keeper(self: &Arc<Self>, number: RequestNumber) {
        let (request, running, pid) = {
            let mut state = self.state();
            let request = state.kind.pending.requests.remove(&number).map(|unanswered| unanswered.request);
            let pid = match &state.lifecycle {
                Lifecycle::Running { pid, .. } => Some(*pid),
                _ => None,
            };
            (request, state.exit.is_none(), pid)
        };
        let Some(request) = request else { return };
        let Remote { link, .. } = &self.kind;
        let keeper = link.pid();
        tracing::warn!(target: LOG_TARGET, process = %self.id, keeper, "the keeper does not answer; ending a process without it");
        let (mode, scope, caller) = match request {
            Request::Terminate(mode, scope, caller) => (mode, scope, caller),
            Request::Signal(signal, caller) => {
                let scope = pid.map_or(Scope::Start(self.tag), |pid| Scope::Group(self.tag, pid));
                let sent = tree::signal(&scope, &[Signal::KILL]).await.map(|_| Empty {}.into());
                let failed = |error: io::Error| {
                    let message = format!("cannot send {} to process `{}`: {error}", signal.name(), self.id);
                    RpcError::new(ErrorKind::Internal, message)
                };
                return caller.answer(sent.map_err(failed));
            }
            // The keeper has to do it.
            _ => return,
        };
        let scope = match (scope, pid) {
            (TerminateScope::Usual, Some(pid)) if !running => Scope::Group(self.tag, pid),
            _ => Scope::Start(self.tag),
        };
        self.will_end_for(ExitCause::Terminated);
        match mode {
            TerminateMode::Force => {
                let killed = match terminate::kill(&scope).await {
                    Ok(()) => self.check_hidden(keeper).await,
                    failed => failed,
                };
                caller.answer(killed.map(|()| Terminated { running }.into()));
            }
            TerminateMode::Graceful { timeout_ms } => {
                terminate::terminate_gracefully(scope, self, Duration::from_millis(timeout_ms));
                caller.ok(Terminated { running });
            }
        }
    }
}

impl<A: ServerAudience> RemoteProcess<A> {
    /// Fails if the keeper has children that hide which process they come from: it alone could tell.
    async fn check_hidden(&self, keeper: u32) -> Result<(), RpcError> {
        let Some(mut children) = HiddenChildren::new(keeper, self.tag) else { return Ok(()) };
        let until = Instant::now() + LOOKING_PATIENCE;
        loop {
            let looking = move || {
                let scan = children.scan();
                (children, scan)
            };
            let scanned = self.host.own_threads().run(ServerWork::Keeper, looking).await;
            let (returned, scan) = scanned.map_err(|panicked| unsure(keeper, &panicked.to_string()))?;
            children = returned;
            let (is_certain, doubt) = match scan {
                Ok(HiddenScan::Clear) => return Ok(()),
                Ok(HiddenScan::Unsettled(pids)) if pids.is_empty() => continue,
                Ok(HiddenScan::Hidden(pids)) => (true, hiding(&pids)),
                Ok(HiddenScan::Unsettled(pids)) => (false, hiding(&pids)),
                Err(error) => (false, format!("the processes of that host cannot be looked at: {error}")),
            };
            if is_certain || Instant::now() >= until {
                return Err(unsure(keeper, &doubt));
            }
            tokio::time::sleep(TIME_BETWEEN_LOOKS).await;
        }
    }
}

fn unsure(keeper: u32, doubt: &str) -> RpcError {
    let message = format!(
        "cannot tell whether something of the process tree is left: the keeper (pid {keeper}), which runs it, does not \
         respond, and {doubt}"
    );
    let hint = format!("resume it with `kill -CONT {keeper}` on that host, and try again");
    RpcError::new(ErrorKind::Internal, message).with_hint(hint)
}

fn hiding(pids: &[Pid]) -> String {
    let pids: Vec<_> = pids.iter().map(ToString::to_string).collect();
    format!("there are processes that hide which process they come from: {}", pids.join(" "))
}

/// Returns whether a request ends the process, and does no harm when the keeper repeats it later. Other signals than KILL
/// may: some programs end without cleaning up when one comes twice.
pub(super) fn can_do_without_keeper<C>(request: &Request<C>) -> bool {
    match request {
        Request::Terminate(..) => true,
        Request::Signal(signal, _) => *signal == Signal::KILL,
        Request::Write(_) | Request::CloseStdin(..) | Request::Resize(..) => false,
    }
}

//! The start of a process in the keeper, and space for its log. Start at [`RemoteProcess::start_in_keeper`].

use std::{sync::Arc, time::Duration};

use remex_proto::{ErrorKind, RpcError};
use tokio::{sync::oneshot, time::Instant};

use super::{ConfinementLevel, Remote, RemoteProcess, ServerAudience, StartAnswer, lost_start, too_long};
use crate::{
    process::LOG_TARGET,
    process::Owner as _,
    state::keeper_link::{
        KeeperLink, Sent,
        message::{ExhaustedQuota, StartFailure, ToKeeper},
    },
};

/// How long the keeper has for the deletion of a log before the start is tried again.
const DELETION_PATIENCE: Duration = Duration::from_secs(10);

/// How long a start waits for a connection to the keeper.
pub(super) const LINK_PATIENCE: Duration = Duration::from_secs(10);

/// How long a start is sent again over new connections.
const RESEND_PATIENCE: Duration = Duration::from_secs(30);

/// How long the keeper has for a start before it is asked whether it responds at all.
const START_PATIENCE: Duration = Duration::from_secs(6);

/// The outcome of one attempt to start a process.
enum Attempted {
    Answered(StartAnswer),
    /// The connection ended before the keeper had the start.
    NotArrived,
}

impl<A: ServerAudience> RemoteProcess<A> {
    /// Waits for the answer of the keeper to the start in `message`; makes space on the disk if there is too little.
    pub(in crate::process) async fn start_in_keeper(
        self: &Arc<Self>,
        message: ToKeeper,
        confined: ConfinementLevel,
    ) -> StartAnswer {
        let mut deadline = None;
        loop {
            match self.try_start_in_keeper(&message, confined).await {
                Attempted::Answered(Err(StartFailure::Other(failure)))
                    if failure.is_disk_full() && self.make_space().await => {}
                Attempted::Answered(answer) => return answer,
                Attempted::NotArrived => {
                    // However often the connection ends: as long as it comes back, the next attempt may arrive.
                    let deadline = *deadline.get_or_insert_with(|| Instant::now() + RESEND_PATIENCE);
                    let Remote { link, .. } = &self.kind;
                    if Instant::now() >= deadline || !link.linked_within(LINK_PATIENCE).await {
                        return Err(if link.is_lost() { lost_start() } else { unreachable_keeper() });
                    }
                }
            }
        }
    }

    /// Has the keeper delete the log of a closed process; returns whether there is one.
    pub(super) async fn make_space(&self) -> bool {
        let Remote { link, .. } = &self.kind;
        let (durable, owner) = (self.host.durable(), self.owner.upgrade());
        let Some((durable, owner)) = durable.zip(owner) else { return false };
        let mut deletions = link.deletions();
        let is_found = durable.collect(ExhaustedQuota::Server, owner.id());
        if is_found {
            let _ = tokio::time::timeout(DELETION_PATIENCE, deletions.changed()).await;
        }
        is_found
    }

    async fn try_start_in_keeper(
        self: &Arc<Self>,
        message: &ToKeeper,
        confined: ConfinementLevel,
    ) -> Attempted {
        let Remote { link, key, .. } = &self.kind;
        if !link.listen(*key, self) {
            return Attempted::Answered(Err(lost_start()));
        }
        let (sender, answer) = oneshot::channel();
        let sent = {
            let mut state = self.state();
            state.kind.pending.start = Some(sender);
            state.kind.pending.confined = confined;
            // The keeper knows of the process from this connection on.
            state.kind.pending.epoch = link.epoch();
            link.send_in(state.kind.pending.epoch, message)
        };
        match sent {
            Sent::Yes => {}
            Sent::Unlinked => return Attempted::NotArrived,
            Sent::Lost => return Attempted::Answered(Err(lost_start())),
            Sent::TooLong => {
                return Attempted::Answered(Err(StartFailure::Other((&too_long("start")).into())));
            }
        }
        // If the start is given up before it is answered, the keeper must give it up, too.
        let mut abandon = AbandonOnDrop { process: self, is_answered: false };
        let Some(answer) = wait_for_keeper(link, answer).await else {
            tracing::warn!(target: LOG_TARGET, process = %self.id, keeper = link.pid(), "the keeper does not respond; giving up a start");
            let error = silent_keeper(link.pid(), ", or start it with `durable: false`");
            return Attempted::Answered(Err(StartFailure::Other((&error).into())));
        };
        abandon.is_answered = true;
        match answer {
            Ok(answer) => Attempted::Answered(answer),
            Err(_) if link.is_lost() => Attempted::Answered(Err(lost_start())),
            Err(_) => Attempted::NotArrived,
        }
    }
}

/// Waits for the answer to a start as long as the keeper responds; a start that hangs is no reason to give it up.
async fn wait_for_keeper(
    link: &KeeperLink,
    mut answer: oneshot::Receiver<StartAnswer>,
) -> Option<Result<StartAnswer, oneshot::error::RecvError>> {
    loop {
        if let Ok(answer) = tokio::time::timeout(START_PATIENCE, &mut answer).await {
            return Some(answer);
        }
        let responds = link.status().await.is_some()
            || link.linked_within(LINK_PATIENCE).await && link.status().await.is_some();
        if !responds {
            // It may have come in the last moment.
            return answer.try_recv().ok().map(Ok);
        }
    }
}

pub(super) fn silent_keeper(pid: u32, instead: &str) -> RpcError {
    let message = format!(
        "the keeper (pid {pid}), which runs durable processes, does not respond: it is suspended, or the disk of the state \
         directory hangs"
    );
    let hint =
        format!("resume it with `kill -CONT {pid}` on that host, or check that disk, and try again{instead}");
    RpcError::new(ErrorKind::Internal, message).with_hint(hint)
}

fn unreachable_keeper() -> StartFailure {
    let error =
        RpcError::new(ErrorKind::Internal, "the process that runs durable processes cannot be reached")
            .with_hint(
                "see `keeper.log` in the state directory, and try again, or start it with `durable: false`",
            );
    StartFailure::Other((&error).into())
}

/// Abandons a start in the keeper when dropped before the answer.
struct AbandonOnDrop<'a, A: ServerAudience> {
    process: &'a RemoteProcess<A>,
    is_answered: bool,
}

impl<A: ServerAudience> Drop for AbandonOnDrop<'_, A> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.process.abandon_at_keeper();
            self.process.discard();
        }
    }
}

//! The end of a session: kills everything that it started, and notifies its observers. Start at [`Session::end`].

use std::{sync::atomic::Ordering, time::Duration};

use remex_process::{Scope, tree};
use remex_proto::{ErrorKind, RpcError, process::ExitCause};

use super::{Reach, Session};

/// How long killed processes may take until all their output is in their logs.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// Whether starts are still in progress in a session that ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PendingStarts {
    Nothing,
    Starts,
}

impl Session {
    /// Kills everything the session started, including processes that its commands left running on purpose.
    ///
    /// # Errors
    ///
    /// If something is still alive after a while.
    pub(crate) async fn end(&self) -> Result<(), RpcError> {
        let ended = self.end_processes().await;
        self.tell_end();
        ended
    }

    async fn end_processes(&self) -> Result<(), RpcError> {
        let pending = self.abandon(Reach::All);
        if self.next_process.load(Ordering::Relaxed) > 0 {
            self.kill().await?;
        }
        self.closed_in_time(Reach::All).await?;
        if pending == PendingStarts::Starts {
            // A start in progress may have created a child after the scan.
            self.kill().await?;
        }
        self.host.remove_empty_cgroups();
        self.delete_logs();
        tracing::info!(session = %self.id, identity = %self.owner.identity, "session ended");
        Ok(())
    }

    /// Tells observers that the session has ended.
    fn tell_end(&self) {
        for observer in &self.subscribers().observers {
            observer.outbox.push_note(remex_proto::session::Ended { session_id: self.id.clone() });
        }
    }

    async fn kill(&self) -> Result<(), RpcError> {
        for tag in self.tags() {
            tree::kill(&Scope::Session(tag)).await.map_err(|error| {
                let message = format!("cannot end all processes of the session: {error}");
                RpcError::new(ErrorKind::Internal, message)
            })?;
        }
        Ok(())
    }

    /// Waits until all processes are closed, with a timeout.
    pub(crate) async fn closed_in_time(&self, reach: Reach) -> Result<(), RpcError> {
        if tokio::time::timeout(END_PATIENCE, self.all_closed(reach)).await.is_ok() {
            return Ok(());
        }
        let live = self.processes().live(reach);
        let message = format!("{live} processes of the session are still alive");
        Err(RpcError::new(ErrorKind::Internal, message).with_hint("check them on the host"))
    }

    /// Refuses new starts and kills running processes. Does not reach processes that have left their group.
    pub(crate) fn abandon(&self, reach: Reach) -> PendingStarts {
        self.processes().ended = true;
        self.will_end(reach);
        let processes = self.all_processes().into_iter().filter(|process| reach.covers(process));
        let starting = processes.filter(|process| process.abandon()).count();
        if starting > 0 { PendingStarts::Starts } else { PendingStarts::Nothing }
    }

    /// Records why all running processes are about to end, and aborts starts.
    pub(crate) fn will_end(&self, reach: Reach) {
        for process in self.all_processes().into_iter().filter(|process| reach.covers(process)) {
            process.will_end_for(ExitCause::Terminated);
            process.abort_start();
        }
    }

    /// Waits until all processes are closed.
    pub(crate) async fn all_closed(&self, reach: Reach) {
        loop {
            let closed_one = self.closed_one.notified();
            tokio::pin!(closed_one);
            closed_one.as_mut().enable();
            if self.processes().live(reach) == 0 {
                return;
            }
            closed_one.await;
        }
    }
}

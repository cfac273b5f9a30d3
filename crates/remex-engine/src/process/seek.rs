//! `process/seek`: finds positions in the log by time, by offset and from the end.
//!
//! A log in memory is searched at once. One on disk is searched by a reader of its own on a file thread, so that a slow
//! disk delays nothing else.

use remex_base::{supervise::defect, threads::ClientThreads};
use remex_proto::{
    RpcError,
    process::{SeekTo, Sought},
};

use super::{
    LogReader as _, ServerAudience, ServerProcess,
    load::{Backoff, warn_unreadable},
    log::Unread,
    read::unreadable,
};

impl<A: ServerAudience> ServerProcess<A> {
    /// Finds a position in the output.
    pub async fn seek(&self, to: SeekTo, threads: &ClientThreads) -> Result<Sought, RpcError> {
        let mut backoff = Backoff::default();
        loop {
            let (mut sought, stored) = {
                let mut state = self.state();
                {
                    let log = state.kind.log_mut();
                    (log.seek(to), log.stored())
                }
            };
            if let (Err(Unread::OnDisk), Some(mut stored)) = (&sought, stored) {
                sought = threads.run(move || stored.seek(to)).await.map_err(|_| defect())?;
            }
            match sought {
                Ok(found) => return Ok(found),
                Err(Unread::Failed(error)) if remex_log::is_lasting(&error) || !backoff.brief().await => {
                    warn_unreadable(&self.id, &error);
                    return Err(unreadable(&self.id, Some(&error.to_string())));
                }
                Err(Unread::Failed(_)) => {}
                Err(Unread::OnDisk | Unread::NoMemory) => return Err(unreadable(&self.id, None)),
            }
        }
    }
}

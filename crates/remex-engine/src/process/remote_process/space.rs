//! Checks that a process of the keeper can be started again. Start at [`RemoteProcess::check_space`].

use remex_proto::RpcError;

use super::{
    Remote, RemoteProcess, ServerAudience,
    starting::{LINK_PATIENCE, silent_keeper},
};
use crate::state::keeper_link::Trial;

impl<A: ServerAudience> RemoteProcess<A> {
    /// Checks that there is space for the log of another start; deletes logs of closed processes for it, as that would.
    pub async fn check_space(&self) -> Result<(), RpcError> {
        let Remote { link, key, .. } = &self.kind;
        while !link.is_lost() {
            match link.try_log(*key).await {
                Trial::Fits => break,
                Trial::Fails(failure) if failure.is_disk_full() && self.make_space().await => {}
                Trial::Fails(failure) => return Err(failure.into()),
                Trial::Unanswered => {
                    self.check_keeper().await?;
                    // A keeper of an earlier version does not know this request.
                    break;
                }
            }
        }
        Ok(())
    }

    /// Checks that the keeper of the process responds; if it is gone, another one will.
    pub async fn check_keeper(&self) -> Result<(), RpcError> {
        let Remote { link, .. } = &self.kind;
        let responds = link.linked_within(LINK_PATIENCE).await && link.status().await.is_some();
        if responds || link.is_lost() { Ok(()) } else { Err(silent_keeper(link.pid(), "")) }
    }
}

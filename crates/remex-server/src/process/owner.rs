//! What a process tells its owner: the session, or a fake in tests.

use std::{fmt, sync::Arc};

use remex_proto::{RpcError, process as wire};

use super::{Process, Viewer};
use crate::outbox::ConnectionId;

/// The owner of processes. A process never keeps it alive, except while its task runs.
pub(crate) trait Owner: fmt::Debug + Send + Sync {
    /// Returns the id by which observers know the owner.
    fn id(&self) -> &str;

    /// Tells whether the owner has ended, so that nothing new may run.
    fn has_ended(&self) -> bool;

    /// Returns how the controlling connection follows a process, if it is `connection`.
    fn controller(&self, connection: ConnectionId) -> Option<Viewer>;

    /// Evicts output of closed processes until `wanted` bytes may be retained, as far as that is possible.
    fn reclaim(&self, wanted: usize);

    /// Remembers how a start went, for those who ask with the same `startId`.
    fn remember_start(&self, start_id: Option<&str>, outcome: &Result<wire::Started, RpcError>);

    /// Lets everybody who looks on see a process that has started and was answered.
    fn on_started(&self, process: &Arc<Process>, pid: u32);

    /// Frees the id of a process that could not be started.
    fn on_start_failed(&self, process: &Arc<Process>, start_id: Option<&str>, error: &RpcError);

    /// Tells everybody who looks on that a process could not be started.
    fn announce_failure(&self, process: &Process, error: &RpcError);

    /// Forgets a process that is not counted as closed because its task failed.
    fn on_broken(&self, process: &Arc<Process>);

    /// Keeps a closed process readable for its time.
    fn on_closed(&self, process: &Arc<Process>);

    /// Forgets a closed process: its id is free, its output is gone.
    fn forget(&self, process: &Arc<Process>);
}

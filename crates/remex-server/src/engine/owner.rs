//! Who owns a process: the session, or a fake in tests.

use std::{fmt, sync::Arc};

use remex_proto::{RpcError, process as wire};

use super::{Audience, Engine};

/// The owner of a process. A process never keeps it alive, except while its task runs.
pub(crate) trait Owner<A: Audience>: fmt::Debug + Send + Sync {
    /// Returns the name of the owner in logs.
    fn id(&self) -> &str;

    /// Tells whether the owner has ended, so that nothing new may run.
    fn has_ended(&self) -> bool;

    /// Evicts output of closed processes until `wanted` bytes may be retained, as far as that is possible.
    fn reclaim(&self, wanted: usize);

    /// Answers a start that succeeded, and tells everybody who looks on.
    fn on_started(
        &self,
        process: &Arc<Engine<A>>,
        start_id: Option<&str>,
        started: wire::Started,
        caller: A::Caller,
    );

    /// Frees the id of a process that could not be started.
    fn on_start_failed(&self, process: &Arc<Engine<A>>, start_id: Option<&str>, error: &RpcError);

    /// Tells everybody who looks on that a process could not be started.
    fn announce_failure(&self, process: &Engine<A>, error: &RpcError);

    /// Forgets a process that is not counted as closed because its task failed.
    fn on_broken(&self, process: &Arc<Engine<A>>);

    /// Keeps a closed process readable for its time.
    fn on_closed(&self, process: &Arc<Engine<A>>);
}

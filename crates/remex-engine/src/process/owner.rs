//! The trait for the owner of a process: a session, or a fake in tests.

use std::{fmt, pin::Pin};

use remex_proto::{
    RpcError,
    network::{Decision, PolicyDecision, PolicyRequest},
    process as wire,
};

use super::Audience;

/// The future decision of a client; `None` if it decides nothing.
pub type PendingDecision = Pin<Box<dyn Future<Output = Option<Decision>> + Send>>;

/// The owner of a process. A process does not keep its owner alive, except while its task runs.
pub trait Owner<A: Audience>: fmt::Debug + Send + Sync {
    /// Returns the owner's id for logs.
    fn id(&self) -> &str;

    /// Returns the owner's identity for logs.
    fn identity(&self) -> &str;

    /// Returns whether the owner has ended, so that nothing new may run.
    fn has_ended(&self) -> bool;

    /// Evicts output of closed processes until `wanted` bytes can be retained, as far as possible.
    fn reclaim(&self, wanted: usize);

    /// Answers a successful start and notifies all listeners; without a caller, an earlier server was asked for it.
    fn on_started(
        &self,
        process: &A::Handle,
        start_id: Option<&str>,
        started: wire::Started,
        caller: Option<A::Caller>,
    );

    /// Frees the id of a process that could not be started.
    fn on_start_failed(&self, process: &A::Handle, start_id: Option<&str>, error: &RpcError);

    /// Notifies all listeners that a process could not be started.
    fn announce_failure(&self, process: &A::Handle, error: &RpcError);

    /// Forgets a process whose task failed before it was counted as closed.
    fn on_broken(&self, process: &A::Handle);

    /// Keeps a closed process readable for its retention time.
    fn on_closed(&self, process: &A::Handle);

    /// Asks the client whether a process may reach a host; `None` if there is no client that can be asked.
    fn ask(&self, _request: &PolicyRequest) -> Option<PendingDecision> {
        None
    }

    /// Tells the client what was decided, if it can take that now.
    fn tell(&self, _decision: PolicyDecision) {}
}

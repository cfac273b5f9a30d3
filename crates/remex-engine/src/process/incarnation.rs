//! Tells a process from the one that was started again under its id. Start at [`new`].

use remex_proto::{ErrorKind, RpcError};

use super::{ServerAudience, ServerProcess};

/// Clients may read numbers as floating-point ones, which have 53 bits.
const UNUSED_BITS: u32 = 64 - 53;

/// Returns a number that no other start has; random, so that nothing has to be remembered of forgotten processes.
///
/// Without random bytes there is none, as on a server that does not know of it.
pub(super) fn new() -> Option<u64> {
    let random = getrandom::u64().ok()?;
    Some((random >> UNUSED_BITS).max(1))
}

impl<A: ServerAudience> ServerProcess<A> {
    /// Refuses a request for another process with this id, one from before a restart.
    pub fn check_incarnation(&self, asked_for: Option<u64>) -> Result<(), RpcError> {
        if asked_for.is_none() || asked_for == self.spec().incarnation {
            return Ok(());
        }
        let message = format!(
            "process `{}` was restarted, and this request is for the one before it, of which nothing more is known",
            self.id
        );
        Err(RpcError::new(ErrorKind::UnknownProcess, message)
            .with_hint("list the processes, or omit `incarnation`, to get at the one that runs now")
            .with_restarted())
    }
}

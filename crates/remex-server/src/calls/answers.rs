//! Answers that may be long: built when there is room for them, and replaced by an error if memory runs out.

use std::future::Future;

use remex_access::{
    account::FLOOR,
    budget::{self, SHORT, Share},
};
use remex_engine::{ReadError, unknown_process};
use remex_proto::RpcError;

use crate::{
    outbox::{Encoding, Responder},
    sessions::process::Process,
    shared::host::Host,
};

/// Hint for output that does not fit.
pub(crate) const READ_LESS: &str = "ask for less with `maxBytes`, or try again later";

/// Hint for a list of processes of all sessions that does not fit.
pub(crate) const LIST_LESS: &str = "list one session at a time with `sessionId`, or try again later";

/// Hint for a list of processes of one session that does not fit.
pub(crate) const FORGET_SOME: &str = "forget what has ended with `process/forget`, or try again later";

/// Returns the error of a request about a process; if the process was forgotten meanwhile, its log is gone.
pub(crate) fn unless_forgotten(process: &Process, error: RpcError) -> RpcError {
    if process.is_forgotten() { unknown_process(&process.id) } else { error }
}

/// How much an answer may grow while it waits for room.
const MORE: u64 = 256 << 10;

/// How large an answer may be. Owned by the work, which may continue after its request is cancelled.
pub(crate) struct Allowance {
    pub(crate) bytes: u64,
    pub(crate) share: Option<Share>,
}

/// Builds an answer. `attempt` gets the permitted size and returns the size it needs if that is not enough.
///
/// An answer that needs more than the whole budget gets all of it, and decides itself whether that is enough.
pub(crate) async fn within_room<T, F>(
    host: &Host,
    responder: &Responder,
    hint: &str,
    mut attempt: impl FnMut(Allowance) -> F,
) -> Result<(T, Option<Share>), RpcError>
where
    F: Future<Output = Result<(T, Allowance), ReadError>>,
{
    let bytes = match responder.outbox().encoding() {
        // So much is always possible.
        Encoding::Json | Encoding::Binary => FLOOR as u64,
        // The value's memory belongs to the client.
        Encoding::Value => u64::MAX,
    };
    let mut room = Allowance { bytes, share: None };
    loop {
        match attempt(room).await {
            Ok((made, room)) => return Ok((made, room.share)),
            Err(ReadError::NoMemory) => return Err(budget::no_memory(hint)),
            Err(ReadError::Unreadable(error)) => return Err(error),
            // Read again, with as much room.
            Err(ReadError::OnDisk) => room = Allowance { bytes, share: None },
            Err(ReadError::TooLong(needed)) => {
                // A little more than needed now, because the answer may grow while it waits.
                let more = needed.saturating_add(needed / 4 + MORE);
                let wanted = if needed <= SHORT { more.min(SHORT) } else { more };
                let share = responder.share(host.answers(), wanted, hint).await?;
                room = Allowance { bytes: share.as_ref().map_or(FLOOR as u64, Share::room), share };
            }
        }
    }
}

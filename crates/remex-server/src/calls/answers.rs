//! Answers that may be long: made when there is room for them, and an error where there is no memory.

use std::future::Future;

use remex_proto::RpcError;

use crate::{
    budget::{self, SHORT, Share},
    engine::NotRead,
    host::Host,
    outbox::{Encoding, Responder},
};

/// What to do where there is no room for output.
pub(crate) const READ_LESS: &str = "ask for less with `maxBytes`, or try again later";

/// What to do where there is no room for a list of processes of all sessions.
pub(crate) const LIST_LESS: &str = "list one session at a time with `sessionId`, or try again later";

/// The same for those of one session.
pub(crate) const FORGET_SOME: &str = "forget what has ended with `process/forget`, or try again later";

/// What an answer may grow by while it waits for room.
const MORE: u64 = 256 << 10;

/// How much an answer may take; it belongs to the work, which may go on when its request is cancelled.
pub(crate) struct Allowance {
    pub(crate) bytes: u64,
    pub(crate) share: Option<Share>,
}

/// Makes an answer: `attempt` is told how much it may take, and says how much it needs if that is not enough.
///
/// What needs more than there is for all answers gets everything, and says itself whether it makes do with that.
pub(crate) async fn within_room<T, F>(
    host: &Host,
    responder: &Responder,
    hint: &str,
    mut attempt: impl FnMut(Allowance) -> F,
) -> Result<(T, Option<Share>), RpcError>
where
    F: Future<Output = Result<(T, Allowance), NotRead>>,
{
    let bytes = match responder.outbox().encoding() {
        Encoding::Json => SHORT,
        // Its memory is the client's own.
        Encoding::Value => u64::MAX,
    };
    let mut room = Allowance { bytes, share: None };
    loop {
        match attempt(room).await {
            Ok((made, room)) => return Ok((made, room.share)),
            Err(NotRead::NoMemory) => return Err(budget::no_memory(hint)),
            Err(NotRead::TooLong(needed)) => {
                // A little more than is needed now, because it may grow until there is room.
                let wanted = needed.saturating_add(needed / 4 + MORE);
                let share = responder.share(host.answers(), wanted, hint).await?;
                room = Allowance { bytes: share.as_ref().map_or(SHORT, Share::room), share };
            }
        }
    }
}

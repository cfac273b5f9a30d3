//! The start of a process in the keeper, and space for its log. Start at [`Engine::start_in_keeper`].

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;

use super::{Audience, Confined, Engine, Place, lost_start};
use crate::{
    engine::Owner as _,
    keeper_link::message::{Lack, StartFailure, ToKeeper},
};

/// How long the keeper has for the deletion of a log before the start is tried again.
const DELETION_TIME: Duration = Duration::from_millis(100);

impl<A: Audience> Engine<A> {
    /// Waits for the answer of the keeper to the start in `message`; makes space on the disk if there is too little.
    pub(in crate::engine) async fn start_in_keeper(
        self: &Arc<Self>,
        message: ToKeeper,
        confined: Confined,
    ) -> Result<(u32, u64), StartFailure> {
        loop {
            let started = self.try_start_in_keeper(&message, confined).await;
            match &started {
                Err(StartFailure::Other(failure)) if failure.is_disk_full() && self.make_space().await => {}
                _ => return started,
            }
        }
    }

    /// Deletes the log of a closed process; returns whether there is one.
    async fn make_space(&self) -> bool {
        let (durable, owner) = (self.host.durable(), self.owner.upgrade());
        let Some((durable, owner)) = durable.zip(owner) else { return false };
        let is_found = durable.collect(Lack::Server, owner.id());
        if is_found {
            // The keeper deletes it meanwhile.
            tokio::time::sleep(DELETION_TIME).await;
        }
        is_found
    }

    async fn try_start_in_keeper(
        self: &Arc<Self>,
        message: &ToKeeper,
        confined: Confined,
    ) -> Result<(u32, u64), StartFailure> {
        let Place::Keeper { link, key } = &self.place else { return Err(lost_start()) };
        let (sender, answer) = oneshot::channel();
        {
            let mut state = self.state();
            state.forwarded.start = Some(sender);
            state.forwarded.confined = confined;
        }
        if !link.listen(*key, self) || !link.send(message) {
            return Err(lost_start());
        }
        // If the start is given up before it is answered, the keeper must give it up, too.
        let mut given_up = GivenUp { process: self, is_answered: false };
        let answer = answer.await;
        given_up.is_answered = true;
        answer.unwrap_or_else(|_| Err(lost_start()))
    }
}

/// Gives up a start in the keeper when dropped before the answer.
struct GivenUp<'a, A: Audience> {
    process: &'a Engine<A>,
    is_answered: bool,
}

impl<A: Audience> Drop for GivenUp<'_, A> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.process.abandon_kept();
            self.process.discard();
        }
    }
}

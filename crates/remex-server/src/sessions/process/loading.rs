//! Output of a durable process that a connection has to be sent and that is only on disk.
//!
//! Streaming never reads files: the process leaves the list of the outbox until a file thread has read the next part, and
//! then returns to it. Start at [`Process::load_for`].

use remex_engine::ProcessState;
use remex_proto::state::output_log::Cursor;

use super::{Followers, Process, follow::queue};
use crate::outbox::ConnectionId;

impl Process {
    /// Reads the output after `cursor` for a connection, and then queues the process for it.
    ///
    /// If the files cannot be read, this is tried again until it works or the connection no longer follows: a stream
    /// never ends early, and never skips output that is still there.
    pub(super) fn load_for(&self, connection: ConnectionId, cursor: Cursor) {
        let process = self.clone();
        self.host().spawn(async move {
            let is_wanted = || process.follows(connection);
            let Some(loaded) = process.load_patiently(cursor, is_wanted).await else { return };
            let mut state = process.state();
            let ProcessState { kind, audience, .. } = &mut *state;
            let follow = audience.follows.iter_mut().find(|follow| follow.connection == connection);
            let (Some(follow), Some(view)) = (follow, kind.log_mut().disk()) else { return };
            view.keep(&loaded);
            follow.loaded = Some(loaded.block);
            follow.queued = false;
            process.charge(&mut state);
            queue(&process, &mut state);
        });
    }

    /// Frees the output that was read for a connection once it has taken all of it.
    pub(super) fn release_loaded(&self, state: &mut ProcessState<Followers>, index: usize) {
        let ProcessState { kind, audience, .. } = state;
        let follow = &mut audience.follows[index];
        let taken = follow.loaded.take_if(|block| block.end().seq <= follow.cursor.seq);
        if let Some(block) = taken {
            drop(block);
            kind.log_mut().release();
            self.charge(state);
        }
    }

    fn follows(&self, connection: ConnectionId) -> bool {
        self.state().audience.follows.iter().any(|follow| follow.connection == connection)
    }
}

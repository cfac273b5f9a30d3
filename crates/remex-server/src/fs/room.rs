//! Room for long answers: one budget for the whole server, from the making of an answer until it is sent.
//!
//! Short answers need none, because the bounds of their connection are enough for them. A connection
//! takes room for one long answer at a time, so a client that does not read costs one. Start at [`Room`].

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use remex_proto::{ErrorKind, RpcError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::MIB;
use crate::outbox::Outbox;

/// How long an answer waits for room. A client that takes nothing has lost its connection by then.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whoever reads nothing from its file for so long gives its room to others.
const STUCK: Duration = Duration::from_secs(10);

/// What an answer is given when it turns out to be longer than expected.
const MORE: u64 = 8 * MIB;

/// The room of one answer.
#[derive(Debug)]
pub(super) struct Room {
    /// Answers up to here need none.
    free_len: u64,
    /// One long answer per connection at a time.
    lane: Arc<Semaphore>,
    /// What the whole server has for long answers, in MiB.
    budget: Arc<Semaphore>,
    /// Shared by the thread that reads and the task that watches it; held for moments only.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    taken: Option<Taken>,
    /// What was read so far, once that has begun.
    read: Option<u64>,
    is_given_up: bool,
}

#[derive(Debug)]
struct Taken {
    #[expect(dead_code, reason = "the next answer of the connection waits for it to be dropped")]
    lane: OwnedSemaphorePermit,
    budget: OwnedSemaphorePermit,
}

impl Room {
    pub(super) fn new(free_len: u64, lane: Arc<Semaphore>, budget: Arc<Semaphore>) -> Self {
        Room { free_len, lane, budget, state: Mutex::default() }
    }

    /// Takes room for `len` bytes if there is some now.
    pub(super) fn try_take(&self, len: u64) -> bool {
        if len <= self.free_len {
            return true;
        }
        let taken = Arc::clone(&self.lane).try_acquire_owned().ok().and_then(|lane| {
            let budget = Arc::clone(&self.budget).try_acquire_many_owned(mebibytes(len)).ok()?;
            Some(Taken { lane, budget })
        });
        let is_taken = taken.is_some();
        self.state().taken = taken;
        is_taken
    }

    /// Waits until the client has taken what came before, and then for room for `len` bytes.
    pub(super) async fn take(&self, len: u64, outbox: &Outbox) -> Result<(), RpcError> {
        if len <= self.free_len {
            return Ok(());
        }
        let Ok(lane) = Arc::clone(&self.lane).acquire_owned().await else { return Err(no_room()) };
        outbox.room().await;
        let budget = Arc::clone(&self.budget).acquire_many_owned(mebibytes(len));
        match tokio::time::timeout(PATIENCE, budget).await {
            Ok(Ok(budget)) => self.state().taken = Some(Taken { lane, budget }),
            _ => return Err(no_room()),
        }
        Ok(())
    }

    /// Notes that `len` bytes were read, and sees to it that there is room for them.
    pub(super) fn cover(&self, len: u64) -> Result<(), RpcError> {
        let mut state = self.state();
        if state.is_given_up {
            return Err(no_room());
        }
        state.read = Some(len);
        let covered = state.taken.as_ref().map_or(0, |taken| taken.budget.num_permits() as u64 * MIB);
        if len <= self.free_len.max(covered) {
            return Ok(());
        }
        // The file is longer than it said.
        let is_covered = match state.taken.as_mut() {
            Some(taken) => {
                let more = Arc::clone(&self.budget).try_acquire_many_owned(mebibytes(MORE));
                more.map(|more| taken.budget.merge(more)).is_ok()
            }
            None => {
                drop(state);
                self.try_take(len + MORE)
            }
        };
        if is_covered { Ok(()) } else { Err(no_room()) }
    }

    /// Gives the room to others when nothing more is read.
    pub(super) async fn watch(&self) {
        loop {
            let before = self.state().read;
            tokio::time::sleep(STUCK).await;
            if self.is_stuck(before) {
                self.give_up();
            }
        }
    }

    /// Tells whether nothing more was read than `before`; who has not begun only waits.
    fn is_stuck(&self, before: Option<u64>) -> bool {
        let state = self.state();
        state.taken.is_some() && before.is_some() && state.read == before
    }

    /// Gives the room to others, unless the answer is complete; then it keeps it.
    pub(super) fn give_up(&self) {
        let mut state = self.state();
        state.is_given_up = true;
        state.taken = None;
    }

    /// Makes an answer of what was read; it keeps the room until it is sent.
    pub(super) fn fill(&self, bytes: Vec<u8>) -> Bytes {
        match self.state().taken.take() {
            Some(taken) => Bytes::from_owner(Content { bytes, taken }),
            None => Bytes::from(bytes),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What was read, with the room it takes.
struct Content {
    bytes: Vec<u8>,
    #[expect(dead_code, reason = "others wait for it to be dropped")]
    taken: Taken,
}

impl AsRef<[u8]> for Content {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Gives the room up when nobody waits for the answer any more.
pub(super) struct Watched(pub(super) Arc<Room>);

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

fn mebibytes(len: u64) -> u32 {
    u32::try_from(len.div_ceil(MIB) + 1).unwrap_or(u32::MAX)
}

/// The error where the server has no room for an answer.
pub(super) fn no_room() -> RpcError {
    RpcError::new(ErrorKind::LimitExceeded, "the server has no room for such a long answer now")
        .with_hint("read the file in blocks with `fs/open` and `fs/readBlock`, or try again later")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(lane: &Arc<Semaphore>, budget: &Arc<Semaphore>) -> Room {
        Room::new(MIB, Arc::clone(lane), Arc::clone(budget))
    }

    #[test]
    fn room_is_kept_until_the_answer_is_gone() {
        let (lanes, budget) = ([(); 2].map(|()| Arc::new(Semaphore::new(1))), Arc::new(Semaphore::new(10)));
        let first = room(&lanes[0], &budget);
        assert!(first.try_take(5 * MIB));
        assert!(!room(&lanes[0], &budget).try_take(2 * MIB), "one at a time per connection");
        assert!(!room(&lanes[1], &budget).try_take(5 * MIB), "more than is left");
        assert!(room(&lanes[1], &budget).try_take(MIB), "short ones need no room");
        let answer = first.fill(vec![7; 3]);
        first.give_up();
        assert!(!room(&lanes[1], &budget).try_take(5 * MIB), "it waits to be sent");
        drop(answer);
        assert!(room(&lanes[1], &budget).try_take(5 * MIB));
    }

    #[test]
    fn what_is_longer_than_it_said_gets_more_room_or_fails() {
        let (lane, budget) = (Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(19)));
        let growing = room(&lane, &budget);
        assert!(growing.cover(MIB).is_ok());
        assert_eq!(budget.available_permits(), 19);
        assert!(growing.cover(MIB + 1).is_ok());
        assert!(growing.cover(11 * MIB).is_ok());
        assert!(growing.cover(21 * MIB).is_err());
        growing.give_up();
        assert_eq!(budget.available_permits(), 19);
        assert!(growing.cover(1).is_err(), "others have its room");
    }

    #[test]
    fn who_reads_nothing_is_stuck_and_who_waits_is_not() {
        let (lane, budget) = (Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(10)));
        let stuck = room(&lane, &budget);
        assert!(stuck.try_take(5 * MIB));
        assert!(!stuck.is_stuck(None));
        assert!(stuck.cover(1).is_ok());
        assert!(!stuck.is_stuck(None) && !stuck.is_stuck(Some(0)) && stuck.is_stuck(Some(1)));
        drop(stuck.fill(Vec::new()));
        assert!(!stuck.is_stuck(Some(1)), "its answer is complete");
    }
}

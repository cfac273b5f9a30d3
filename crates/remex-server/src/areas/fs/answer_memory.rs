//! Memory for long answers about files: a share of the server's budget, from reading the file until the answer
//! is sent.
//!
//! Shorter answers are only charged to the account of their identity. A connection reserves memory for one long
//! answer at a time, so a client that does not read costs only one. Start at [`AnswerMemory`].

use std::{
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use bytes::Bytes;
use remex_access::{
    account::{Account, Kind},
    budget::{self, Budget, MIN_PROGRESS, PATIENCE, Share},
};
use remex_base::lock;
use remex_proto::{ErrorKind, RpcError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::MIB;
use crate::outbox::Outbox;

/// A read is abandoned if the file returns nothing for this long, or less than [`MIN_PROGRESS`] while others wait
/// for memory.
const STUCK: Duration = Duration::from_secs(10);

/// How much an answer gets if the file is longer than expected.
const MORE: u64 = 8 * MIB;

/// The memory reservation of one answer.
#[derive(Debug)]
pub(super) struct AnswerMemory {
    /// Answers up to this length need no part of the budget.
    free_len: u64,
    account: Arc<Account>,
    /// One long answer per connection at a time.
    lane: Arc<Semaphore>,
    budget: Arc<Budget>,
    /// Shared by the thread that reads and the task that watches it; held briefly.
    state: Mutex<Reservation>,
}

#[derive(Debug, Default)]
struct Reservation {
    taken: Option<Taken>,
    /// Bytes read so far, once reading has begun.
    read: Option<u64>,
    is_given_up: bool,
}

#[derive(Debug)]
struct Taken {
    /// Blocks the next long answer of the connection; `None` for a shorter one, and once this one was abandoned.
    lane: Option<OwnedSemaphorePermit>,
    share: Share,
}

impl AnswerMemory {
    pub(super) fn new(
        free_len: u64,
        lane: Arc<Semaphore>,
        budget: Arc<Budget>,
        account: Arc<Account>,
    ) -> Self {
        AnswerMemory { free_len, account, lane, budget, state: Mutex::default() }
    }

    /// Reserves `len` bytes if they are free now.
    pub(super) fn try_take(&self, len: u64) -> bool {
        if self.is_free() {
            return true;
        }
        let taken = if len <= self.free_len {
            Share::try_short(len, &self.account).map(|share| Taken { lane: None, share })
        } else {
            Arc::clone(&self.lane).try_acquire_owned().ok().and_then(|lane| {
                let share = self.budget.try_take(room_len(len), &self.account)?;
                Some(Taken { lane: Some(lane), share })
            })
        };
        let mut state = self.state();
        if state.is_given_up {
            return false;
        }
        state.taken = taken;
        state.taken.is_some()
    }

    /// Waits until the client has read what was queued before, and then for `len` bytes.
    pub(super) async fn take(&self, len: u64, outbox: &Outbox) -> Result<(), RpcError> {
        if self.is_free() {
            return Ok(());
        }
        if len <= self.free_len {
            let share = tokio::time::timeout(PATIENCE, Share::short(Kind::Answers, len, &self.account)).await;
            let share = share.map_err(|_| no_room())?;
            self.state().taken = Some(Taken { lane: None, share });
            return Ok(());
        }
        if room_len(len) > self.budget.whole(&self.account) {
            // Waiting would not help.
            return Err(no_room());
        }
        let Ok(lane) = Arc::clone(&self.lane).acquire_owned().await else { return Err(no_room()) };
        outbox.wait_for_room().await;
        match tokio::time::timeout(PATIENCE, self.budget.take(room_len(len), &self.account)).await {
            Ok(share) => self.state().taken = Some(Taken { lane: Some(lane), share }),
            Err(_) => return Err(no_room()),
        }
        Ok(())
    }

    /// Returns whether its memory belongs to a client in the same process.
    fn is_free(&self) -> bool {
        self.free_len == u64::MAX
    }

    /// Records that `len` bytes of `path` were read, and extends the reservation if necessary.
    pub(super) fn cover(&self, len: u64, path: &Path) -> Result<(), RpcError> {
        let mut state = self.state();
        if state.is_given_up {
            return Err(gave_nothing(path));
        }
        state.read = Some(len);
        let covered = state.taken.as_ref().map_or(0, |taken| taken.share.bytes());
        if self.is_free() || len <= covered {
            return Ok(());
        }
        // The file is longer than its metadata reported.
        let is_covered = match state.taken.as_mut() {
            Some(taken) if taken.lane.is_some() => taken.share.grow(room_len(MORE)),
            Some(taken) if len <= self.free_len => taken.share.grow(len - covered + MIB),
            None if len <= self.free_len => {
                drop(state);
                self.try_take(len)
            }
            _ => {
                let short = state.taken.take();
                drop((state, short));
                self.try_take(len + MORE)
            }
        };
        if is_covered { Ok(()) } else { Err(no_room()) }
    }

    /// Abandons the answer if reading makes no progress.
    pub(super) async fn watch(&self) {
        loop {
            let before = self.read_len();
            tokio::time::sleep(STUCK).await;
            if self.is_stuck(before) {
                self.give_up();
            }
        }
    }

    /// Returns the bytes read so far, once reading has begun.
    pub(super) fn read_len(&self) -> Option<u64> {
        self.state().read
    }

    /// Returns whether nothing was read since `before`, or too little while others wait. A read that has not
    /// begun is not stuck.
    fn is_stuck(&self, before: Option<u64>) -> bool {
        let state = self.state();
        let (Some(taken), Some(before), Some(read)) = (&state.taken, before, state.read) else {
            return false;
        };
        read == before || (read < before + MIN_PROGRESS && taken.share.has_waiters())
    }

    /// Lets the connection build its next long answer, unless this one is complete.
    ///
    /// The reading thread may hang with the bytes read so far; they stay reserved until this value is dropped.
    pub(super) fn give_up(&self) {
        let mut state = self.state();
        state.is_given_up = true;
        let read = state.read.unwrap_or(0);
        if let Some(taken) = &mut state.taken {
            taken.lane = None;
            taken.share.shrink(room_len(read));
        }
    }

    /// Turns the bytes that were read into an answer, which keeps the reservation until it is sent.
    pub(super) fn fill(&self, bytes: Vec<u8>) -> Bytes {
        match self.state().taken.take() {
            Some(taken) => Bytes::from_owner(Content { bytes, taken }),
            None => Bytes::from(bytes),
        }
    }

    fn state(&self) -> MutexGuard<'_, Reservation> {
        lock(&self.state)
    }
}

/// File contents with their reservation.
struct Content {
    bytes: Vec<u8>,
    #[expect(dead_code, reason = "releases a resource when dropped")]
    taken: Taken,
}

impl AsRef<[u8]> for Content {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Abandons the answer when its request is dropped.
pub(super) struct AbandonOnDrop(pub(super) Arc<AnswerMemory>);

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

/// Returns the size to reserve for `len` bytes: whole MiB, plus the piece that is being read.
fn room_len(len: u64) -> u64 {
    (len.div_ceil(MIB) + 1) * MIB
}

/// Returns the error for an answer that does not fit into the server's budget.
pub(super) fn no_room() -> RpcError {
    budget::no_room("read the file in blocks with `fs/open` and `fs/readBlock`, or try again later")
}

fn gave_nothing(path: &Path) -> RpcError {
    let message = format!(
        "`{}` returned nothing for {} s, or too little while other answers waited for memory",
        path.display(),
        STUCK.as_secs()
    );
    RpcError::new(ErrorKind::Io, message)
        .with_hint("its file system hangs or is slow; read it in blocks with `fs/open` and `fs/readBlock`")
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;
    use crate::outbox::{Acks, Encoding, Shared};

    fn room(lane: &Arc<Semaphore>, budget: &Arc<Budget>) -> AnswerMemory {
        AnswerMemory::new(MIB, Arc::clone(lane), Arc::clone(budget), Arc::default())
    }

    fn cover(room: &AnswerMemory, len: u64) -> Result<(), RpcError> {
        room.cover(len, Path::new("/f"))
    }

    #[test]
    fn memory_is_reserved_until_the_answer_is_dropped() {
        let (lanes, budget) =
            ([(); 2].map(|()| Arc::new(Semaphore::new(1))), Arc::new(Budget::new(Kind::Answers, 10 * MIB)));
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
    fn a_file_longer_than_expected_gets_more_memory_or_fails() {
        let (lane, budget) = (Arc::new(Semaphore::new(1)), Arc::new(Budget::new(Kind::Answers, 19 * MIB)));
        let growing = room(&lane, &budget);
        assert!(cover(&growing, MIB).is_ok());
        assert_eq!(budget.free(), 19 * MIB);
        assert!(cover(&growing, MIB + 1).is_ok());
        assert!(cover(&growing, 11 * MIB).is_ok());
        assert!(cover(&growing, 21 * MIB).is_err());
        drop(growing);
        assert_eq!(budget.free(), 19 * MIB);
    }

    #[tokio::test]
    async fn a_file_longer_than_the_budget_of_its_identity_is_refused_at_once() {
        let (lane, budget) = (Arc::new(Semaphore::new(1)), Arc::new(Budget::new(Kind::Answers, 20 * MIB)));
        let account = Arc::new(Account::new(10 << 20, &[]));
        let room = AnswerMemory::new(MIB, lane, budget, account);
        let limits = crate::Limits::default();
        let outbox = Outbox::new(1, Acks::Written, Encoding::Json, limits, Shared::default());
        assert_eq!(room.take(10 * MIB, &outbox).await, Err(no_room()));
        assert_eq!(room.take(9 * MIB, &outbox).await, Ok(()));
    }

    #[test]
    fn an_abandoned_answer_counts_for_what_was_read_until_it_is_dropped() {
        let (lane, budget) = (Arc::new(Semaphore::new(1)), Arc::new(Budget::new(Kind::Answers, 20 * MIB)));
        let hanging = room(&lane, &budget);
        assert!(hanging.try_take(18 * MIB));
        assert!(cover(&hanging, 10 * MIB).is_ok());
        hanging.give_up();
        assert_eq!(budget.free(), 9 * MIB, "its thread still has 10 MiB, and one piece more");
        let next = room(&lane, &budget);
        assert!(next.try_take(2 * MIB), "its connection goes on");
        let error = cover(&hanging, 11 * MIB).unwrap_err();
        assert_eq!(
            error.message,
            "`/f` returned nothing for 10 s, or too little while other answers waited for memory"
        );
        drop((hanging, next));
        assert_eq!(budget.free(), 20 * MIB);
    }

    #[test]
    fn a_slow_read_is_stuck_only_while_others_wait() {
        let (lane, budget) = (Arc::new(Semaphore::new(1)), Arc::new(Budget::new(Kind::Answers, 10 * MIB)));
        let slow = room(&lane, &budget);
        assert!(slow.try_take(5 * MIB) && cover(&slow, MIB).is_ok());
        assert!(!slow.is_stuck(Some(1)));
        let account = Arc::default();
        let mut waiting = Box::pin(budget.take(5 * MIB, &account));
        assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(slow.is_stuck(Some(1)) && !slow.is_stuck(Some(0)));
    }

    #[test]
    fn a_read_without_progress_is_stuck_and_one_that_waits_is_not() {
        let (lane, budget) = (Arc::new(Semaphore::new(1)), Arc::new(Budget::new(Kind::Answers, 10 * MIB)));
        let stuck = room(&lane, &budget);
        assert!(stuck.try_take(5 * MIB));
        assert!(!stuck.is_stuck(None));
        assert!(cover(&stuck, 1).is_ok());
        assert!(!stuck.is_stuck(None) && !stuck.is_stuck(Some(0)) && stuck.is_stuck(Some(1)));
        drop(stuck.fill(Vec::new()));
        assert!(!stuck.is_stuck(Some(1)), "its answer is complete");
    }
}

//! Memory that all connections share: a number of bytes, of which everything long takes its share first.
//!
//! Short things need none, because the bounds of their connection are enough for them. Whoever needs a share takes
//! all of it at once and never waits for a second one while it holds the first, so nobody waits in a circle. Start at
//! [`Budget`].

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use remex_proto::{ErrorKind, RpcError};
use tokio::sync::{Notify, futures::Notified};

/// Up to here neither an answer nor a message needs a share.
pub(crate) const SHORT: u64 = 1 << 20;

/// How long an answer waits for its share. A client that takes nothing has lost its connection by then.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Where others wait, whoever holds a share for something that is still arriving must get so much in
/// [`slow_transfer`](crate::Limits::slow_transfer).
pub(crate) const PROGRESS: u64 = 1 << 20;

/// What the whole server has for one purpose.
///
/// Nobody queues for it: something long that waits must not keep something shorter from what is free.
#[derive(Debug)]
pub(crate) struct Budget {
    total: u64,
    /// Shared by threads that hold shares and tasks that wait for one; held for moments only.
    state: Mutex<State>,
    returned: Notify,
}

#[derive(Debug)]
struct State {
    /// In bytes; free <= total
    free: u64,
    /// How many wait for a share.
    waiting: usize,
}

impl Budget {
    pub(crate) fn new(bytes: u64) -> Self {
        Budget { total: bytes, state: Mutex::new(State { free: bytes, waiting: 0 }), returned: Notify::new() }
    }

    /// Returns what there is when nobody holds a share.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    pub(crate) fn try_take(self: &Arc<Self>, bytes: u64) -> Option<Share> {
        let mut state = self.state();
        state.free = state.free.checked_sub(bytes)?;
        Some(Share { budget: Arc::clone(self), bytes })
    }

    /// Waits for a share of so many bytes, or of everything if that is less.
    pub(crate) async fn take(self: &Arc<Self>, bytes: u64) -> Share {
        let bytes = bytes.min(self.total);
        let mut waiting = None;
        loop {
            // Before the attempt, so that nothing that is returned after it is missed.
            let returned = self.returned.notified();
            if let Some(share) = self.try_take(bytes) {
                return share;
            }
            waiting.get_or_insert_with(|| WaitGuard::new(self));
            returned.await;
        }
    }

    /// Tells whether somebody waits for a share.
    pub(crate) fn is_wanted(&self) -> bool {
        self.state().waiting > 0
    }

    /// Returns when others have waited while too little has come for the holder of a share.
    ///
    /// `received` tells how many bytes have come so far; nothing before there is a share.
    pub(crate) async fn too_slow(&self, period: Duration, received: impl Fn() -> Option<u64>) {
        loop {
            let before = received();
            tokio::time::sleep(period).await;
            let is_slow = before.zip(received()).is_some_and(|(before, now)| now < before + PROGRESS);
            if is_slow && self.is_wanted() {
                return;
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn free(&self) -> u64 {
        self.state().free
    }

    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.state().waiting
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts as waiting until it is dropped.
struct WaitGuard<'a>(&'a Budget);

impl<'a> WaitGuard<'a> {
    fn new(budget: &'a Budget) -> Self {
        budget.state().waiting += 1;
        WaitGuard(budget)
    }
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        self.0.state().waiting -= 1;
    }
}

/// A part of the budget, returned when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Share {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns how much may be made with it: whoever has everything that there is may be longer.
    pub(crate) fn room(&self) -> u64 {
        if self.bytes == self.budget.total { u64::MAX } else { self.bytes }
    }

    /// Tells whether somebody waits for a share of the same budget.
    pub(crate) fn is_wanted(&self) -> bool {
        self.budget.is_wanted()
    }

    /// Takes more from the budget; `false` when there is not enough.
    pub(crate) fn grow(&mut self, bytes: u64) -> bool {
        let Some(mut more) = self.budget.try_take(bytes) else { return false };
        self.bytes += std::mem::take(&mut more.bytes);
        true
    }

    /// Returns all but so many bytes to the budget.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        let returned = self.bytes.saturating_sub(bytes);
        self.bytes -= returned;
        self.budget.state().free += returned;
        self.budget.returned.notify_waiters();
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

/// What all connections have under way in requests, beyond what each may have in any case.
///
/// It is no [`Budget`], because a request that was read is there: at its limit, connections are not read.
#[derive(Debug, Default)]
pub(crate) struct RequestLoad {
    limit: u64,
    bytes: AtomicU64,
    relieved: Notify,
}

impl RequestLoad {
    pub(crate) fn new(limit: u64) -> Self {
        RequestLoad { limit, ..RequestLoad::default() }
    }

    /// Notes that the requests of a connection that are under way have so many bytes now.
    pub(crate) fn change(&self, before: usize, now: usize) {
        let [before, now] = [before, now].map(|bytes| (bytes as u64).saturating_sub(SHORT));
        if now >= before {
            self.bytes.fetch_add(now - before, Ordering::SeqCst);
        } else {
            self.bytes.fetch_sub(before - now, Ordering::SeqCst);
            self.relieved.notify_waiters();
        }
    }

    /// Tells whether a connection with so many bytes under way may be read.
    pub(crate) fn admits(&self, bytes: usize) -> bool {
        (bytes as u64) < SHORT || self.bytes.load(Ordering::SeqCst) < self.limit
    }

    /// Rings when there may be less.
    pub(crate) fn relieved(&self) -> Notified<'_> {
        self.relieved.notified()
    }
}

/// Tells whether there is memory for so much in one piece, before much of it is used up for parts.
pub(crate) fn has_memory(len: usize) -> bool {
    let mut piece = Vec::<u8>::new();
    // Looked at, because an allocation that nobody uses may be left out.
    piece.try_reserve_exact(len).is_ok() && std::hint::black_box(&piece).capacity() >= len
}

/// The error where the server has no room for an answer.
pub(crate) fn no_room(hint: &str) -> RpcError {
    RpcError::new(ErrorKind::LimitExceeded, "the server has no room for such a long answer now")
        .with_hint(hint)
}

/// The error where the host has no memory for an answer.
pub(crate) fn no_memory(hint: &str) -> RpcError {
    RpcError::new(ErrorKind::LimitExceeded, "the server has no memory for such a long answer").with_hint(hint)
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        task::{Context, Waker},
    };

    use super::*;

    const PERIOD: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn something_long_that_waits_keeps_nothing_shorter_from_what_is_free() {
        let budget = Arc::new(Budget::new(10));
        let long = budget.try_take(8).unwrap();
        let waiting = budget.take(9);
        tokio::pin!(waiting);
        let mut unheard = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut unheard).is_pending());
        let short = budget.try_take(2).expect("it is free");
        drop(long);
        assert!(waiting.as_mut().poll(&mut unheard).is_pending());
        assert_eq!(budget.waiting(), 1);
        drop(short);
        let taken = tokio::time::timeout(PATIENCE, waiting).await.expect("all is free");
        assert_eq!((budget.free(), budget.waiting()), (1, 0));
        drop(taken);
        assert_eq!(budget.free(), 10);
    }

    #[tokio::test]
    async fn whoever_wants_more_than_there_is_gets_everything() {
        let budget = Arc::new(Budget::new(10));
        let all = tokio::time::timeout(PATIENCE, budget.take(11)).await.expect("all is free");
        assert_eq!((all.bytes(), budget.free()), (10, 0));
    }

    #[tokio::test]
    async fn whoever_gives_up_waiting_leaves_nothing_behind() {
        let budget = Arc::new(Budget::new(1));
        let all = budget.try_take(1).unwrap();
        let mut waiting = Box::pin(budget.take(1));
        assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(waiting);
        drop(all);
        assert_eq!((budget.free(), budget.waiting()), (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn only_where_others_wait_is_anybody_too_slow() {
        let budget = Arc::new(Budget::new(1));
        let all = budget.try_take(1).unwrap();
        let received = Cell::new(None);
        let slow = budget.too_slow(PERIOD, || received.get());
        tokio::pin!(slow);
        assert!(tokio::time::timeout(100 * PERIOD, &mut slow).await.is_err(), "nobody waits");
        let waiting = budget.take(1);
        tokio::pin!(waiting);
        assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        for times in 0..4 {
            received.set(Some(times * 2 * PROGRESS));
            assert!(tokio::time::timeout(PERIOD, &mut slow).await.is_err(), "it gets on");
        }
        tokio::time::timeout(3 * PERIOD, slow).await.expect("nothing comes any more");
        drop(all);
    }
}

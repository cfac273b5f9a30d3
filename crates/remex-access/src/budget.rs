//! Memory budgets shared by all connections: every long answer or message takes a share before it is built or
//! received.
//!
//! Short ones need no part of a budget; they are only charged to the account of their identity. A task takes its
//! whole share at once and never waits for a second one while holding the first, so tasks cannot deadlock on a
//! budget. Start at [`Budget`].

use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use remex_base::lock;
use remex_proto::{ErrorKind, RpcError};
use tokio::sync::{Notify, futures::Notified};

use crate::account::{Account, Charge, Kind};

/// Answers and messages up to this length need no part of a budget.
pub const SHORT: u64 = 1 << 20;

/// How long an answer waits for its share. By then, the server has disconnected any client that reads nothing.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How much the holder of a share for incoming data must receive per
/// [`slow_transfer`](remex_base::limits::Limits::slow_transfer) while others wait.
pub const MIN_PROGRESS: u64 = 1 << 20;

/// A number of bytes that the whole server may use for one purpose.
///
/// There is no queue: a long request that waits must not block a shorter one that fits into the free part. A share is
/// also charged to the account of its identity, which may have only a part of the budget.
#[derive(Debug)]
pub struct Budget {
    kind: Kind,
    total: u64,
    /// Shared by threads that hold shares and tasks that wait for one; held briefly.
    state: Mutex<BudgetState>,
    returned: Notify,
}

#[derive(Debug)]
struct BudgetState {
    /// In bytes; free <= total
    free: u64,
    /// Number of tasks that wait for a share.
    waiting: usize,
}

impl Budget {
    /// Creates a budget of so many bytes.
    pub fn new(kind: Kind, bytes: u64) -> Self {
        Budget {
            kind,
            total: bytes,
            state: Mutex::new(BudgetState { free: bytes, waiting: 0 }),
            returned: Notify::new(),
        }
    }

    /// Returns the size of the whole budget.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Takes a share of `bytes` if they are free and the account has room for them.
    pub fn try_take(self: &Arc<Self>, bytes: u64, account: &Arc<Account>) -> Option<Share> {
        let charge = account.try_take(self.kind, usize::try_from(bytes).ok()?)?;
        self.share(bytes, charge)
    }

    /// Waits for a share of `bytes`, or of everything that the account may have of the budget if that is less.
    pub async fn take(self: &Arc<Self>, bytes: u64, account: &Arc<Account>) -> Share {
        let bytes = bytes.min(self.whole(account));
        loop {
            // An account that is full concerns only its own identity, which must not wait here as if the budget were
            // used up.
            let charge = account.reserve(self.kind, usize::try_from(bytes).unwrap_or(usize::MAX)).await;
            // Registered before the attempt, so that no share returned in between is missed.
            let returned = self.returned.notified();
            if let Some(share) = self.share(bytes, charge) {
                return share;
            }
            let _waiting = WaitGuard::new(self);
            returned.await;
        }
    }

    /// Waits for a share of `bytes`, or of as many as the account can have once nothing else of it is in transit.
    pub async fn take_in_turn(self: &Arc<Self>, bytes: u64, account: &Arc<Account>) -> Share {
        let bytes = usize::try_from(bytes.min(self.total)).unwrap_or(usize::MAX);
        loop {
            let charge = account.reserve_in_turn(self.kind, bytes).await;
            let returned = self.returned.notified();
            if let Some(share) = self.share(charge.bytes() as u64, charge) {
                return share;
            }
            let _waiting = WaitGuard::new(self);
            returned.await;
        }
    }

    /// Returns the most that a task with this account can get.
    pub fn whole(&self, account: &Account) -> u64 {
        self.total.min(account.most(self.kind) as u64)
    }

    fn share(self: &Arc<Self>, bytes: u64, charge: Charge) -> Option<Share> {
        let whole = self.whole(charge.account());
        let mut state = self.state();
        state.free = state.free.checked_sub(bytes)?;
        Some(Share { budget: Some(Arc::clone(self)), whole, bytes, charge })
    }

    /// Returns whether a task waits for a share.
    pub fn has_waiters(&self) -> bool {
        self.state().waiting > 0
    }

    /// Completes when the holder of a share has received too little while others wait.
    ///
    /// `received` returns the number of bytes received so far, or `None` while there is no share yet.
    pub async fn too_slow(&self, period: Duration, account: &Account, received: impl Fn() -> Option<u64>) {
        loop {
            let before = received();
            tokio::time::sleep(period).await;
            let is_slow = before.zip(received()).is_some_and(|(before, now)| now < before + MIN_PROGRESS);
            if is_slow && (self.has_waiters() || account.has_waiters()) {
                return;
            }
        }
    }

    /// Returns how many bytes are free.
    #[cfg(any(test, feature = "testing"))]
    pub fn free(&self) -> u64 {
        self.state().free
    }

    /// Returns how many tasks wait for a share.
    #[cfg(any(test, feature = "testing"))]
    pub fn waiting(&self) -> usize {
        self.state().waiting
    }

    fn state(&self) -> MutexGuard<'_, BudgetState> {
        lock(&self.state)
    }
}

/// Counts as a waiter until dropped.
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

/// Memory for one answer or message, returned when dropped.
#[derive(Debug)]
pub struct Share {
    /// `None` for a short one, which is only charged to its account.
    budget: Option<Arc<Budget>>,
    /// The most that its holder could have got.
    whole: u64,
    bytes: u64,
    charge: Charge,
}

impl Share {
    /// Waits until the account has room for `bytes` of a short answer or message.
    pub async fn short(kind: Kind, bytes: u64, account: &Arc<Account>) -> Self {
        let charge = account.reserve(kind, usize::try_from(bytes).unwrap_or(usize::MAX)).await;
        Share { budget: None, whole: u64::MAX, bytes, charge }
    }

    /// Waits until the account has room for `bytes` of a short message, or as many as it can have once nothing else of
    /// it is in transit.
    pub async fn short_in_turn(kind: Kind, bytes: u64, account: &Arc<Account>) -> Self {
        let charge = account.reserve_in_turn(kind, usize::try_from(bytes).unwrap_or(usize::MAX)).await;
        Share { budget: None, whole: u64::MAX, bytes: charge.bytes() as u64, charge }
    }

    /// Charges `bytes` of a short answer if the account has room for them.
    pub fn try_short(bytes: u64, account: &Arc<Account>) -> Option<Self> {
        let charge = account.try_take(Kind::Answers, usize::try_from(bytes).ok()?)?;
        Some(Share { budget: None, whole: u64::MAX, bytes, charge })
    }

    /// Returns how many bytes it has.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns how many bytes may be built with this share; the holder of the whole budget may exceed it.
    pub fn room(&self) -> u64 {
        if self.bytes == self.whole { u64::MAX } else { self.bytes }
    }

    /// Returns whether a task waits for a share of the same budget, or for room in the same account.
    pub fn has_waiters(&self) -> bool {
        let budget = self.budget.as_ref().is_some_and(|budget| budget.has_waiters());
        budget || self.charge.account().has_waiters()
    }

    /// Takes more; returns `false` if too little is free.
    pub fn grow(&mut self, bytes: u64) -> bool {
        let more = usize::try_from(bytes).is_ok_and(|bytes| self.charge.try_grow(bytes));
        if !more {
            return false;
        }
        if let Some(budget) = &self.budget {
            let mut state = budget.state();
            match state.free.checked_sub(bytes) {
                Some(free) => state.free = free,
                None => {
                    drop(state);
                    self.charge.set(usize::try_from(self.bytes).unwrap_or(usize::MAX));
                    return false;
                }
            }
        }
        self.bytes += bytes;
        true
    }

    /// Returns all but `bytes`.
    pub fn shrink(&mut self, bytes: u64) {
        let returned = self.bytes.saturating_sub(bytes);
        self.bytes -= returned;
        self.charge.set(usize::try_from(self.bytes).unwrap_or(usize::MAX));
        if let Some(budget) = &self.budget {
            budget.state().free += returned;
            budget.returned.notify_waiters();
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

/// Bytes of requests in progress on all connections, beyond what each connection may have in any case.
///
/// This is not a [`Budget`], because a request that was read already takes its memory. At the limit, the server
/// stops reading from connections.
#[derive(Debug, Default)]
pub struct RequestLoad {
    limit: u64,
    bytes: AtomicU64,
    relieved: Notify,
}

impl RequestLoad {
    /// Creates a load of zero with this limit, in bytes.
    pub fn new(limit: u64) -> Self {
        RequestLoad { limit, ..RequestLoad::default() }
    }

    /// Records that the requests in progress on a connection changed from `before` to `now` bytes.
    pub fn change(&self, before: usize, now: usize) {
        let [before, now] = [before, now].map(|bytes| (bytes as u64).saturating_sub(SHORT));
        if now >= before {
            self.bytes.fetch_add(now - before, Ordering::SeqCst);
        } else {
            self.bytes.fetch_sub(before - now, Ordering::SeqCst);
            self.relieved.notify_waiters();
        }
    }

    /// Returns whether a connection with `bytes` in progress may be read.
    pub fn admits(&self, bytes: usize) -> bool {
        (bytes as u64) < SHORT || self.bytes.load(Ordering::SeqCst) < self.limit
    }

    /// Notified when the load may have decreased.
    pub fn relieved(&self) -> Notified<'_> {
        self.relieved.notified()
    }
}

/// Returns whether a single allocation of `len` bytes succeeds, before much of the memory is used for parts.
pub fn has_memory(len: usize) -> bool {
    let mut piece = Vec::<u8>::new();
    // Inspected, because the compiler may remove an unused allocation.
    piece.try_reserve_exact(len).is_ok() && std::hint::black_box(&piece).capacity() >= len
}

/// Returns the error for an answer that does not fit into the server's budget.
pub fn no_room(hint: &str) -> RpcError {
    RpcError::new(ErrorKind::LimitExceeded, "the server has no memory free for such a long answer now")
        .with_hint(hint)
}

/// Returns the error for an answer that the host has no memory for.
pub fn no_memory(hint: &str) -> RpcError {
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
    async fn a_waiting_long_request_does_not_block_a_shorter_one() {
        let budget = Arc::new(Budget::new(Kind::Answers, 10));
        let long = budget.try_take(8, &Arc::default()).unwrap();
        let account = Arc::default();
        let waiting = budget.take(9, &account);
        tokio::pin!(waiting);
        let mut unheard = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut unheard).is_pending());
        let short = budget.try_take(2, &Arc::default()).expect("it is free");
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
    async fn a_share_larger_than_the_budget_gets_all_of_it() {
        let budget = Arc::new(Budget::new(Kind::Answers, 10));
        let all =
            tokio::time::timeout(PATIENCE, budget.take(11, &Arc::default())).await.expect("all is free");
        assert_eq!((all.bytes(), budget.free()), (10, 0));
    }

    #[tokio::test]
    async fn a_dropped_waiter_leaves_nothing_behind() {
        let budget = Arc::new(Budget::new(Kind::Answers, 1));
        let all = budget.try_take(1, &Arc::default()).unwrap();
        let account = Arc::default();
        let mut waiting = Box::pin(budget.take(1, &account));
        assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(waiting);
        drop(all);
        assert_eq!((budget.free(), budget.waiting()), (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_transfer_is_too_slow_only_while_others_wait() {
        let budget = Arc::new(Budget::new(Kind::Answers, 1));
        let all = budget.try_take(1, &Arc::default()).unwrap();
        let received = Cell::new(None);
        let account = Arc::default();
        let slow = budget.too_slow(PERIOD, &account, || received.get());
        tokio::pin!(slow);
        assert!(tokio::time::timeout(100 * PERIOD, &mut slow).await.is_err(), "no other task waits");
        let waiting = budget.take(1, &account);
        tokio::pin!(waiting);
        assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        for times in 0..4 {
            received.set(Some(times * 2 * MIN_PROGRESS));
            assert!(tokio::time::timeout(PERIOD, &mut slow).await.is_err(), "it gets on");
        }
        tokio::time::timeout(3 * PERIOD, slow).await.expect("nothing comes any more");
        drop(all);
    }
}

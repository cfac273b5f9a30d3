//! Accounts of everything that clients make the server keep in memory.
//!
//! They form a tree: a session or connection is charged to its identity, and an identity to the server. What
//! cannot be refused, such as a short answer, is charged in any case; everything else asks first. Start at
//! [`Account`].

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use remex_base::{limits::Limits, lock};
use remex_proto::{ErrorKind, RpcError};
use tokio::sync::{Notify, futures::Notified};

use crate::identity::Identity;

/// How much a connection or process may use although its account is full, so that a client that filled its account can
/// still read, list, kill and forget.
pub const FLOOR: usize = 64 << 10;

/// What memory is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Output of processes.
    Output,
    /// Processes, open and closed: ids, command lines, labels.
    Processes,
    /// Sessions and the starts that they remember.
    Sessions,
    /// Input that children have not read, and the ids of writes.
    Input,
    /// Requests without an answer.
    Requests,
    /// Answers that are being built or sent.
    Answers,
    /// Messages that are being received.
    Incoming,
    /// File handles, watches, HTTP streams and searches in output.
    Handles,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 8] = [
        Kind::Output,
        Kind::Processes,
        Kind::Sessions,
        Kind::Input,
        Kind::Requests,
        Kind::Answers,
        Kind::Incoming,
        Kind::Handles,
    ];

    /// Returns whether this memory is only in transit; other kinds are kept for as long as clients like.
    fn is_passing(self) -> bool {
        matches!(self, Kind::Requests | Kind::Answers | Kind::Incoming)
    }

    /// Returns its label in the metrics.
    pub fn label(self) -> &'static str {
        match self {
            Kind::Output => "retained_output",
            Kind::Processes => "processes",
            Kind::Sessions => "sessions",
            Kind::Input => "input",
            Kind::Requests => "requests",
            Kind::Answers => "answers",
            Kind::Incoming => "incoming",
            Kind::Handles => "handles",
        }
    }
}

/// The part of an account, as a divisor, that is reserved for requests and answers, so that a client that keeps too
/// much can still list, read and forget it.
const PASSING_PART: usize = 8;

/// Counts bytes against a limit, and against its parent account.
#[derive(Debug)]
pub struct Account {
    total: Gauge,
    kinds: [Gauge; Kind::ALL.len()],
    parent: Option<Arc<Account>>,
    /// Notified when something is freed while someone waits for it.
    freed: Notify,
    /// Number of tasks that wait because this account is full.
    waiting: AtomicUsize,
}

#[derive(Debug)]
struct Gauge {
    limit: usize,
    used: AtomicUsize,
}

impl Gauge {
    fn new(limit: usize) -> Self {
        Gauge { limit, used: AtomicUsize::new(0) }
    }

    fn left(&self, limit: usize) -> usize {
        limit.saturating_sub(self.used.load(Ordering::SeqCst))
    }

    fn change(&self, before: usize, after: usize) {
        if after > before {
            self.used.fetch_add(after - before, Ordering::SeqCst);
        } else {
            self.used.fetch_sub(before - after, Ordering::SeqCst);
        }
    }

    fn try_add(&self, bytes: usize, limit: usize) -> bool {
        let add = |used: usize| used.checked_add(bytes).filter(|used| *used <= limit);
        self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add).is_ok()
    }
}

impl Default for Account {
    /// Creates an account without limits.
    fn default() -> Self {
        Account::new(usize::MAX, &[])
    }
}

impl Account {
    /// Creates the account of a server; `caps` limit some kinds.
    pub fn new(limit: usize, caps: &[(Kind, usize)]) -> Self {
        let cap =
            |kind: Kind| caps.iter().find(|(capped, _)| *capped == kind).map_or(usize::MAX, |cap| cap.1);
        Account {
            total: Gauge::new(limit),
            kinds: Kind::ALL.map(|kind| Gauge::new(cap(kind))),
            parent: None,
            freed: Notify::new(),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Creates an account within `parent`.
    pub fn within(parent: &Arc<Self>, limit: usize, caps: &[(Kind, usize)]) -> Self {
        Account { parent: Some(Arc::clone(parent)), ..Account::new(limit, caps) }
    }

    /// Returns how many bytes may be in use.
    pub fn limit(&self) -> usize {
        self.total.limit
    }

    /// Returns the limit on one kind.
    pub fn cap(&self, kind: Kind) -> usize {
        self.kinds[kind as usize].limit
    }

    /// Returns how many bytes are in use.
    pub fn used(&self) -> usize {
        self.total.used.load(Ordering::SeqCst)
    }

    /// Returns how many bytes are in use for one kind.
    pub fn used_for(&self, kind: Kind) -> usize {
        self.kinds[kind as usize].used.load(Ordering::SeqCst)
    }

    /// Returns how many more bytes may be used.
    pub fn left(&self, kind: Kind) -> usize {
        self.chain().map(|account| account.own_left(kind)).min().unwrap_or(0)
    }

    /// Returns the most that one holder can ever get.
    pub fn most(&self, kind: Kind) -> usize {
        let most = |account: &Account| account.limit_for(kind).min(account.cap(kind));
        self.chain().map(most).min().unwrap_or(0)
    }

    /// Returns the most that one holder can get while everything that is not in transit stays.
    fn attainable(&self, kind: Kind) -> usize {
        let attainable = |account: &Account| {
            let kept = Kind::ALL.into_iter().filter(|kind| !matches!(kind, Kind::Answers | Kind::Incoming));
            let kept = kept.map(|kind| account.used_for(kind)).fold(0, usize::saturating_add);
            account.limit_for(kind).saturating_sub(kept).min(account.cap(kind))
        };
        self.chain().map(attainable).min().unwrap_or(0)
    }

    /// Changes the charge of one holder from `before` to `after` bytes, whether or not they fit.
    pub fn charge(&self, kind: Kind, before: usize, after: usize) {
        if before == after {
            return;
        }
        for account in self.chain() {
            account.kinds[kind as usize].change(before, after);
            account.total.change(before, after);
            if after < before && account.waiting.load(Ordering::SeqCst) > 0 {
                account.freed.notify_waiters();
            }
        }
    }

    /// Charges `bytes` until the result is dropped, whether or not they fit.
    pub fn take(self: &Arc<Self>, kind: Kind, bytes: usize) -> Charge {
        self.charge(kind, 0, bytes);
        Charge { account: Arc::clone(self), kind, bytes: AtomicUsize::new(bytes) }
    }

    /// Charges `bytes` until the result is dropped, if they fit.
    pub fn try_take(self: &Arc<Self>, kind: Kind, bytes: usize) -> Option<Charge> {
        self.try_add(kind, bytes).ok()?;
        Some(Charge { account: Arc::clone(self), kind, bytes: AtomicUsize::new(bytes) })
    }

    /// Waits until `bytes` fit, or as many as can ever fit, and charges them.
    pub async fn reserve(self: &Arc<Self>, kind: Kind, bytes: usize) -> Charge {
        let bytes = bytes.min(self.most(kind));
        loop {
            match self.try_take(kind, bytes) {
                Some(charge) => return charge,
                None => self.room(kind, bytes).await,
            }
        }
    }

    /// Waits until `bytes` fit, or as many as fit once nothing else is in transit, and charges them.
    pub(crate) async fn reserve_in_turn(self: &Arc<Self>, kind: Kind, bytes: usize) -> Charge {
        loop {
            let bytes = bytes.min(self.attainable(kind));
            if bytes == 0 {
                return self.take(kind, 0);
            }
            if let Some(charge) = self.try_take(kind, bytes) {
                return charge;
            }
            if let Some(full) = self.full_for(kind, bytes) {
                full.wait_for(kind, bytes).await;
            }
        }
    }

    /// Waits until `bytes` fit, or as many as can ever fit.
    pub async fn room(&self, kind: Kind, bytes: usize) {
        let bytes = bytes.min(self.most(kind));
        while let Some(full) = self.full_for(kind, bytes) {
            full.wait_for(kind, bytes).await;
        }
    }

    /// Waits until something of this account is freed, unless `bytes` fit.
    async fn wait_for(&self, kind: Kind, bytes: usize) {
        let _waiting = Waiting::new(self);
        let freed = self.freed();
        tokio::pin!(freed);
        freed.as_mut().enable();
        if self.own_left(kind) < bytes {
            freed.await;
        }
    }

    /// Returns whether a task waits for room in this account or one above it.
    pub fn has_waiters(&self) -> bool {
        self.chain().any(|account| account.waiting.load(Ordering::SeqCst) > 0)
    }

    fn try_add(&self, kind: Kind, bytes: usize) -> Result<(), ()> {
        let added = self.try_add_own(kind, bytes);
        let parent = self.parent.as_ref().filter(|_| added.is_ok());
        match parent.map_or(added, |parent| parent.try_add(kind, bytes)) {
            Ok(()) => Ok(()),
            Err(()) => {
                if added.is_ok() {
                    self.kinds[kind as usize].change(bytes, 0);
                    self.total.change(bytes, 0);
                    // Another task may have found it full because of these bytes.
                    self.freed.notify_waiters();
                }
                Err(())
            }
        }
    }

    fn try_add_own(&self, kind: Kind, bytes: usize) -> Result<(), ()> {
        if !self.kinds[kind as usize].try_add(bytes, self.cap(kind)) {
            return Err(());
        }
        if !self.total.try_add(bytes, self.limit_for(kind)) {
            self.kinds[kind as usize].change(bytes, 0);
            return Err(());
        }
        Ok(())
    }

    /// Returns the first account in which `bytes` do not fit.
    fn full_for(&self, kind: Kind, bytes: usize) -> Option<&Account> {
        self.chain().find(|account| account.own_left(kind) < bytes)
    }

    fn own_left(&self, kind: Kind) -> usize {
        self.total.left(self.limit_for(kind)).min(self.kinds[kind as usize].left(self.cap(kind)))
    }

    /// Returns how much may be in use altogether for another byte of this kind to fit.
    fn limit_for(&self, kind: Kind) -> usize {
        let limit = self.total.limit;
        if kind.is_passing() { limit } else { limit - limit / PASSING_PART }
    }

    fn freed(&self) -> Notified<'_> {
        self.freed.notified()
    }

    /// Returns this account and those above it.
    fn chain(&self) -> impl Iterator<Item = &Account> {
        std::iter::successors(Some(self), |account| account.parent.as_deref())
    }
}

/// Counts as a waiter until dropped.
struct Waiting<'a>(&'a Account);

impl<'a> Waiting<'a> {
    fn new(account: &'a Account) -> Self {
        account.waiting.fetch_add(1, Ordering::SeqCst);
        Waiting(account)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Bytes charged to an account until dropped.
#[derive(Debug)]
pub struct Charge {
    account: Arc<Account>,
    kind: Kind,
    bytes: AtomicUsize,
}

impl Charge {
    /// Returns the account that is charged.
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Returns how many bytes are charged.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Changes the charge, whether or not it fits.
    pub fn set(&self, bytes: usize) {
        if self.bytes.load(Ordering::Relaxed) == bytes {
            return;
        }
        let before = self.bytes.swap(bytes, Ordering::SeqCst);
        self.account.charge(self.kind, before, bytes);
    }

    /// Adds to the charge if that fits.
    pub fn try_grow(&self, bytes: usize) -> bool {
        let is_added = self.account.try_add(self.kind, bytes).is_ok();
        if is_added {
            self.bytes.fetch_add(bytes, Ordering::SeqCst);
        }
        is_added
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// The accounts of a server and of its identities.
#[derive(Debug)]
pub struct Accounts {
    server: Arc<Account>,
    /// How much one identity may use.
    identity_limit: usize,
    /// How much of that it may use for some kinds.
    identity_caps: Vec<(Kind, usize)>,
    /// The accounts of identities with sessions or connections; shared by all of them, held briefly.
    by_identity: Mutex<HashMap<Identity, Weak<Account>>>,
}

/// How many accounts are kept before those without sessions and connections are removed.
const REMEMBERED: usize = 64;

impl Accounts {
    /// Creates the accounts of a server with these limits.
    pub fn new(limits: &Limits) -> Self {
        let server_limit = limits.server_memory_bytes;
        let identity_limit = limits.identity_memory_bytes.min(server_limit);
        let caps = [
            (Kind::Output, limits.server_retain_bytes),
            (Kind::Answers, limits.answer_bytes),
            (Kind::Incoming, limits.incoming_bytes),
            (Kind::Requests, limits.server_request_bytes),
        ];
        // The caps are divided like the whole.
        let part = |bytes: usize| {
            let part = bytes as u128 * identity_limit as u128 / server_limit.max(1) as u128;
            usize::try_from(part).unwrap_or(usize::MAX).max(FLOOR)
        };
        Accounts {
            // Long answers, messages and requests of all identities have budgets of their own.
            server: Arc::new(Account::new(server_limit, &caps[..1])),
            identity_limit,
            identity_caps: caps.map(|(kind, cap)| (kind, part(cap))).to_vec(),
            by_identity: Mutex::default(),
        }
    }

    /// Returns the account of the server.
    pub fn server(&self) -> &Arc<Account> {
        &self.server
    }

    /// Returns how much one identity may use.
    pub fn identity_limit(&self) -> usize {
        self.identity_limit
    }

    /// Returns the account of an identity, which its sessions and connections share.
    pub fn of(&self, identity: &Identity) -> Arc<Account> {
        let mut accounts = lock(&self.by_identity);
        if let Some(account) = accounts.get(identity).and_then(Weak::upgrade) {
            return account;
        }
        if accounts.len() >= REMEMBERED && accounts.len() == accounts.capacity() {
            accounts.retain(|_, account| account.strong_count() > 0);
        }
        let account = Arc::new(Account::within(&self.server, self.identity_limit, &self.identity_caps));
        accounts.insert(identity.clone(), Arc::downgrade(&account));
        account
    }

    /// Returns the largest use by any identity.
    pub fn largest(&self) -> usize {
        let accounts = lock(&self.by_identity);
        accounts.values().filter_map(Weak::upgrade).map(|account| account.used()).max().unwrap_or(0)
    }
}

/// Returns the error for something that does not fit into its account; `what` cannot be done.
pub fn full(what: &str, account: &Account, kind: Kind, bytes: usize) -> RpcError {
    let is_server = account.own_left(kind) >= bytes;
    let (whose, limit) = if is_server {
        ("the server", "server_memory_bytes")
    } else {
        ("this identity", "identity_memory_bytes")
    };
    let message = format!("{what}: {whose} has no memory left for it (limit `{limit}`)");
    let hint = if is_server {
        "try again later, or ask the operator of the server"
    } else {
        "end sessions, or forget processes that have ended with `process/forget`; `process/list` with `scope: \"identity\"` lists them"
    };
    RpcError::new(ErrorKind::LimitExceeded, message).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use std::{
        task::{Context, Waker},
        time::Duration,
    };

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn a_session_is_bounded_by_its_own_account_and_by_those_above() {
        let server = Arc::new(Account::new(1000, &[(Kind::Output, 100)]));
        let identity = Arc::new(Account::within(&server, 160, &[]));
        let [one, other] =
            [(); 2].map(|()| Arc::new(Account::within(&identity, usize::MAX, &[(Kind::Output, 80)])));
        one.charge(Kind::Output, 0, 70);
        let left = |account: &Account| account.left(Kind::Output);
        assert_eq!((left(&one), left(&other), left(&server)), (10, 30, 30));
        assert_eq!(one.left(Kind::Processes), 70, "the session limits only output");
        other.charge(Kind::Processes, 0, 70);
        assert_eq!((left(&one), left(&other), left(&server)), (0, 0, 30));
        assert!(other.try_take(Kind::Processes, 1).is_none());
        assert!(other.try_take(Kind::Answers, 20).is_some(), "an eighth is for answers");
        assert!(other.try_take(Kind::Answers, 21).is_none());
        one.charge(Kind::Output, 70, 20);
        assert_eq!((left(&one), left(&other), left(&server)), (50, 50, 80));
        assert_eq!((server.used(), server.used_for(Kind::Processes)), (90, 70));
    }

    #[test]
    fn one_identity_cannot_use_what_others_need() {
        const PART: usize = 1 << 17;
        let limits =
            Limits { server_memory_bytes: 32 * PART, identity_memory_bytes: 24 * PART, ..Limits::default() };
        let accounts = Accounts::new(&limits);
        let [one, other] = [accounts.of(&Identity::Owner), accounts.of(&Identity::Own(1))];
        let taken = one.try_take(Kind::Processes, 21 * PART).expect("that is its limit");
        assert!(one.try_take(Kind::Processes, 1).is_none());
        assert!(other.try_take(Kind::Processes, 7 * PART).is_some());
        assert!(Arc::ptr_eq(&one, &accounts.of(&Identity::Owner)));
        assert_eq!(accounts.largest(), 21 * PART);
        drop(taken);
        assert_eq!((accounts.server().used(), accounts.largest()), (0, 0));
    }

    #[test]
    fn a_refused_charge_leaves_nothing_behind() {
        let server = Arc::new(Account::new(10, &[]));
        let identity = Arc::new(Account::within(&server, 100, &[(Kind::Answers, 50)]));
        for bytes in [11, 51, 101] {
            assert!(identity.try_take(Kind::Answers, bytes).is_none());
        }
        assert_eq!((identity.used(), identity.used_for(Kind::Answers), server.used()), (0, 0, 0));
        let charge = identity.try_take(Kind::Answers, 4).unwrap();
        assert!(!charge.try_grow(7) && charge.try_grow(6));
        assert_eq!(server.used(), 10);
        charge.set(3);
        assert_eq!((identity.used_for(Kind::Answers), server.used()), (3, 3));
    }

    #[tokio::test]
    async fn a_task_waits_for_the_account_that_is_full() {
        let server = Arc::new(Account::new(100, &[]));
        let [one, other] = [(); 2].map(|()| Arc::new(Account::within(&server, 60, &[])));
        let taken = one.take(Kind::Input, 60);
        let mut unheard = Context::from_waker(Waker::noop());
        let waiting = one.reserve(Kind::Answers, 20);
        tokio::pin!(waiting);
        assert!(waiting.as_mut().poll(&mut unheard).is_pending());
        assert!(one.has_waiters() && !other.has_waiters(), "nobody else is held up");
        taken.set(40);
        let charge = tokio::time::timeout(PATIENCE, waiting).await.expect("there is room");
        assert!(!one.has_waiters());
        let rest = other.take(Kind::Output, 60);
        let waiting = one.room(Kind::Answers, 1000);
        tokio::pin!(waiting);
        assert!(waiting.as_mut().poll(&mut unheard).is_pending(), "it waits for all that it can have");
        assert!(other.try_take(Kind::Output, 1).is_none());
        drop((charge, taken, rest));
        tokio::time::timeout(PATIENCE, waiting).await.expect("there is room");
    }
}

//! The open connections of a server, by number.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use remex_access::{account::Account, budget::RequestLoad};
use remex_base::lock;

use super::{ConnectionId, Outbox, throttle::BulkThrottle};

/// State that all connections of a server share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shared {
    /// Throttles bulk output.
    pub(super) throttle: Arc<BulkThrottle>,
    /// The load of requests in progress.
    pub(super) requests: Arc<RequestLoad>,
    /// The account of the connection's identity.
    pub(super) account: Arc<Account>,
}

impl Shared {
    /// Returns what a connection shares with the others of its identity.
    pub(crate) fn of(self, account: Arc<Account>) -> Self {
        Shared { account, ..self }
    }
}

/// The open connections of a server.
#[derive(Debug)]
pub(crate) struct Connections {
    shared: Shared,
    next: AtomicU64,
    /// Shared by connections and sessions; held briefly.
    open: Mutex<HashMap<ConnectionId, Arc<Outbox>>>,
}

impl Connections {
    /// Creates an empty list; all connections together may hold `request_bytes` of waiting requests.
    pub(crate) fn new(request_bytes: u64) -> Self {
        Connections {
            shared: Shared { requests: Arc::new(RequestLoad::new(request_bytes)), ..Shared::default() },
            next: AtomicU64::new(1),
            open: Mutex::default(),
        }
    }

    /// Returns an unused connection id.
    pub(crate) fn next_id(&self) -> ConnectionId {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Adds a connection with the outbox that `make` returns.
    pub(crate) fn open(&self, make: impl FnOnce(ConnectionId, Shared) -> Outbox) -> Arc<Outbox> {
        let id = self.next_id();
        let outbox = Arc::new(make(id, self.shared.clone()));
        self.by_id().insert(id, Arc::clone(&outbox));
        outbox
    }

    pub(crate) fn close(&self, id: ConnectionId) {
        let closed = self.by_id().remove(&id);
        drop(closed);
    }

    pub(crate) fn get(&self, id: ConnectionId) -> Option<Arc<Outbox>> {
        self.by_id().get(&id).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Outbox>> {
        self.by_id().values().cloned().collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_id().is_empty()
    }

    fn by_id(&self) -> MutexGuard<'_, HashMap<ConnectionId, Arc<Outbox>>> {
        lock(&self.open)
    }
}

//! How many sessions of HTTP clients there are: when one is too many, the longest idle one ends.
//!
//! Start at [`SessionTable`].

use std::{
    collections::HashMap,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll},
    time::Instant,
};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use remex_base::lock;
use rmcp::transport::streamable_http_server::session::{
    SessionId, SessionManager as _, local::LocalSessionManager,
};

/// The most sessions. Leaves room for clients that start a new session for each request and end none.
const MAX_SESSIONS: usize = 256;

/// The sessions by when they were used last.
#[derive(Debug)]
pub(super) struct SessionTable {
    manager: Arc<LocalSessionManager>,
    /// Held briefly, never while waiting.
    used: Arc<Mutex<HashMap<SessionId, Use>>>,
}

#[derive(Debug)]
struct Use {
    /// How many of its requests are being answered.
    requests: usize,
    last: Instant,
}

impl SessionTable {
    pub(super) fn new(manager: Arc<LocalSessionManager>) -> Self {
        SessionTable { manager, used: Arc::default() }
    }

    /// Adds a session that was just made, and ends the longest idle one if there are too many.
    ///
    /// Returns `false` if all others have requests that are being answered: then the new one has ended.
    pub(super) async fn add(&self, id: SessionId) -> bool {
        self.forget_ended().await;
        let excess = {
            let mut used = self.used();
            used.insert(SessionId::clone(&id), Use { requests: 0, last: Instant::now() });
            if used.len() <= MAX_SESSIONS {
                return true;
            }
            let idle = used.iter().filter(|(other, used)| **other != id && used.requests == 0);
            let longest = idle.min_by_key(|(_, used)| used.last).map(|(other, _)| SessionId::clone(other));
            let excess = longest.unwrap_or_else(|| SessionId::clone(&id));
            used.remove(&excess);
            excess
        };
        tracing::debug!("a session ended: there are more than {MAX_SESSIONS}");
        // It may have ended by itself.
        let _ = self.manager.close_session(&excess).await;
        excess != id
    }

    /// Notes that a session is used, until the answer is dropped.
    pub(super) fn begin_request(&self, id: &str) -> Option<RequestGuard> {
        let mut used = self.used();
        let (id, _) = used.get_key_value(id)?;
        let id = SessionId::clone(id);
        let entry = used.get_mut(&id)?;
        entry.requests += 1;
        entry.last = Instant::now();
        Some(RequestGuard { id, used: Arc::clone(&self.used) })
    }

    /// Forgets sessions that their clients have ended, or that were idle for too long.
    async fn forget_ended(&self) {
        let sessions = self.manager.sessions.read().await;
        self.used().retain(|id, _| sessions.contains_key(id));
    }

    fn used(&self) -> MutexGuard<'_, HashMap<SessionId, Use>> {
        lock(&self.used)
    }
}

/// A request of a session that is being answered.
#[derive(Debug)]
pub(super) struct RequestGuard {
    id: SessionId,
    used: Arc<Mutex<HashMap<SessionId, Use>>>,
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let mut used = lock(&self.used);
        if let Some(entry) = used.get_mut(&self.id) {
            entry.requests = entry.requests.saturating_sub(1);
            entry.last = Instant::now();
        }
    }
}

/// The body of an answer, which keeps its session in use.
pub(super) struct GuardedBody<B> {
    pub(super) body: B,
    pub(super) _guard: Option<RequestGuard>,
}

impl<B: Body<Data = Bytes> + Unpin> Body for GuardedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_longest_idle_session_ends_and_none_whose_request_is_being_answered() {
        let manager = Arc::new(LocalSessionManager::default());
        let table = SessionTable::new(Arc::clone(&manager));
        let mut ids = Vec::new();
        let mut workers = Vec::new();
        for _ in 0..MAX_SESSIONS {
            let (id, worker) = manager.create_session().await.unwrap();
            workers.push(worker);
            assert!(table.add(SessionId::clone(&id)).await);
            ids.push(id);
        }
        let first = table.begin_request(&ids[0]).unwrap();
        let (late, worker) = manager.create_session().await.unwrap();
        workers.push(worker);
        assert!(table.add(late).await);
        let is_there = async |id: &SessionId| manager.has_session(id).await.unwrap();
        assert!(is_there(&ids[0]).await, "it is being used");
        assert!(!is_there(&ids[1]).await, "it was idle for longest");
        assert!(is_there(&ids[2]).await);

        let mut busy: Vec<_> = ids.iter().filter_map(|id| table.begin_request(id)).collect();
        assert_eq!(busy.len(), MAX_SESSIONS - 1);
        for is_admitted in [true, false] {
            let (id, worker) = manager.create_session().await.unwrap();
            workers.push(worker);
            let admitted = table.add(SessionId::clone(&id)).await;
            busy.extend(table.begin_request(&id));
            assert_eq!((admitted, is_there(&id).await), (is_admitted, is_admitted));
        }
        drop(first);
    }
}

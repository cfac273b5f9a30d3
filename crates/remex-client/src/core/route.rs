//! Where the parts of streams and the news of watches go.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use remex_proto::{fs, http};
use tokio::sync::Notify;

use crate::Loss;

/// Which stream or watch a notification is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum RouteKey {
    /// The body of an HTTP response, by `requestId`.
    Http(String),
    /// A watch, by `watchId`.
    Watch(u64),
}

/// What arrives on a route.
#[derive(Debug)]
pub(crate) enum Routed {
    Body(http::BodyDelta),
    Changed(fs::Changed),
    /// The connection was cut, and with it the stream or watch; nothing follows.
    Cut,
    /// The session is lost; nothing follows.
    Lost(Loss),
}

/// What has arrived for one stream or watch, and waits for its consumer.
///
/// How much may wait is the business of whoever opened it: a server has a bound for each stream and watch.
#[derive(Debug, Default)]
pub(crate) struct Route {
    /// The task with the connection puts in, the consumer takes out; held for moments only.
    waiting: Mutex<VecDeque<Routed>>,
    bell: Notify,
}

impl Route {
    pub(crate) fn push(&self, what: Routed) {
        self.lock().push_back(what);
        self.bell.notify_one();
    }

    pub(crate) fn end(&self, what: Routed) {
        self.push(what);
    }

    /// Waits for what comes next. Cancel-safe.
    pub(crate) async fn next(&self) -> Routed {
        loop {
            if let Some(what) = self.lock().pop_front() {
                return what;
            }
            self.bell.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Routed>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

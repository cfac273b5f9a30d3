//! Buffers for streamed bodies and watch notifications.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard},
    task::{Context, Poll, Waker},
};

use remex_base::lock;
use remex_proto::{fs, http};

use crate::{Error, SessionLost, base::event::Event};

/// How many notifications of one watch may be buffered; beyond that they become one overflow.
const MAX_QUEUED_CHANGES: usize = 1024;

/// How much of one body may be buffered, in bytes; only a server without backpressure sends that much.
const MAX_QUEUED_BODY_BYTES: usize = 64 << 20;

/// How much of an observed session may be buffered, in bytes; beyond that it is read again.
const MAX_QUEUED_EVENT_BYTES: usize = 8 << 20;

/// What an event takes beside its output.
const EVENT_BYTES: usize = 128;

/// Which stream or watch a notification is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum RouteKey {
    /// The body of an HTTP response, by `requestId`.
    Http(String),
    /// A watch, by `watchId`.
    Watch(u64),
    /// An observed session, by its id.
    Session(String),
}

/// What arrives on a route.
#[derive(Debug)]
pub(crate) enum RouteEvent {
    Body(http::BodyDelta),
    Changed(fs::Changed),
    /// An event of a process of an observed session, or why it cannot be decoded.
    Process {
        process_id: String,
        /// The start that it names.
        incarnation: Option<u64>,
        event: Result<Event, Error>,
    },
    /// An observed session has ended; the last events of its processes may follow.
    SessionEnded,
    /// Too much of a body was buffered unread; nothing follows.
    Overrun {
        bytes: usize,
    },
    /// The server violated the protocol; nothing follows.
    Broken(Error),
    /// The connection was lost, and the stream or watch with it; nothing follows.
    Disconnected,
    /// The session is lost; nothing follows.
    Lost(SessionLost),
}

/// The bounded buffer between the connection and the one consumer of a stream or watch.
#[derive(Debug, Default)]
pub(crate) struct Route {
    /// The connection task adds events, the consumer takes them; locked only briefly.
    state: Mutex<RouteState>,
}

#[derive(Debug, Default)]
struct RouteState {
    waiting: VecDeque<RouteEvent>,
    /// The bytes of the queued body parts and events.
    bytes: usize,
    has_ended: bool,
    consumer: Option<Waker>,
}

impl Route {
    pub(crate) fn push(&self, what: RouteEvent) {
        self.lock().push(what);
    }

    /// Adds the final event.
    pub(crate) fn end(&self, what: RouteEvent) {
        let mut state = self.lock();
        state.push(what);
        state.has_ended = true;
    }

    /// Waits for the next event. Cancel-safe.
    pub(crate) async fn next(&self) -> RouteEvent {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    pub(crate) fn poll_next(&self, context: &mut Context<'_>) -> Poll<RouteEvent> {
        let mut state = self.lock();
        let Some(what) = state.waiting.pop_front() else {
            state.consumer = Some(context.waker().clone());
            return Poll::Pending;
        };
        state.bytes -= what.len();
        Poll::Ready(what)
    }

    fn lock(&self) -> MutexGuard<'_, RouteState> {
        lock(&self.state)
    }
}

impl RouteEvent {
    /// Returns how much memory it counts for.
    fn len(&self) -> usize {
        match self {
            RouteEvent::Body(delta) => delta.delta_base64.len(),
            RouteEvent::Process { process_id, event, .. } => {
                // The text of an error quotes what the server has sent.
                let content = event.as_ref().map_or_else(|error| error.what().len(), Event::len);
                process_id.len() + content + EVENT_BYTES
            }
            _ => 0,
        }
    }
}

impl RouteState {
    fn push(&mut self, what: RouteEvent) {
        if self.has_ended {
            return;
        }
        self.bytes += what.len();
        let limit = if matches!(what, RouteEvent::Process { .. }) {
            MAX_QUEUED_EVENT_BYTES
        } else {
            MAX_QUEUED_BODY_BYTES
        };
        match &what {
            RouteEvent::Changed(changed) if self.waiting.len() >= MAX_QUEUED_CHANGES => {
                let overflow = fs::Changed { changes: Vec::new(), overflow: true, ..*changed };
                self.waiting.clear();
                self.waiting.push_back(RouteEvent::Changed(overflow));
            }
            _ => {}
        }
        if self.bytes > limit {
            let bytes = std::mem::take(&mut self.bytes);
            self.waiting.clear();
            self.waiting.push_back(RouteEvent::Overrun { bytes });
            self.has_ended = true;
        } else {
            self.waiting.push_back(what);
        }
        if let Some(consumer) = self.consumer.take() {
            consumer.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use remex_proto::{Blob, HostPath};

    use super::*;

    #[tokio::test]
    async fn unread_changes_become_one_overflow() {
        let route = Route::default();
        let change = |number: usize| {
            let path = HostPath::parse(&format!("/w/{number}")).unwrap();
            fs::Change::new(path, fs::ChangeKind::Created)
        };
        for number in 0..=MAX_QUEUED_CHANGES {
            let changes = vec![change(number)];
            route.push(RouteEvent::Changed(fs::Changed { watch_id: 7, changes, overflow: false }));
        }
        let RouteEvent::Changed(first) = route.next().await else { panic!("news come") };
        assert_eq!(first, fs::Changed { watch_id: 7, changes: Vec::new(), overflow: true });
        let RouteEvent::Changed(last) = route.next().await else { panic!("news come") };
        assert_eq!(last.changes, [change(MAX_QUEUED_CHANGES)]);
    }

    #[tokio::test]
    async fn an_unread_body_ends_when_too_much_is_buffered() {
        let route = Route::default();
        let part = Blob::from(vec![0; 1 << 20]);
        for seq in 1..=100 {
            let (request_id, delta_base64) = ("r".to_owned(), part.clone());
            let delta = http::BodyDelta { request_id, seq, delta_base64, done: false, error: None };
            route.push(RouteEvent::Body(delta));
        }
        assert!(matches!(route.next().await, RouteEvent::Overrun { bytes } if bytes == 65 << 20));
        assert!(route.lock().waiting.is_empty());
    }
}

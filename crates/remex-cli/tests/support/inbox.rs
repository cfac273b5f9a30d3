//! What one client has received so far, sorted, with waits that end.

use std::{
    collections::{HashMap, VecDeque},
    fmt::Write as _,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{PATIENCE, binary};

/// How a connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct End {
    /// Code and reason of the close frame, where there is one.
    pub(crate) close: Option<(u16, String)>,
    /// What the transport said.
    pub(crate) how: String,
}

/// Everything received, in order of arrival, and where to find it.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) messages: Vec<Value>,
    replies: HashMap<String, VecDeque<usize>>,
    pub(crate) notifications: Vec<usize>,
    events: HashMap<String, Vec<usize>>,
    /// Payloads of pongs.
    pub(crate) pongs: Vec<Vec<u8>>,
    /// Whatever was no message of the dialect.
    pub(crate) garbage: Vec<String>,
    end: Option<End>,
    paused: bool,
    /// Whether the client has asked for binary messages.
    accepts_binary: bool,
}

impl Seen {
    /// Returns the messages that name `process_id`, in order of arrival.
    pub(crate) fn events(&self, process_id: &str) -> impl DoubleEndedIterator<Item = &Value> {
        self.events.get(process_id).into_iter().flatten().map(|&index| &self.messages[index])
    }

    /// Returns all notifications in order of arrival.
    pub(crate) fn notifications(&self) -> impl DoubleEndedIterator<Item = &Value> {
        self.notifications.iter().map(|&index| &self.messages[index])
    }

    /// Takes the oldest pending reply with this id.
    pub(crate) fn take_reply(&mut self, id: &Value) -> Option<Value> {
        let index = self.replies.get_mut(&id.to_string())?.pop_front()?;
        Some(self.messages[index].clone())
    }

    /// Returns whether a reply with this id is pending.
    pub(crate) fn has_reply(&self, id: &Value) -> bool {
        self.replies.get(&id.to_string()).is_some_and(|replies| !replies.is_empty())
    }

    fn sort(&mut self, message: Value) {
        let index = self.messages.len();
        if message.get("method").is_some() {
            self.notifications.push(index);
            if let Some(process) = message["params"]["processId"].as_str() {
                self.events.entry(process.to_owned()).or_default().push(index);
            }
        } else {
            self.replies.entry(message["id"].to_string()).or_default().push_back(index);
        }
        self.messages.push(message);
    }

    /// Tells what was seen, the latest last, short enough to be read.
    fn summary(&self) -> String {
        const SHOWN: usize = 40;
        let mut text = format!("{} messages, end: {:?}\n", self.messages.len(), self.end);
        for garbage in &self.garbage {
            let _ = writeln!(text, "  garbage: {garbage}");
        }
        for message in self.messages.iter().skip(self.messages.len().saturating_sub(SHOWN)) {
            let line = message.to_string();
            let _ = writeln!(text, "  {}", line.chars().take(400).collect::<String>());
        }
        text
    }
}

/// Where the reader of a connection puts what it gets, and tests wait for it.
#[derive(Default)]
pub(crate) struct Inbox {
    seen: Mutex<Seen>,
    changed: Condvar,
}

impl Inbox {
    pub(crate) fn push(&self, bytes: &[u8]) {
        let mut seen = self.lock();
        match serde_json::from_slice(bytes) {
            Ok(message @ Value::Object(_)) => seen.sort(message),
            _ => seen.garbage.push(String::from_utf8_lossy(bytes).into_owned()),
        }
        self.changed.notify_all();
    }

    pub(crate) fn push_pong(&self, payload: &[u8]) {
        self.lock().pongs.push(payload.to_owned());
        self.changed.notify_all();
    }

    /// From now on, binary messages are what the client has asked for.
    pub(crate) fn accept_binary(&self) {
        self.lock().accepts_binary = true;
    }

    pub(crate) fn push_binary(&self, message: &[u8]) {
        let mut seen = self.lock();
        if seen.accepts_binary {
            seen.sort(binary::as_json(message));
        } else {
            seen.garbage.push(format!("a binary message: {message:?}"));
        }
        self.changed.notify_all();
    }

    /// Records the end; only the first one counts.
    pub(crate) fn end(&self, end: End) {
        self.lock().end.get_or_insert(end);
        self.changed.notify_all();
    }

    pub(crate) fn pause(&self, paused: bool) {
        self.lock().paused = paused;
        self.changed.notify_all();
    }

    /// Blocks the reader for as long as the test wants it.
    pub(crate) fn wait_while_paused(&self) {
        let seen = self.lock();
        drop(self.changed.wait_while(seen, |seen| seen.paused).unwrap_or_else(PoisonError::into_inner));
    }

    /// Looks at what was seen so far without waiting.
    pub(crate) fn look<T>(&self, find: impl FnOnce(&Seen) -> T) -> T {
        find(&self.lock())
    }

    /// Waits until `find` finds something; fails the test when it never does or cannot any more.
    pub(crate) fn wait<T>(&self, what: &str, mut find: impl FnMut(&mut Seen) -> Option<T>) -> T {
        match self.wait_or_end(PATIENCE, what, |seen| find(seen)) {
            Ok(found) => found,
            Err(_) => panic!("the connection ended before {what}\n{}", self.lock().summary()),
        }
    }

    /// Waits until the connection has ended.
    pub(crate) fn wait_end(&self) -> End {
        self.wait_end_within(PATIENCE, "the end of the connection")
    }

    /// Waits until the connection has ended, at most this long.
    pub(crate) fn wait_end_within(&self, patience: Duration, what: &str) -> End {
        match self.wait_or_end(patience, what, |_| None::<()>) {
            Ok(()) => unreachable!("nothing is ever found"),
            Err(end) => end,
        }
    }

    fn wait_or_end<T>(
        &self,
        patience: Duration,
        what: &str,
        mut find: impl FnMut(&mut Seen) -> Option<T>,
    ) -> Result<T, End> {
        let deadline = Instant::now() + patience;
        let mut seen = self.lock();
        loop {
            if let Some(found) = find(&mut seen) {
                return Ok(found);
            }
            if let Some(end) = &seen.end {
                return Err(end.clone());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let summary = seen.summary();
                drop(seen);
                panic!("waited in vain for {what}\n{summary}");
            }
            seen = self.changed.wait_timeout(seen, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

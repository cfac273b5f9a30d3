//! The client's table of unanswered calls.
//!
//! Pure: it sends nothing and knows no methods. Start at [`Pending`].

use std::{collections::BTreeMap, mem};

/// Limits on unanswered calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The number of calls.
    pub calls: usize,
    /// The total size of the calls in bytes; a single larger call is accepted if no other is pending.
    pub bytes: usize,
}

/// What happens to an unanswered call after a disconnect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterDisconnect {
    /// It is sent again: a read, a write with an id, a start with an id.
    Resend,
    /// It fails, because it is unknown whether it took effect.
    Fail,
}

/// Why a call was not registered; returns the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused<T> {
    /// Too many calls are pending.
    #[error("too many calls are pending; wait until some have completed")]
    Full(T),
    /// The session is lost.
    #[error("the session is lost; start a new one")]
    Abandoned(T),
}

/// The unanswered calls, in the order in which they were made.
///
/// Each call is removed exactly once: by [`complete`](Self::complete), [`disconnect`](Self::disconnect) or
/// [`abandon`](Self::abandon). The table starts disconnected; calls registered while disconnected are sent
/// after the next [`connect`](Self::connect).
///
/// ```
/// use remex_proto::state::pending::{AfterDisconnect, Limits, Pending};
///
/// let mut pending = Pending::new(Limits { calls: 1_024, bytes: 1 << 20 });
/// assert_eq!(pending.connect().count(), 0);
/// let read = pending.register("read", 4, AfterDisconnect::Resend)?;
/// let resize = pending.register("resize", 6, AfterDisconnect::Fail)?;
/// assert_eq!(pending.disconnect(), [(resize, "resize")]);
/// assert_eq!(pending.connect().collect::<Vec<_>>(), [(read, &"read")]);
/// assert_eq!(pending.complete(read), Some("read"));
/// # Ok::<(), remex_proto::state::pending::Refused<&str>>(())
/// ```
#[derive(Debug)]
pub struct Pending<T> {
    limits: Limits,
    /// By request id, which is also the order in which they were made.
    calls: BTreeMap<u64, Entry<T>>,
    bytes: usize,
    next_id: u64,
    link: Link,
}

#[derive(Debug)]
struct Entry<T> {
    call: T,
    len: usize,
    effect: DisconnectEffect,
}

/// The effect of a disconnect on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DisconnectEffect {
    /// Sent; fails.
    Fails,
    /// Sent; is sent again after the reconnect.
    Stays,
    /// Not sent yet, so it survives a disconnect; fails at the first disconnect after it is sent.
    Unsent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Up,
    Down,
    /// Disconnected for good.
    Abandoned,
}

impl<T> Pending<T> {
    /// Returns an empty table without a connection.
    pub fn new(limits: Limits) -> Self {
        Self { limits, calls: BTreeMap::new(), bytes: 0, next_id: 1, link: Link::Down }
    }

    /// Adds a call of `len` bytes and returns its request id, which is never used again.
    ///
    /// While connected the caller sends it at once.
    pub fn register(
        &mut self,
        call: T,
        len: usize,
        after_disconnect: AfterDisconnect,
    ) -> Result<u64, Refused<T>> {
        let bytes = self.bytes.saturating_add(len);
        let is_full = self.calls.len() >= self.limits.calls || bytes > self.limits.bytes;
        if is_full && !self.calls.is_empty() {
            return Err(Refused::Full(call));
        }
        self.register_unbounded(call, len, after_disconnect)
    }

    /// Adds a call regardless of the limits, for calls that must not be refused; only an abandoned table refuses it.
    pub fn register_unbounded(
        &mut self,
        call: T,
        len: usize,
        after_disconnect: AfterDisconnect,
    ) -> Result<u64, Refused<T>> {
        let effect = match (self.link, after_disconnect) {
            (Link::Abandoned, _) => return Err(Refused::Abandoned(call)),
            (_, AfterDisconnect::Resend) => DisconnectEffect::Stays,
            (Link::Up, AfterDisconnect::Fail) => DisconnectEffect::Fails,
            (Link::Down, AfterDisconnect::Fail) => DisconnectEffect::Unsent,
        };
        let id = self.next_id;
        self.next_id += 1;
        self.bytes = self.bytes.saturating_add(len);
        self.calls.insert(id, Entry { call, len, effect });
        Ok(id)
    }

    /// Removes a call that was answered, or abandoned by its caller.
    ///
    /// Returns `None` for an unknown id: a duplicate or late answer.
    pub fn complete(&mut self, id: u64) -> Option<T> {
        let entry = self.calls.remove(&id)?;
        self.bytes -= entry.len;
        Some(entry.call)
    }

    /// Returns an unanswered call.
    pub fn waiting(&mut self, id: u64) -> Option<&mut T> {
        self.calls.get_mut(&id).map(|entry| &mut entry.call)
    }

    /// Records a disconnect, and removes the calls that fail because of it.
    #[must_use = "these calls must fail"]
    pub fn disconnect(&mut self) -> Vec<(u64, T)> {
        self.switch(Link::Down);
        let (failed, left): (BTreeMap<_, _>, _) = mem::take(&mut self.calls)
            .into_iter()
            .partition(|(_, entry)| entry.effect == DisconnectEffect::Fails);
        self.calls = left;
        self.bytes = self.calls.values().map(|entry| entry.len).sum();
        failed.into_iter().map(|(id, entry)| (id, entry.call)).collect()
    }

    /// Records that the session is attached to a new connection, and returns the calls to send on it, in order.
    pub fn connect(&mut self) -> impl Iterator<Item = (u64, &T)> {
        self.switch(Link::Up);
        self.calls.iter_mut().map(|(&id, entry)| {
            if entry.effect == DisconnectEffect::Unsent {
                entry.effect = DisconnectEffect::Fails;
            }
            (id, &entry.call)
        })
    }

    /// Records that there will be no further connection, and removes all calls; new ones are refused.
    #[must_use = "these calls must fail"]
    pub fn abandon(&mut self) -> Vec<(u64, T)> {
        self.link = Link::Abandoned;
        self.bytes = 0;
        mem::take(&mut self.calls).into_iter().map(|(id, entry)| (id, entry.call)).collect()
    }

    /// Returns the number of unanswered calls.
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Returns whether no call is unanswered.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    fn switch(&mut self, link: Link) {
        if self.link != Link::Abandoned {
            self.link = link;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    const LIMITS: Limits = Limits { calls: 6, bytes: 100 };

    #[derive(Clone, Debug)]
    enum Step {
        Register { len: usize, after_disconnect: AfterDisconnect },
        Complete { id: u64 },
        Connect,
        Disconnect,
        Abandon,
    }

    fn step() -> impl Strategy<Value = Step> {
        let after_disconnect = prop_oneof![Just(AfterDisconnect::Resend), Just(AfterDisconnect::Fail)];
        prop_oneof![
            10 => (0..120usize, after_disconnect).prop_map(|(len, after_disconnect)| Step::Register { len, after_disconnect }),
            8 => (0..60u64).prop_map(|id| Step::Complete { id }),
            2 => Just(Step::Connect),
            2 => Just(Step::Disconnect),
            1 => prop::bool::weighted(0.2)
                .prop_map(|abandon| if abandon { Step::Abandon } else { Step::Disconnect }),
        ]
    }

    /// A call as its caller sees it.
    #[derive(Debug, PartialEq, Eq)]
    struct Call {
        len: usize,
        after_disconnect: AfterDisconnect,
        sent: bool,
        completed: bool,
    }

    proptest! {
        #[test]
        fn every_call_completes_exactly_once(steps in vec(step(), 0..120)) {
            let mut pending = Pending::new(LIMITS);
            let mut calls: BTreeMap<u64, Call> = BTreeMap::new();
            let (mut connected, mut abandoned) = (false, false);
            for step in steps.into_iter().chain([Step::Abandon]) {
                let left: Vec<u64> = match step {
                    Step::Register { len, after_disconnect } => {
                        let waiting = || calls.values().filter(|call| !call.completed);
                        let bytes: usize = waiting().map(|call| call.len).sum();
                        let fits = waiting().count() < LIMITS.calls && bytes + len <= LIMITS.bytes;
                        let fits = fits || waiting().count() == 0;
                        let id = pending.register(calls.len(), len, after_disconnect);
                        prop_assert_eq!(id.is_ok(), fits && !abandoned);
                        if let Ok(id) = id {
                            let call = Call { len, after_disconnect, sent: connected, completed: false };
                            prop_assert_eq!(calls.insert(id, call), None);
                        }
                        continue;
                    }
                    Step::Complete { id } => {
                        let waits = calls.get(&id).is_some_and(|call| !call.completed);
                        let completed = pending.complete(id);
                        prop_assert_eq!(completed.is_some(), waits);
                        completed.map(|_| id).into_iter().collect()
                    }
                    Step::Connect => {
                        connected = true;
                        let sent: Vec<u64> = pending.connect().map(|(id, _)| id).collect();
                        let waiting = calls.iter_mut().filter(|(_, call)| !call.completed);
                        let waiting: Vec<u64> = waiting.map(|(&id, call)| { call.sent = true; id }).collect();
                        prop_assert_eq!(sent, waiting, "what waits goes out in the order of the calls");
                        continue;
                    }
                    Step::Disconnect => {
                        connected = false;
                        let failed: Vec<u64> = pending.disconnect().into_iter().map(|(id, _)| id).collect();
                        let expected = calls.iter().filter(|(_, call)| {
                            !call.completed && call.sent && call.after_disconnect == AfterDisconnect::Fail
                        });
                        prop_assert_eq!(&failed, &expected.map(|(&id, _)| id).collect::<Vec<_>>());
                        failed
                    }
                    Step::Abandon => {
                        abandoned = true;
                        pending.abandon().into_iter().map(|(id, _)| id).collect()
                    }
                };
                for id in left {
                    let call = calls.get_mut(&id).unwrap();
                    prop_assert!(!mem::replace(&mut call.completed, true));
                }
                prop_assert_eq!(pending.len(), calls.values().filter(|call| !call.completed).count());
            }
            prop_assert!(pending.is_empty() && calls.values().all(|call| call.completed));
        }
    }

    #[test]
    fn a_refused_call_is_returned() {
        let mut pending = Pending::new(Limits { calls: 1, bytes: 10 });
        let first = pending.register("first", 1_000, AfterDisconnect::Fail).unwrap();
        assert_eq!(pending.register("second", 0, AfterDisconnect::Fail), Err(Refused::Full("second")));
        assert_eq!(pending.complete(first), Some("first"));
        assert_eq!(pending.complete(first), None);
        assert!(pending.register("second", 0, AfterDisconnect::Fail).is_ok());
        assert!(
            pending.register_unbounded("third", 0, AfterDisconnect::Fail).is_ok(),
            "some calls must not be refused"
        );
    }

    #[test]
    fn a_call_made_while_disconnected_fails_only_after_it_was_sent() {
        let mut pending = Pending::new(LIMITS);
        let id = pending.register("resize", 1, AfterDisconnect::Fail).unwrap();
        assert_eq!(pending.disconnect(), []);
        assert_eq!(pending.connect().collect::<Vec<_>>(), [(id, &"resize")]);
        assert_eq!(pending.disconnect(), [(id, "resize")]);
    }
}

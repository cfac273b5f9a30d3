//! The connections that receive the notifications of a session: the one that controls it, and those that observe it.
//!
//! Start at [`Subscribers`].

use std::{
    collections::BTreeSet,
    sync::{Arc, MutexGuard},
};

use remex_base::lock;
use remex_proto::{ServerNote, call::Note, initialize::Capability};

use super::Session;
use crate::{
    outbox::{ConnectionId, Outbox},
    sessions::process::{StartAt, Viewer},
};

/// The connections that receive the notifications of a session.
#[derive(Debug, Default)]
pub(super) struct Subscribers {
    pub(super) controller: Option<Subscriber>,
    pub(super) observers: Vec<Subscriber>,
}

/// One subscribed connection.
#[derive(Clone, Debug)]
pub(crate) struct Subscriber {
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) capabilities: BTreeSet<Capability>,
}

impl Subscriber {
    pub(super) fn viewer(&self, session_id: Option<&str>) -> Viewer {
        Viewer {
            outbox: Arc::clone(&self.outbox),
            controls: session_id.is_none(),
            session_id: session_id.map(str::to_owned),
            wants_gaps: self.capabilities.contains(&Capability::ProcessGap),
            consumes: session_id.is_none() && self.capabilities.contains(&Capability::Consumed),
        }
    }
}

impl Session {
    /// Makes a connection the controller, unless another has taken the session over in the meantime.
    pub(super) fn attach(&self, subscriber: Subscriber, is_controller: impl FnOnce(ConnectionId) -> bool) {
        let _changing = self.changing();
        if !is_controller(subscriber.outbox.id) {
            return;
        }
        let viewer = subscriber.viewer(None);
        self.subscribers().controller = Some(subscriber);
        for process in self.all_processes() {
            process.resume(&viewer);
        }
    }

    pub(crate) fn detach(&self, connection: ConnectionId) {
        let _changing = self.changing();
        {
            let mut subscribers = self.subscribers();
            let controller = subscribers.controller.take_if(|subscriber| subscriber.outbox.id == connection);
            if let Some(subscriber) = controller {
                subscriber.outbox.mark_disconnected();
            }
        }
        for process in self.all_followed() {
            process.detach(connection);
        }
    }

    /// Adds a connection as an observer.
    pub(crate) fn observe(&self, subscriber: Subscriber, from: impl Fn(&str) -> StartAt) {
        let viewer = subscriber.viewer(Some(&self.id));
        let connection = subscriber.outbox.id;
        {
            let mut subscribers = self.subscribers();
            subscribers.observers.retain(|known| known.outbox.id != connection);
            subscribers.observers.push(subscriber);
        }
        for process in self.all_processes() {
            process.follow(&viewer, from(&process.id));
        }
    }

    pub(crate) fn unobserve(&self, connection: ConnectionId) {
        self.subscribers().observers.retain(|known| known.outbox.id != connection);
        for process in self.all_followed() {
            process.unfollow(connection);
        }
    }

    /// Sends a notification to all subscribers with this capability.
    pub(super) fn notify<N: Note + Into<ServerNote>>(
        &self,
        capability: Capability,
        note: impl Fn(Option<String>) -> N,
    ) {
        let send = |subscriber: &Subscriber, session_id: Option<String>| {
            if subscriber.capabilities.contains(&capability) {
                subscriber.outbox.push_note(note(session_id));
            }
        };
        let subscribers = self.subscribers();
        if let Some(controller) = &subscribers.controller {
            send(controller, None);
        }
        for observer in &subscribers.observers {
            send(observer, Some(self.id.clone()));
        }
    }

    pub(super) fn subscribers(&self) -> MutexGuard<'_, Subscribers> {
        lock(&self.subscribers)
    }
}

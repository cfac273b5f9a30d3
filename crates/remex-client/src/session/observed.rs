//! Observes the processes of another session.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use remex_proto::session as wire;

use super::{ObserveFrom, SessionEvent};
use crate::{
    Client, Error,
    core::{Route, RouteEvent, RouteKey},
    error::{is_unknown_process, usage},
    process::{Event, Gap},
};

#[derive(Debug)]
pub(super) struct Observed {
    client: Client,
    session_id: String,
    route: Arc<Route>,
    state: State,
    /// The last event of each process that was returned or is not wanted; never returned twice.
    positions: BTreeMap<String, u64>,
    ready: VecDeque<SessionEvent>,
}

/// What the server knows of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Unset,
    Set,
    /// Perhaps something: it must be unset first, so that its events do not mix with new ones.
    Stale,
}

impl Observed {
    pub(super) async fn start(client: &Client, session: &str, from: ObserveFrom) -> Result<Self, Error> {
        let known = client.sessions().await?;
        let found = known
            .into_iter()
            .find(|known| known.session_id == session || known.name.as_deref() == Some(session));
        // An administrator may observe sessions that are not listed.
        let session_id = found.map_or_else(|| session.to_owned(), |found| found.session_id);
        let mut positions = BTreeMap::new();
        for id in client.process_ids(Some(session_id.clone())).await? {
            let position = match from {
                ObserveFrom::Start => Ok(0),
                ObserveFrom::Now => client.process_ref(&session_id, &id).cursor_before_newest(0).await,
            };
            match position {
                Ok(position) => drop(positions.insert(id, position)),
                // It was forgotten since.
                Err(error) if is_unknown_process(&error) => {}
                Err(error) => return Err(error),
            }
        }
        if client.core().has_route(&RouteKey::Session(session_id.clone())) {
            let message = format!("this client observes the session `{session}` already");
            return Err(usage(message, "use one stream of its events, or another client"));
        }
        let client = client.clone();
        let ready = VecDeque::new();
        let mut observed =
            Self { client, session_id, route: Arc::default(), state: State::Unset, positions, ready };
        observed.set().await?;
        Ok(observed)
    }

    pub(super) async fn next(&mut self) -> Result<SessionEvent, Error> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(event);
            }
            if self.state != State::Set {
                self.set().await?;
            }
            match self.route.next().await {
                RouteEvent::Process { process_id, event } => self.take(process_id, event),
                RouteEvent::Lost(loss) => return Err(loss.into()),
                RouteEvent::Disconnected => self.state = State::Unset,
                // The server is asked again for what has not been returned.
                _ => self.state = State::Stale,
            }
        }
    }

    /// Orders an event: what was seen is left out, what is missing is a gap.
    fn take(&mut self, process_id: String, event: Result<Event, Error>) {
        let Ok(event) = event else {
            return self.ready.push_back(SessionEvent { process_id, event });
        };
        let (first, last) = match &event {
            Event::Gap(gap) => (gap.from_seq, gap.to_seq),
            event => (event.seq(), event.seq()),
        };
        let position = self.positions.entry(process_id.clone()).or_insert(0);
        if last <= *position {
            return;
        }
        if first > *position + 1 {
            let gap = Gap { from_seq: *position + 1, to_seq: first - 1, bytes: None };
            let event = Ok(Event::Gap(gap));
            self.ready.push_back(SessionEvent { process_id: process_id.clone(), event });
        }
        *position = last;
        self.ready.push_back(SessionEvent { process_id, event: Ok(event) });
    }

    /// Observes the session from the current positions. Cancel-safe.
    async fn set(&mut self) -> Result<(), Error> {
        let key = RouteKey::Session(self.session_id.clone());
        loop {
            if self.state == State::Stale {
                self.client.core().remove_route(&key);
                let request = wire::Unobserve { session_id: self.session_id.clone() };
                match self.client.call_without_limit(request).await {
                    Err(error @ Error::Lost(_)) => return Err(error),
                    // It ends with its connection, and with the session.
                    _ => self.state = State::Unset,
                }
            }
            let ids = self.client.process_ids(Some(self.session_id.clone())).await?;
            self.positions.retain(|id, _| ids.contains(id));
            // Processes that were started while there was no connection are wanted from their first event.
            for id in ids {
                self.positions.entry(id).or_insert(0);
            }
            self.route = Arc::default();
            self.client.core().add_route(key.clone(), &self.route);
            self.state = State::Stale;
            let from_seq = self.positions.iter().map(|(id, position)| (id.clone(), position + 1)).collect();
            let request = wire::Observe { session_id: self.session_id.clone(), from_seq: Some(from_seq) };
            match self.client.call_without_limit(request).await {
                Ok(_) => {
                    self.state = State::Set;
                    return Ok(());
                }
                // The next attempt waits for a new connection.
                Err(Error::Interrupted { .. }) => self.state = State::Unset,
                Err(error) => {
                    self.client.core().remove_route(&key);
                    self.state = State::Unset;
                    return Err(error);
                }
            }
        }
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        let core = self.client.core();
        core.remove_route(&RouteKey::Session(self.session_id.clone()));
        if self.state != State::Unset {
            core.enqueue_unbounded(wire::Unobserve { session_id: self.session_id.clone() }.into());
        }
    }
}

//! Observes the processes of another session.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use remex_proto::{ErrorKind, RpcError, process as wire_process, session as wire};

use super::{ObserveFrom, SessionEvent};
use crate::{
    Client, Error,
    api::process::{Event, Gap},
    base::error::{is_unknown_process, usage},
    core::shared::{Core, Route, RouteEvent, RouteKey},
};

#[derive(Debug)]
pub(super) struct Observed {
    client: Client,
    claim: Claim,
    route: Arc<Route>,
    state: State,
    /// Every process of the session that is known.
    processes: BTreeMap<String, ObservedProcess>,
    ready: VecDeque<SessionEvent>,
    /// Whether the server has reported the end of the session; the last events of its processes may follow.
    has_ended: bool,
}

/// What the server knows of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Unset,
    Set,
    /// Unknown: it must be unset first, so that its events do not mix with new ones.
    Stale,
}

/// A process, as far as it was observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct ObservedProcess {
    /// The last event that was returned or is not wanted; never returned twice.
    position: u64,
    /// Distinguishes it from another process with the same id, once known.
    started_at_ms: Option<u64>,
    /// The same, if the server reports it.
    incarnation: Option<u64>,
    progress: ObservedState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum ObservedState {
    #[default]
    Open,
    /// Everything of it was returned, or it had closed before and is not wanted; it has produced this much.
    Closed(Option<wire_process::Produced>),
    /// It cannot be followed.
    Broken,
}

/// The right to observe a session, which a client has once at a time.
#[derive(Debug)]
struct Claim {
    client: Client,
    session_id: String,
}

impl Claim {
    fn new(client: &Client, session_id: String, named: &str) -> Result<Self, Error> {
        if !client.core().claim_session(&session_id) {
            let message = format!("this client observes the session `{named}` already");
            return Err(usage(message, "use one stream of its events, or another client"));
        }
        Ok(Self { client: client.clone(), session_id })
    }

    fn core(&self) -> &Core {
        self.client.core()
    }

    fn key(&self) -> RouteKey {
        RouteKey::Session(self.session_id.clone())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.core().release_session(&self.session_id);
    }
}

impl Observed {
    pub(super) async fn start(client: &Client, session: &str, from: ObserveFrom) -> Result<Self, Error> {
        let known = client.sessions().await?;
        let found = known
            .into_iter()
            .find(|known| known.session_id == session || known.name.as_deref() == Some(session));
        // An administrator may observe sessions that are not listed.
        let session_id = found.map_or_else(|| session.to_owned(), |found| found.session_id);
        let claim = Claim::new(client, session_id, session)?;
        let mut processes = BTreeMap::new();
        for entry in client.entries(Some(claim.session_id.clone())).await? {
            let position = match from {
                ObserveFrom::Start => Ok(0),
                ObserveFrom::Now => {
                    client.process_ref(&claim.session_id, &entry.process_id).cursor_before_newest(0).await
                }
            };
            let position = match position {
                Ok(position) => position,
                // It was forgotten since.
                Err(error) if is_unknown_process(&error) => continue,
                Err(error) => return Err(error),
            };
            let is_over = from == ObserveFrom::Now && entry.state == wire_process::State::Closed;
            let progress = if is_over { ObservedState::Closed(None) } else { ObservedState::Open };
            let (started_at_ms, incarnation) = (started_at_ms(&entry), entry.incarnation);
            processes
                .insert(entry.process_id, ObservedProcess { position, started_at_ms, incarnation, progress });
        }
        let mut observed = Self {
            client: client.clone(),
            claim,
            route: Arc::default(),
            state: State::Unset,
            processes,
            ready: VecDeque::new(),
            has_ended: false,
        };
        observed.set().await?;
        Ok(observed)
    }

    pub(super) async fn next(&mut self) -> Result<SessionEvent, Error> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(event);
            }
            let is_open = |process: &ObservedProcess| process.progress == ObservedState::Open;
            if self.has_ended && !self.processes.values().any(is_open) {
                let message = format!("session {} has ended", self.claim.session_id);
                return Err(Error::Refused(RpcError::new(ErrorKind::UnknownSession, message)));
            }
            if self.state != State::Set {
                self.set().await?;
            }
            match self.route.next().await {
                RouteEvent::Process { process_id, incarnation, event } => {
                    self.take(process_id, incarnation, event);
                }
                RouteEvent::SessionEnded => self.has_ended = true,
                RouteEvent::Lost(loss) => return Err(loss.into()),
                RouteEvent::Disconnected => self.state = State::Unset,
                // The server is asked again for what has not been returned.
                _ => self.state = State::Stale,
            }
        }
    }

    /// Orders an event: drops duplicates, and reports missing events as a gap.
    fn take(&mut self, process_id: String, incarnation: Option<u64>, event: Result<Event, Error>) {
        let process = self.processes.entry(process_id.clone()).or_default();
        let is_another =
            incarnation.is_some() && process.incarnation.is_some_and(|known| Some(known) != incarnation);
        let is_same = incarnation.is_some() && process.incarnation == incarnation;
        match process.progress {
            _ if is_another => *process = ObservedProcess::default(),
            ObservedState::Open => {}
            ObservedState::Closed(_) if is_same => return,
            // A closed process sends nothing more, so this is another one with its id.
            ObservedState::Closed(_) => *process = ObservedProcess::default(),
            ObservedState::Broken => return,
        }
        process.incarnation = process.incarnation.or(incarnation);
        let range = event.and_then(|event| Ok((range_of(&event)?, event)));
        let ((first, last), event) = match range {
            Ok(event) => event,
            Err(error) => {
                process.progress = ObservedState::Broken;
                return self.ready.push_back(SessionEvent { process_id, event: Err(error) });
            }
        };
        if last <= process.position {
            return;
        }
        if is_another && first > 1 {
            // It was restarted just before the server was asked, which then left out its first events.
            self.state = State::Stale;
            return;
        }
        if first > process.position + 1 {
            let gap = Gap { from_seq: process.position + 1, to_seq: first - 1, bytes: None, cause: None };
            let event = Ok(Event::Gap(gap));
            self.ready.push_back(SessionEvent { process_id: process_id.clone(), event });
        }
        process.position = last;
        if let Event::Closed(closed) = &event {
            process.progress = ObservedState::Closed(closed.produced);
        }
        self.ready.push_back(SessionEvent { process_id, event: Ok(event) });
    }

    /// Compares what is known with what the server lists.
    fn compare(&mut self, entries: Vec<wire_process::Entry>) {
        let mut listed = BTreeMap::new();
        for entry in entries {
            // Processes that were started while there was no connection are wanted from their first event.
            let mut process = self.processes.remove(&entry.process_id).unwrap_or_default();
            if !process.is(&entry) {
                process = ObservedProcess::default();
            }
            process.started_at_ms = started_at_ms(&entry);
            process.incarnation = entry.incarnation;
            listed.insert(entry.process_id, process);
        }
        self.processes = listed;
    }

    /// Observes the session from the current positions. Cancel-safe.
    async fn set(&mut self) -> Result<(), Error> {
        let (key, session_id) = (self.claim.key(), self.claim.session_id.clone());
        loop {
            if self.state == State::Stale {
                self.claim.core().remove_route(&key);
                let request = wire::Unobserve { session_id: session_id.clone() };
                match self.client.call_without_limit(request).await {
                    Err(error @ Error::Lost(_)) => return Err(error),
                    // It ends with its connection, and with the session.
                    _ => self.state = State::Unset,
                }
            }
            let entries = self.client.entries(Some(session_id.clone())).await?;
            self.compare(entries);
            self.route = Arc::default();
            self.claim.core().add_route(key.clone(), &self.route);
            self.state = State::Stale;
            let wanted = |(id, process): (&String, &ObservedProcess)| (id.clone(), process.position + 1);
            let request = wire::Observe {
                session_id: session_id.clone(),
                from_seq: Some(self.processes.iter().map(wanted).collect()),
                // Those that start before the server handles this.
                others_from_seq: Some(1),
            };
            match self.client.call_without_limit(request).await {
                Ok(_) => {
                    self.state = State::Set;
                    return Ok(());
                }
                // The next attempt waits for a new connection.
                Err(Error::Interrupted { .. }) => self.state = State::Unset,
                Err(error) => {
                    self.claim.core().remove_route(&key);
                    self.state = State::Unset;
                    return Err(error);
                }
            }
        }
    }
}

impl ObservedProcess {
    /// Returns whether this is the process that the server lists with its id.
    fn is(&self, entry: &wire_process::Entry) -> bool {
        if let (Some(known), Some(listed)) = (self.incarnation, entry.incarnation) {
            return known == listed;
        }
        match (self.started_at_ms, self.progress) {
            (Some(started), _) => started == entry.started_at_ms,
            // It was only seen live.
            (None, ObservedState::Closed(produced)) => {
                entry.state == wire_process::State::Closed
                    && produced.is_none_or(|bytes| bytes == entry.produced)
            }
            (None, ObservedState::Open | ObservedState::Broken) => true,
        }
    }
}

/// Returns when a process has started; not before it runs, because until then it is only the time of the request.
fn started_at_ms(entry: &wire_process::Entry) -> Option<u64> {
    (entry.state != wire_process::State::Starting).then_some(entry.started_at_ms)
}

/// Returns the first and the last event that this one stands for.
fn range_of(event: &Event) -> Result<(u64, u64), Error> {
    match event {
        Event::Gap(gap) if gap.from_seq > gap.to_seq => {
            let what = format!("a gap from event {} to event {}", gap.from_seq, gap.to_seq);
            Err(Error::Protocol { what })
        }
        Event::Gap(gap) => Ok((gap.from_seq, gap.to_seq)),
        event => Ok((event.seq(), event.seq())),
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        let core = self.claim.core();
        core.remove_route(&self.claim.key());
        if self.state != State::Unset {
            core.enqueue_unbounded(wire::Unobserve { session_id: self.claim.session_id.clone() }.into());
        }
    }
}

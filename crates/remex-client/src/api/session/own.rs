//! Follows all processes of this client's own session.

use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard, Weak},
    task::{Context, Poll, Waker},
};

use remex_base::lock;

use super::SessionEvent;
use crate::{
    Client, ConnectionState, Error, SessionLost,
    api::{
        client::Follower,
        process::{Events, Process},
    },
    base::error::is_unknown_process,
    core::event_queue::EventQueue,
};

/// The processes of a session that are new to one follower of it.
///
/// It holds a consumer of each, so that no event is missed.
#[derive(Debug, Default)]
struct NewProcesses {
    /// Starts add processes, the follower takes them; locked only briefly.
    state: Mutex<NewProcessesState>,
}

#[derive(Debug, Default)]
struct NewProcessesState {
    new: VecDeque<(String, Events)>,
    waker: Option<Waker>,
}

impl Follower for NewProcesses {
    fn on_started(&self, client: &Client, process_id: &str) {
        let Some(process) = Process::shared(client, process_id, None) else { return };
        let mut state = self.lock();
        state.new.push_back((process_id.to_owned(), process.events()));
        state.waker.take().inspect(Waker::wake_by_ref);
    }
}

impl NewProcesses {
    fn lock(&self) -> MutexGuard<'_, NewProcessesState> {
        lock(&self.state)
    }
}

#[derive(Debug)]
pub(super) struct Own {
    client: Client,
    new_processes: Arc<NewProcesses>,
    following: Vec<(String, Events)>,
    /// Those that were listed at the beginning; a start that was being answered then announces them again.
    listed: Vec<Weak<EventQueue>>,
    /// Whose turn it is, so that a flood of one process does not hide the others.
    turn: usize,
    lost: Option<SessionLost>,
}

impl Own {
    pub(super) async fn follow(client: &Client) -> Result<Self, Error> {
        let new_processes = Arc::new(NewProcesses::default());
        // First this, then the list: what is started in between is in both.
        let follower: Arc<dyn Follower> = Arc::clone(&new_processes) as Arc<dyn Follower>;
        client.add_follower(Arc::downgrade(&follower));
        let ids = match client.entries(None).await {
            Ok(entries) => entries.into_iter().map(|entry| entry.process_id).collect(),
            // A server of the base dialect has no list.
            Err(Error::Refused(_)) => client.core().process_ids(),
            Err(error) => return Err(error),
        };
        let (mut following, mut listed) = (Vec::new(), Vec::new());
        for id in ids {
            if new_processes.lock().new.iter().any(|(new, _)| *new == id) {
                continue;
            }
            match client.process(&id).await {
                Ok(process) => {
                    let events = process.events();
                    listed.push(events.identity());
                    following.push((id, events));
                }
                // It was forgotten since.
                Err(error) if is_unknown_process(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self { client: client.clone(), new_processes, following, listed, turn: 0, lost: None })
    }

    pub(super) async fn next(&mut self) -> Result<SessionEvent, Error> {
        let mut states = self.client.connection_states();
        let lost = async {
            let state = states.wait_for(|state| matches!(state, ConnectionState::Lost(_))).await;
            state.map(|state| state.clone())
        };
        if let Some(lost) = &self.lost {
            return Err(lost.clone().into());
        }
        let lost = tokio::select! {
            biased;
            event = poll_fn(|context| self.poll_next(context)) => return Ok(event),
            lost = lost => lost,
        };
        let lost = match lost {
            Ok(ConnectionState::Lost(lost)) => lost,
            _ => SessionLost::Stopped,
        };
        self.lost = Some(lost.clone());
        Err(lost.into())
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<SessionEvent> {
        let new = {
            let mut state = self.new_processes.lock();
            state.waker = Some(context.waker().clone());
            std::mem::take(&mut state.new)
        };
        for (id, events) in new {
            let identity = events.identity();
            if !self.listed.iter().any(|listed| listed.ptr_eq(&identity)) {
                self.following.push((id, events));
            }
        }
        let mut left = self.following.len();
        while left > 0 {
            left -= 1;
            self.turn = if self.turn + 1 < self.following.len() { self.turn + 1 } else { 0 };
            let (process_id, events) = &mut self.following[self.turn];
            let event = match events.poll_next(context) {
                Poll::Pending => continue,
                Poll::Ready(event) => event,
            };
            let process_id = process_id.clone();
            match event {
                Ok(Some(event)) => return Poll::Ready(SessionEvent { process_id, event: Ok(event) }),
                Ok(None) => drop(self.following.swap_remove(self.turn)),
                // The loss of the session is reported once, for all processes.
                Err(Error::Lost(_)) => drop(self.following.swap_remove(self.turn)),
                Err(error) => {
                    drop(self.following.swap_remove(self.turn));
                    return Poll::Ready(SessionEvent { process_id, event: Err(error) });
                }
            }
            // Another one has taken this place, and is next.
            self.turn = self.turn.checked_sub(1).unwrap_or_else(|| self.following.len().saturating_sub(1));
        }
        Poll::Pending
    }
}

//! Questions to the keeper whether there is space for a log. Start at [`Trials`].

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
};

use remex_base::lock;
use tokio::sync::oneshot;

use super::message::{Failure, RequestNumber};

/// The outcome of an attempt to create a log.
#[derive(Debug)]
pub(crate) enum Trial {
    Fits,
    Fails(Failure),
    /// The keeper does not respond, or does not know the question.
    Unanswered,
}

/// The questions that the keeper has not answered.
#[derive(Debug, Default)]
pub(super) struct Trials {
    /// Held briefly.
    waiting: Mutex<HashMap<RequestNumber, oneshot::Sender<Trial>>>,
}

/// A question, which is forgotten when this is dropped.
pub(super) struct PendingTrial<'a> {
    trials: &'a Trials,
    number: RequestNumber,
    outcome: oneshot::Receiver<Trial>,
}

impl Trials {
    pub(super) fn begin(&self, number: RequestNumber) -> PendingTrial<'_> {
        let (sender, outcome) = oneshot::channel();
        self.waiting().insert(number, sender);
        PendingTrial { trials: self, number, outcome }
    }

    pub(super) fn answer(&self, number: RequestNumber, failure: Option<Failure>) {
        let waiting = self.waiting().remove(&number);
        if let Some(waiting) = waiting {
            drop(waiting.send(failure.map_or(Trial::Fits, Trial::Fails)));
        }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<RequestNumber, oneshot::Sender<Trial>>> {
        lock(&self.waiting)
    }
}

impl PendingTrial<'_> {
    pub(super) async fn outcome(mut self) -> Trial {
        (&mut self.outcome).await.unwrap_or(Trial::Unanswered)
    }
}

impl Drop for PendingTrial<'_> {
    fn drop(&mut self) {
        self.trials.waiting().remove(&self.number);
    }
}

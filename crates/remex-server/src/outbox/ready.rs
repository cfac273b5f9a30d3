//! The sources and streams with pending output on one connection.
//!
//! Start at [`Ready`].

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use tokio::sync::oneshot;

use super::{QueuedMessage, SourceKey, Urgency};

/// Sources and parts of streams that wait for their turn; each source is listed at most once.
#[derive(Debug)]
pub(super) struct Ready<S: ?Sized> {
    sources: HashMap<SourceKey, Arc<S>>,
    /// Keys whose source was withdrawn are skipped.
    fresh: VecDeque<SourceKey>,
    bulk: VecDeque<Bulk>,
}

#[derive(Debug)]
enum Bulk {
    Source(SourceKey),
    Part(QueuedMessage, oneshot::Sender<()>),
}

/// The next source or part of bulk output.
#[derive(Debug)]
pub(super) enum BulkItem<S: ?Sized> {
    Source(Arc<S>),
    /// A part of a stream, and a sender to report that it was taken.
    Part(QueuedMessage, oneshot::Sender<()>),
}

impl<S: ?Sized> Default for Ready<S> {
    fn default() -> Self {
        Ready { sources: HashMap::new(), fresh: VecDeque::new(), bulk: VecDeque::new() }
    }
}

impl<S: ?Sized> Ready<S> {
    pub(super) fn push(&mut self, source: Arc<S>, urgency: Urgency) {
        let key = SourceKey::of(&source);
        self.sources.insert(key, source);
        match urgency {
            Urgency::Fresh => self.fresh.push_back(key),
            Urgency::Bulk => self.bulk.push_back(Bulk::Source(key)),
        }
    }

    pub(super) fn push_part(&mut self, part: QueuedMessage, taken: oneshot::Sender<()>) {
        self.bulk.push_back(Bulk::Part(part, taken));
    }

    /// Takes the next source with fresh output.
    pub(super) fn take_fresh(&mut self) -> Option<Arc<S>> {
        while let Some(key) = self.fresh.pop_front() {
            if let Some(source) = self.sources.remove(&key) {
                return Some(source);
            }
        }
        None
    }

    /// Takes the next source of bulk output in turn.
    pub(super) fn take_bulk(&mut self) -> Option<BulkItem<S>> {
        while let Some(next) = self.bulk.pop_front() {
            match next {
                Bulk::Part(part, taken) => return Some(BulkItem::Part(part, taken)),
                Bulk::Source(key) => {
                    if let Some(source) = self.sources.remove(&key) {
                        return Some(BulkItem::Source(source));
                    }
                }
            }
        }
        None
    }

    /// Removes a source from the list.
    pub(super) fn withdraw<T: ?Sized>(&mut self, source: &Arc<T>) {
        /// This many keys without a source are tolerated.
        const FEW: usize = 64;

        let Ready { sources, fresh, bulk } = self;
        sources.remove(&SourceKey::of(source));
        if fresh.len() + bulk.len() > 2 * sources.len() + FEW {
            fresh.retain(|key| sources.contains_key(key));
            bulk.retain(|next| match next {
                Bulk::Source(key) => sources.contains_key(key),
                Bulk::Part(..) => true,
            });
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sources.is_empty() && self.bulk.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_take_turns_and_withdrawn_ones_are_skipped() {
        let sources: [_; 4] = std::array::from_fn(Arc::new);
        let mut ready = Ready::default();
        for source in &sources {
            let urgency = if **source < 2 { Urgency::Fresh } else { Urgency::Bulk };
            ready.push(Arc::clone(source), urgency);
        }
        ready.withdraw(&sources[0]);
        ready.withdraw(&sources[2]);
        assert_eq!(ready.take_fresh().as_deref(), Some(&1));
        assert!(ready.take_fresh().is_none());
        assert!(matches!(ready.take_bulk(), Some(BulkItem::Source(source)) if *source == 3));
        assert!(ready.take_bulk().is_none() && ready.is_empty());
    }

    #[test]
    fn a_hundred_thousand_ended_processes_leave_no_state() {
        let mut ready = Ready::default();
        for urgency in [Urgency::Fresh, Urgency::Bulk].repeat(50_000) {
            let source = Arc::new(());
            ready.push(Arc::clone(&source), urgency);
            ready.withdraw(&source);
            assert_eq!(Arc::strong_count(&source), 1);
        }
        assert!(ready.fresh.len() + ready.bulk.len() < 100);
    }
}

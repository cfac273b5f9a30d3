//! The output of one process since the last step.
//!
//! One task appends, steps consume. Start at [`Collector`].

use std::sync::{Mutex, MutexGuard};

use remex_base::lock;
use tokio::sync::watch;

use super::{Count, Delta, Excerpt, Limits, Progress, TruncatedText, recent::RecentOutput};
use crate::api::process::{Chunk, Event, Events};

/// The output of one process since the last step, and whether the process is running.
#[derive(Debug)]
pub(super) struct Collector {
    /// The task of the process appends, steps consume; locked only briefly.
    unseen: Mutex<Unseen>,
    /// Changes only after all earlier output is in `unseen`.
    progress: watch::Sender<Progress>,
    /// The end of the live text, for viewers that wait for more.
    live_end: watch::Sender<u64>,
}

#[derive(Debug)]
struct Unseen {
    excerpt: Excerpt,
    /// Also has output that steps have consumed.
    recent: RecentOutput,
    /// The position in `recent` that the previous step has shown.
    shown: u64,
    totals: OutputTotals,
}

/// How much live viewers have seen when a step ends.
#[derive(Debug, Clone, Copy)]
pub(super) enum Viewed {
    /// There is no viewer: the step itself shows everything.
    WithStep,
    /// A viewer has seen the live text up to this position; the next one continues there.
    UpTo(u64),
}

/// The totals of a process so far.
#[derive(Debug, Clone, Copy)]
pub(super) struct OutputTotals {
    /// The last event with output.
    pub(super) seq: u64,
    pub(super) bytes: u64,
    pub(super) count: Count,
}

impl Collector {
    pub(super) fn new(limits: &Limits) -> Self {
        let unseen = Unseen {
            excerpt: Excerpt::new(limits.collect_bytes, limits.control_sequences),
            recent: RecentOutput::new(limits.live_bytes),
            shown: 0,
            totals: OutputTotals { seq: 0, bytes: 0, count: Count::Exact },
        };
        Self {
            unseen: Mutex::new(unseen),
            progress: watch::Sender::new(Progress::Running),
            live_end: watch::Sender::new(0),
        }
    }

    /// Collects the output of a process until it ends.
    pub(super) async fn collect(&self, mut events: Events) {
        let mut exit = None;
        let progress = loop {
            match events.next().await {
                Ok(Some(Event::Output(chunk))) => self.change(|unseen| unseen.push(&chunk)),
                Ok(Some(Event::Gap(gap))) => self.change(|unseen| unseen.skip(gap.to_seq, gap.bytes)),
                Ok(Some(Event::Exited { exit: how, .. })) => {
                    self.progress.send_replace(Progress::Exited(how.clone()));
                    exit = Some(how);
                }
                Ok(Some(Event::Closed(_)) | None) => {
                    break Progress::closed(exit);
                }
                Err(error) => break Progress::Lost(error),
            }
        };
        self.change(Unseen::flush);
        self.progress.send_replace(progress);
    }

    /// Returns when the process has ended and all its output is collected. Cancel-safe.
    pub(super) async fn ended(&self) {
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self.progress.subscribe().wait_for(Progress::is_final).await;
    }

    pub(super) fn progress(&self) -> Progress {
        self.progress.borrow().clone()
    }

    /// Returns whether the process has not ended; one whose output is still open counts, for it may print more.
    pub(super) fn is_open(&self) -> bool {
        !self.progress.borrow().is_final()
    }

    /// Takes the progress of the process, and its output since the last call; `viewed` says what a viewer has seen.
    pub(super) fn take(&self, budget: usize, viewed: Viewed) -> (Progress, TruncatedText) {
        // In this order: once the process has ended, all its output is in `unseen`.
        let progress = self.progress();
        let truncator = {
            let mut unseen = self.lock();
            unseen.shown = match viewed {
                Viewed::WithStep => unseen.recent.end(),
                Viewed::UpTo(position) => position,
            };
            unseen.excerpt.take_truncator()
        };
        (progress, truncator.finish_within(budget))
    }

    pub(super) fn unseen_bytes(&self) -> u64 {
        self.lock().excerpt.added_bytes()
    }

    /// Returns the position of the live text that no step has shown yet.
    pub(super) fn shown(&self) -> u64 {
        self.lock().shown
    }

    /// Returns the position after all live text.
    pub(super) fn live_end(&self) -> u64 {
        *self.live_end.borrow()
    }

    /// Returns the live text after a position and the position after it, or the end if there is none.
    pub(super) fn live_after(&self, position: u64) -> Result<(Delta, u64), u64> {
        let unseen = self.lock();
        unseen.recent.after(position).ok_or_else(|| unseen.recent.end())
    }

    /// Returns when there is live text after a position. Cancel-safe.
    pub(super) async fn wait_for_live(&self, position: u64) {
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self.live_end.subscribe().wait_for(|end| *end > position).await;
    }

    pub(super) fn totals(&self) -> OutputTotals {
        self.lock().totals
    }

    fn change(&self, change: impl FnOnce(&mut Unseen)) {
        let end = {
            let mut unseen = self.lock();
            change(&mut unseen);
            unseen.recent.end()
        };
        self.live_end.send_replace(end);
    }

    fn lock(&self) -> MutexGuard<'_, Unseen> {
        lock(&self.unseen)
    }
}

impl Unseen {
    fn push(&mut self, chunk: &Chunk) {
        self.totals.seq = chunk.seq;
        self.totals.bytes += chunk.bytes.len() as u64;
        let Self { excerpt, recent, .. } = self;
        excerpt.push_live(chunk.stream, &chunk.bytes, |live| recent.push(chunk.stream, live));
    }

    fn skip(&mut self, to_seq: u64, bytes: Option<u64>) {
        self.flush();
        self.excerpt.skip(bytes);
        self.recent.skip(bytes);
        self.totals.seq = to_seq;
        self.totals.bytes += bytes.unwrap_or(0);
        if bytes.is_none() {
            self.totals.count = Count::AtLeast;
        }
    }

    fn flush(&mut self) {
        let Self { excerpt, recent, .. } = self;
        excerpt.flush_live(|stream, live| recent.push(stream, live));
    }
}

//! The output of one process since the last step.
//!
//! One task appends, steps consume. Start at [`Collector`].

use std::{
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

use super::{Count, Progress, TruncatedText, Truncator};
use crate::{
    Error,
    process::{Chunk, Event, Events, Stream},
};

/// The output of one process since the last step, and whether the process is running.
#[derive(Debug)]
pub(super) struct Collector {
    /// The task of the process appends, steps consume; locked only briefly.
    unseen: Mutex<Unseen>,
    /// Changes only after all earlier output is in `unseen`.
    progress: watch::Sender<Progress>,
}

#[derive(Debug)]
struct Unseen {
    truncator: Truncator,
    collect_bytes: usize,
    /// The incomplete UTF-8 character at the end of each stream.
    unfinished: [Vec<u8>; 3],
    totals: OutputTotals,
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
    pub(super) fn new(collect_bytes: usize) -> Self {
        let unseen = Unseen {
            truncator: Truncator::new(collect_bytes),
            collect_bytes,
            unfinished: Default::default(),
            totals: OutputTotals { seq: 0, bytes: 0, count: Count::Exact },
        };
        Self { unseen: Mutex::new(unseen), progress: watch::Sender::new(Progress::Running) }
    }

    /// Collects the output of a process until it ends.
    pub(super) async fn collect(&self, mut events: Events) {
        let mut exit = None;
        let progress = loop {
            match events.next().await {
                Ok(Some(Event::Output(chunk))) => self.lock().push(&chunk),
                Ok(Some(Event::Gap(gap))) => self.lock().skip(gap.to_seq, gap.bytes),
                Ok(Some(Event::Exited(how))) => exit = Some(how),
                Ok(Some(Event::Closed(_)) | None) => {
                    break exit.map_or_else(|| Progress::Lost(no_exit()), Progress::Ended);
                }
                Err(error) => break Progress::Lost(error),
            }
        };
        self.lock().flush();
        self.progress.send_replace(progress);
    }

    /// Returns when the process has ended and all its output is collected. Cancel-safe.
    pub(super) async fn ended(&self) {
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self.progress.subscribe().wait_for(|progress| *progress != Progress::Running).await;
    }

    pub(super) fn progress(&self) -> Progress {
        self.progress.borrow().clone()
    }

    pub(super) fn is_running(&self) -> bool {
        *self.progress.borrow() == Progress::Running
    }

    /// Takes the progress of the process, and its output since the last call.
    pub(super) fn take(&self, budget: usize) -> (Progress, TruncatedText) {
        // In this order: once the process has ended, all its output is in `unseen`.
        let progress = self.progress();
        let truncator = {
            let mut unseen = self.lock();
            let fresh = Truncator::new(unseen.collect_bytes);
            mem::replace(&mut unseen.truncator, fresh)
        };
        (progress, truncator.finish_within(budget))
    }

    pub(super) fn unseen_bytes(&self) -> u64 {
        let unseen = self.lock();
        let unfinished: usize = unseen.unfinished.iter().map(Vec::len).sum();
        unseen.truncator.total_bytes() + unfinished as u64
    }

    pub(super) fn totals(&self) -> OutputTotals {
        self.lock().totals
    }

    fn lock(&self) -> MutexGuard<'_, Unseen> {
        self.unseen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Unseen {
    fn push(&mut self, chunk: &Chunk) {
        self.totals.seq = chunk.seq;
        self.totals.bytes += chunk.bytes.len() as u64;
        let unfinished = &mut self.unfinished[stream_index(chunk.stream)];
        let mut bytes = &chunk.bytes[..];
        // Completes a split character before output of another stream or the end of a step can separate its bytes.
        while !unfinished.is_empty() && !bytes.is_empty() {
            unfinished.push(bytes[0]);
            bytes = &bytes[1..];
            if unfinished_len(unfinished) == 0 {
                self.truncator.push(unfinished);
                unfinished.clear();
            }
        }
        let (whole, rest) = bytes.split_at(bytes.len() - unfinished_len(bytes));
        self.truncator.push(whole);
        unfinished.extend_from_slice(rest);
    }

    fn skip(&mut self, to_seq: u64, bytes: Option<u64>) {
        self.flush();
        self.truncator.skip(bytes);
        self.totals.seq = to_seq;
        self.totals.bytes += bytes.unwrap_or(0);
        if bytes.is_none() {
            self.totals.count = Count::AtLeast;
        }
    }

    /// Emits incomplete characters as they are.
    fn flush(&mut self) {
        for unfinished in &mut self.unfinished {
            self.truncator.push(unfinished);
            unfinished.clear();
        }
    }
}

fn stream_index(stream: Stream) -> usize {
    match stream {
        Stream::Stdout => 0,
        Stream::Stderr => 1,
        Stream::Pty => 2,
    }
}

/// Returns the length of the incomplete character at the end.
fn unfinished_len(bytes: &[u8]) -> usize {
    let last = &bytes[bytes.len().saturating_sub(3)..];
    let start = last.iter().rposition(|byte| *byte >= 0b1100_0000);
    let Some(start) = start else { return 0 };
    match std::str::from_utf8(&last[start..]) {
        Err(error) if error.valid_up_to() == 0 && error.error_len().is_none() => last.len() - start,
        _ => 0,
    }
}

fn no_exit() -> Error {
    Error::Protocol { what: "a process is closed but has not exited".to_owned() }
}

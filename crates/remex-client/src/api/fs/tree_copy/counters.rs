//! What a copy has done so far, counted by its concurrent jobs.

use std::{
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use remex_base::lock;
use tokio::sync::Notify;

use crate::api::fs::{Progress, TreeReport};

/// Counters shared by the jobs of a copy.
#[derive(Debug, Default)]
pub(in crate::api::fs) struct Counters {
    pub(super) files: AtomicU64,
    pub(super) directories: AtomicU64,
    links: AtomicU64,
    bytes: AtomicU64,
    unchanged: AtomicU64,
    pub(super) excluded: AtomicU64,
    pub(super) special: AtomicU64,
    /// Files that are complete at the destination.
    arrived_files: AtomicU64,
    /// Bytes that are at the destination.
    arrived_bytes: AtomicU64,
    total: Total,
    /// Set by each job when it starts, read for progress reports; locked only briefly.
    current: Mutex<String>,
    news: Notify,
}

/// The number and size of the files of a tree.
#[derive(Debug, Default)]
pub(in crate::api::fs) struct Total {
    files: AtomicU64,
    bytes: AtomicU64,
    is_known: AtomicBool,
}

impl Total {
    pub(in crate::api::fs) fn add_file(&self, bytes: u64) {
        self.files.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }
}

impl Counters {
    pub(super) fn begin(&self, path: &Path) {
        *lock(&self.current) = path.display().to_string();
    }

    pub(super) fn add(&self, what: &AtomicU64, more: u64) {
        what.fetch_add(more, Relaxed);
        self.news.notify_one();
    }

    /// Counts a file or link that is complete at the destination.
    pub(super) fn finish(&self, outcome: Outcome) {
        match outcome {
            Outcome::File { bytes } => {
                self.bytes.fetch_add(bytes, Relaxed);
                self.add(&self.files, 1);
            }
            Outcome::Link => self.add(&self.links, 1),
            Outcome::Unchanged => self.add(&self.unchanged, 1),
        }
    }

    /// Counts a regular file that is complete at the destination.
    pub(super) fn arrive(&self) {
        self.add(&self.arrived_files, 1);
    }

    /// Makes a total known, which replaces an earlier one.
    pub(in crate::api::fs) fn know(&self, total: &Total) {
        self.total.files.store(total.files.load(Relaxed), Relaxed);
        self.total.bytes.store(total.bytes.load(Relaxed), Relaxed);
        self.total.is_known.store(true, Relaxed);
        self.news.notify_one();
    }

    /// Waits until something has changed.
    pub(in crate::api::fs) async fn changed(&self) {
        self.news.notified().await;
    }

    pub(in crate::api::fs) fn progress(&self) -> Progress {
        let is_known = self.total.is_known.load(Relaxed);
        let total = |count: &AtomicU64| is_known.then(|| count.load(Relaxed));
        Progress {
            files: self.arrived_files.load(Relaxed),
            bytes: self.arrived_bytes.load(Relaxed),
            total_files: total(&self.total.files),
            total_bytes: total(&self.total.bytes),
            current: lock(&self.current).clone(),
        }
    }

    pub(in crate::api::fs) fn report(&self) -> TreeReport {
        TreeReport {
            files: self.files.load(Relaxed),
            directories: self.directories.load(Relaxed),
            links: self.links.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            unchanged: self.unchanged.load(Relaxed),
            excluded: self.excluded.load(Relaxed),
            special: self.special.load(Relaxed),
            failures: Vec::new(),
        }
    }
}

/// Counts the bytes of one file as they arrive.
#[derive(Debug)]
pub(super) struct Meter {
    counters: Arc<Counters>,
    counted: u64,
}

impl Meter {
    pub(super) fn new(counters: &Arc<Counters>) -> Self {
        Self { counters: Arc::clone(counters), counted: 0 }
    }

    /// Notes how many bytes of the file are at the destination, and returns how many are new; a repeated attempt starts
    /// over and is not counted twice.
    pub(super) fn note(&mut self, bytes: u64) -> u64 {
        let more = bytes.saturating_sub(self.counted);
        self.counted += more;
        if more > 0 {
            self.counters.add(&self.counters.arrived_bytes, more);
        }
        more
    }
}

/// The outcome of copying a file or link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    File { bytes: u64 },
    Link,
    Unchanged,
}

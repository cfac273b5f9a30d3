//! How many files may be open at once.

use std::sync::Arc;

use tokio::sync::Semaphore;

/// What a server allows that does not say so.
const LIMIT: u64 = 128;

/// How many of them no transfer takes.
const SPARE: u64 = 8;

/// Limits open files, separately for reading and writing: a copy may need one of each to make progress.
#[derive(Debug)]
pub(crate) struct OpenFiles {
    pub(crate) fetched: Arc<Semaphore>,
    pub(crate) sent: Arc<Semaphore>,
}

impl OpenFiles {
    /// Shares out what a server allows, where 0 means that it did not say.
    pub(super) fn new(limit: u64) -> Self {
        let limit = if limit == 0 { LIMIT } else { limit };
        let half = usize::try_from(limit.saturating_sub(SPARE) / 2).unwrap_or(usize::MAX);
        let room = || Arc::new(Semaphore::new(half.clamp(1, Semaphore::MAX_PERMITS)));
        Self { fetched: room(), sent: room() }
    }
}

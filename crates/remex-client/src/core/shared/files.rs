//! Limits the number of open files.

use std::sync::Arc;

use tokio::sync::Semaphore;

/// The limit assumed for a server that does not announce one.
const LIMIT: u64 = 128;

/// How many of them transfers leave free for other uses.
const SPARE: u64 = 8;

/// Limits open files, separately for reading and writing: a copy may need one of each to make progress.
#[derive(Debug)]
pub(crate) struct OpenFiles {
    pub(crate) fetched: Arc<Semaphore>,
    pub(crate) sent: Arc<Semaphore>,
}

impl OpenFiles {
    /// Divides the limit of the server; 0 means that it did not announce one.
    pub(super) fn new(limit: u64) -> Self {
        let limit = if limit == 0 { LIMIT } else { limit };
        let half = usize::try_from(limit.saturating_sub(SPARE) / 2).unwrap_or(usize::MAX);
        let room = || Arc::new(Semaphore::new(half.clamp(1, Semaphore::MAX_PERMITS)));
        Self { fetched: room(), sent: room() }
    }
}

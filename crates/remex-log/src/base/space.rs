//! Who pays for the disk: limits that logs share. Start at [`Space`].

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use crate::base::event::Cause;

/// Counts the bytes that logs take on disk.
pub trait Space: Send + Sync {
    /// Counts `bytes` more.
    ///
    /// # Errors
    ///
    /// The limit that forbids them; then nothing is counted.
    fn reserve(&self, bytes: u64) -> Result<(), Cause>;

    /// Counts bytes that are on disk already, even beyond the limit.
    fn charge(&self, bytes: u64);

    /// Counts `bytes` fewer.
    fn release(&self, bytes: u64);
}

/// Space without a limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unlimited;

impl Space for Unlimited {
    fn reserve(&self, _bytes: u64) -> Result<(), Cause> {
        Ok(())
    }

    fn charge(&self, _bytes: u64) {}

    fn release(&self, _bytes: u64) {}
}

/// A limit on disk space within the limits above it: server, session, process.
///
/// A log that evicts unread output needs two segments and a few KiB; with a smaller quota it can stay full.
#[derive(Debug)]
pub struct Quota {
    cause: Cause,
    limit: AtomicU64,
    used: AtomicU64,
    parent: Option<Arc<Quota>>,
}

impl Quota {
    /// Returns the quota of a server.
    pub fn server(limit: u64) -> Arc<Quota> {
        Quota::new(Cause::ServerQuota, limit, None)
    }

    /// Returns the quota of a session of `server`.
    pub fn session(server: &Arc<Quota>, limit: u64) -> Arc<Quota> {
        Quota::new(Cause::SessionQuota, limit, Some(Arc::clone(server)))
    }

    /// Returns the quota of a process of `session`.
    pub fn process(session: &Arc<Quota>, limit: u64) -> Arc<Quota> {
        Quota::new(Cause::ProcessQuota, limit, Some(Arc::clone(session)))
    }

    fn new(cause: Cause, limit: u64, parent: Option<Arc<Quota>>) -> Arc<Quota> {
        Arc::new(Quota { cause, limit: AtomicU64::new(limit), used: AtomicU64::new(0), parent })
    }

    /// Changes the limit. Bytes beyond a lower one stay counted, and nothing is reserved until they are released.
    pub fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Returns the limit.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Returns the bytes counted.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    fn subtract(&self, bytes: u64) {
        let update = |used: u64| Some(used.saturating_sub(bytes));
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update).ok();
    }
}

impl Space for Quota {
    fn reserve(&self, bytes: u64) -> Result<(), Cause> {
        let limit = self.limit();
        let add = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).map_err(|_| self.cause)?;
        if let Some(parent) = &self.parent {
            parent.reserve(bytes).inspect_err(|_| self.subtract(bytes))?;
        }
        Ok(())
    }

    fn charge(&self, bytes: u64) {
        let add = |used: u64| Some(used.saturating_add(bytes));
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok();
        if let Some(parent) = &self.parent {
            parent.charge(bytes);
        }
    }

    fn release(&self, bytes: u64) {
        self.subtract(bytes);
        if let Some(parent) = &self.parent {
            parent.release(bytes);
        }
    }
}

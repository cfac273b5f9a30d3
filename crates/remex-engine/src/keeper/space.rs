//! The disk space of logs: quotas, what earlier keepers left, and deletions. Start at [`SessionQuotas`].

use std::{
    collections::HashMap,
    fs, io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use remex_base::{threads::ServerWork, trace::LOG_TARGET};
use remex_log::{Options, Quota, Space as _};
use tokio::sync::Notify;

use super::{Entry, Keeper, lock};
use crate::state::{
    durable::{DESCRIPTION, disk_space},
    keeper_link::message::{FromKeeper, Key, Quotas, Rules},
    state_dir,
};

/// A log on a full disk needs room for two segments to continue, so they are small; not too small, as many files are slow.
const SMALLEST_SEGMENT: u64 = 64 << 10;
const LARGEST_SEGMENT: u64 = 8 << 20;

/// The extension of the directory of a process that is being deleted.
pub(super) const DELETED: &str = "deleted";

/// Logs that are just being deleted.
#[derive(Debug, Default)]
pub(super) struct Deletions {
    count: AtomicUsize,
    ended: Notify,
}

impl Deletions {
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Waits until one has ended.
    pub(super) async fn done(&self) {
        self.ended.notified().await;
    }

    pub(super) fn end(&self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.ended.notify_one();
    }
}

/// The disk space that logs may use.
#[derive(Debug)]
pub(super) struct SessionQuotas {
    pub(super) server: Arc<Quota>,
    pub(super) server_bytes: u64,
    sessions: HashMap<String, Arc<Quota>>,
    pub(super) session_bytes: u64,
}

impl SessionQuotas {
    /// Returns those without limits, until a server sets some.
    pub(super) fn unlimited() -> Self {
        SessionQuotas {
            server: Quota::server(u64::MAX),
            server_bytes: u64::MAX,
            sessions: HashMap::new(),
            session_bytes: u64::MAX,
        }
    }
}

/// The part of a description that the keeper reads.
#[derive(Default, serde::Deserialize)]
struct SessionOf {
    session: String,
}

impl Keeper {
    /// Counts the disk space of existing logs.
    pub(super) fn count_leftovers(&self) {
        let entries: Vec<_> = fs::read_dir(self.state.processes()).into_iter().flatten().flatten().collect();
        // Logs that the previous keeper could not delete completely.
        let is_deleted = |entry: &&fs::DirEntry| entry.path().extension().is_some_and(|kind| kind == DELETED);
        let deleted: Vec<_> = entries.iter().filter(is_deleted).map(fs::DirEntry::path).collect();
        if !deleted.is_empty() {
            let host = Arc::clone(&self.host);
            self.host.spawn(async move {
                let delete = move || deleted.into_iter().for_each(|dir| drop(fs::remove_dir_all(dir)));
                let _ = host.own_threads().run(ServerWork::Deletions, delete).await;
            });
        }
        for (key, dir) in entries.iter().filter_map(|entry| {
            Some((entry.file_name().to_str().and_then(Key::from_dir_name)?, entry.path()))
        }) {
            if self.processes().contains_key(&key) {
                continue;
            }
            let session = session_of(&state_dir::read(&dir.join(DESCRIPTION)).unwrap_or_default());
            let bytes = disk_space(&dir);
            let quota = self.quota_of(&session);
            quota.charge(bytes);
            lock(&self.leftovers).insert(key, (quota, bytes));
        }
    }

    /// Forgets a process and deletes its log.
    pub(super) fn forget(self: &Arc<Self>, key: Key) {
        let entry = self.processes().remove(&key);
        let dir = self.state.processes().join(key.dir_name());
        let keeper = Arc::clone(self);
        self.deleting.count.fetch_add(1, Ordering::Relaxed);
        // Deleting may take a while.
        self.host.spawn(async move {
            let deleted = keeper.host.own_threads().run(ServerWork::Deletions, move || delete(&dir)).await;
            if let Ok(Err(error)) = deleted
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(target: LOG_TARGET, %error, "cannot delete the log of a process");
            }
            let leftover = lock(&keeper.leftovers).remove(&key);
            if let Some((quota, bytes)) = leftover {
                quota.release(bytes);
            }
            if let Some(Entry { process, quota, .. }) = entry {
                quota.release(process.with_log(|log| log.files().position().disk_bytes));
            }
            keeper.deleting.end();
            if let Some(link) = keeper.link() {
                link.send(&FromKeeper::Deleted(key));
            }
        });
    }

    pub(super) fn set_quotas(&self, wanted: Quotas) {
        let mut quotas = lock(&self.quotas);
        quotas.server.set_limit(wanted.server_bytes);
        quotas.server_bytes = wanted.server_bytes;
        quotas.session_bytes = wanted.session_bytes;
        quotas.sessions.values().for_each(|quota| quota.set_limit(wanted.session_bytes));
    }

    pub(super) fn quota_of(&self, session: &str) -> Arc<Quota> {
        let mut quotas = lock(&self.quotas);
        let quotas = &mut *quotas;
        quotas.sessions.retain(|_, quota| Arc::strong_count(quota) > 1);
        let (server, limit) = (&quotas.server, quotas.session_bytes);
        let quota = quotas.sessions.entry(session.to_owned());
        Arc::clone(quota.or_insert_with(|| Quota::session(server, limit)))
    }
}

/// Deletes the directory of a process: first as a whole, so that no part of it is taken for the process.
fn delete(dir: &Path) -> io::Result<()> {
    let deleted = dir.with_extension(DELETED);
    fs::rename(dir, &deleted)?;
    fs::remove_dir_all(deleted)
}

/// Returns the session in a description, or nothing if it has none.
pub(super) fn session_of(description: &[u8]) -> String {
    serde_json::from_slice::<SessionOf>(description).unwrap_or_default().session
}

/// Returns how much the log of a process keeps.
pub(super) fn log_options(rules: &Rules) -> Options {
    let segment_bytes = Some((rules.retain_bytes / 64).clamp(SMALLEST_SEGMENT, LARGEST_SEGMENT));
    Options { retain_bytes: rules.retain_bytes, segment_bytes }
}

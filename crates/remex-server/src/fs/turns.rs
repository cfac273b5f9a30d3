//! Whose turn it is: requests that touch overlapping paths take effect in the order of arrival.
//!
//! Whoever comes waits for earlier writers of the same path, of what is above it and of what is
//! below it. Readers hold up nobody. Paths are compared by their text: links are not looked at,
//! because looking could hang.

use std::{
    path::{Component, Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use remex_proto::{HostPath, RpcError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::native;
use crate::outbox::ConnectionId;

/// What a request touches.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claims {
    reads: Vec<PathBuf>,
    writes: Vec<PathBuf>,
}

impl Claims {
    pub(crate) fn reads(path: &HostPath) -> Result<Self, RpcError> {
        Claims::default().and_reads(path)
    }

    pub(crate) fn writes(path: &HostPath) -> Result<Self, RpcError> {
        Claims::default().and_writes(path)
    }

    pub(crate) fn and_reads(mut self, path: &HostPath) -> Result<Self, RpcError> {
        self.reads.push(resolve(native(path)?));
        Ok(self)
    }

    pub(crate) fn and_writes(mut self, path: &HostPath) -> Result<Self, RpcError> {
        self.writes.push(resolve(native(path)?));
        Ok(self)
    }

    /// Comes after the opening of the handle.
    pub(crate) fn and_reads_handle(mut self, connection: ConnectionId, id: &str) -> Self {
        self.reads.push(handle(connection, id));
        self
    }

    /// Opens the handle.
    pub(crate) fn and_writes_handle(mut self, connection: ConnectionId, id: &str) -> Self {
        self.writes.push(handle(connection, id));
        self
    }

    fn overlap(&self, written: &[PathBuf]) -> bool {
        let overlap = |own: &PathBuf, other: &PathBuf| own.starts_with(other) || other.starts_with(own);
        self.reads.iter().chain(&self.writes).any(|own| written.iter().any(|other| overlap(own, other)))
    }
}

/// Returns a name for a handle among the paths; being relative it is none of them.
fn handle(connection: ConnectionId, id: &str) -> PathBuf {
    let escaped: String = id.bytes().map(|byte| format!("{byte:02x}")).collect();
    PathBuf::from(format!("{connection}-{escaped}"))
}

/// Resolves `.` and `..` by their text; a path that is spelled plainly may still have them.
fn resolve(path: &Path) -> PathBuf {
    let mut resolved = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) => resolved.push(name),
            Component::ParentDir => {
                resolved.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    resolved
}

/// The writers that have not finished.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// Shared by all connections and the threads for files; held for moments only.
    writers: Mutex<Writers>,
}

#[derive(Debug, Default)]
struct Writers {
    next: u64,
    unfinished: Vec<Writer>,
}

#[derive(Debug)]
struct Writer {
    number: u64,
    paths: Vec<PathBuf>,
    done: CancellationToken,
}

impl Turns {
    pub(crate) fn enter(self: &Arc<Self>, claims: Claims) -> Turn {
        let mut writers = self.writers();
        let earlier = writers
            .unfinished
            .iter()
            .filter(|writer| claims.overlap(&writer.paths))
            .map(|writer| writer.done.clone())
            .collect();
        let own = (!claims.writes.is_empty()).then(|| {
            let number = writers.next;
            writers.next += 1;
            writers.unfinished.push(Writer { number, paths: claims.writes, done: CancellationToken::new() });
            (Arc::clone(self), number)
        });
        Turn { earlier, own }
    }

    fn finish(&self, number: u64) {
        let mut writers = self.writers();
        if let Some(index) = writers.unfinished.iter().position(|writer| writer.number == number) {
            let writer = writers.unfinished.remove(index);
            drop(writers);
            writer.done.cancel();
        }
    }

    fn writers(&self) -> MutexGuard<'_, Writers> {
        self.writers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in the order; whoever comes later may go on when it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    earlier: Vec<CancellationToken>,
    /// A writer and its number.
    own: Option<(Arc<Turns>, u64)>,
}

impl Turn {
    /// Tells whether nobody has to finish before.
    pub(crate) fn has_come(&self) -> bool {
        self.earlier.iter().all(CancellationToken::is_cancelled)
    }

    /// Waits until everybody who came before is done, then for a slot.
    pub(crate) async fn come(&self, slots: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
        for done in &self.earlier {
            done.cancelled().await;
        }
        Arc::clone(slots).acquire_owned().await.ok()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some((turns, number)) = self.own.take() {
            turns.finish(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy)]
    enum Access {
        Read,
        Write,
    }

    fn turn(turns: &Arc<Turns>, access: Access, paths: &[&str]) -> Turn {
        let claims = paths.iter().fold(Claims::default(), |claims, path| {
            let path = HostPath::parse(path).unwrap();
            match access {
                Access::Read => claims.and_reads(&path).unwrap(),
                Access::Write => claims.and_writes(&path).unwrap(),
            }
        });
        turns.enter(claims)
    }

    #[test]
    fn whoever_overlaps_a_writer_waits_for_it() {
        let turns = Arc::default();
        let writer = turn(&turns, Access::Write, &["/a/b"]);
        assert!(writer.has_come());
        let waiting: Vec<_> = ["/a/b", "/a/b/c", "/a", "/", "file:///a/x/../b", "/a/./b/../b"]
            .iter()
            .flat_map(|path| [Access::Read, Access::Write].map(|access| turn(&turns, access, &["/x", path])))
            .collect();
        assert!(waiting.iter().all(|turn| !turn.has_come()));
        assert!(turn(&turns, Access::Write, &["/a/bc"]).earlier.len() < waiting.len());
        drop(writer);
        assert!(waiting[0].has_come(), "the first reader had only the writer before it");
    }

    #[test]
    fn what_does_not_overlap_goes_at_once() {
        let turns = Arc::default();
        let _writer = turn(&turns, Access::Write, &["/a/b"]);
        for path in ["/a/bc", "/a/c", "/b", "/ab"] {
            assert!(turn(&turns, Access::Write, &[path]).has_come(), "{path}");
        }
    }

    #[test]
    fn whoever_uses_a_handle_waits_for_its_opening() {
        let turns: Arc<Turns> = Arc::default();
        let _opening = turns.enter(Claims::default().and_writes_handle(1, "a"));
        assert!(!turns.enter(Claims::default().and_reads_handle(1, "a")).has_come());
        for (connection, id) in [(1, "b"), (2, "a"), (1, "a/b"), (1, ""), (1, "/")] {
            assert!(turns.enter(Claims::default().and_reads_handle(connection, id)).has_come(), "{id}");
        }
        assert!(turn(&turns, Access::Write, &["/"]).has_come());
    }

    #[test]
    fn readers_hold_up_nobody() {
        let turns = Arc::default();
        let _reader = turn(&turns, Access::Read, &["/"]);
        assert!(turn(&turns, Access::Write, &["/a"]).has_come());
    }

    #[test]
    fn writers_of_one_path_come_in_order() {
        let turns = Arc::default();
        let first = turn(&turns, Access::Write, &["/a"]);
        let second = turn(&turns, Access::Write, &["/a"]);
        let third = turn(&turns, Access::Write, &["/a"]);
        drop(second);
        assert!(!third.has_come(), "one that was cancelled lets nobody pass");
        drop(first);
        assert!(third.has_come());
    }
}

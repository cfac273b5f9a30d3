//! Whose turn it is: requests that touch overlapping paths take effect in the order of arrival.
//!
//! A writer waits for everybody who came before it to the same path, to what is above it or to what
//! is below it; a reader waits for the writers among them. Whoever looks at whole directories holds
//! up nobody, because it may look at everything. Paths are compared by their text: links are not
//! followed, because following could hang.

use std::{
    collections::VecDeque,
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
    /// Later writers do not wait for these.
    looks: Vec<PathBuf>,
    reads: Vec<PathBuf>,
    writes: Vec<PathBuf>,
}

impl Claims {
    pub(crate) fn looks(path: &HostPath) -> Result<Self, RpcError> {
        Claims::default().and_looks(path)
    }

    pub(crate) fn and_looks(mut self, path: &HostPath) -> Result<Self, RpcError> {
        self.looks.push(resolve(native(path)?));
        Ok(self)
    }

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

    /// Tells whether `earlier` has to be done before this one.
    fn come_after(&self, earlier: &Claims) -> bool {
        let written = |paths: &[PathBuf]| overlap(paths, &earlier.writes);
        written(&self.writes)
            || written(&self.reads)
            || written(&self.looks)
            || overlap(&self.writes, &earlier.reads)
    }

    /// Tells whether nobody ever has to wait for this one.
    fn hold_up_nobody(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty()
    }
}

fn overlap(some: &[PathBuf], others: &[PathBuf]) -> bool {
    some.iter().any(|one| others.iter().any(|other| one.starts_with(other) || other.starts_with(one)))
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

/// Everybody who has not finished.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// Shared by all connections and the threads for files; held for moments only.
    line: Mutex<Line>,
}

#[derive(Debug, Default)]
struct Line {
    next: u64,
    /// In order of arrival.
    unfinished: VecDeque<Entry>,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    claims: Claims,
    done: CancellationToken,
}

impl Turns {
    pub(crate) fn enter(self: &Arc<Self>, claims: Claims) -> Turn {
        let mut line = self.line();
        let before = line.unfinished.iter().filter(|entry| claims.come_after(&entry.claims));
        let earlier = before.map(|entry| entry.done.clone()).collect();
        if claims.hold_up_nobody() {
            return Turn { earlier, own: None };
        }
        let number = line.next;
        line.next += 1;
        line.unfinished.push_back(Entry { number, claims, done: CancellationToken::new() });
        Turn { earlier, own: Some((Arc::clone(self), number)) }
    }

    fn finish(&self, number: u64) {
        let mut line = self.line();
        let found = line.unfinished.binary_search_by_key(&number, |entry| entry.number);
        if let Some(entry) = found.ok().and_then(|index| line.unfinished.remove(index)) {
            drop(line);
            entry.done.cancel();
        }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in the order; whoever comes later may go on when it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    earlier: Vec<CancellationToken>,
    /// Absent where nobody waits for it.
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
        Look,
        Read,
        Write,
    }

    fn turn(turns: &Arc<Turns>, access: Access, paths: &[&str]) -> Turn {
        let claims = paths.iter().fold(Claims::default(), |claims, path| {
            let path = HostPath::parse(path).unwrap();
            match access {
                Access::Look => Claims::looks(&path).unwrap(),
                Access::Read => claims.and_reads(&path).unwrap(),
                Access::Write => claims.and_writes(&path).unwrap(),
            }
        });
        turns.enter(claims)
    }

    const OVERLAPPING: [&str; 6] = ["/a/b", "/a/b/c", "/a", "/", "file:///a/x/../b", "/a/./b/../b"];

    #[test]
    fn whoever_overlaps_a_writer_waits_for_it() {
        for path in OVERLAPPING {
            for access in [Access::Look, Access::Read, Access::Write] {
                let turns = Arc::default();
                let writer = turn(&turns, Access::Write, &["/a/b"]);
                assert!(writer.has_come());
                let other = turn(&turns, access, &["/x", path]);
                assert!(!other.has_come(), "{path}");
                drop(writer);
                assert!(other.has_come(), "{path}");
            }
        }
    }

    #[test]
    fn a_writer_waits_for_who_reads_but_not_for_who_looks() {
        for path in OVERLAPPING {
            let turns = Arc::default();
            let reader = turn(&turns, Access::Read, &["/a/b"]);
            let _looker = turn(&turns, Access::Look, &["/a/b"]);
            assert!(turn(&turns, Access::Read, &[path]).has_come(), "{path}");
            let writer = turn(&turns, Access::Write, &[path]);
            assert!(!writer.has_come(), "{path}");
            drop(reader);
            assert!(writer.has_come(), "{path}");
        }
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

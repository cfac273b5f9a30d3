//! Reader-writer locks on paths: requests of one session that access overlapping paths take effect in order of
//! arrival.
//!
//! A writer waits for all earlier requests at the same path, above it or below it; a reader waits for the
//! writers among them. Listings and walks block no other request, because they may cover everything. Creating a
//! directory does not wait for requests below it: if there are any, the directory exists. Paths are compared as
//! text, because following links could hang.
//!
//! The order belongs to a session and not to a connection, because a client that reconnects sends a write again
//! while the first one may still be running. Sessions never wait for each other here; `entry_lock.rs`
//! coordinates writers of different sessions.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
    os::unix::ffi::OsStrExt as _,
    path::Component,
    sync::{Arc, Mutex, MutexGuard},
};

use remex_base::io_error::io_error;
use remex_proto::{ErrorKind, HostPath, RpcError};
use rustix::io::Errno;
use tokio_util::sync::CancellationToken;

use crate::paths::native;

/// The longest path that the kernel accepts.
const MAX_PATH_LEN: usize = 4096;

/// The paths that a request accesses, and how.
#[derive(Clone, Debug, Default)]
pub struct PathAccess(Vec<(Access, Name)>);

/// How a request accesses a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Blocks no other request.
    Look,
    Read,
    /// Creates a directory.
    Create,
    /// Changes the entry, or anything below it.
    Write,
}

/// A path or handle that ends with a slash: everything that starts with it is at or below it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Name(Vec<u8>);

impl PathAccess {
    /// Looks at a path, which blocks no other request.
    pub fn looks(path: &HostPath) -> Result<Self, RpcError> {
        PathAccess::default().and_looks(path)
    }

    /// Reads at a path.
    pub fn reads(path: &HostPath) -> Result<Self, RpcError> {
        PathAccess::default().and(Access::Read, path)
    }

    pub(crate) fn creates(path: &HostPath) -> Result<Self, RpcError> {
        PathAccess::default().and(Access::Create, path)
    }

    pub(crate) fn writes(path: &HostPath) -> Result<Self, RpcError> {
        PathAccess::default().and_writes(path)
    }

    /// Also looks at a path.
    pub fn and_looks(self, path: &HostPath) -> Result<Self, RpcError> {
        self.and(Access::Look, path)
    }

    pub(crate) fn and_writes(self, path: &HostPath) -> Result<Self, RpcError> {
        self.and(Access::Write, path)
    }

    /// Also waits until the handle is opened.
    pub fn and_reads_handle(mut self, connection: u64, id: &str) -> Self {
        self.0.push((Access::Read, Name::of_handle(connection, id)));
        self
    }

    /// Also opens the handle.
    pub(crate) fn and_writes_handle(mut self, connection: u64, id: &str) -> Self {
        self.0.push((Access::Write, Name::of_handle(connection, id)));
        self
    }

    /// Removes names at or below another one with the same access, which covers them.
    fn merged(mut self) -> Self {
        self.0.sort_by(|(_, one), (_, other)| one.cmp(other));
        self.0.dedup_by(|(access, name), (above_access, above)| {
            access == above_access && *access != Access::Create && name.is_at_or_below(above)
        });
        self
    }

    fn and(mut self, access: Access, path: &HostPath) -> Result<Self, RpcError> {
        self.0.push((access, Name::of_path(path)?));
        Ok(self)
    }
}

impl Name {
    /// Resolves `.` and `..` textually.
    fn of_path(path: &HostPath) -> Result<Self, RpcError> {
        let path = native(path)?;
        if path.as_os_str().len() > MAX_PATH_LEN {
            return Err(io_error(&Errno::NAMETOOLONG.into(), path));
        }
        let mut names = Vec::new();
        for component in path.components() {
            match component {
                Component::Normal(name) => names.push(name.as_bytes()),
                Component::ParentDir => drop(names.pop()),
                Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            }
        }
        let mut resolved = vec![b'/'];
        for name in names {
            resolved.extend_from_slice(name);
            resolved.push(b'/');
        }
        Ok(Name(resolved))
    }

    /// A relative name, so it never equals a path.
    fn of_handle(connection: u64, id: &str) -> Self {
        let escaped: String = id.bytes().map(|byte| format!("{byte:02x}")).collect();
        Name(format!("{connection}-{escaped}/").into_bytes())
    }

    fn is_at_or_below(&self, other: &Name) -> bool {
        self.0.starts_with(&other.0)
    }

    /// Returns the deepest name that contains both, if there is one.
    fn common(&self, other: &Name) -> Option<Name> {
        let same = self.0.iter().zip(&other.0).take_while(|(own, other)| own == other).count();
        let end = self.0[..same].iter().rposition(|byte| *byte == b'/')?;
        Some(Name(self.0[..=end].to_vec()))
    }

    /// Returns the parent, if there is one.
    fn above(&self) -> Option<Name> {
        let end = self.0[..self.0.len() - 1].iter().rposition(|byte| *byte == b'/')?;
        Some(Name(self.0[..=end].to_vec()))
    }
}

/// The unfinished file requests of one session.
#[derive(Debug)]
pub struct PathLockQueue {
    /// How many requests may wait.
    limit: usize,
    /// Shared by connections and file threads; held briefly.
    graph: Mutex<LockGraph>,
}

/// The dependency graph: each request waits for its direct predecessors only, not for those that they wait for.
#[derive(Debug, Default)]
struct LockGraph {
    next: u64,
    entries: HashMap<u64, Entry>,
    waiting: usize,
    /// The requests that a new one may have to wait for, by name; names with a common prefix are adjacent.
    holders: BTreeMap<Name, Holders>,
}

#[derive(Debug)]
struct Entry {
    wanted: PathAccess,
    /// Number of entries that have this one in `after`; at 0, the lock is acquired.
    before: usize,
    /// The requests that wait for this one.
    after: Vec<u64>,
    acquired: CancellationToken,
    /// The request was cancelled, but its successors must still wait for its predecessors.
    abandoned: bool,
}

/// The requests at one name, except those that later requests wait for indirectly.
#[derive(Debug, Default)]
struct Holders {
    /// The last one that writes or creates.
    writer: Option<u64>,
    /// Readers that arrived after the writer.
    readers: BTreeSet<u64>,
}

impl PathLockQueue {
    /// Creates the locks of a session, whose requests wait, at most `limit` of them at a time.
    pub fn new(limit: usize) -> Self {
        PathLockQueue { limit, graph: Mutex::default() }
    }

    /// Queues a lock on paths; refuses it if it would have to wait and too many already do.
    pub fn lock(self: &Arc<Self>, wanted: PathAccess) -> Result<PathLock, RpcError> {
        let (wanted, acquired) = (wanted.merged(), CancellationToken::new());
        let mut graph = self.graph();
        let before: BTreeSet<u64> =
            wanted.0.iter().flat_map(|(access, name)| graph.before(*access, name)).collect();
        if before.is_empty() {
            acquired.cancel();
        } else if graph.waiting >= self.limit {
            return Err(too_many(self.limit));
        } else {
            graph.waiting += 1;
        }
        let number = graph.next;
        graph.next += 1;
        for other in &before {
            graph.entries.entry(*other).and_modify(|entry| entry.after.push(number));
        }
        for (access, name) in &wanted.0 {
            graph.add(number, *access, name);
        }
        let entry = Entry {
            wanted,
            before: before.len(),
            after: Vec::new(),
            acquired: acquired.clone(),
            abandoned: false,
        };
        graph.entries.insert(number, entry);
        Ok(PathLock { locks: Arc::clone(self), number, acquired })
    }

    fn release(&self, number: u64) {
        let mut graph = self.graph();
        match graph.entries.get_mut(&number) {
            Some(entry) if entry.before > 0 => entry.abandoned = true,
            _ => {
                let acquired = graph.finish(number);
                drop(graph);
                acquired.iter().for_each(CancellationToken::cancel);
            }
        }
    }

    fn graph(&self) -> MutexGuard<'_, LockGraph> {
        remex_base::lock(&self.graph)
    }
}

fn too_many(limit: usize) -> RpcError {
    let message = format!("this session already has {limit} waiting file requests, which is the limit");
    RpcError::new(ErrorKind::LimitExceeded, message)
        .with_hint("the requests that they wait for may hang; requests for other paths still work")
}

impl LockGraph {
    /// Returns the requests that a new one with this access to `name` must wait for.
    fn before(&self, access: Access, name: &Name) -> Vec<u64> {
        let waits_for_readers = matches!(access, Access::Write | Access::Create);
        let (mut before, mut next) = (Vec::new(), Some(name.clone()));
        // Walk up from the name: an entry at or above it is the closest predecessor in the map, or reachable
        // from that through common prefixes.
        while let Some(bound) = next {
            let Some((found, holders)) = self.holders.range(..=&bound).next_back() else { break };
            if name.is_at_or_below(found) {
                before.extend(holders.writer);
                if waits_for_readers {
                    before.extend(&holders.readers);
                }
                next = found.above();
            } else {
                next = found.common(&bound);
            }
        }
        if access != Access::Create {
            for (_, holders) in self.below(name) {
                before.extend(holders.writer);
                if waits_for_readers {
                    before.extend(&holders.readers);
                }
            }
        }
        before
    }

    fn below<'a>(&'a self, name: &'a Name) -> impl Iterator<Item = (&'a Name, &'a Holders)> {
        self.holders
            .range((Bound::Excluded(name), Bound::Unbounded))
            .take_while(|(found, _)| found.is_at_or_below(name))
    }

    /// Records a new request, so that later ones find it.
    fn add(&mut self, number: u64, access: Access, name: &Name) {
        if access == Access::Write {
            // A later request that conflicts with one of these also conflicts with this writer, which waits for
            // them.
            let covered: Vec<Name> = self.below(name).map(|(found, _)| found.clone()).collect();
            for name in covered {
                self.holders.remove(&name);
            }
        }
        match access {
            Access::Look => {}
            Access::Read => {
                self.holders.entry(name.clone()).or_default().readers.insert(number);
            }
            Access::Create | Access::Write => {
                let holders = Holders { writer: Some(number), readers: BTreeSet::new() };
                self.holders.insert(name.clone(), holders);
            }
        }
    }

    /// Removes a request and all abandoned successors; returns the locks that are now acquired.
    fn finish(&mut self, number: u64) -> Vec<CancellationToken> {
        let (mut finished, mut acquired) = (vec![number], Vec::new());
        while let Some(number) = finished.pop() {
            let Some(entry) = self.entries.remove(&number) else { continue };
            for (_, name) in &entry.wanted.0 {
                self.forget(number, name);
            }
            for number in entry.after {
                let Some(next) = self.entries.get_mut(&number) else { continue };
                next.before -= 1;
                if next.before > 0 {
                    continue;
                }
                self.waiting -= 1;
                if next.abandoned {
                    finished.push(number);
                } else {
                    acquired.push(next.acquired.clone());
                }
            }
        }
        acquired
    }

    fn forget(&mut self, number: u64, name: &Name) {
        let Some(holders) = self.holders.get_mut(name) else { return };
        holders.writer = holders.writer.filter(|writer| *writer != number);
        holders.readers.remove(&number);
        if holders.writer.is_none() && holders.readers.is_empty() {
            self.holders.remove(name);
        }
    }
}

/// A queued or acquired lock on paths, released when dropped.
#[derive(Debug)]
pub struct PathLock {
    locks: Arc<PathLockQueue>,
    number: u64,
    acquired: CancellationToken,
}

impl PathLock {
    /// Returns whether the lock is acquired.
    pub fn is_acquired(&self) -> bool {
        self.acquired.is_cancelled()
    }

    /// Waits until all predecessors have finished.
    pub async fn acquired(&self) {
        self.acquired.cancelled().await;
    }
}

impl Drop for PathLock {
    fn drop(&mut self) {
        self.locks.release(self.number);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: usize = 10_000;

    fn locks() -> Arc<PathLockQueue> {
        Arc::new(PathLockQueue::new(LIMIT))
    }

    fn wanted(access: Access, paths: &[&str]) -> PathAccess {
        paths.iter().fold(PathAccess::default(), |wanted, path| {
            wanted.and(access, &HostPath::parse(path).unwrap()).unwrap()
        })
    }

    fn lock(locks: &Arc<PathLockQueue>, access: Access, paths: &[&str]) -> PathLock {
        locks.lock(wanted(access, paths)).unwrap()
    }

    const OVERLAPPING: [&str; 6] = ["/a/b", "/a/b/c", "/a", "/", "file:///a/x/../b", "/a/./b/../b"];

    #[test]
    fn overlapping_requests_wait_for_a_writer() {
        for path in OVERLAPPING {
            for access in [Access::Look, Access::Read, Access::Write] {
                let locks = locks();
                let writer = lock(&locks, Access::Write, &["/a/b"]);
                assert!(writer.is_acquired());
                let other = lock(&locks, access, &["/x", path]);
                assert!(!other.is_acquired(), "{path}");
                drop(writer);
                assert!(other.is_acquired(), "{path}");
            }
        }
    }

    #[test]
    fn a_writer_waits_for_readers_but_not_for_listings() {
        for path in OVERLAPPING {
            let locks = locks();
            let reader = lock(&locks, Access::Read, &["/a/b"]);
            let _looker = lock(&locks, Access::Look, &["/a/b"]);
            assert!(lock(&locks, Access::Read, &[path]).is_acquired(), "{path}");
            let writer = lock(&locks, Access::Write, &[path]);
            assert!(!writer.is_acquired(), "{path}");
            drop(reader);
            assert!(writer.is_acquired(), "{path}");
        }
    }

    #[test]
    fn creating_a_directory_does_not_wait_for_requests_below_it_but_they_wait_for_it() {
        let locks = locks();
        let _below = [lock(&locks, Access::Read, &["/a/b/c"]), lock(&locks, Access::Write, &["/a/b/d"])];
        assert!(lock(&locks, Access::Create, &["/a/b"]).is_acquired());
        assert!(lock(&locks, Access::Create, &["/"]).is_acquired());
        let making = lock(&locks, Access::Create, &["/a/b"]);
        for path in ["/a/b", "/a/b/e", "/a"] {
            assert!(!lock(&locks, Access::Look, &[path]).is_acquired(), "{path}");
        }
        assert!(lock(&locks, Access::Write, &["/a/e"]).is_acquired());
        drop(making);
        let _reader = lock(&locks, Access::Read, &["/e"]);
        assert!(!lock(&locks, Access::Create, &["/e"]).is_acquired(), "what is read now is changed by it");
    }

    #[test]
    fn requests_that_do_not_overlap_run_at_once() {
        let locks = locks();
        let _writer = lock(&locks, Access::Write, &["/a/b"]);
        for path in ["/a/bc", "/a/c", "/b", "/ab"] {
            assert!(lock(&locks, Access::Write, &[path]).is_acquired(), "{path}");
        }
    }

    #[test]
    fn uses_of_a_handle_wait_for_its_opening() {
        let locks = locks();
        let enter = |wanted| locks.lock(wanted).unwrap();
        let _opening = enter(PathAccess::default().and_writes_handle(1, "a"));
        assert!(!enter(PathAccess::default().and_reads_handle(1, "a")).is_acquired());
        for (connection, id) in [(1, "b"), (2, "a"), (1, "a/b"), (1, ""), (1, "/")] {
            assert!(enter(PathAccess::default().and_reads_handle(connection, id)).is_acquired(), "{id}");
        }
        assert!(lock(&locks, Access::Write, &["/"]).is_acquired());
    }

    #[test]
    fn writers_of_one_path_are_served_in_order() {
        let locks = locks();
        let first = lock(&locks, Access::Write, &["/a"]);
        let second = lock(&locks, Access::Write, &["/a"]);
        let third = lock(&locks, Access::Write, &["/a"]);
        drop(second);
        assert!(!third.is_acquired(), "a cancelled request lets no other pass");
        drop(first);
        assert!(third.is_acquired());
    }

    #[test]
    fn too_many_waiting_requests_are_refused_and_others_are_not() {
        let locks = Arc::new(PathLockQueue::new(2));
        let first = lock(&locks, Access::Write, &["/a"]);
        // Cancelled requests count, because they stay in the queue.
        drop(lock(&locks, Access::Write, &["/a"]));
        let _second = lock(&locks, Access::Write, &["/a"]);
        let refused = locks.lock(wanted(Access::Write, &["/a"])).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::LimitExceeded);
        assert!(lock(&locks, Access::Write, &["/b"]).is_acquired());
        drop(first);
        let _third = lock(&locks, Access::Write, &["/a"]);
    }

    #[test]
    fn thousands_of_waiting_requests_cost_few_steps_each() {
        let locks = locks();
        let mut all = Vec::new();
        for number in 0..3000 {
            all.push(lock(&locks, Access::Read, &["/a/b"]));
            all.push(lock(&locks, Access::Write, &[&format!("/a/b/{number}/c")]));
            all.push(lock(&locks, Access::Write, &["/a"]));
        }
        let steps: usize = locks.graph().entries.values().map(|entry| entry.after.len()).sum();
        assert!(steps < 5 * all.len(), "{steps} steps for {}", all.len());
        drop(all);
        assert!(locks.graph().entries.is_empty());
        assert!(locks.graph().holders.is_empty());
        assert_eq!(locks.graph().waiting, 0);
    }

    #[test]
    fn a_thousand_paths_of_one_request_cost_no_more_than_one() {
        let locks = locks();
        let first = lock(&locks, Access::Write, &["/a"]);
        for number in 0..3000 {
            drop(lock(&locks, Access::Write, &[&format!("/a/b/{number}")]));
        }
        for paths in [vec!["/a/b"; 1000], [vec!["/a/b", "/a/b/7", "/a"], vec!["/a/c"; 1000]].concat()] {
            let looker = lock(&locks, Access::Look, &paths);
            let graph = locks.graph();
            let entry = &graph.entries[&looker.number];
            assert_eq!((entry.before, entry.wanted.0.len()), (3001, 1));
            drop(graph);
            drop(looker);
        }
        let after: usize = locks.graph().entries.values().map(|entry| entry.after.len()).sum();
        assert_eq!(after, 3000 + 2 * 3001);
        drop(first);
        assert!(locks.graph().entries.is_empty());
    }

    /// A step of the test: a request arrives or leaves.
    #[derive(Clone, Debug)]
    enum Step {
        Enter(Vec<(Access, &'static str)>),
        Leave(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let paths = vec!["/", "/a", "/a/b", "/a/b/c", "/a/bc", "/a/d", "/e", "/e/f"];
        let access = vec![Access::Look, Access::Read, Access::Create, Access::Write];
        let claim = (prop::sample::select(access), prop::sample::select(paths));
        prop_oneof![
            prop::collection::vec(claim, 1..4).prop_map(Step::Enter),
            (0..8_usize).prop_map(Step::Leave)
        ]
    }

    /// The plain rule, pair by pair.
    fn comes_after(later: &PathAccess, earlier: &PathAccess) -> bool {
        later.0.iter().any(|(access, name)| {
            earlier.0.iter().any(|(before, other)| {
                let is_below = name.is_at_or_below(other);
                let overlaps = is_below || other.is_at_or_below(name);
                match (access, before) {
                    (_, Access::Look) | (Access::Look | Access::Read, Access::Read) => false,
                    (Access::Create, _) => is_below,
                    _ => overlaps,
                }
            })
        })
    }

    proptest! {
        /// Compares with the plain rule: a lock is acquired when no predecessor is left.
        #[test]
        fn direct_predecessors_are_equivalent_to_the_plain_rule(steps in prop::collection::vec(step(), 1..60)) {
            let locks = locks();
            // In order of arrival; a request that leaves before its lock is acquired stays until then.
            let mut plain: Vec<(PathAccess, Option<PathLock>)> = Vec::new();
            for step in steps {
                match step {
                    Step::Enter(steps) => {
                        let wanted = steps.into_iter().fold(PathAccess::default(), |wanted, (access, path)| {
                            wanted.and(access, &HostPath::parse(path).unwrap()).unwrap()
                        });
                        plain.push((wanted.clone(), Some(locks.lock(wanted).unwrap())));
                    }
                    Step::Leave(index) => {
                        if let Some((_, lock)) = plain.get_mut(index) {
                            *lock = None;
                        }
                    }
                }
                let blocked = |plain: &[(PathAccess, Option<PathLock>)], at: usize| {
                    plain[..at].iter().any(|(earlier, _)| comes_after(&plain[at].0, earlier))
                };
                // A request that has left and is not blocked is removed, which may unblock others.
                while let Some(gone) = (0..plain.len()).find(|&at| plain[at].1.is_none() && !blocked(&plain, at)) {
                    plain.remove(gone);
                }
                for at in 0..plain.len() {
                    if let Some(lock) = &plain[at].1 {
                        prop_assert_eq!(lock.is_acquired(), !blocked(&plain, at));
                    }
                }
                prop_assert_eq!(locks.graph().entries.len(), plain.len());
            }
            let waiting = (0..plain.len()).filter(|&at| plain[..at].iter().any(|(earlier, _)| comes_after(&plain[at].0, earlier)));
            prop_assert_eq!(locks.graph().waiting, waiting.count());
            drop(plain);
            prop_assert!(locks.graph().holders.is_empty() && locks.graph().entries.is_empty());
        }
    }
}

//! Whose turn it is: requests that touch overlapping paths take effect in the order of arrival.
//!
//! A writer waits for everybody who came before it to the same path, to what is above it or to what
//! is below it; a reader waits for the writers among them. Whoever looks at whole directories holds
//! up nobody, because it may look at everything. Paths are compared by their text: links are not
//! followed, because following could hang.

use std::{
    collections::BTreeMap,
    os::unix::ffi::OsStrExt as _,
    path::Component,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use remex_proto::{HostPath, RpcError};
use rustix::io::Errno;
use tokio_util::sync::CancellationToken;

use super::{io_error, native};
use crate::outbox::ConnectionId;

/// The longest path that the system takes.
const MAX_PATH_LEN: usize = 4096;

/// What a request touches.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claims {
    /// Later writers do not wait for these.
    looks: Vec<Name>,
    reads: Vec<Name>,
    writes: Vec<Name>,
}

/// A path, or a handle, that ends with a slash: whatever it begins is at it or below it.
#[derive(Clone, Debug)]
struct Name(Vec<u8>);

impl Claims {
    pub(crate) fn looks(path: &HostPath) -> Result<Self, RpcError> {
        Claims::default().and_looks(path)
    }

    pub(crate) fn reads(path: &HostPath) -> Result<Self, RpcError> {
        Claims::default().and_reads(path)
    }

    pub(crate) fn writes(path: &HostPath) -> Result<Self, RpcError> {
        Claims::default().and_writes(path)
    }

    pub(crate) fn and_looks(mut self, path: &HostPath) -> Result<Self, RpcError> {
        self.looks.push(Name::of_path(path)?);
        Ok(self)
    }

    pub(crate) fn and_reads(mut self, path: &HostPath) -> Result<Self, RpcError> {
        self.reads.push(Name::of_path(path)?);
        Ok(self)
    }

    pub(crate) fn and_writes(mut self, path: &HostPath) -> Result<Self, RpcError> {
        self.writes.push(Name::of_path(path)?);
        Ok(self)
    }

    /// Comes after the opening of the handle.
    pub(crate) fn and_reads_handle(mut self, connection: ConnectionId, id: &str) -> Self {
        self.reads.push(Name::of_handle(connection, id));
        self
    }

    /// Opens the handle.
    pub(crate) fn and_writes_handle(mut self, connection: ConnectionId, id: &str) -> Self {
        self.writes.push(Name::of_handle(connection, id));
        self
    }

    /// Tells whether `earlier` has to be done before this one.
    fn come_after(&self, earlier: &Claims) -> bool {
        self.all().any(|own| earlier.writes.iter().any(|other| own.overlaps(other)))
            || self.writes.iter().any(|own| earlier.reads.iter().any(|other| own.overlaps(other)))
    }

    /// Tells whether everybody before it that has to wait for one of these has to wait for `earlier` too.
    fn are_below(&self, earlier: &Claims) -> bool {
        self.all().all(|own| earlier.writes.iter().any(|other| own.0.starts_with(&other.0)))
    }

    fn all(&self) -> impl Iterator<Item = &Name> {
        self.looks.iter().chain(&self.reads).chain(&self.writes)
    }
}

impl Name {
    /// Resolves `.` and `..` by their text; a path that is spelled plainly may still have them.
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

    /// Being relative it is the name of no path.
    fn of_handle(connection: ConnectionId, id: &str) -> Self {
        let escaped: String = id.bytes().map(|byte| format!("{byte:02x}")).collect();
        Name(format!("{connection}-{escaped}/").into_bytes())
    }

    fn overlaps(&self, other: &Name) -> bool {
        self.0.starts_with(&other.0) || other.0.starts_with(&self.0)
    }
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
    /// By number, which is the order of arrival.
    entries: BTreeMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    claims: Claims,
    /// How many have to finish before its turn comes.
    before: usize,
    /// Who waits for it. Whoever waits for one of those is not listed again.
    after: Vec<u64>,
    come: CancellationToken,
    /// Nobody wants the turn any more, but who is after it must still wait for who is before it.
    abandoned: bool,
}

impl Turns {
    pub(crate) fn enter(self: &Arc<Self>, claims: Claims) -> Turn {
        let come = CancellationToken::new();
        let mut line = self.line();
        let number = line.next;
        line.next += 1;
        let before = line.before(&claims);
        for other in &before {
            line.entries.entry(*other).and_modify(|entry| entry.after.push(number));
        }
        if before.is_empty() {
            come.cancel();
        }
        let entry =
            Entry { claims, before: before.len(), after: Vec::new(), come: come.clone(), abandoned: false };
        line.entries.insert(number, entry);
        Turn { turns: Arc::clone(self), number, come }
    }

    fn leave(&self, number: u64) {
        let mut line = self.line();
        match line.entries.get_mut(&number) {
            Some(entry) if entry.before > 0 => entry.abandoned = true,
            _ => {
                let come = line.finish(number);
                drop(line);
                come.iter().for_each(CancellationToken::cancel);
            }
        }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    /// Returns whom to wait for, without those for whom one of them waits already.
    fn before(&self, claims: &Claims) -> Vec<u64> {
        let mut before: Vec<(u64, &Claims)> = Vec::new();
        for (number, entry) in self.entries.iter().rev() {
            if !claims.come_after(&entry.claims) {
                continue;
            }
            if !before.iter().any(|(_, later)| later.come_after(&entry.claims)) {
                before.push((*number, &entry.claims));
            }
            if claims.are_below(&entry.claims) {
                break;
            }
        }
        before.into_iter().map(|(number, _)| number).collect()
    }

    /// Takes one out, and those behind it that nobody wants; returns whose turn has come.
    fn finish(&mut self, number: u64) -> Vec<CancellationToken> {
        let (mut finished, mut come) = (vec![number], Vec::new());
        while let Some(entry) = finished.pop().and_then(|number| self.entries.remove(&number)) {
            for number in entry.after {
                let Some(next) = self.entries.get_mut(&number) else { continue };
                next.before -= 1;
                match (next.before, next.abandoned) {
                    (0, true) => finished.push(number),
                    (0, false) => come.push(next.come.clone()),
                    _ => {}
                }
            }
        }
        come
    }
}

/// A place in the order; whoever comes later may go on when it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Arc<Turns>,
    number: u64,
    come: CancellationToken,
}

impl Turn {
    /// Tells whether nobody has to finish before.
    pub(crate) fn has_come(&self) -> bool {
        self.come.is_cancelled()
    }

    /// Waits until everybody who came before is done.
    pub(crate) async fn come(&self) {
        self.come.cancelled().await;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.leave(self.number);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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

    /// What is asked of the line: who comes, and who leaves.
    #[derive(Clone, Debug)]
    enum Step {
        Enter(u8, &'static str),
        Leave(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let path = prop::sample::select(vec!["/", "/a", "/a/b", "/a/b/c", "/a/d", "/e", "/e/f"]);
        prop_oneof![
            (0..3_u8, path).prop_map(|(access, path)| Step::Enter(access, path)),
            (0..8_usize).prop_map(Step::Leave)
        ]
    }

    proptest! {
        /// Compares with the plain rule: a turn has come when nobody is left that it has to come after.
        #[test]
        fn the_short_list_of_predecessors_says_what_the_long_one_says(steps in prop::collection::vec(step(), 1..60)) {
            let turns: Arc<Turns> = Arc::default();
            // In order of arrival; one that was left before its turn came stays until then.
            let mut plain: Vec<(Claims, Option<Turn>)> = Vec::new();
            for step in steps {
                match step {
                    Step::Enter(access, path) => {
                        let path = HostPath::parse(path).unwrap();
                        let claims = match access {
                            0 => Claims::looks(&path),
                            1 => Claims::reads(&path),
                            _ => Claims::writes(&path),
                        }
                        .unwrap();
                        plain.push((claims.clone(), Some(turns.enter(claims))));
                    }
                    Step::Leave(index) => {
                        if let Some((_, turn)) = plain.get_mut(index) {
                            *turn = None;
                        }
                    }
                }
                let blocked = |plain: &[(Claims, Option<Turn>)], at: usize| {
                    plain[..at].iter().any(|(earlier, _)| plain[at].0.come_after(earlier))
                };
                // Whoever has left and is not blocked is gone, and may set others free.
                while let Some(gone) = (0..plain.len()).find(|&at| plain[at].1.is_none() && !blocked(&plain, at)) {
                    plain.remove(gone);
                }
                for at in 0..plain.len() {
                    if let Some(turn) = &plain[at].1 {
                        prop_assert_eq!(turn.has_come(), !blocked(&plain, at));
                    }
                }
                prop_assert_eq!(turns.line().entries.len(), plain.len());
            }
        }
    }
}

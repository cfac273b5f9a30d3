//! The processes that a program has started: its process group, and on Linux also descendants that left the group.
//!
//! A process that moves to another group and loses its parent is not found. Start at [`Tree`].

use std::{
    collections::HashSet,
    fs, iter,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    str,
};

use rustix::{
    io,
    process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, waitid},
};

use super::pidfd;

/// A program and its descendants, with descriptors to wait for their exit.
#[derive(Debug)]
pub(super) struct Tree {
    leader: Pid,
    exit: OwnedFd,
    others: Vec<Member>,
}

/// A descendant that was alive at the last scan.
#[derive(Debug)]
struct Member {
    /// Remembered between scans: an orphan still belongs to the tree.
    identity: Identity,
    group: Pid,
    /// A pidfd: readable when it has exited, and unaffected by reuse of the pid.
    end: OwnedFd,
}

/// Identifies a process even if its pid is reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    pid: Pid,
    started: u64,
}

impl Tree {
    /// Returns the tree of a child that leads its own process group; `exit` becomes readable when it has exited.
    pub(super) fn new(leader: Pid, exit: OwnedFd) -> Self {
        Self { leader, exit, others: Vec::new() }
    }

    /// Returns the process group of the leader.
    pub(super) fn group(&self) -> Pid {
        self.leader
    }

    pub(super) fn exit(&self) -> BorrowedFd<'_> {
        self.exit.as_fd()
    }

    /// Returns the exit status of the leader, if it has exited, without reaping it.
    ///
    /// Fails if it was reaped elsewhere, so that its pid may belong to another process.
    pub(super) fn status(&self) -> io::Result<Option<WaitIdStatus>> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(self.leader), options)
    }

    /// Scans for living members, and returns whether any exist.
    pub(super) fn scan(&mut self) -> bool {
        self.others = self.living();
        matches!(self.status(), Ok(None)) || !self.others.is_empty()
    }

    /// Returns descriptors that become readable when the members found by the last scan have exited.
    pub(super) fn ends(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        iter::once(self.exit()).chain(self.others.iter().map(|member| member.end.as_fd()))
    }

    /// Signals the group, and the members outside of it that the last scan found.
    ///
    /// Ignores members that have exited meanwhile or belong to another user.
    pub(super) fn signal(&self, signal: Signal) {
        if self.status().is_ok() {
            let _ = kill_process_group(self.leader, signal);
        }
        for member in self.others.iter().filter(|member| member.group != self.leader) {
            let _ = pidfd::signal(member.end.as_fd(), signal);
        }
    }

    /// Finds all members except the leader; none without `/proc`.
    fn living(&self) -> Vec<Member> {
        let leader = self.status().is_ok().then_some(self.leader);
        let known = |stat: &Stat| self.others.iter().any(|member| member.identity == stat.identity);
        let (mut ours, mut rest): (Vec<_>, Vec<_>) =
            all_processes().partition(|stat| Some(stat.group) == leader || known(stat));
        // A parent may be listed after its children, so one pass is not enough.
        loop {
            let parents: HashSet<_> = ours.iter().map(|stat| stat.identity.pid).chain(leader).collect();
            let children = rest.extract_if(.., |stat| parents.contains(&stat.parent));
            let before = ours.len();
            ours.extend(children);
            if ours.len() == before {
                break;
            }
        }
        ours.retain(|stat| Some(stat.identity.pid) != leader);
        ours.into_iter().filter_map(Member::open).collect()
    }
}

impl Member {
    /// Opens a pidfd for a process, unless it has exited.
    fn open(stat: Stat) -> Option<Self> {
        let end = pidfd::open(stat.identity.pid).ok()?;
        // The pid may have been reused before the pidfd was opened, so check again.
        let now = Stat::read(stat.identity.pid)?;
        let member = Self { identity: stat.identity, group: stat.group, end };
        (now.identity == stat.identity && now.alive).then_some(member)
    }
}

/// The entry of a process in `/proc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    identity: Identity,
    parent: Pid,
    group: Pid,
    alive: bool,
}

fn all_processes() -> impl Iterator<Item = Stat> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Stat::read(Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?))
}

impl Stat {
    /// Returns `None` if the process no longer exists, and for kernel threads.
    fn read(pid: Pid) -> Option<Self> {
        Self::parse(pid, &fs::read(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?)
    }

    fn parse(pid: Pid, line: &[u8]) -> Option<Self> {
        // The second field is the name in parentheses, which may itself contain parentheses and newlines.
        let end_of_name = line.iter().rposition(|&byte| byte == b')')?;
        let fields: Vec<_> =
            str::from_utf8(&line[end_of_name + 1..]).ok()?.split_ascii_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        let process = |index: usize| Pid::from_raw(i32::try_from(number(index)?).ok()?);
        let started = number(19)?;
        // A process whose main thread has exited is alive while other threads run.
        let alive = !matches!(*fields.first()?, "Z" | "X") || number(17)? > 1;
        Some(Self { identity: Identity { pid, started }, parent: process(1)?, group: process(2)?, alive })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_process_name_does_not_shift_the_fields() {
        let pid = Pid::from_raw(42).unwrap();
        let rest = "7 8 9 0 -1 4194560 100 0 0 0 150 50 25 25 20 0 1 0 4711 8192000 25";
        for (name, state, alive) in [("cat", "S", true), ("x\n) Z 1", "R", true), ("(((", "Z", false)] {
            let expected = Stat {
                identity: Identity { pid, started: 4711 },
                parent: Pid::from_raw(7).unwrap(),
                group: Pid::from_raw(8).unwrap(),
                alive,
            };
            let line = format!("42 ({name}) {state} {rest}\n");
            assert_eq!(Stat::parse(pid, line.as_bytes()), Some(expected), "{name}");
        }
    }
}

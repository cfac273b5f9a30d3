//! What a program has started: its process group, and on Linux also who descends from it and left the group.
//!
//! Who goes away altogether, to another group and another parent, is not found any more.
//! Start at [`Tree`].

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

/// A program and its descendants, and their ends to wait for.
#[derive(Debug)]
pub(super) struct Tree {
    leader: Pid,
    exit: OwnedFd,
    others: Vec<Member>,
}

/// A descendant that was alive at the last look.
#[derive(Debug)]
struct Member {
    /// Remembered from look to look: who loses its parents still belongs to the tree.
    identity: Identity,
    group: Pid,
    /// Can be read when it has ended; stays its own when the number is given to another.
    end: OwnedFd,
}

/// Which process it is, whatever becomes of its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    pid: Pid,
    started: u64,
}

impl Tree {
    /// Returns the tree of a child that leads its own process group; `exit` can be read when it has ended.
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

    /// Returns how the leader has ended, if it has, without reaping it.
    ///
    /// Fails if it was reaped elsewhere, so that its pid may belong to another process.
    pub(super) fn status(&self) -> io::Result<Option<WaitIdStatus>> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(self.leader), options)
    }

    /// Scans for living members, and returns whether there are any.
    pub(super) fn look(&mut self) -> bool {
        self.others = self.living();
        matches!(self.status(), Ok(None)) || !self.others.is_empty()
    }

    /// Returns what can be read when they have ended, for all who were alive at the last look.
    pub(super) fn ends(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        iter::once(self.exit()).chain(self.others.iter().map(|member| member.end.as_fd()))
    }

    /// Signals the group, and who was alive outside of it at the last look.
    ///
    /// Who is gone meanwhile, or belongs to another user, cannot be helped.
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
            everybody().partition(|stat| Some(stat.group) == leader || known(stat));
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
    /// Takes hold of a process, unless it has ended.
    fn open(stat: Stat) -> Option<Self> {
        let end = pidfd::open(stat.identity.pid).ok()?;
        // Its number may have been given to another before; now it cannot any more.
        let now = Stat::read(stat.identity.pid)?;
        let member = Self { identity: stat.identity, group: stat.group, end };
        (now.identity == stat.identity && now.alive).then_some(member)
    }
}

/// What `/proc` says of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    identity: Identity,
    parent: Pid,
    group: Pid,
    alive: bool,
}

fn everybody() -> impl Iterator<Item = Stat> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Stat::read(Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?))
}

impl Stat {
    /// Returns `None` when there is no such process any more, and for those of the kernel.
    fn read(pid: Pid) -> Option<Self> {
        Self::parse(pid, &fs::read(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?)
    }

    fn parse(pid: Pid, line: &[u8]) -> Option<Self> {
        // The name comes second, in parentheses, and may contain anything, also parentheses and line ends.
        let end_of_name = line.iter().rposition(|&byte| byte == b')')?;
        let fields: Vec<_> =
            str::from_utf8(&line[end_of_name + 1..]).ok()?.split_ascii_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        let process = |index: usize| Pid::from_raw(i32::try_from(number(index)?).ok()?);
        let started = number(19)?;
        // The first thread of a process may be over while others run; such a process is alive.
        let alive = !matches!(*fields.first()?, "Z" | "X") || number(17)? > 1;
        Some(Self { identity: Identity { pid, started }, parent: process(1)?, group: process(2)?, alive })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_full_of_tricks_does_not_shift_the_numbers() {
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

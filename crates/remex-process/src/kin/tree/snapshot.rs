//! One scan of the processes of this host, and the members of a scope among them.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    io,
};

use super::{Member, Scope};
use crate::{Pid, Tag, base::proc, kin::adoption::Claim};

/// The processes of this host at one moment, limited to those that the requests concern.
#[derive(Debug)]
pub(super) struct Snapshot {
    processes: Vec<Member>,
    /// Indices of the children of each process.
    children: HashMap<Pid, Vec<usize>>,
}

impl Snapshot {
    /// Reads all processes whose tag, or lack of one, `is_wanted`; only the tag of the others is read.
    ///
    /// # Errors
    /// If `/proc` cannot be read. A process that cannot be read for lack of descriptors or memory is an error as well:
    /// it must not be mistaken for one that has ended.
    pub(super) fn take(is_wanted: impl Fn(Option<Tag>) -> bool) -> io::Result<Self> {
        let mut processes = Vec::new();
        for pid in proc::pids()? {
            let tag = proc::tag(pid)?;
            if is_wanted(tag) {
                processes.extend(proc::member(pid, tag)?);
            }
        }
        Ok(Self::new(processes))
    }

    fn new(processes: Vec<Member>) -> Self {
        let mut children = HashMap::<Pid, Vec<usize>>::new();
        for (index, member) in processes.iter().enumerate() {
            if let Some(parent) = member.parent {
                children.entry(parent).or_default().push(index);
            }
        }
        Self { processes, children }
    }

    /// Returns the members of a scope.
    ///
    /// The pid of a leader counts only if the leader is not reaped *after* the scan: then the pid was its own during
    /// the scan.
    pub(super) fn members(&self, scope: &Scope) -> Vec<&Member> {
        let own_session = match scope {
            Scope::Process(_, leader) if !leader.is_reaped() => Some(leader.pid()),
            _ => None,
        };
        let contains = |member: &Member| {
            let tagged = member.tag.is_some_and(|tag| scope.matches(tag));
            match scope {
                Scope::Process(..) => tagged || own_session.is_some() && member.session == own_session,
                Scope::Group(_, pid) => {
                    tagged && (member.session == Some(*pid) || member.group == Some(*pid))
                }
                Scope::Start(_) | Scope::Session(_) | Scope::Server(_) => tagged,
            }
        };
        let is_left = |member: &Member| scope.claim(member) == Claim::Sure;
        let is_own = |member: &&Member| !scope.excludes(member.tag) && (contains(member) || is_left(member));
        let mut found: Vec<&Member> = self.processes.iter().filter(is_own).collect();
        if !matches!(scope, Scope::Group(..)) {
            self.add_descendants(scope, &mut found);
        }
        found
    }

    /// Returns the orphans that may or may not belong to a scope.
    pub(super) fn unclear(&self, scope: &Scope) -> Unclear {
        let mut unclear = Unclear::default();
        for member in &self.processes {
            unclear.add(member, scope.claim(member));
        }
        unclear
    }

    /// Returns the processes with a tag of this server.
    pub(super) fn tagged(&self, server: Tag) -> Vec<&Member> {
        let bears = |member: &&Member| member.tag.is_some_and(|tag| tag.same_server(server));
        self.processes.iter().filter(bears).collect()
    }

    fn add_descendants<'a>(&'a self, scope: &Scope, found: &mut Vec<&'a Member>) {
        let mut known: HashSet<Pid> = found.iter().map(|member| member.pid).collect();
        let mut next = 0;
        while let Some(parent) = found.get(next).map(|member| member.pid) {
            next += 1;
            let children = self.children.get(&parent).into_iter().flatten();
            for child in children.filter_map(|&index| self.processes.get(index)) {
                if !scope.excludes(child.tag) && known.insert(child.pid) {
                    found.push(child);
                }
            }
        }
    }
}

/// Orphans that may or may not belong to a scope.
#[derive(Debug, Default)]
pub(super) struct Unclear {
    /// Orphans that starts outside the scope may have left behind.
    pub(super) doubtful: BTreeSet<Pid>,
    /// Processes that may turn out not to be orphans.
    pub(super) pending: BTreeSet<Pid>,
}

impl Unclear {
    pub(super) fn add(&mut self, member: &Member, claim: Claim) {
        match claim {
            Claim::Doubtful => _ = self.doubtful.insert(member.pid),
            Claim::Pending => _ = self.pending.insert(member.pid),
            Claim::No | Claim::Sure => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Leader, Tags};

    fn pid(raw: i32) -> Pid {
        Pid::new(raw).unwrap()
    }

    fn member(raw: i32, parent: i32, session: i32, tag: Option<Tag>) -> Member {
        Member {
            pid: pid(raw),
            parent: Pid::new(parent),
            group: Pid::new(session),
            session: Pid::new(session),
            tag,
            cpu: Duration::ZERO,
            resident_bytes: 0,
            started: 0,
            has_executed: true,
            is_exiting: false,
        }
    }

    fn pids(snapshot: &Snapshot, scope: &Scope) -> Vec<i32> {
        let mut pids: Vec<_> = snapshot.members(scope).iter().map(|member| member.pid.as_raw()).collect();
        pids.sort_unstable();
        pids
    }

    #[test]
    fn a_scope_covers_its_processes_and_their_descendants_only() {
        let (tags, others) = (Tags::new(), Tags::new());
        let (first, second, third) = (tags.tag(1, 1), tags.tag(1, 2), tags.tag(2, 1));
        let snapshot = Snapshot::new(vec![
            member(10, 2, 10, Some(first)),
            // Moved to its own session, and its child lost the tag.
            member(11, 1, 11, Some(first)),
            member(12, 11, 12, None),
            // A server within the tree, and one of our starts that descends from it.
            member(13, 12, 13, Some(others.tag(1, 1))),
            // The watchdog of that server, which must survive the server.
            member(14, 12, 14, Some(Tag::WATCHDOG)),
            member(20, 10, 20, Some(second)),
            member(30, 2, 30, Some(third)),
            member(40, 1, 40, None),
        ]);
        let leader = Leader::new(pid(10));
        assert_eq!(pids(&snapshot, &Scope::Process(first, leader)), [10, 11, 12, 13]);
        assert_eq!(pids(&snapshot, &Scope::Group(first, pid(10))), [10]);
        assert_eq!(pids(&snapshot, &Scope::Session(second)), [10, 11, 12, 13, 20]);
        assert_eq!(pids(&snapshot, &Scope::Server(third)), [10, 11, 12, 13, 20, 30]);
        assert_eq!(pids(&snapshot, &Scope::Session(others.tag(1, 7))), [13]);
    }

    #[test]
    fn the_pid_of_a_reaped_leader_is_ignored() {
        let tag = Tags::new().tag(1, 1);
        let snapshot = Snapshot::new(vec![member(10, 1, 10, None), member(11, 1, 11, Some(tag))]);
        let leader = Leader::new(pid(10));
        let scope = Scope::Process(tag, leader.clone());
        assert_eq!(pids(&snapshot, &scope), [10, 11]);
        leader.abandon();
        assert_eq!(pids(&snapshot, &scope), [11], "by now 10 may be a stranger");
    }
}

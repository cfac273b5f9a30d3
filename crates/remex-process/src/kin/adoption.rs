//! Orphans: processes that descend from a start, and whose parents have all ended.
//!
//! A program that [adopts orphans](adopt_orphans) becomes the parent of all of them, whatever they did to their tag and
//! their session; no system call evades that. So a child that this program did not create itself is an orphan, and it
//! belongs to one of the starts that began before it. Nothing here kills; start at [`Claim`].

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    os::fd::AsFd as _,
    path::PathBuf,
    process::{Child, Command},
    sync::{Mutex, MutexGuard},
};

use rustix::{
    io::Errno,
    process::{Pid as RawPid, PidfdFlags, getpid, pidfd_open, set_child_subreaper},
    time::{ClockId, clock_gettime},
};

use crate::{
    Pid, Tag,
    base::{
        proc::{self, Member},
        sys::{self, WaitMode},
    },
};

/// How long, in seconds, a child that has executed its program may be unrecorded: its creator needs a moment for that.
const RECORDING_SECS: u64 = 1;

/// How long, in seconds, an unrecorded child that has exited is left to its creator to reap.
const REAPING_SECS: u64 = 10;

/// Held during a scan for orphans: a second scan must not miss processes that the first one has reaped.
static SCANNING: Mutex<()> = Mutex::new(());

/// Locked briefly, for lookups in memory. `None` if this program adopts no orphans.
static ADOPTION: Mutex<Option<Adoption>> = Mutex::new(None);

/// Whether a process was left behind by one of a set of starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// No: it is not an orphan, or its tag names another start, or it is older than these starts.
    No,
    /// Yes: no other start can have left it behind.
    Sure,
    /// Other starts can have left it behind, too.
    Doubtful,
    /// It may be a child that is just being created, or a watchdog that is about to end.
    Pending,
}

/// What this program records to distinguish orphans from its own children. All times are ticks since boot.
#[derive(Clone, Debug)]
struct Adoption {
    own: Pid,
    program: Option<PathBuf>,
    /// When this program began. Older orphans were left behind by starts of the program that it has replaced.
    since: u64,
    /// Starts that may still have live processes, with their first process.
    starts: HashMap<Tag, Started>,
    /// Children that this program has created itself.
    children: HashMap<Pid, OwnChild>,
    /// Orphans that were scanned before, so that they are not read again; only [`reap_orphans`] reaps them.
    orphans: HashMap<Pid, Member>,
    /// When each creation of a child began that is not recorded yet.
    creations: HashMap<u64, u64>,
    next_creation: u64,
}

#[derive(Clone, Copy, Debug)]
struct Started {
    /// `None` if it was reaped by the program that this one has replaced.
    leader: Option<Pid>,
    since: u64,
    /// When its first process was reaped.
    ended: Option<u64>,
    /// Whether there were orphans when its first process was reaped. If not, later orphans do not belong to it.
    has_orphans: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OwnChild {
    at: u64,
    /// The start whose first process it is; `None` for other children.
    tag: Option<Tag>,
}

/// Makes this program the parent of all orphans among its descendants. Call it before the first start.
///
/// Afterwards, call [`reap_orphans`] after every SIGCHLD, and create children that this crate does not start with
/// [`spawn_own`].
///
/// # Errors
/// If the host refuses it, or its kernel does not list children.
pub fn adopt_orphans() -> io::Result<()> {
    let own = Pid::new(std::process::id().cast_signed()).ok_or(io::ErrorKind::Unsupported)?;
    children_of(own).ok_or(io::ErrorKind::Unsupported)?;
    set_child_subreaper(Some(getpid()))?;
    let mut adoption = lock();
    if adoption.is_none() {
        *adoption = Some(Adoption {
            own,
            program: fs::read_link("/proc/self/exe").ok(),
            since: now(),
            starts: HashMap::new(),
            children: HashMap::new(),
            orphans: HashMap::new(),
            creations: HashMap::new(),
            next_creation: 0,
        });
    }
    Ok(())
}

/// Starts a program for this program's own use, so that it is not mistaken for an orphan.
///
/// # Errors
/// Those of [`Command::spawn`].
pub fn spawn_own(command: &mut Command) -> io::Result<Child> {
    let creation = Creation::begin();
    let child = command.spawn()?;
    if let Some(pid) = Pid::new(child.id().cast_signed()) {
        creation.created(pid);
    }
    Ok(child)
}

/// Reaps orphans that have ended, and forgets starts without live processes.
///
/// Returns whether it must be called again soon, even if no other child ends.
pub fn reap_orphans() -> bool {
    let _looking = remex_base::lock(&SCANNING);
    let Some(before) = lock().clone() else { return false };
    let Some(children) = children_of(before.own) else { return false };
    let now = now();
    let mut unknown = Vec::new();
    let mut is_unsettled = false;
    let mut orphans = HashMap::new();
    for pid in &children {
        // Only the creator of a child may reap it, and only the creator records it.
        if lock().as_ref().is_none_or(|known| known.children.contains_key(pid)) {
            continue;
        }
        if let Some(member) = before.orphans.get(pid) {
            // The pid cannot be reused before it is reaped here.
            let has_ended = reap(*pid);
            is_unsettled |= has_ended;
            if !has_ended {
                orphans.insert(*pid, member.clone());
            }
            unknown.push((member.clone(), false));
            continue;
        }
        let Some((member, has_ended)) = proc::any_member(*pid) else { continue };
        let may_be_own = lock().as_ref().is_some_and(|known| {
            known.children.contains_key(pid) || known.may_be_unrecorded(&member, now, REAPING_SECS)
        });
        if has_ended && !may_be_own {
            reap(*pid);
        }
        // A start with a process that has just ended is not forgotten in this scan.
        is_unsettled |= may_be_own || has_ended;
        if !may_be_own && !has_ended {
            orphans.insert(*pid, member.clone());
        }
        unknown.push((member, may_be_own));
    }
    if let Some(known) = lock().as_mut() {
        known.orphans = orphans;
        known.forget(&before, &children.into_iter().collect(), &unknown);
    }
    is_unsettled
}

/// A child that is being created, until this is dropped.
#[derive(Debug)]
pub(crate) struct Creation {
    /// `None` if this program adopts no orphans.
    number: Option<u64>,
}

impl Creation {
    /// Call it before the child exists.
    pub(crate) fn begin() -> Self {
        let number = lock().as_mut().map(|known| {
            known.next_creation += 1;
            known.creations.insert(known.next_creation, now());
            known.next_creation
        });
        Self { number }
    }

    /// Records a child that is not the first process of a start.
    pub(crate) fn created(&self, pid: Pid) {
        if let Some(known) = lock().as_mut() {
            known.children.insert(pid, OwnChild { at: now(), tag: None });
        }
    }

    /// Records the first process of a start.
    pub(crate) fn started(&self, tag: Tag, leader: Pid) {
        if let Some(known) = lock().as_mut()
            && let Some(since) = self.number.and_then(|number| known.creations.get(&number).copied())
        {
            known.record_start(tag, leader, since);
        }
    }
}

impl Drop for Creation {
    fn drop(&mut self) {
        if let (Some(number), Some(known)) = (self.number, lock().as_mut()) {
            known.creations.remove(&number);
        }
    }
}

/// Records a start of the program that this one has replaced and that may still have live processes.
pub fn resume_start(tag: Tag) {
    if let Some(known) = lock().as_mut() {
        let left = Started { leader: None, since: 0, ended: None, has_orphans: true };
        known.starts.insert(tag.of_start(), left);
    }
}

/// Records the first process of a start of the program that this one has replaced.
pub(crate) fn resume_leader(tag: Tag, leader: Pid) {
    if let Some(known) = lock().as_mut() {
        known.record_start(tag, leader, 0);
    }
}

/// Records that a child was reaped.
pub(crate) fn reaped(pid: Pid) {
    if let Some(known) = lock().as_mut()
        && let Some(tag) = known.children.remove(&pid).and_then(|child| child.tag)
        && let Some(start) = known.starts.get_mut(&tag)
    {
        start.ended.get_or_insert_with(now);
    }
}

/// Records that the starts whose tag `matches` have no processes left.
pub(crate) fn forget_starts(matches: impl Fn(Tag) -> bool) {
    if let Some(known) = lock().as_mut() {
        known.starts.retain(|tag, _| !matches(*tag));
    }
}

/// Returns whether a start with this tag is recorded, so that a process with the tag can belong to it.
pub(crate) fn is_start(tag: Tag) -> bool {
    lock().as_ref().is_none_or(|known| known.starts.contains_key(&tag.of_start()))
}

/// Returns whether a process was left behind by the starts whose tag `matches`.
pub(crate) fn claim(member: &Member, matches: impl Fn(Tag) -> bool) -> Claim {
    let (claim, may_be_unborn) = lock().as_ref().map_or((Claim::No, false), |known| {
        (known.claim(member, matches, now()), !member.has_executed && known.is_creating_since(member))
    });
    // A child that has not executed its program yet, perhaps because a file system hangs, still runs this program.
    if claim != Claim::No && may_be_unborn && runs_this_program(member.pid) {
        return Claim::No;
    }
    claim
}

impl Adoption {
    fn record_start(&mut self, tag: Tag, leader: Pid, since: u64) {
        let tag = tag.of_start();
        // Tag numbers wrap: processes of an earlier start with this tag may be left, and must not seem too old for it.
        let earlier = self.starts.get(&tag).copied();
        let start = Started {
            leader: Some(leader),
            since: earlier.map_or(since, |earlier| earlier.since.min(since)),
            ended: None,
            has_orphans: earlier.is_some(),
        };
        self.starts.insert(tag, start);
        self.children.insert(leader, OwnChild { at: now(), tag: Some(tag) });
    }

    fn claim(&self, member: &Member, matches: impl Fn(Tag) -> bool, now: u64) -> Claim {
        if member.parent != Some(self.own) || self.is_own(member) || self.true_tag(member).is_some() {
            return Claim::No;
        }
        let is_left_by_earlier = member.started < self.since;
        let (mut inside, mut outside) = (false, is_left_by_earlier);
        for (tag, _) in self.starts.iter().filter(|(_, start)| start.since <= member.started) {
            if matches(*tag) {
                inside = true;
            } else {
                outside = true;
            }
        }
        match (inside, outside) {
            (false, _) => Claim::No,
            _ if member.tag == Some(Tag::WATCHDOG) && is_left_by_earlier => Claim::No,
            _ if member.tag == Some(Tag::WATCHDOG) => Claim::Pending,
            _ if self.may_be_unrecorded(member, now, RECORDING_SECS) => Claim::Pending,
            (true, false) => Claim::Sure,
            (true, true) => Claim::Doubtful,
        }
    }

    /// Returns whether this program has created the process itself. The pid alone is not enough, because it may be
    /// reused.
    fn is_own(&self, member: &Member) -> bool {
        self.children.get(&member.pid).is_some_and(|child| member.started <= child.at)
    }

    /// Returns the tag if it is credible: that of a start before the process, or of an earlier program.
    fn true_tag(&self, member: &Member) -> Option<Tag> {
        let tag = member.tag?.of_start();
        let is_true = match self.starts.get(&tag) {
            Some(start) => start.since <= member.started,
            None => member.started < self.since && self.starts.keys().any(|known| known.same_server(tag)),
        };
        is_true.then_some(tag)
    }

    /// Returns whether a process may be a child that its creator has not recorded yet.
    fn may_be_unrecorded(&self, member: &Member, now: u64, secs: u64) -> bool {
        let is_young = now.saturating_sub(member.started) < secs * sys::proc_units().0;
        is_young && self.is_creating_since(member)
    }

    fn is_creating_since(&self, member: &Member) -> bool {
        self.creations.values().any(|begun| *begun <= member.started)
    }

    /// Forgets children that no longer exist, and ended starts without live processes. `before` is the state before the
    /// children were listed; `unknown` processes may be our own children.
    fn forget(&mut self, before: &Self, children: &HashSet<Pid>, unknown: &[(Member, bool)]) {
        let orphans: Vec<_> = unknown
            .iter()
            .map(|(member, may_be_own)| (member.started, self.true_tag(member), *may_be_own))
            .collect();
        let (noted, now) = (&self.children, now());
        self.starts.retain(|tag, start| {
            let is_running = start.leader.is_some_and(|leader| children.contains(&leader));
            let was_known = before.starts.get(tag).is_some_and(|known| known.leader == start.leader);
            if !was_known || is_running {
                return true;
            }
            let until = match start.ended {
                _ if start.has_orphans => u64::MAX,
                Some(ended) => ended,
                None => {
                    // The thread that reaped it is about to record when, unless the record is gone: then now is late
                    // enough.
                    let is_noted = start.leader.is_some_and(|leader| noted.contains_key(&leader));
                    start.ended = (!is_noted).then_some(now);
                    return true;
                }
            };
            // Orphans from before the exit of its first process, or descendants of those.
            let left = orphans.iter().filter(|(started, whose, _)| {
                (start.since..=until).contains(started) && whose.is_none_or(|whose| whose == *tag)
            });
            let left: Vec<bool> = left.map(|(_, _, may_be_own)| *may_be_own).collect();
            // Whether a child that is just being created is an orphan is decided by the next scan.
            if left.is_empty() || left.contains(&false) {
                start.has_orphans = !left.is_empty();
            }
            !left.is_empty()
        });
        self.children.retain(|pid, noted| children.contains(pid) || before.children.get(pid) != Some(noted));
    }
}

/// Lists the children of a program, including zombies; `None` if the kernel does not list them.
///
/// Orphans are reparented to the main thread. It is read last, so that the orphans of a child that ends meanwhile are
/// seen.
pub(crate) fn children_of(program: Pid) -> Option<Vec<Pid>> {
    let first_thread = program.to_string();
    let list = |thread: &str| fs::read_to_string(format!("/proc/{program}/task/{thread}/children"));
    let mut children = Vec::new();
    for thread in fs::read_dir(format!("/proc/{program}/task")).ok()?.flatten() {
        let Some(thread) =
            thread.file_name().to_str().filter(|name| *name != first_thread).map(str::to_owned)
        else {
            continue;
        };
        // The children of a thread that has ended meanwhile were moved to the main thread.
        children.extend(list(&thread).ok().iter().flat_map(|text| parse(text)));
    }
    children.extend(parse(&list(&first_thread).ok()?));
    Some(children)
}

fn parse(text: &str) -> Vec<Pid> {
    text.split_whitespace().filter_map(|pid| pid.parse().ok().and_then(Pid::new)).collect()
}

/// Reaps a child if it has ended, and returns whether it has.
fn reap(pid: Pid) -> bool {
    let Some(number) = RawPid::from_raw(pid.as_raw()) else { return true };
    match pidfd_open(number, PidfdFlags::empty()) {
        // An error means that it was reaped elsewhere.
        Ok(pidfd) => sys::reap(pidfd.as_fd(), WaitMode::Return).map_or(true, |reaped| reaped.is_some()),
        Err(errno) => errno == Errno::SRCH,
    }
}

fn runs_this_program(pid: Pid) -> bool {
    let own = lock().as_ref().and_then(|known| known.program.clone());
    own.is_some() && fs::read_link(format!("/proc/{pid}/exe")).ok() == own
}

/// Returns the time in ticks since boot, as in the start time of processes.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    let ticks_per_second = sys::proc_units().0;
    let part = |number: i64| u64::try_from(number).unwrap_or(0);
    part(time.tv_sec) * ticks_per_second + part(time.tv_nsec) * ticks_per_second / 1_000_000_000
}

fn lock() -> MutexGuard<'static, Option<Adoption>> {
    remex_base::lock(&ADOPTION)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tags;

    #[test]
    fn a_start_whose_exit_was_not_recorded_is_forgotten_by_the_second_scan() {
        let (own, leader) = (Pid::new(1000).unwrap(), Pid::new(1001).unwrap());
        let tag = Tags::new().tag(1, 1);
        let mut known = Adoption {
            own,
            program: None,
            since: 0,
            starts: HashMap::new(),
            children: HashMap::new(),
            orphans: HashMap::new(),
            creations: HashMap::new(),
            next_creation: 0,
        };
        known.record_start(tag, leader, 0);
        // Its first process is gone, and the scan runs before the thread that reaped it has recorded that.
        for expected in [1, 1, 0] {
            let before = known.clone();
            known.forget(&before, &HashSet::new(), &[]);
            assert_eq!(known.starts.len(), expected);
        }
    }
}

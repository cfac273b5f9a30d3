//! All that a start has led to: children, their children, and those that left for a session of their own.
//!
//! Found by the [`Tag`] that they inherit, by their session and by their parents, in one look at `/proc`. This is good
//! against accidents; a program that wants to escape can. Everything here blocks, so keep it off a runtime's workers.

use std::{
    collections::HashSet,
    fmt, io,
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{PidfdFlags, pidfd_open},
};

use crate::{Pid, Signal, Tag, proc, sys};

/// A tree that is not gone after so many sweeps is bred faster than we kill, or stuck in the kernel.
const MAX_SWEEPS: usize = 200;
/// How long one sweep waits for what it has killed.
const SWEEP_PATIENCE: Duration = Duration::from_millis(25);
/// How many of the killed it waits for, so that a large tree does not use up our descriptors.
const MAX_WATCHED: usize = 256;

/// Whom a look, a signal or a kill is about. Never ourselves, never init.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Everything that came of one start whose process is not reaped yet.
    Process(Tag, Pid),
    /// Everything that came of one start whose process has been reaped: its number may be a stranger's by now.
    Remains(Tag),
    /// What is left in the group or the session of a start whose process may have ended.
    Group(Tag, Pid),
    /// Everything that came of any start of a session; the tag is that of any of them.
    Session(Tag),
}

/// A living process of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its number.
    pub pid: Pid,
    /// Who would reap it; `None` for init.
    pub parent: Option<Pid>,
    /// Its process group.
    pub group: Option<Pid>,
    /// Its session.
    pub session: Option<Pid>,
    /// The start that it came of, unless it has lost the mark.
    pub tag: Option<Tag>,
    /// Time on a processor, its own and that of the children it has waited for.
    pub cpu: Duration,
    /// Memory in use.
    pub resident_bytes: u64,
    /// When it started, in ticks since the host did: with the number it names one process for good.
    pub(crate) started: u64,
}

/// Looks for the living processes of a scope.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn members(scope: Scope) -> io::Result<Vec<Member>> {
    let mut found = Vec::new();
    let mut others = Vec::new();
    for pid in proc::pids()? {
        let tag = proc::tag(pid);
        if scope.excludes(tag) {
            continue;
        }
        if let Some(member) = proc::member(pid, tag) {
            if scope.contains(&member) { &mut found } else { &mut others }.push(member);
        }
    }
    if !matches!(scope, Scope::Group(..)) {
        add_descendants(&mut found, others);
    }
    Ok(found)
}

/// Looks for the living processes that came of any start of the server that made a tag, in one look for all of them.
///
/// Those that have lost the mark are not found.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn marked(tag: Tag) -> io::Result<Vec<Member>> {
    let marked = proc::pids()?.into_iter().filter_map(|pid| {
        let own = proc::tag(pid).filter(|own| own.same_server(tag))?;
        proc::member(pid, Some(own))
    });
    Ok(marked.collect())
}

/// Sends a signal to every process of a scope, and returns how many got it.
///
/// # Errors
/// When `/proc` cannot be read, or when not one of them may be signalled.
pub fn signal(scope: Scope, signal: Signal) -> io::Result<usize> {
    Ok(sweep(&members(scope)?, signal)?.reached)
}

/// Kills every process of a scope until none is left, and returns how many there were.
///
/// # Errors
/// When `/proc` cannot be read, when they may not be signalled, or when some do not die; then it names them.
pub fn kill(scope: Scope) -> io::Result<usize> {
    let mut killed = HashSet::new();
    let mut empty_looks = 0;
    for _ in 0..MAX_SWEEPS {
        let members = members(scope)?;
        if members.is_empty() {
            // One look can miss a daemon in the making: its parent ends, and it is born, while we read.
            empty_looks += 1;
            if empty_looks == 2 {
                return Ok(killed.len());
            }
            continue;
        }
        empty_looks = 0;
        let sweep = sweep(&members, Signal::KILL)?;
        killed.extend(members.iter().map(|member| (member.pid, member.started)));
        wait_for(&sweep.pidfds)?;
    }
    match members(scope)? {
        left if left.is_empty() => Ok(killed.len()),
        left => Err(io::Error::other(Survivors(left.iter().map(|member| member.pid).collect()))),
    }
}

impl Scope {
    fn tag(self) -> Tag {
        let (Self::Process(tag, _) | Self::Remains(tag) | Self::Group(tag, _) | Self::Session(tag)) = self;
        tag
    }

    /// Tells without a closer look that a process with this tag does not belong to the scope.
    ///
    /// One of another start of this server never does, and that spares us most children of a busy server.
    fn excludes(self, tag: Option<Tag>) -> bool {
        match tag {
            Some(tag) if self.tag().same_server(tag) => !self.bears(tag),
            _ => matches!(self, Self::Group(..)),
        }
    }

    fn bears(self, tag: Tag) -> bool {
        match self {
            Self::Process(own, _) | Self::Remains(own) | Self::Group(own, _) => own == tag,
            Self::Session(own) => own.same_session(tag),
        }
    }

    fn contains(self, member: &Member) -> bool {
        let tagged = member.tag.is_some_and(|tag| self.bears(tag));
        match self {
            Self::Process(_, pid) => tagged || member.session == Some(pid),
            Self::Group(_, pid) => tagged && (member.session == Some(pid) || member.group == Some(pid)),
            Self::Remains(_) | Self::Session(_) => tagged,
        }
    }
}

/// Moves the children of members, and their children, from `others` to `found`.
fn add_descendants(found: &mut Vec<Member>, mut others: Vec<Member>) {
    let mut parents: HashSet<Pid> = found.iter().map(|member| member.pid).collect();
    loop {
        let is_child = |member: &mut Member| member.parent.is_some_and(|parent| parents.contains(&parent));
        let children: Vec<Member> = others.extract_if(.., is_child).collect();
        if children.is_empty() {
            return;
        }
        parents.extend(children.iter().map(|member| member.pid));
        found.extend(children);
    }
}

struct Sweep {
    reached: usize,
    pidfds: Vec<OwnedFd>,
}

fn sweep(members: &[Member], signal: Signal) -> io::Result<Sweep> {
    let mut sweep = Sweep { reached: 0, pidfds: Vec::new() };
    let mut refused = None;
    for member in members {
        let Some(pidfd) = seize(member)? else { continue };
        match sys::pidfd_signal(pidfd.as_fd(), signal) {
            Ok(()) => sweep.reached += 1,
            Err(error) => refused = Some(error),
        }
        if sweep.pidfds.len() < MAX_WATCHED {
            sweep.pidfds.push(pidfd);
        }
    }
    match refused {
        Some(error) if sweep.reached == 0 => Err(error),
        _ => Ok(sweep),
    }
}

/// Opens a member, unless it has ended and its number belongs to somebody else by now.
fn seize(member: &Member) -> io::Result<Option<OwnedFd>> {
    let Some(pid) = rustix::process::Pid::from_raw(member.pid.as_raw()) else { return Ok(None) };
    let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(rustix::io::Errno::SRCH) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    // The descriptor holds on to whoever has the number now; so look at who that is only after it is open.
    let now = proc::member(member.pid, None);
    Ok(now.filter(|now| now.started == member.started).map(|_| pidfd))
}

/// Waits until all these processes have ended, but not for long.
fn wait_for(pidfds: &[OwnedFd]) -> io::Result<()> {
    let deadline = Instant::now() + SWEEP_PATIENCE;
    let mut waiting: Vec<_> = pidfds.iter().map(|pidfd| PollFd::new(pidfd, PollFlags::IN)).collect();
    while !waiting.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut waiting, Some(&timeout)) {
            Ok(0) => break,
            Ok(_) => waiting.retain(|pidfd| pidfd.revents().is_empty()),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

#[derive(Debug)]
struct Survivors(Vec<Pid>);

impl fmt::Display for Survivors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot end all processes of a tree; still there, look at them on the host:")?;
        self.0.iter().try_for_each(|pid| write!(f, " {pid}"))
    }
}

impl std::error::Error for Survivors {}

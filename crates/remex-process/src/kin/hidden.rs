//! Finds children of another program that hide which of its starts they come from.
//!
//! A program that adopts orphans is the parent of every process that has cleared its tag, left its session and lost its
//! parents. Only that program can tell which start such a process comes from; others can only tell whether there are
//! any. Start at [`HiddenChildren`].

use std::{collections::HashSet, io};

use crate::{Pid, Tag, base::proc, kin::adoption::children_of};

/// How many consecutive scans must find nothing: while children exit, the kernel may omit one from its list.
const CLEAR_SCANS: u32 = 2;

/// Scans the children of a program for those that hide which of its starts they come from.
#[derive(Debug)]
pub struct HiddenChildren {
    program: Pid,
    tag: Tag,
    /// How many consecutive scans have found nothing.
    clear: u32,
    /// Children that had exited before the last scan was complete.
    ended: HashSet<Pid>,
}

/// The result of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HiddenScan {
    /// No child hides its start.
    Clear,
    /// These children hide their start.
    Hidden(Vec<Pid>),
    /// Scan again: these are just starting or exiting, and may have left others behind. Empty if nothing was found so
    /// far.
    Unsettled(Vec<Pid>),
}

enum Child {
    /// It has the tag of a start.
    Known,
    Hidden,
    /// It has exited; its children now belong to the program.
    Ended,
    /// It is just starting and has no tag yet, or is exiting and its children may not belong to the program yet.
    Passing,
}

impl HiddenChildren {
    /// Prepares to scan the children of a program, whose starts have tags of the same server as `tag`.
    #[must_use]
    pub fn new(program: u32, tag: Tag) -> Option<Self> {
        let program = Pid::new(program.cast_signed())?;
        Some(Self { program, tag, clear: 0, ended: HashSet::new() })
    }

    /// Scans all children once.
    ///
    /// At every moment, a hiding process is a child of the program, however often it forks and exits to replace itself.
    /// So if a child exits during the scan, the scan proves nothing.
    ///
    /// # Errors
    /// If the host lacks descriptors or memory for it.
    pub fn scan(&mut self) -> io::Result<HiddenScan> {
        let (mut hidden, mut unsettled, mut ended) = (Vec::new(), Vec::new(), HashSet::new());
        for pid in children_of(self.program).unwrap_or_default() {
            match self.child(pid)? {
                Child::Known => {}
                Child::Hidden => hidden.push(pid),
                Child::Ended if self.ended.contains(&pid) => _ = ended.insert(pid),
                Child::Ended => {
                    ended.insert(pid);
                    unsettled.push(pid);
                }
                Child::Passing => unsettled.push(pid),
            }
        }
        self.ended = ended;
        if !hidden.is_empty() {
            self.clear = 0;
            return Ok(HiddenScan::Hidden(hidden));
        }
        self.clear = if unsettled.is_empty() { self.clear + 1 } else { 0 };
        Ok(if self.clear < CLEAR_SCANS { HiddenScan::Unsettled(unsettled) } else { HiddenScan::Clear })
    }

    fn child(&self, pid: Pid) -> io::Result<Child> {
        // Read before the tag: a start has its tag before it executes a program.
        let has_executed = proc::member(pid, None)?.is_some_and(|member| member.has_executed);
        let tag = proc::tag(pid)?;
        let Some(member) = proc::member(pid, tag)? else { return Ok(Child::Ended) };
        let has_tag = tag.is_some_and(|tag| tag.same_server(self.tag) || tag == Tag::WATCHDOG);
        // Its pid may be that of another process by now.
        let is_child = member.parent == Some(self.program);
        Ok(match () {
            () if has_tag => Child::Known,
            () if is_child && has_executed && !member.is_exiting => Child::Hidden,
            () => Child::Passing,
        })
    }
}

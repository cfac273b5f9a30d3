//! Children of another program that hide which of its starts they come from, as seen from outside.
//!
//! A program that adopts orphans is the parent of everything that has cleared its tag, left its session and lost its
//! parents. It alone can say which start such a process comes from; others can only say whether there are any. Start at
//! [`HiddenChildren`].

use std::{collections::HashSet, io};

use crate::{Pid, Tag, base::proc, kin::adoption::children_of};

/// How many consecutive scans must find nothing: while children exit, the kernel may omit one from its list.
const CLEAR_SCANS: u32 = 2;

/// Looks for children of a program that hide which of its starts they come from.
#[derive(Debug)]
pub struct HiddenChildren {
    program: Pid,
    tag: Tag,
    /// How many looks in a row have found nothing.
    clear: u32,
    /// Children that had ended before the last look was over.
    ended: HashSet<Pid>,
}

/// What a look has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HiddenScan {
    /// No child hides its start.
    Clear,
    /// These hide.
    Hidden(Vec<Pid>),
    /// Look again: these are just starting or ending, and may have left others behind. None are named if all is well so far.
    Unsettled(Vec<Pid>),
}

enum Child {
    /// It has the tag of a start.
    Known,
    Hidden,
    /// It has left its children to the program.
    Ended,
    /// It is just starting, and has no tag yet, or just ending, and may not have left its children to the program yet.
    Passing,
}

impl HiddenChildren {
    /// Prepares to look at the children of a program, which has started processes with tags of the server of `tag`.
    #[must_use]
    pub fn new(program: u32, tag: Tag) -> Option<Self> {
        let program = Pid::new(program.cast_signed())?;
        Some(Self { program, tag, clear: 0, ended: HashSet::new() })
    }

    /// Looks at all children once.
    ///
    /// At every moment, something that hides is a child of the program, however often it replaces itself: what it was before
    /// has ended. So a child that ends during the look proves nothing, and neither does the look.
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
        // Before the tag: a start has its tag before it executes something.
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

//! Where the tag of a process is stored: in a soft resource limit that means nothing to the kernel.
//!
//! A limit survives fork, exec, `setsid` and double forks, can be read from outside, and cannot be lost by cleaning the
//! environment or closing descriptors. Chosen once, because what is written must be read in the same place.

use std::{io, sync::OnceLock};

use crate::{Pid, Tag, sys};

/// A resource limit that can hold a tag.
#[derive(Debug)]
pub(crate) struct Mark {
    pub(crate) resource: sys::Resource,
    /// What `/proc/PID/limits` calls it.
    pub(crate) row: &'static str,
}

/// In the order of preference. Linux has enforced neither of the first two since version 2.4. The third bounds what a
/// real-time thread may run without a pause, in microseconds, and a tag is longer than any machine lives.
static MARKS: [Mark; 3] = [
    Mark { resource: libc::RLIMIT_LOCKS, row: "Max file locks" },
    Mark { resource: libc::RLIMIT_RSS, row: "Max resident set" },
    Mark { resource: libc::RLIMIT_RTTIME, row: "Max realtime timeout" },
];

impl Mark {
    /// Returns the first limit whose ceiling is high enough for a tag, if there is one.
    pub(crate) fn chosen() -> Option<&'static Self> {
        static CHOSEN: OnceLock<Option<&Mark>> = OnceLock::new();
        *CHOSEN.get_or_init(|| {
            let chosen = MARKS.iter().find(|mark| mark.ceiling().is_some_and(|most| most >= Tag::LARGEST_LIMIT));
            let [usual, ..] = &MARKS;
            match chosen {
                Some(mark) if mark.resource == usual.resource => {}
                Some(mark) => tracing::warn!(
                    instead = mark.row,
                    "the hard limit on file locks is too low to mark processes: another limit is used"
                ),
                None => tracing::warn!(
                    "all limits that could mark processes are too low: what a process leaves behind when it ends, or \
                     puts into another session, may not be found and lives on, also after the server; start the server \
                     without a hard limit on file locks"
                ),
            }
            chosen
        })
    }

    /// Returns the limit that gives a child its tag.
    pub(crate) fn limit(&self, tag: Tag) -> libc::rlimit {
        libc::rlimit { rlim_cur: tag.limit(), rlim_max: self.ceiling().unwrap_or(libc::RLIM_INFINITY) }
    }

    /// Gives the calling process a tag in place of the one it inherited. Allocates nothing and takes no lock.
    ///
    /// # Errors
    /// When the hard limit was lowered meanwhile; then it keeps the one it has.
    pub(crate) fn apply_to_self(&self, tag: Tag) -> io::Result<()> {
        sys::set_limit(self.resource, &self.limit(tag))
    }

    /// Takes the tag of a child away. Where that is refused, the child keeps it.
    pub(crate) fn clear(&self, child: Pid) {
        _ = sys::lift_limit(child, self.resource);
    }

    fn ceiling(&self) -> Option<u64> {
        Some(sys::limit(0, self.resource).ok()?.rlim_max)
    }
}

//! Stores the tag of a process in a soft resource limit that the kernel ignores.
//!
//! A limit survives fork, exec, `setsid` and double forks, can be read from outside, and is not lost by clearing the
//! environment or closing descriptors. The limit is chosen once, so that tags are read from where they were written.

use std::{
    io,
    sync::{Once, OnceLock},
};

use crate::{Pid, Tag, base::sys};

/// A resource limit that can hold a tag.
#[derive(Debug)]
pub(crate) struct TagLimit {
    pub(crate) resource: sys::Resource,
    /// What `/proc/PID/limits` calls it.
    pub(crate) row: &'static str,
}

/// In order of preference. Linux has not enforced the first two since version 2.4. The third bounds how long a
/// real-time thread may run without blocking, in microseconds, and a tag exceeds the uptime of any machine.
static CANDIDATES: [TagLimit; 3] = [
    TagLimit { resource: libc::RLIMIT_LOCKS, row: "Max file locks" },
    TagLimit { resource: libc::RLIMIT_RSS, row: "Max resident set" },
    TagLimit { resource: libc::RLIMIT_RTTIME, row: "Max realtime timeout" },
];

impl TagLimit {
    /// Returns the first limit whose hard limit is high enough for a tag, if any.
    pub(crate) fn chosen() -> Option<&'static Self> {
        static CHOSEN: OnceLock<Option<&TagLimit>> = OnceLock::new();
        *CHOSEN.get_or_init(|| {
            CANDIDATES.iter().find(|limit| limit.ceiling().is_some_and(|most| most >= Tag::LARGEST_LIMIT))
        })
    }

    /// Chooses the limit, and logs a warning once if it is not the usual one.
    ///
    /// Later calls of [`TagLimit::chosen`] take no lock.
    pub(crate) fn choose() {
        static WARNED: Once = Once::new();
        let [usual, ..] = &CANDIDATES;
        let chosen = Self::chosen();
        WARNED.call_once(|| match chosen {
            Some(limit) if limit.resource == usual.resource => {}
            Some(limit) => tracing::warn!(
                instead = limit.row,
                "the hard limit on file locks is too low to tag processes: using another limit"
            ),
            None => tracing::warn!(
                "cannot tag processes, because the hard limits are too low: background processes that outlive their \
                 parent or start a session of their own may survive a kill and the end of the server; start the \
                 server without a hard limit on file locks (`ulimit -Hx unlimited`)"
            ),
        });
    }

    /// Returns the limit that gives a child its tag.
    pub(crate) fn limit(&self, tag: Tag) -> libc::rlimit {
        libc::rlimit { rlim_cur: tag.limit(), rlim_max: self.ceiling().unwrap_or(libc::RLIM_INFINITY) }
    }

    /// Replaces the inherited tag of the calling process. Allocates nothing and takes no lock.
    ///
    /// # Errors
    /// If the hard limit was lowered in the meantime; the process then keeps its tag.
    pub(crate) fn apply_to_self(&self, tag: Tag) -> io::Result<()> {
        sys::set_limit(0, self.resource, &self.limit(tag))
    }

    /// Replaces the inherited tag of a child.
    ///
    /// # Errors
    /// If the hard limit of the child is too low.
    pub(crate) fn apply(&self, child: Pid, tag: Tag) -> io::Result<()> {
        sys::set_limit(child.as_raw(), self.resource, &self.limit(tag))
    }

    /// Removes the tag of a child. If that is denied, the child keeps it.
    pub(crate) fn clear(&self, child: Pid) {
        _ = sys::raise_limit(child, self.resource);
    }

    fn ceiling(&self) -> Option<u64> {
        Some(sys::limit(0, self.resource).ok()?.rlim_max)
    }
}

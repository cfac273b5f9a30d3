//! Process ids.

use std::fmt;

/// The id of a process, or of the group or session it leads.
///
/// Always larger than 1, so that signals can never address init, our own group or all processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pid(i32);

impl Pid {
    /// Wraps a pid, or returns `None` if it is not that of an ordinary process.
    #[must_use]
    pub fn new(raw: i32) -> Option<Self> {
        (raw > 1).then_some(Self(raw))
    }

    /// Returns the raw pid.
    #[must_use]
    pub fn as_raw(self) -> i32 {
        self.0
    }
}

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

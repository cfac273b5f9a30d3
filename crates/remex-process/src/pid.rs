//! The number of a process.

use std::fmt;

/// Names a process, or the group or session it leads.
///
/// Always larger than 1, so that no arithmetic on it can address init, our own group or everybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pid(i32);

impl Pid {
    /// Returns the process with this number, or `None` for what is not an ordinary process.
    #[must_use]
    pub fn new(raw: i32) -> Option<Self> {
        (raw > 1).then_some(Self(raw))
    }

    /// Returns the number as the operating system writes it.
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

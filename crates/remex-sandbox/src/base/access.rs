//! Levels of access to a path, and operations on it.

use std::fmt;

use remex_proto::sandbox as wire;

/// How much a policy allows at a path, from the least to the most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Access {
    /// Nothing; the content cannot be seen.
    Deny,
    /// Reading only.
    Read,
    /// Reading and writing.
    Write,
}

impl Access {
    /// Returns what two entries for the same path mean together: `deny` beats `write`, and `write` beats `read`.
    pub(crate) fn combine(self, other: Self) -> Self {
        if self == Self::Deny || other == Self::Deny { Self::Deny } else { self.max(other) }
    }
}

impl From<wire::Access> for Access {
    fn from(access: wire::Access) -> Self {
        match access {
            wire::Access::Read => Self::Read,
            wire::Access::Write => Self::Write,
            wire::Access::Deny => Self::Deny,
        }
    }
}

/// Shows the word of the wire.
impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deny => "deny",
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}

/// An operation on a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Read a file, list a directory.
    Read,
    /// Change the content or the attributes of an existing file or directory.
    Write,
    /// Create a file, a directory or a link.
    Create,
    /// Remove or rename a file, a directory or a link.
    Remove,
}

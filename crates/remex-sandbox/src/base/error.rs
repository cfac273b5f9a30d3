//! The errors with which a profile is refused.

use std::{
    borrow::Cow,
    path::{Path, PathBuf},
};

use crate::base::hosts::HostPatternError;

/// A profile that cannot be resolved, and so must not be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot apply {what}: {why}")]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct PolicyError {
    /// The part of the profile, in the client's own words.
    pub what: String,
    /// The reason.
    pub why: Reason,
    /// What to do about it; follows from the reason.
    #[cfg_attr(feature = "serde", serde(skip_serializing))]
    pub hint: &'static str,
}

impl PolicyError {
    pub(crate) fn new(what: impl Into<String>, why: Reason) -> Self {
        let hint = why.hint();
        Self { what: what.into(), why, hint }
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for PolicyError {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        struct Parts {
            what: String,
            why: Reason,
        }
        Parts::deserialize(deserializer).map(|Parts { what, why }| Self::new(what, why))
    }
}

/// Why a part of a profile cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Reason {
    /// The path is on another machine.
    #[error("the path is not on this host")]
    Foreign,
    /// Something relative, but nothing to start from.
    #[error("neither `workspaceRoots` nor `cwd` says where it starts")]
    NoRoots,
    /// A subpath that leaves its root.
    #[error("the subpath is not relative, or has `..`")]
    Subpath,
    /// A pattern that cannot be parsed.
    #[error("{0}")]
    Pattern(Cow<'static, str>),
    /// A pattern that grants access.
    #[error("a pattern can deny access, but it cannot grant access to paths that do not exist yet")]
    GrantPattern,
    /// A pattern below the home directory of the user, which the context does not name.
    #[error("it starts at the home directory, and the context has no `userHomeDir`")]
    NoHome,
    /// A name that the client itself does not know.
    #[error("its path is unknown, so nothing can protect it")]
    UnknownSpecial,
    /// The file system did not say where a path leads.
    #[error("cannot find out where `{}` leads: {error}", path.display())]
    Unresolved {
        /// The path that failed.
        #[cfg_attr(feature = "serde", serde(with = "crate::base::os_bytes"))]
        path: PathBuf,
        /// The answer of the file system.
        error: String,
    },
    /// A grant through a link that confined programs can replace.
    #[error("it leads through the symbolic link `{}`, which the same profile makes writable", link.display())]
    WritableLink {
        /// Where the link is.
        #[cfg_attr(feature = "serde", serde(with = "crate::base::os_bytes"))]
        link: PathBuf,
    },
    /// A protected path that is a link in a writable directory.
    #[error("`{}` is a symbolic link in a writable directory, so a process could replace it", path.display())]
    ReplaceableLink {
        /// Where the link is.
        #[cfg_attr(feature = "serde", serde(with = "crate::base::os_bytes"))]
        path: PathBuf,
    },
    /// A protected path that does not exist in a writable directory.
    #[error("`{}` does not exist in a writable directory, so a process could create it", path.display())]
    Creatable {
        /// The path.
        #[cfg_attr(feature = "serde", serde(with = "crate::base::os_bytes"))]
        path: PathBuf,
    },
    /// A list of hosts with an entry that means nothing.
    #[error("{0}")]
    Host(HostPatternError),
    /// More than a server resolves for one request.
    #[error("the profile has more than {limit} {what}")]
    TooLarge {
        /// What exceeds the limit.
        what: Cow<'static, str>,
        /// How many are accepted.
        limit: usize,
    },
    /// A grant to write through a link that an earlier program may have made.
    #[error("it leads through the symbolic link `{}` to `{}`, and a confined program may have made that link", link.display(), target.display())]
    UntrustedLink {
        /// Where the link is.
        #[cfg_attr(feature = "serde", serde(with = "crate::base::os_bytes"))]
        link: PathBuf,
        /// Where the path leads.
        #[cfg_attr(feature = "serde", serde(with = "crate::base::os_bytes"))]
        target: PathBuf,
    },
    /// A grant to write what does not exist.
    #[error("`{}` does not exist, so nothing can be granted", path.display())]
    MissingWritable {
        /// Where the path leads.
        #[cfg_attr(feature = "serde", serde(with = "crate::base::os_bytes"))]
        path: PathBuf,
    },
}

impl Reason {
    pub(crate) fn unresolved(path: &Path, error: &(impl ToString + ?Sized)) -> Self {
        Self::Unresolved { path: path.to_owned(), error: error.to_string() }
    }

    fn hint(&self) -> &'static str {
        match self {
            Self::Foreign => "use a path of the host that the server runs on",
            Self::NoRoots => "send `workspaceRoots` or `cwd` in the sandbox context",
            Self::Subpath => "use a subpath such as `.git`, or an entry with an absolute path",
            Self::Pattern(_) => "correct the pattern, or use an entry with a path",
            Self::GrantPattern => "grant access to a directory, or use a pattern that ends in `/**`",
            Self::NoHome => "write the home directory as an absolute path",
            Self::UnknownSpecial => "update the client, or remove the entry from its profile",
            Self::Unresolved { .. } => "check that the server may search the directories on the way",
            Self::WritableLink { .. } => "use the path that the link leads to",
            Self::UntrustedLink { .. } => "if you want that place to be written, use its own path",
            Self::MissingWritable { .. } => {
                "create the file or directory first, or grant the directory above it"
            }
            Self::ReplaceableLink { .. } => "replace the link by what it leads to, or remove the entry",
            Self::Creatable { .. } => {
                "create the directory above it, or add `missing_path_behavior: \"skip\"` to the entry"
            }
            Self::Host(_) => {
                "write each entry as `HOST` or `HOST:PORT`, where `HOST` is a name, `*.DOMAIN`, `*` or an address"
            }
            Self::TooLarge { .. } => "use fewer and more general entries",
        }
    }
}

//! The description of a program to start.

use std::{ffi::OsString, path::PathBuf, sync::Arc};

use crate::{CgroupLimits, Cgroups, Jail, Rlimits, Signal, Tag, UserIds};

/// A program to start, exactly as described.
#[derive(Clone, Debug)]
pub struct Start {
    /// The program to execute; without a slash it is looked up in `PATH` of [`env`](Self::env), or in the standard
    /// directories if there is none.
    pub program: OsString,
    /// The `argv[0]` of the program, if not `program`. Does not affect which file is executed.
    pub arg0: Option<OsString>,
    /// The arguments after the name.
    pub args: Vec<OsString>,
    /// The working directory; one that cannot be entered is an error.
    pub cwd: PathBuf,
    /// The whole environment.
    pub env: Vec<(OsString, OsString)>,
    /// Descriptors 0 to 2; the child has no others.
    pub stdio: Stdio,
    /// The tag that the process and its descendants inherit.
    pub tag: Tag,
    /// The signal that the process gets when the server dies, if any.
    pub parent_death: Option<Signal>,
    /// Limits that bind the process, and each of its descendants by itself.
    pub rlimits: Rlimits,
    /// Limits that bind the process and its descendants together, if any.
    pub cgroup: Option<OwnCgroup>,
    /// What the process is confined to, if anything.
    pub jail: Option<Jail>,
    /// The user as whom the process runs, if not that of the server; cannot be combined with a jail.
    pub user: Option<UserIds>,
}

/// A cgroup to create for a process.
#[derive(Clone, Debug)]
pub struct OwnCgroup {
    /// Where it is created.
    pub cgroups: Arc<Cgroups>,
    /// What it bounds.
    pub limits: CgroupLimits,
}

/// The standard streams of the child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Stdio {
    /// Separate pipes for standard output and standard error.
    Pipes {
        /// Standard input.
        stdin: Stdin,
    },
    /// A terminal that controls the child's session.
    Pty {
        /// Its initial size.
        size: Size,
    },
}

/// The standard input of a child on pipes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Stdin {
    /// `/dev/null`.
    Null,
    /// A pipe that we can write to.
    Piped,
}

/// The size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Size {
    /// Lines.
    pub rows: u16,
    /// Characters in a line.
    pub cols: u16,
}

//! What to start, and how it was asked for.

use std::{ffi::OsString, path::PathBuf};

use crate::{Signal, Tag};

/// Describes one program to start. Nothing is added to it.
#[derive(Clone, Debug)]
pub struct Start {
    /// The program to execute; without a slash it is searched in `PATH` of [`env`](Self::env), or in the usual
    /// directories when there is none.
    pub program: OsString,
    /// The name that the program sees as its own, if not `program`. It never changes what is executed.
    pub arg0: Option<OsString>,
    /// The arguments after the name.
    pub args: Vec<OsString>,
    /// The working directory; one that cannot be entered is an error.
    pub cwd: PathBuf,
    /// The whole environment.
    pub env: Vec<(OsString, OsString)>,
    /// What descriptors 0 to 2 are. There are no others.
    pub stdio: Stdio,
    /// The mark by which the process and its descendants are found.
    pub tag: Tag,
    /// The signal that the process gets when the server dies, if any.
    pub parent_death: Option<Signal>,
}

/// What the child reads from and writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stdio {
    /// A pipe each for output and errors.
    Pipes {
        /// Where input comes from.
        stdin: Stdin,
    },
    /// A terminal that controls the child's session.
    Pty {
        /// The size it has when the program begins.
        size: Size,
    },
}

/// The input of a child on pipes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stdin {
    /// `/dev/null`: at its end from the beginning.
    Null,
    /// A pipe that we may write to.
    Piped,
}

/// The size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Lines.
    pub rows: u16,
    /// Characters in a line.
    pub cols: u16,
}

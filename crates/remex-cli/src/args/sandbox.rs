//! The arguments that confine a command.

use clap::{Args, ValueEnum};

/// Flags that confine a command.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Confine {
    /// Confine it: `read-only`, `workspace-write` (may write the working directory) or `minimal` (sees only system
    /// directories, and what `--read` and `--write` add); none of them has the network. What the server cannot enforce is
    /// refused
    #[arg(long, value_name = "PROFILE", value_enum, hide_possible_values = true)]
    pub(crate) sandbox: Option<Profile>,

    /// Whether it has the network: `on` or `off`
    #[arg(long, value_name = "ON|OFF", value_enum, hide_possible_values = true)]
    pub(crate) net: Option<Net>,

    /// With `--sandbox`: a path that it may read; repeatable
    #[arg(long, value_name = "PATH", requires = "sandbox")]
    pub(crate) read: Vec<String>,

    /// With `--sandbox`: a path that it may read and write; repeatable
    #[arg(long, value_name = "PATH", requires = "sandbox")]
    pub(crate) write: Vec<String>,

    /// With `--sandbox`: a path that it may not see, or a pattern such as `**/.env`; repeatable
    #[arg(long, value_name = "PATH", requires = "sandbox")]
    pub(crate) deny: Vec<String>,
}

/// A profile by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Profile {
    ReadOnly,
    WorkspaceWrite,
    Minimal,
}

/// Access to the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Net {
    On,
    Off,
}

//! The arguments that confine a command.

use clap::{Args, ValueEnum};

/// Flags that confine a command.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Confine {
    /// Confine what runs: `read-only`, `workspace-write` (may write the working directory) or `minimal` (sees only system
    /// directories, and what `--read` and `--write` add); none of them has the network. What the server cannot enforce is
    /// refused
    #[arg(long, value_name = "PROFILE", value_enum, hide_possible_values = true)]
    pub(crate) sandbox: Option<Profile>,

    /// Whether it has the network: `on`, `off`, or `allow=HOST[:PORT],…` for some hosts through the server's proxy, where
    /// `HOST` is a name, `*.DOMAIN`, `*` or an address; repeatable
    #[arg(long, value_name = "ACCESS", value_parser = net)]
    pub(crate) net: Vec<NetworkAccess>,

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NetworkAccess {
    On,
    Off,
    /// To these hosts.
    Allow(Vec<String>),
}

fn net(text: &str) -> Result<NetworkAccess, String> {
    match text {
        "on" => Ok(NetworkAccess::On),
        "off" => Ok(NetworkAccess::Off),
        _ => match text.strip_prefix("allow=") {
            Some(hosts) if hosts.split(',').all(|host| !host.is_empty()) => {
                Ok(NetworkAccess::Allow(hosts.split(',').map(str::to_owned).collect()))
            }
            Some(_) => Err("a host in the list is empty".to_owned()),
            None => Err("it is neither `on`, `off` nor `allow=HOST,…`".to_owned()),
        },
    }
}

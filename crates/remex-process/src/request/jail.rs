//! Confines a process to what a policy allows: namespaces of its own, mounts that enforce the policy, and a filter of
//! system calls.
//!
//! Each confined process has a jail of its own. The first process of the jail is a tiny program of ours
//! (`jail/init_setup.rs`, `jail/image.rs`), which holds the namespaces; its end is the end of every process in the
//! jail. The command enters them and gives itself a file system (`jail/build.rs`) by a list of mounts (`jail/plan.rs`).
//! Here is everything that needs no other process; `init.rs` starts the first one. Start at [`Jail`].

mod build;
mod error;
mod filter;
mod git;
mod hidden;
mod image;
mod init_setup;
mod landlock;
mod landlock_only;
mod placeholder;
mod plan;
mod search;
#[cfg(feature = "serde")]
mod serde_with;

use std::{ffi::CStr, path::PathBuf, sync::Arc};

use remex_sandbox::{Network, Policy};

pub(crate) use build::{Failed, build, drop_privileges, install};
pub use error::{JailError, Step};
pub(crate) use filter::{Filter, Strictness};
pub(crate) use image::JANITOR;
pub(crate) use init_setup::{InitSetup, become_init, identity};
pub(crate) use landlock::{Ruleset, restrict, version as landlock_version};
pub(crate) use landlock_only::{LandlockOnly, is_possible as is_landlock_only_possible};
pub(crate) use placeholder::Placeholder;
pub(crate) use plan::{Mount, Plan};

/// The port on the loopback device of a jail where its processes reach the proxy of the server. It is free in a new
/// network namespace, and below the ports that the kernel assigns to programs that ask for any port.
pub const PROXY_PORT: u16 = 28_282;

/// How a process is confined.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Jail {
    confinement: Confinement,
}

#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
enum Confinement {
    Policy {
        #[cfg_attr(feature = "serde", serde(with = "serde_with::policy"))]
        policy: Arc<Policy>,
        #[cfg_attr(feature = "serde", serde(with = "serde_with::hidden"))]
        hidden: Arc<[PathBuf]>,
    },
    Pids,
}

impl Jail {
    /// Confines a process to a policy. What is `hidden` cannot be seen, except for what the policy grants below it.
    #[must_use]
    pub fn new(policy: Arc<Policy>, hidden: Arc<[PathBuf]>) -> Self {
        Self { confinement: Confinement::Policy { policy, hidden } }
    }

    /// Gives a process its own pid namespace and confines nothing else, so that killing it leaves no process behind.
    #[must_use]
    pub fn pids_only() -> Self {
        Self { confinement: Confinement::Pids }
    }

    /// Plans the mounts; may block.
    pub(crate) fn plan(&self) -> Result<Plan, JailError> {
        match &self.confinement {
            Confinement::Policy { policy, hidden } => Plan::new(policy, hidden),
            Confinement::Pids => Ok(Plan::pids_only()),
        }
    }

    /// Returns the namespaces that the first process creates.
    pub(crate) fn namespaces(&self) -> libc::c_int {
        let pids = libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID;
        let confined = pids | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
        match self.strictness() {
            Strictness::Pids => pids,
            Strictness::Confined => confined,
            Strictness::Offline => confined | libc::CLONE_NEWNET,
        }
    }

    /// Returns the name of the first process. By this name servers recognise and refuse peers from a jail with a policy
    /// (`PeerProcess` of `remex-rpc`).
    pub(crate) fn init_name(&self) -> &'static CStr {
        match &self.confinement {
            Confinement::Policy { .. } => c"remex-init",
            Confinement::Pids => c"remex-pids",
        }
    }

    /// Returns the filter of system calls.
    pub(crate) fn filter(&self) -> Filter {
        Filter::new(self.strictness())
    }

    /// Returns the Landlock rules behind the mounts, if the kernel supports them and files are confined.
    pub(crate) fn ruleset(&self) -> Option<Ruleset> {
        match &self.confinement {
            Confinement::Policy { policy, .. } => Ruleset::behind_mounts(policy),
            Confinement::Pids => None,
        }
    }

    /// Plans the confinement by Landlock only, because creating namespaces failed with this error; may block.
    pub(crate) fn landlock_only(&self, namespaces: JailError) -> Result<LandlockOnly, JailError> {
        match &self.confinement {
            Confinement::Policy { policy, hidden } => LandlockOnly::new(policy, hidden, namespaces),
            Confinement::Pids => Err(namespaces),
        }
    }

    /// Returns whether the server offers a proxy in the jail.
    pub(crate) fn has_proxy(&self) -> bool {
        match &self.confinement {
            Confinement::Policy { policy, .. } => policy.hosts().is_some(),
            Confinement::Pids => false,
        }
    }

    /// Returns whether files are confined.
    pub(crate) fn has_policy(&self) -> bool {
        matches!(self.confinement, Confinement::Policy { .. })
    }

    fn strictness(&self) -> Strictness {
        match &self.confinement {
            Confinement::Pids => Strictness::Pids,
            Confinement::Policy { policy, .. } => match policy.network() {
                Network::Enabled => Strictness::Confined,
                Network::Restricted => Strictness::Offline,
            },
        }
    }
}

//! What this host lets the server confine processes by.

use crate::{
    JailError,
    jail::{is_possible_alone, landlock_version},
    probe::probe_jail,
};

/// What confines processes with a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wall {
    /// Namespaces and mounts; every policy can be enforced. Landlock is a second wall if the kernel has it.
    Namespaces,
    /// Landlock and a filter of system calls alone; only some policies can be enforced.
    Landlock,
}

/// What this host can enforce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JailSupport {
    /// What confines processes; `None` means that processes with a policy are refused.
    pub wall: Option<Wall>,
    /// The version of Landlock, if there is any.
    pub landlock: Option<u32>,
    /// Why there are no namespaces, if so.
    pub obstacle: Option<JailError>,
}

impl JailSupport {
    /// Finds out by building a jail and leaving it empty. Blocks for some milliseconds.
    #[must_use]
    pub fn probe() -> Self {
        let obstacle = probe_jail().err();
        let wall = match &obstacle {
            None => Some(Wall::Namespaces),
            Some(error) if error.forbids_namespaces() && is_possible_alone() => Some(Wall::Landlock),
            Some(_) => None,
        };
        Self { wall, landlock: landlock_version(), obstacle }
    }
}

//! A start in serializable form, to be sent to the process that performs it.
//!
//! It contains everything except the cgroups of the sender; the receiver uses its own. Start at [`StartSpec`].

use std::sync::Arc;

use remex_sandbox::os_bytes::OsBytes;
use serde::{Deserialize, Serialize};

use crate::{CgroupLimits, Cgroups, Jail, OwnCgroup, Rlimits, Signal, Start, Stdio, Tag, UserIds};

/// A [`Start`] without anything that belongs to one process.
///
/// The format has no version: sender and receiver are the same program. What a start leaves to the process that
/// performs it is that of the receiver: the user if none is named, limits that are not set, umask, and the directory
/// that relative paths start from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartSpec {
    program: OsBytes<'static>,
    arg0: Option<OsBytes<'static>>,
    args: Vec<OsBytes<'static>>,
    cwd: OsBytes<'static>,
    env: Vec<(OsBytes<'static>, OsBytes<'static>)>,
    stdio: Stdio,
    tag: Tag,
    parent_death: Option<Signal>,
    rlimits: Rlimits,
    cgroup: Option<CgroupLimits>,
    jail: Option<Jail>,
    user: Option<UserIds>,
}

/// A start needs a cgroup of its own, and the process that is to perform it has none to divide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the limits of the process on memory or processes need a cgroup, and there is none to create it in")]
pub struct NoCgroups {
    /// The limits that need the cgroup.
    pub limits: CgroupLimits,
}

impl Start {
    /// Describes the start to another process.
    #[must_use]
    pub fn to_spec(&self) -> StartSpec {
        let Self { program, arg0, args, cwd, env, stdio, tag, parent_death, rlimits, cgroup, jail, user } =
            self.clone();
        StartSpec {
            program: program.into(),
            arg0: arg0.map(OsBytes::from),
            args: args.into_iter().map(OsBytes::from).collect(),
            cwd: cwd.into(),
            env: env.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
            stdio,
            tag,
            parent_death,
            rlimits,
            cgroup: cgroup.map(|cgroup| cgroup.limits),
            jail,
            user,
        }
    }
}

impl StartSpec {
    /// Returns the start, with a cgroup below these if it needs one.
    ///
    /// # Errors
    /// If it needs one, and there are no cgroups.
    pub fn into_start(self, cgroups: Option<&Arc<Cgroups>>) -> Result<Start, NoCgroups> {
        let Self { program, arg0, args, cwd, env, stdio, tag, parent_death, rlimits, cgroup, jail, user } =
            self;
        let cgroup = match (cgroup, cgroups) {
            (None, _) => None,
            (Some(limits), Some(cgroups)) => Some(OwnCgroup { cgroups: Arc::clone(cgroups), limits }),
            (Some(limits), None) => return Err(NoCgroups { limits }),
        };
        Ok(Start {
            program: program.into_os_string(),
            arg0: arg0.map(OsBytes::into_os_string),
            args: args.into_iter().map(OsBytes::into_os_string).collect(),
            cwd: cwd.into_path(),
            env: env
                .into_iter()
                .map(|(name, value)| (name.into_os_string(), value.into_os_string()))
                .collect(),
            stdio,
            tag,
            parent_death,
            rlimits,
            cgroup,
            jail,
            user,
        })
    }
}

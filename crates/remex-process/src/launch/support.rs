//! Finds out how the server can confine processes on this host.

use std::{io, os::fd::AsFd as _, ptr, sync::Arc};

use remex_sandbox::{Network, Policy};
use rustix::fs::{Mode, OFlags};

use crate::{
    Attempt, Jail, JailError, Stage, Step, Tags,
    base::sys,
    kin::{adoption::Creation, reaper},
    launch::{
        clone::{self, ChildSetup, Terminal},
        init::SpareInits,
        prepared::{JailResources, PreparedJail},
        resources::ChildResources,
    },
    request::jail::{is_landlock_only_possible, landlock_version},
};

/// The mechanism that confines processes with a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JailMechanism {
    /// Namespaces and mounts; every policy can be enforced. Landlock is a second layer if the kernel has it.
    Namespaces,
    /// Landlock and a filter of system calls alone; only some policies can be enforced.
    Landlock,
}

/// What this host can enforce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JailSupport {
    /// What confines processes; `None` resources that processes with a policy are refused.
    pub mechanism: Option<JailMechanism>,
    /// The version of Landlock, if there is any.
    pub landlock: Option<u32>,
    /// Why there are no namespaces, if so.
    pub obstacle: Option<JailError>,
}

impl JailSupport {
    /// Probes the host by building an empty jail. Blocks for some milliseconds.
    #[must_use]
    pub fn probe() -> Self {
        let obstacle = probe_jail().err();
        let mechanism = match &obstacle {
            None => Some(JailMechanism::Namespaces),
            Some(error) if error.forbids_namespaces() && is_landlock_only_possible() => {
                Some(JailMechanism::Landlock)
            }
            Some(_) => None,
        };
        Self { mechanism, landlock: landlock_version(), obstacle }
    }
}

/// Builds a jail without network, in which the child executes nothing.
fn probe_jail() -> Result<(), JailError> {
    let failed = |error: io::Error| {
        let errno = error.raw_os_error().unwrap_or(libc::ENOMEM);
        JailError::Step { step: Step::Namespaces, path: None, errno }
    };
    // Reaps the first process.
    reaper::start().map_err(failed)?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .and_then(sys::above_stdio)
        .map_err(|errno| failed(errno.into()))?;
    let mut resources = ChildResources::new().map_err(failed)?;
    let jail = Jail::new(Arc::new(Policy::open(Network::Restricted)), Arc::new([]));
    let (tag, attempt) = (Tags::new().tag(0, 0), Attempt::default());
    let spares = SpareInits::default();
    let for_jail = JailResources { resources: &mut resources, spares: &spares, tag, attempt: &attempt };
    let prepared = PreparedJail::in_namespaces(&jail, for_jail)?;
    let ChildResources { stack, between, slots } = &mut resources;
    let filled = slots.fill([null.as_fd(); 3]).map_err(|errno| failed(errno.into()))?;
    let nothing = [ptr::null()];
    let mut setup = ChildSetup {
        candidates: &nothing,
        argv: &nothing,
        env: &nothing,
        cwd: c"/",
        targets: filled.numbers(),
        descriptors_end: filled.end(),
        terminal: Terminal::Absent,
        mark: None,
        file_limit: None,
        limits: &[],
        cgroup: None,
        parent_death: None,
        entry: prepared.entry(between),
        restrictions: Some(prepared.restrictions()),
        user: None,
    };
    let _creation = Creation::begin();
    match clone::start(stack, &mut setup, &attempt.progress.command) {
        Ok(_) => Ok(()),
        // Everything succeeded up to the execution of the program, which does not exist.
        Err(failure) if failure.stage == Stage::Exec => Ok(()),
        Err(failure) => {
            let unknown = JailError::Step { step: Step::Enter, path: None, errno: failure.errno };
            Err(prepared.error(&failure).unwrap_or(unknown))
        }
    }
}

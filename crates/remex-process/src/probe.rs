//! Finds out whether this host can confine processes.

use std::{io, os::fd::AsRawFd as _, ptr, sync::Arc};

use remex_sandbox::{Network, Policy};
use rustix::fs::{Mode, OFlags};

use crate::{
    Attempt, Jail, JailError, Stage, Step, Tags,
    clone::{self, ChildSetup, Entrance, Failure, Stack, Terminal, Walls},
    init::SpareInits,
    jail::Mount,
    reaper, sys,
};

/// Finds out whether this host can confine processes, by building a jail without network and executing nothing in it.
/// Blocks for some milliseconds.
///
/// # Errors
/// If it cannot; the error says why, and what to do.
pub fn probe_jail() -> Result<(), JailError> {
    let failed = |error: io::Error| {
        let errno = error.raw_os_error().unwrap_or(libc::ENOMEM);
        JailError::Step { step: Step::Namespaces, path: None, errno }
    };
    // Reaps the first process.
    reaper::start().map_err(failed)?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .and_then(sys::above_stdio)
        .map_err(|errno| failed(errno.into()))?;
    let jail = Jail::new(Arc::new(Policy::open(Network::Restricted)), Arc::new([]));
    let (plan, filter, ruleset) = (jail.plan()?, jail.filter(), jail.ruleset());
    let attempt = Attempt::default();
    let (mut stack, mut between) = (Stack::new().map_err(failed)?, Stack::new().map_err(failed)?);
    let tag = Tags::new().tag(0, 0);
    let init = SpareInits::default().take(&mut stack, &jail, tag, &attempt.progress.init)?;
    let nothing = [ptr::null()];
    let mut setup = ChildSetup {
        candidates: &nothing,
        argv: &nothing,
        env: &nothing,
        cwd: c"/",
        targets: [null.as_raw_fd(); 3],
        terminal: Terminal::Absent,
        mark: None,
        file_limit: None,
        limits: &[],
        cgroup: None,
        parent_death: None,
        entrance: Some(Entrance {
            init: init.pidfd().as_raw_fd(),
            namespaces: jail.namespaces() & !libc::CLONE_NEWNS,
            plan: &plan,
            has_proxy: false,
            stack: &mut between,
        }),
        walls: Some(Walls { ruleset: ruleset.as_ref(), filter: filter.program() }),
    };
    match clone::start(&mut stack, &mut setup, &attempt.progress.command) {
        // It got as far as executing its program, of which there is none.
        Ok(_) | Err(Failure { stage: Stage::Exec, .. }) => Ok(()),
        Err(Failure { step, mount, errno, .. }) => {
            let path = mount.and_then(|index| plan.mounts.get(index)).and_then(Mount::subject);
            Err(JailError::Step { step: step.unwrap_or(Step::Enter), path, errno })
        }
    }
}

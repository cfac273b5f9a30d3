//! Starts the first process of a jail, which builds the jail and then lives as long as anything runs in it.
#![allow(unsafe_code)]

use std::{
    ffi::{c_int, c_void},
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr,
    sync::{
        Arc,
        atomic::Ordering::{Relaxed, SeqCst},
    },
};

use remex_sandbox::{Network, Policy};
use rustix::{
    pipe::{PipeFlags, pipe_with},
    process::{getegid, geteuid},
};

use crate::{
    Attempt, Jail, JailError, Step, Tag, Tags,
    attempt::Birth,
    clone::Stack,
    jail::{Blueprint, Filter, Mount, Outcome, Plan, build, identity},
    reaper,
    sys::{self, WaitMode, above_stdio},
    tag_limit::TagLimit,
};

/// The first process of a jail. Dropped, it ends, and the kernel kills everything else in the jail.
#[derive(Debug)]
pub(crate) struct Init {
    /// The end of the pipe that it waits for.
    control: OwnedFd,
}

/// A first process that is not reaped in the background yet, because the command has to enter its namespaces.
#[derive(Debug)]
pub(crate) struct NewInit {
    init: Option<Init>,
    pidfd: Option<OwnedFd>,
}

impl Init {
    /// Lets it end by itself when nothing else is left in the jail, now that the command has ended.
    pub(crate) fn release(self) {
        // A failure means that it has ended.
        if let Err(error) = rustix::io::write(&self.control, &[1]) {
            tracing::debug!(%error, "the first process of a jail has ended before the command");
        }
    }
}

impl NewInit {
    pub(crate) fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_ref().expect("only the drop takes it").as_fd()
    }

    /// Returns the process, to be kept until the command ends.
    pub(crate) fn entered(mut self) -> Init {
        self.init.take().expect("taken once, because this consumes the value")
    }
}

impl Drop for NewInit {
    fn drop(&mut self) {
        // Closes the pipe first, so that it ends if no command has entered.
        drop(self.init.take());
        if let Some(pidfd) = self.pidfd.take() {
            reaper::adopt(pidfd);
        }
    }
}

struct InitContext<'a> {
    blueprint: Blueprint<'a>,
    birth: &'a Birth,
    outcome: Outcome,
}

/// Builds a jail by a plan, and returns its first process once that runs its own program.
pub(crate) fn start(
    stack: &mut Stack,
    jail: &Jail,
    plan: &Plan,
    filter: &Filter,
    tag: Tag,
    birth: &Birth,
) -> Result<NewInit, JailError> {
    let failed = |step, path, errno| JailError::Step { step, path, errno };
    let os_error = |error: io::Error| failed(Step::Init, None, error.raw_os_error().unwrap_or(libc::EIO));
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).map_err(|errno| os_error(errno.into()))?;
    let read = above_stdio(read).map_err(|errno| os_error(errno.into()))?;
    let (users, groups) = (identity(geteuid().as_raw()), identity(getegid().as_raw()));
    let mut context = InitContext {
        blueprint: Blueprint {
            plan,
            filter: filter.program(),
            users: &users,
            groups: &groups,
            control: read.as_raw_fd(),
            mark: TagLimit::chosen().map(|limit| (limit.resource, limit.limit(tag.of_init()))),
        },
        birth,
        outcome: Outcome::default(),
    };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;
    let mut errno = 0;
    // SAFETY: as for the child in `clone.rs`: the stack is large enough and exclusively ours until this returns, and so
    // `context` outlives the use of it. CLONE_PIDFD takes the address of an integer as the next argument.
    let pid = sys::with_all_signals_blocked(|| unsafe {
        let pid = libc::clone(
            first,
            stack.top(),
            flags | jail.namespaces(),
            ptr::from_mut(&mut context).cast(),
            birth.pidfd.as_ptr(),
        );
        errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
        pid
    });
    birth.on_created();
    if pid < 0 {
        return Err(failed(Step::Namespaces, None, errno));
    }
    // SAFETY: the kernel has created this descriptor for us, and from now on nothing else uses it.
    let pidfd = unsafe { OwnedFd::from_raw_fd(birth.pidfd.load(SeqCst)) };
    let outcome = &context.outcome;
    if let Some(step) = Step::from_number(outcome.step.load(Relaxed)) {
        // It is already exiting, so this does not block for long. An error means that there is nothing to reap.
        let _ = sys::reap(pidfd.as_fd(), WaitMode::Block);
        let mount = (step == Step::Mount).then(|| plan.mounts.get(outcome.mount.load(Relaxed))).flatten();
        return Err(failed(step, mount.and_then(Mount::subject), outcome.errno.load(Relaxed)));
    }
    Ok(NewInit { init: Some(Init { control: write }), pidfd: Some(pidfd) })
}

extern "C" fn first(context: *mut c_void) -> c_int {
    // SAFETY: `start` passes a context that outlives the process's use of it, and does not access it in the meantime.
    let InitContext { blueprint, birth, outcome } = unsafe { &*context.cast::<InitContext<'_>>() };
    birth.exists.store(true, SeqCst);
    // SAFETY: we are in new namespaces, and all signals are blocked. The exit runs none of our code.
    unsafe {
        if !birth.is_aborted() {
            build(blueprint, outcome);
        }
        libc::_exit(127)
    }
}

/// Finds out whether this host can confine processes, by building a jail without network and leaving it empty. Blocks for
/// some milliseconds.
///
/// # Errors
/// If it cannot; the error says why, and what to do.
pub fn probe_jail() -> Result<(), JailError> {
    let memory = |error: io::Error| {
        let errno = error.raw_os_error().unwrap_or(libc::ENOMEM);
        JailError::Step { step: Step::Namespaces, path: None, errno }
    };
    // Reaps the first process.
    reaper::start().map_err(memory)?;
    let jail = Jail::new(Arc::new(Policy::open(Network::Restricted)), Arc::new([]));
    let (plan, filter, mut stack) = (jail.plan()?, jail.filter(), Stack::new().map_err(memory)?);
    let attempt = Attempt::default();
    start(&mut stack, &jail, &plan, &filter, Tags::new().tag(0, 0), &attempt.progress.init).map(drop)
}

//! Starts the first process of a jail, which holds its namespaces and lives as long as anything runs in it.
#![allow(unsafe_code)]

use std::{
    ffi::{c_int, c_void},
    io,
    os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr,
    sync::{
        Mutex, MutexGuard,
        atomic::{
            AtomicI32,
            Ordering::{Relaxed, SeqCst},
        },
    },
};

use remex_base::lock;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    pipe::{PipeFlags, pipe_with},
    process::{getegid, geteuid},
};

use crate::{
    Attempt, Jail, JailError, Pid, Step, Tag,
    base::{
        shared_table,
        sys::{self, WaitMode},
        tag_limit::TagLimit,
    },
    kin::{adoption::Creation, reaper},
    launch::{attempt::CloneSlot, clone::SHARED_MEMORY, resources::ChildResources},
    request::jail::{InitSetup, become_init, identity},
};

/// The first process of a jail. Dropping it ends it, and the kernel then kills every other process in the jail.
#[derive(Debug)]
pub(crate) struct Init {
    /// The end of the pipe that it waits for.
    control: OwnedFd,
}

/// A first process that is not reaped in the background yet, because the command has to enter its namespaces.
#[derive(Debug)]
pub(crate) struct NewInit {
    init: Option<Init>,
    pid: Pid,
    pidfd: Option<OwnedFd>,
}

/// First processes that wait for a command, at most one for each set of namespaces.
///
/// Creating a network namespace takes longer than the rest of a jail. So when one has been used, the next one is
/// created at once, while no start waits for it.
#[derive(Debug, Default)]
pub(crate) struct SpareInits {
    waiting: Mutex<Vec<(c_int, NewInit)>>,
}

impl SpareInits {
    /// Takes a waiting process for a jail, or starts one if there is none, and gives it the tag of its start.
    pub(crate) fn take(
        &self,
        resources: &mut ChildResources,
        jail: &Jail,
        tag: Tag,
        slot: &CloneSlot,
    ) -> Result<NewInit, JailError> {
        let mut waiting = self.waiting();
        let index = waiting.iter().position(|(namespaces, _)| *namespaces == jail.namespaces());
        let spare = index.map(|index| waiting.swap_remove(index).1);
        drop(waiting);
        let init = match spare.filter(NewInit::is_alive) {
            Some(spare) => spare,
            None => start(resources, jail, slot)?,
        };
        init.mark(tag)?;
        Ok(init)
    }

    /// Starts another process for jails with the same namespaces, if none is left.
    pub(crate) fn restock(&self, resources: &mut ChildResources, jail: &Jail) {
        let is_in = |waiting: &[(c_int, NewInit)]| waiting.iter().any(|(own, _)| *own == jail.namespaces());
        if is_in(&self.waiting()) {
            return;
        }
        match start(resources, jail, &Attempt::default().progress.init) {
            Ok(init) => {
                let mut waiting = self.waiting();
                // Another thread may have been faster.
                if !is_in(&waiting) {
                    waiting.push((jail.namespaces(), init));
                }
            }
            // The next start tries again, and reports it.
            Err(error) => tracing::debug!(%error, "cannot prepare the next jail"),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<(c_int, NewInit)>> {
        lock(&self.waiting)
    }
}

impl Init {
    /// Returns the owner of the first process that reads the other end of this pipe.
    pub(crate) fn new(control: OwnedFd) -> Self {
        Self { control }
    }

    pub(crate) fn control(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// Lets it exit by itself once the jail has no other process, after the command has ended.
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

    fn is_alive(&self) -> bool {
        // Its pidfd becomes readable when it ends.
        let mut ended = [PollFd::from_borrowed_fd(self.pidfd(), PollFlags::IN)];
        matches!(poll(&mut ended, Some(&Timespec::default())), Ok(0))
    }

    /// Gives it the tag of its start.
    fn mark(&self, tag: Tag) -> Result<(), JailError> {
        let Some(limit) = TagLimit::chosen() else { return Ok(()) };
        limit.apply(self.pid, tag.of_init()).map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            JailError::Step { step: Step::Init, path: None, errno }
        })
    }

    /// Returns a pidfd that becomes readable when the jail has ended with all its processes.
    pub(crate) fn watch(&self) -> io::Result<OwnedFd> {
        self.pidfd().try_clone_to_owned()
    }

    /// Returns the process, to be kept until the command ends. Call it once the command has entered the namespaces.
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
    setup: InitSetup<'a>,
    slot: &'a CloneSlot,
    /// The limit that holds its tag.
    mark: Option<&'static TagLimit>,
    /// Written by the process if it fails; zero is no [`Step`].
    step: AtomicI32,
    errno: AtomicI32,
}

/// Starts the first process of a jail, which can then be used for any command with the same namespaces.
pub(crate) fn start(
    resources: &mut ChildResources,
    jail: &Jail,
    slot: &CloneSlot,
) -> Result<NewInit, JailError> {
    let failed = |step, errno| JailError::Step { step, path: None, errno };
    let os_error = |error: io::Error| failed(Step::Init, error.raw_os_error().unwrap_or(libc::EIO));
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).map_err(|errno| os_error(errno.into()))?;
    let ChildResources { stack, slots, .. } = resources;
    let filled = slots.fill([read.as_fd()]).map_err(|errno| os_error(errno.into()))?;
    drop(read);
    let (users, groups) = (identity(geteuid().as_raw()), identity(getegid().as_raw()));
    let (namespaces, filter) = (jail.namespaces(), jail.filter());
    let mut context = InitContext {
        setup: InitSetup {
            name: jail.init_name(),
            filter: filter.program(),
            users: &users,
            groups: &groups,
            control: filled.numbers()[0],
            descriptors_end: filled.end(),
            has_own_network: namespaces & libc::CLONE_NEWNET != 0,
        },
        slot,
        mark: TagLimit::chosen(),
        step: AtomicI32::new(0),
        errno: AtomicI32::new(0),
    };
    let flags = SHARED_MEMORY | shared_table::flag() | libc::CLONE_PIDFD | libc::SIGCHLD;
    let mut errno = 0;
    let noted = Creation::begin();
    // SAFETY: as for the child in `clone.rs`: the stack is large enough and exclusively ours until this returns, and so
    // `context` outlives the use of it. CLONE_PIDFD takes the address of an integer as the next argument.
    let pid = sys::with_all_signals_blocked(|| unsafe {
        let context = ptr::from_mut(&mut context).cast();
        let pid = libc::clone(first, stack.top(), flags | namespaces, context, slot.pidfd.as_ptr());
        errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
        pid
    });
    drop(filled);
    slot.on_created();
    let Some(pid) = Pid::new(pid) else { return Err(failed(Step::Namespaces, errno)) };
    noted.created(pid);
    // SAFETY: the kernel has created this descriptor for us, and from now on nothing else uses it.
    let pidfd = unsafe { OwnedFd::from_raw_fd(slot.pidfd.load(SeqCst)) };
    if let Some(step) = Step::from_number(context.step.load(Relaxed)) {
        // It is already exiting, so this does not block for long. An error means that there is nothing to reap.
        let _ = sys::reap(pidfd.as_fd(), WaitMode::Block);
        return Err(failed(step, context.errno.load(Relaxed)));
    }
    Ok(NewInit { init: Some(Init { control: write }), pid, pidfd: Some(pidfd) })
}

extern "C" fn first(context: *mut c_void) -> c_int {
    // SAFETY: `start` passes a context that outlives the process's use of it, and does not access it in the meantime.
    let InitContext { setup, slot, mark, step, errno } = unsafe { &*context.cast::<InitContext<'_>>() };
    slot.exists.store(true, SeqCst);
    if let Some(limit) = mark {
        // Until it gets the tag of a start it belongs to none, and a scan from outside must not mistake it for a
        // hidden child.
        _ = limit.apply_to_self(Tag::WATCHDOG);
    }
    // SAFETY: we are in new namespaces, and all signals are blocked. The exit runs none of our code.
    unsafe {
        if !slot.is_aborted() {
            let failed = become_init(setup);
            errno.store(failed.errno, Relaxed);
            step.store(failed.step as i32, Relaxed);
        }
        libc::_exit(127)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::Arc};

    use remex_sandbox::{Network, Policy};

    use super::*;
    use crate::Tags;

    fn offline() -> Jail {
        Jail::new(Arc::new(Policy::open(Network::Restricted)), Arc::new([]))
    }

    fn take(spares: &SpareInits, resources: &mut ChildResources, jail: &Jail) -> NewInit {
        spares.take(resources, jail, Tags::new().tag(1, 1), &Attempt::default().progress.init).unwrap()
    }

    #[test]
    fn a_spare_is_used_for_the_next_jail_of_its_kind_only() {
        reaper::start().unwrap();
        let (spares, mut resources) = (SpareInits::default(), ChildResources::new().unwrap());
        spares.restock(&mut resources, &offline());
        let spare = spares.waiting()[0].1.pid;
        spares.restock(&mut resources, &offline());
        assert_eq!(spares.waiting().len(), 1);
        let online = Jail::new(Arc::new(Policy::open(Network::Enabled)), Arc::new([]));
        for jail in [&online, &Jail::pids_only()] {
            assert_ne!(take(&spares, &mut resources, jail).pid, spare);
        }
        let tag = Tags::new().tag(2, 3);
        let init = spares.take(&mut resources, &offline(), tag, &Attempt::default().progress.init).unwrap();
        assert_eq!(init.pid, spare);
        let limit = sys::limit(init.pid.as_raw(), TagLimit::chosen().unwrap().resource).unwrap();
        assert_eq!(Tag::from_limit(limit.rlim_cur), Some(tag.of_init()));
        assert_ne!(take(&spares, &mut resources, &offline()).pid, spare);
    }

    #[test]
    fn a_spare_that_has_died_is_replaced() {
        reaper::start().unwrap();
        let (spares, mut resources) = (SpareInits::default(), ChildResources::new().unwrap());
        spares.restock(&mut resources, &offline());
        let dead = spares.waiting()[0].1.pid;
        let pidfd = rustix::io::dup(spares.waiting()[0].1.pidfd()).unwrap();
        sys::pidfd_signal(pidfd.as_fd(), crate::Signal::KILL).unwrap();
        let mut ended = [PollFd::new(&pidfd, PollFlags::IN)];
        let patience = Timespec { tv_sec: 60, tv_nsec: 0 };
        assert_eq!(poll(&mut ended, Some(&patience)), Ok(1), "a killed process ends");
        let init = take(&spares, &mut resources, &offline());
        assert!(init.pid != dead && init.is_alive());
    }

    #[test]
    fn a_spare_has_nothing_of_the_host_but_its_pipe() {
        reaper::start().unwrap();
        let mut resources = ChildResources::new().unwrap();
        let init = start(&mut resources, &offline(), &Attempt::default().progress.init).unwrap();
        let names = |what: &str| {
            let entries = fs::read_dir(format!("/proc/{}/{what}", init.pid)).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(names("root"), ["init"]);
        assert_eq!(names("fd"), ["0"]);
        let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", init.pid)).unwrap();
        assert_eq!(mounts.lines().count(), 1, "{mounts}");
        assert!(mounts.contains(" / / ro,nosuid,nodev"), "{mounts}");
        let status = fs::read_to_string(format!("/proc/{}/status", init.pid)).unwrap();
        for line in
            ["CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"]
        {
            assert!(status.lines().any(|found| found == line), "{line} in {status}");
        }
    }
}

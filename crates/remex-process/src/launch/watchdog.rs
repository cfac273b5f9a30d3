//! A process that kills everything a server has started when the server itself is killed.
//!
//! It is a fork of the server that waits for the end of a pipe whose other end only the server holds: SIGKILL, an
//! abort, the OOM killer and a plain exit all close it. Then it kills every process with a tag of the server. The fork
//! happens in a program with threads, so the child allocates nothing, takes no lock and cannot panic.
#![allow(unsafe_code)]

use std::{
    ffi::{c_int, c_void},
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd},
    ptr,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Mode, OFlags, RawDir},
    pipe::{PipeFlags, pipe_with},
    process::{PidfdFlags, pidfd_open},
};

use crate::{
    Pid, Signal, Tag, Tags,
    base::{
        proc,
        sys::{self, WaitMode, above_stdio},
        tag_limit::TagLimit,
    },
    kin::{adoption::Creation, reaper},
    launch::clone::Stack,
};

/// The delay between two scans.
const PAUSE: Duration = Duration::from_millis(10);
/// The maximum number of scans, about a minute; processes left then are stuck in the kernel or fork faster than they
/// are killed.
const MAX_SCANS: usize = 6_000;
/// From this scan on, processes are stopped first: a stopped process cannot fork.
const STOP_FROM: usize = 3;
/// Before this scan there is no delay while processes keep forking; later, those left are more likely stuck.
const PAUSE_FROM: usize = 100;

/// Kills everything a server has started when the server dies.
///
/// Dropping it stops it without killing anything: the owner must have killed the processes itself. If that failed,
/// [release](Self::release) it instead.
#[derive(Debug)]
pub struct Watchdog {
    /// `None` once it is released.
    pidfd: Option<OwnedFd>,
    /// Closed when this program ends, which is what the process waits for.
    _pipe: OwnedFd,
}

impl Watchdog {
    /// Forks the watchdog of the server that creates these tags.
    ///
    /// The fork keeps a copy of all memory that this program changes later, so start it early.
    ///
    /// # Errors
    /// If the host has no room for a process, a stack or descriptors.
    pub fn start(tags: &Tags) -> io::Result<Self> {
        let (waiting, held) = pipe_with(PipeFlags::CLOEXEC)?;
        let (waiting, held) = (above_stdio(waiting)?, above_stdio(held)?);
        // Before the fork, because choosing takes a lock and may log.
        TagLimit::choose();
        let mut context = WatchContext { server: tags.tag(0, 0), pipe: waiting.as_raw_fd() };
        let mut stack = Stack::new()?;
        let mut pidfd: c_int = -1;
        let creation = Creation::begin();
        // Signal handlers of this program must not run in the child: they would act on shared state, such as pipes.
        let forked = sys::with_all_signals_blocked(|| {
            // SAFETY: without CLONE_VM the child has a copy of all memory, the stack and `duty` included. CLONE_PIDFD
            // takes the address of an integer as the next argument.
            let pid = unsafe {
                libc::clone(
                    watch,
                    stack.top(),
                    libc::CLONE_PIDFD | libc::SIGCHLD,
                    ptr::from_mut(&mut context).cast(),
                    ptr::from_mut(&mut pidfd),
                )
            };
            if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid) }
        });
        Pid::new(forked?).into_iter().for_each(|pid| creation.created(pid));
        // SAFETY: the kernel has just created this descriptor for us.
        Ok(Self { pidfd: Some(unsafe { OwnedFd::from_raw_fd(pidfd) }), _pipe: held })
    }

    /// Kills everything the server has started, as if the server had died, and returns at once.
    pub fn release(mut self) {
        if let Some(pidfd) = self.pidfd.take() {
            reaper::adopt(pidfd);
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        let Some(pidfd) = self.pidfd.take() else { return };
        // Killed before the pipe is closed, so that it never starts killing.
        if let Err(error) = sys::pidfd_signal(pidfd.as_fd(), Signal::KILL) {
            return tracing::warn!(%error, "cannot kill the watchdog");
        }
        // An error means that it was reaped elsewhere.
        _ = sys::reap(pidfd.as_fd(), WaitMode::Block);
    }
}

struct WatchContext {
    /// Any tag of the server.
    server: Tag,
    pipe: RawFd,
}

extern "C" fn watch(context: *mut c_void) -> c_int {
    // SAFETY: this is our copy of the context that `start` passed.
    let WatchContext { server, pipe } = unsafe { &*context.cast::<WatchContext>() };
    settle(*pipe);
    wait_for_end();
    let mut empty_scans = 0;
    for number in 1..=MAX_SCANS {
        if number >= STOP_FROM {
            signal_all(*server, Signal::STOP);
        }
        let sweep = signal_all(*server, Signal::KILL);
        // One scan can miss a process that is being forked while its parent ends.
        empty_scans = if sweep == Sweep::Empty { empty_scans + 1 } else { 0 };
        if empty_scans == 2 {
            break;
        }
        let is_forking = sweep == Sweep::Found && (STOP_FROM..PAUSE_FROM).contains(&number);
        if sweep != Sweep::Empty && !is_forking {
            pause();
        }
    }
    // SAFETY: this ends the child without running any code of the program.
    unsafe { libc::_exit(0) }
}

/// Detaches from everything of the server except its pipe: process group, terminal, files, working directory and tag.
///
/// The tag matters if the server itself was started by another server, which kills by tag and by descent and must not
/// kill us before we are done.
fn settle(pipe: RawFd) {
    if let Some(limit) = TagLimit::chosen() {
        // If that is denied, such a kill may hit us.
        _ = limit.apply_to_self(Tag::WATCHDOG);
    }
    let every_signal = u64::MAX;
    // SAFETY: every pointer is to a value that lives during the call, and the rest changes only what belongs to this
    // process. A failure leaves it less isolated, but still useful.
    unsafe {
        let old = ptr::null_mut::<c_void>();
        let set = &raw const every_signal;
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, set, old, size_of::<u64>());
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, c"remex-watchdog".as_ptr());
        libc::chdir(c"/".as_ptr());
        libc::dup2(pipe, 0);
        let (first, last): (libc::c_uint, libc::c_uint) = (1, libc::c_uint::MAX);
        libc::syscall(libc::SYS_close_range, first, last, 0);
    }
}

/// Waits until the server has ended; nothing is ever written to the pipe.
fn wait_for_end() {
    loop {
        let mut byte = 0_u8;
        // SAFETY: one byte may be written to `byte`.
        let len = unsafe { libc::read(0, (&raw mut byte).cast(), 1) };
        if len == 0 || len < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return;
        }
    }
}

/// The result of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sweep {
    /// No process is left that we may kill.
    Empty,
    /// Some processes were alive.
    Found,
    /// The host lacked the resources for a full scan, so survivors are unknown.
    Failed,
}

impl Sweep {
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Empty, other) => other,
            (Self::Found, Self::Empty | Self::Found) => Self::Found,
            (Self::Found, Self::Failed) | (Self::Failed, _) => Self::Failed,
        }
    }
}

/// Sends a signal to every live process with a tag of the server.
fn signal_all(server: Tag, signal: Signal) -> Sweep {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(directory) = rustix::fs::open(c"/proc", flags, Mode::empty()) else { return Sweep::Failed };
    let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
    let mut entries = RawDir::new(&directory, &mut buffer);
    let mut sweep = Sweep::Empty;
    while let Some(entry) = entries.next() {
        let Ok(entry) = entry else { return Sweep::Failed };
        // `Pid` excludes init, and we have no tag of the server.
        if let Some(pid) =
            entry.file_name().to_str().ok().and_then(|name| name.parse().ok()).and_then(Pid::new)
        {
            sweep = sweep.and(signal_one(pid, server, signal));
        }
    }
    sweep
}

/// Sends a signal to one process if it is alive and has a tag of the server.
fn signal_one(pid: Pid, server: Tag, signal: Signal) -> Sweep {
    let is_ours = || Ok::<_, io::Error>(proc::tag(pid)?.is_some_and(|tag| tag.same_server(server)));
    let signalled = || {
        let Some(number) = rustix::process::Pid::from_raw(pid.as_raw()) else { return Ok(Sweep::Empty) };
        if !is_ours()? {
            return Ok(Sweep::Empty);
        }
        let pidfd = pidfd_open(number, PidfdFlags::empty())?;
        // The descriptor refers to the process that has the pid now, so verify its identity after opening.
        if !is_ours()? || has_ended(&pidfd) {
            return Ok(Sweep::Empty);
        }
        sys::pidfd_signal(pidfd.as_fd(), signal)?;
        Ok(Sweep::Found)
    };
    signalled().unwrap_or_else(|error: io::Error| match error.raw_os_error() {
        // It has ended, or belongs to another user.
        Some(libc::ESRCH | libc::EPERM) => Sweep::Empty,
        _ => Sweep::Failed,
    })
}

/// Returns whether a process has ended, reaped or not.
fn has_ended(pidfd: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
}

fn pause() {
    let pause = Timespec { tv_sec: 0, tv_nsec: PAUSE.subsec_nanos().into() };
    _ = poll(&mut [], Some(&pause));
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// More descriptors than any limit allows.
    const MOST: usize = 1 << 20;

    #[test]
    fn a_scan_without_a_free_descriptor_is_not_reported_as_empty() {
        let server = Tags::new().tag(0, 0);
        let scans = || {
            let null = rustix::fs::open(c"/dev/null", OFlags::RDONLY, Mode::empty()).unwrap();
            // From now on this thread takes no descriptors from other tests.
            sys::unshare_descriptors(null.as_fd()).unwrap();
            let before = signal_all(server, Signal::KILL);
            let taken: Vec<_> = std::iter::from_fn(|| rustix::io::dup(&null).ok()).take(MOST).collect();
            if taken.len() == MOST {
                // The host has no limit to reach.
                return (before, Sweep::Failed);
            }
            (before, signal_all(server, Signal::KILL))
        };
        let scans = thread::scope(|scope| scope.spawn(scans).join().unwrap());
        assert_eq!(scans, (Sweep::Empty, Sweep::Failed));
    }

    #[test]
    fn failing_to_create_a_watchdog_is_an_error() {
        let start = || {
            let null = rustix::fs::open(c"/dev/null", OFlags::RDONLY, Mode::empty()).unwrap();
            // From now on this thread takes no descriptors from other tests.
            sys::unshare_descriptors(null.as_fd()).unwrap();
            let mut taken: Vec<_> = std::iter::from_fn(|| rustix::io::dup(&null).ok()).take(MOST).collect();
            if taken.len() == MOST {
                // The host has no limit to reach.
                return;
            }
            let tags = Tags::new();
            // Each attempt gets one step further: the pipe, moving its ends above stdio, the fork.
            let errors: Vec<_> = std::iter::from_fn(|| {
                taken.pop();
                Watchdog::start(&tags).err().map(|error| error.raw_os_error())
            })
            .collect();
            assert!((1..10).contains(&errors.len()), "{} attempts", errors.len());
            assert!(errors.iter().all(|error| *error == Some(libc::EMFILE)), "{errors:?}");
        };
        thread::scope(|scope| scope.spawn(start).join().unwrap());
    }
}

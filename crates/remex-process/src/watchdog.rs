//! A process that kills everything a server has started when the server itself is killed.
//!
//! It is a fork of the server that waits for the end of a pipe whose other end only the server has: SIGKILL, an abort, the
//! OOM killer and a plain exit all close it. Then everything that bears the server's tag is killed. The fork happens in a
//! program with threads, so the child allocates nothing, takes no lock and cannot panic.
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
    clone::Stack,
    descriptors::above_stdio,
    mark::Mark,
    proc, reaper,
    sys::{self, WaitMode},
};

/// How long the killed get to die before the next look.
const PAUSE: Duration = Duration::from_millis(10);
/// After so many looks, a minute, what is left is stuck in the kernel or bred faster than it is killed.
const MAX_LOOKS: usize = 6_000;
/// From this look on what breeds is stopped first: who is stopped has no children.
const STOP_FROM: usize = 3;
/// Until this look there is no pause for what breeds; later, what is left is more likely stuck.
const PAUSE_FROM: usize = 100;

/// Kills everything a server has started when the server dies.
///
/// Dropping it stops it without killing anything: the owner must have ended the processes itself. If that failed,
/// [release](Self::release) it instead.
#[derive(Debug)]
pub struct Watchdog {
    /// `None` once it is released.
    pidfd: Option<OwnedFd>,
    /// Its end, by the end of this program, is what the process waits for.
    _pipe: OwnedFd,
}

impl Watchdog {
    /// Forks the process, for the server that makes these tags.
    ///
    /// The fork keeps what memory this program has now and changes later: make it early.
    ///
    /// # Errors
    /// When the host has no room for a process, a stack or descriptors.
    pub fn start(tags: &Tags) -> io::Result<Self> {
        let (waiting, held) = pipe_with(PipeFlags::CLOEXEC)?;
        let (waiting, held) = (above_stdio(waiting)?, above_stdio(held)?);
        // Before the fork, because the first look takes a lock and may log.
        Mark::chosen();
        let mut context = WatchContext { server: tags.tag(0, 0), pipe: waiting.as_raw_fd() };
        let mut stack = Stack::new()?;
        let mut pidfd: c_int = -1;
        // A handler of this program must not run in the child: it would act on what the two share, such as pipes.
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
            if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
        });
        forked?;
        // SAFETY: the kernel has just made this descriptor for us.
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
        // Before the pipe is closed, so that it never begins to look.
        if let Err(error) = sys::pidfd_signal(pidfd.as_fd(), Signal::KILL) {
            return tracing::warn!(%error, "cannot end the watchdog");
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
    // SAFETY: it is our copy of what `start` has passed.
    let WatchContext { server, pipe } = unsafe { &*context.cast::<WatchContext>() };
    settle(*pipe);
    wait_for_end();
    let mut empty_looks = 0;
    for number in 1..=MAX_LOOKS {
        if number >= STOP_FROM {
            signal_all(*server, Signal::STOP);
        }
        let look = signal_all(*server, Signal::KILL);
        // One look can miss a daemon in the making: its parent ends, and it is born, while we read.
        empty_looks = if look == Sweep::Empty { empty_looks + 1 } else { 0 };
        if empty_looks == 2 {
            break;
        }
        let is_breeding = look == Sweep::Found && (STOP_FROM..PAUSE_FROM).contains(&number);
        if look != Sweep::Empty && !is_breeding {
            pause();
        }
    }
    // SAFETY: this ends the child without running anything of the program's.
    unsafe { libc::_exit(0) }
}

/// Leaves everything of the server but its pipe: signals meant for its group, its terminal, its files and its directory.
///
/// Also its tag, if the server is itself a process of another server: that one kills by the tag and by descent, and
/// must not kill us before we have done our job.
fn settle(pipe: RawFd) {
    if let Some(mark) = Mark::chosen() {
        // Where that is refused, such a kill may hit us.
        _ = mark.apply_to_self(Tag::WATCHDOG);
    }
    let every_signal = u64::MAX;
    // SAFETY: every pointer is to a value that lives during the call, and the rest changes only what belongs to this
    // process. What fails leaves it less well hidden, and no less useful.
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

/// Waits until the server is gone; nothing is ever written to the pipe.
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

/// What a look has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sweep {
    /// Nobody is left whom we may kill.
    Empty,
    /// Some were alive.
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

/// Sends a signal to every living process that bears a tag of the server.
fn signal_all(server: Tag, signal: Signal) -> Sweep {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(directory) = rustix::fs::open(c"/proc", flags, Mode::empty()) else { return Sweep::Failed };
    let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
    let mut entries = RawDir::new(&directory, &mut buffer);
    let mut look = Sweep::Empty;
    while let Some(entry) = entries.next() {
        let Ok(entry) = entry else { return Sweep::Failed };
        // Init is no `Pid`, and we bear no tag of the server.
        if let Some(pid) =
            entry.file_name().to_str().ok().and_then(|name| name.parse().ok()).and_then(Pid::new)
        {
            look = look.and(signal_one(pid, server, signal));
        }
    }
    look
}

/// Sends a signal to one process if it bears a tag of the server and lives.
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
        // It is gone, or another user's.
        Some(libc::ESRCH | libc::EPERM) => Sweep::Empty,
        _ => Sweep::Failed,
    })
}

/// Tells whether a process is dead, reaped or not.
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

    /// More descriptors than a limit allows, if there is one.
    const MOST: usize = 1 << 20;

    #[test]
    fn a_look_without_a_free_descriptor_is_not_taken_for_an_empty_one() {
        let server = Tags::new().tag(0, 0);
        let looks = || {
            let null = rustix::fs::open(c"/dev/null", OFlags::RDONLY, Mode::empty()).unwrap();
            // From here on this thread takes no descriptor from other tests.
            sys::own_descriptors(null.as_fd()).unwrap();
            let before = signal_all(server, Signal::KILL);
            let taken: Vec<_> = std::iter::from_fn(|| rustix::io::dup(&null).ok()).take(MOST).collect();
            if taken.len() == MOST {
                // There is no limit to run into.
                return (before, Sweep::Failed);
            }
            (before, signal_all(server, Signal::KILL))
        };
        let looks = thread::scope(|scope| scope.spawn(looks).join().unwrap());
        assert_eq!(looks, (Sweep::Empty, Sweep::Failed));
    }

    #[test]
    fn a_watchdog_that_cannot_be_made_is_an_error() {
        let start = || {
            let null = rustix::fs::open(c"/dev/null", OFlags::RDONLY, Mode::empty()).unwrap();
            // From here on this thread takes no descriptor from other tests.
            sys::own_descriptors(null.as_fd()).unwrap();
            let mut taken: Vec<_> = std::iter::from_fn(|| rustix::io::dup(&null).ok()).take(MOST).collect();
            if taken.len() == MOST {
                // There is no limit to run into.
                return;
            }
            let tags = Tags::new();
            // Each time one step further: the pipe, the copies of its ends out of the way, the fork.
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

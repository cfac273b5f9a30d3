//! Safe wrappers of system calls for which no crate has one.
#![allow(unsafe_code)]

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr,
    sync::OnceLock,
    time::Duration,
};

use tokio::io::{
    Interest,
    unix::{AsyncFd, AsyncFdRegisterError},
};

use crate::{Pid, Signal};

/// The exit status and resource usage of a child, from the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reaped {
    pub(crate) code: i32,
    pub(crate) signal: Option<Signal>,
    pub(crate) user: Duration,
    pub(crate) system: Duration,
    pub(crate) max_rss_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitMode {
    Block,
    Return,
}

/// Returns a pidfd of the process that created the other end of a unix socket. Needs Linux 6.5.
///
/// # Errors
/// `ENOPROTOOPT` from an older kernel; `ESRCH` or `EINVAL` if the process has ended and was reaped.
pub fn peer_pidfd(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut number: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to the integer, and its length to `len`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            ptr::from_mut(&mut number).cast(),
            &raw mut len,
        )
    };
    if result < 0 || number < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has created this descriptor for us, and nothing else uses it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Reaps a child and returns its exit status, or `None` while it runs.
pub(crate) fn reap(pidfd: BorrowedFd<'_>, mode: WaitMode) -> io::Result<Option<Reaped>> {
    let options = match mode {
        WaitMode::Block => libc::WEXITED,
        WaitMode::Return => libc::WEXITED | libc::WNOHANG,
    };
    // SAFETY: all zeros is a value of both structs, which are plain data.
    let (mut info, mut usage) = unsafe {
        (
            MaybeUninit::<libc::siginfo_t>::zeroed().assume_init(),
            MaybeUninit::<libc::rusage>::zeroed().assume_init(),
        )
    };
    loop {
        // SAFETY: both pointers are valid for writes of their type during the call. The raw call is needed because
        // the wrapper of the C library omits the last argument.
        let result = unsafe {
            libc::syscall(
                libc::SYS_waitid,
                libc::P_PIDFD,
                pidfd.as_raw_fd(),
                ptr::from_mut(&mut info),
                options,
                ptr::from_mut(&mut usage),
            )
        };
        match check(result) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => break other?,
        }
    }
    // SAFETY: the kernel has filled in the fields for a child, or left the zeros.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    if pid == 0 {
        return Ok(None);
    }
    let signal = if info.si_code == libc::CLD_EXITED { None } else { Signal::from_number(status) };
    Ok(Some(Reaped {
        code: signal.map_or(status, |signal| 128 + signal.number()),
        signal,
        user: duration(usage.ru_utime),
        system: duration(usage.ru_stime),
        max_rss_bytes: kibibytes(usage.ru_maxrss),
    }))
}

/// Sends a signal to the process of a pidfd; a process that has ended is not an error.
pub(crate) fn pidfd_signal(pidfd: BorrowedFd<'_>, signal: Signal) -> io::Result<()> {
    // SAFETY: no memory is passed; the null pointer requests the default signal information.
    let result = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal.number(),
            ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    ignore_gone(check(result))
}

/// Returns the pid of the process of a pidfd; `None` if it was reaped, or if no descriptor is left to find out.
pub(crate) fn pidfd_pid(pidfd: BorrowedFd<'_>) -> Option<Pid> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    let number = info.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    Pid::new(number.trim().parse().ok()?)
}

/// Sends a signal to every process of the group that `leader` leads; an empty group is not an error.
pub(crate) fn group_signal(leader: Pid, signal: Signal) -> io::Result<()> {
    // SAFETY: no memory is involved. A `Pid` is larger than 1, so this never addresses all processes or our own group.
    let result = unsafe { libc::kill(-leader.as_raw(), signal.number()) };
    ignore_gone(check(result.into()))
}

/// Registers a non-blocking descriptor with the runtime, such as those of a [`ChildIo`](crate::ChildIo).
///
/// Must be called within a runtime that does I/O.
///
/// # Errors
/// If the host has no room for it; the error returns the descriptor.
pub fn register_fd(
    fd: OwnedFd,
    interest: Interest,
) -> Result<AsyncFd<OwnedFd>, AsyncFdRegisterError<OwnedFd>> {
    // SAFETY: an `OwnedFd` is open, and always the same descriptor, until it is dropped.
    unsafe { AsyncFd::register_with_interest(fd, interest) }
}

/// Returns a descriptor of the same file with a number above 2.
///
/// The kernel assigns 0 to 2 if the server itself was started with one of them closed.
pub(crate) fn above_stdio(fd: OwnedFd) -> rustix::io::Result<OwnedFd> {
    if fd.as_raw_fd() < 3 { rustix::io::fcntl_dupfd_cloexec(&fd, 3) } else { Ok(fd) }
}

/// Raises a soft limit of a child to its hard limit.
pub(crate) fn raise_limit(pid: Pid, resource: Resource) -> io::Result<()> {
    let now = limit(pid.as_raw(), resource)?;
    set_limit(pid.as_raw(), resource, &libc::rlimit { rlim_cur: now.rlim_max, ..now })
}

/// Sets a limit of a process; 0 stands for this one.
pub(crate) fn set_limit(pid: libc::pid_t, resource: Resource, limit: &libc::rlimit) -> io::Result<()> {
    // SAFETY: the struct is valid for reads during the call.
    let result = unsafe { libc::prlimit(pid, resource, ptr::from_ref(limit), ptr::null_mut()) };
    check(result.into())
}

/// The limit on descriptors before it was raised.
static ORIGINAL_FILE_LIMIT: OnceLock<libc::rlimit> = OnceLock::new();

/// Raises the soft limit on descriptors of this program to the hard limit: every child takes up to four, and a jail two
/// more.
///
/// Processes started by a [`Spawner`](crate::Spawner) get the original limit, even if the spawner was created before.
/// Other children of the program inherit the higher limit, which some programs cannot handle; so this is for dedicated
/// server programs, not for programs that embed a server.
///
/// If the host denies it, the limit stays as it is.
pub fn raise_file_limit() {
    let Ok(now) = limit(0, libc::RLIMIT_NOFILE) else { return };
    ORIGINAL_FILE_LIMIT.get_or_init(|| now);
    let raised = libc::rlimit { rlim_cur: now.rlim_max, ..now };
    // SAFETY: the struct is valid for reads, and a higher limit has no other effect.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) };
}

/// Returns the limit on descriptors for children, if it differs from ours.
pub(crate) fn file_limit_of_children() -> Option<libc::rlimit> {
    ORIGINAL_FILE_LIMIT.get().copied()
}

#[cfg(target_env = "gnu")]
pub(crate) type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
pub(crate) type Resource = libc::c_int;

/// Returns a limit of a process; 0 is this process.
pub(crate) fn limit(pid: i32, resource: Resource) -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: nothing is set, and `limit` is valid for writes during the call.
    let result = unsafe { libc::prlimit(pid, resource, ptr::null(), &raw mut limit) };
    check(result.into())?;
    Ok(limit)
}

/// Blocks all signals in the calling thread, so that other threads handle them.
///
/// The C library excludes its own signals 32 to 34: every thread must receive them, for example when the program
/// changes its user.
pub(crate) fn block_signals() {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigfillset` initializes the set before it is read. Neither call can fail with these arguments.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), ptr::null_mut());
    }
}

/// Unblocks all signals on this thread.
pub(crate) fn unblock_signals() {
    let none = 0_u64;
    // SAFETY: the set has the size that is given, and the old one is not asked for. The call cannot fail.
    unsafe {
        let (new, old) = (&raw const none, ptr::null_mut::<u64>());
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, new, old, size_of::<u64>());
    }
}

/// Runs `work` with every signal blocked, including those of the C library, so that a child that shares our memory runs
/// none of our handlers.
pub(crate) fn with_all_signals_blocked<T>(work: impl FnOnce() -> T) -> T {
    let set_mask = |mask: u64| {
        let mut before = 0_u64;
        // SAFETY: both sets have the size that is given. The call cannot fail with these arguments.
        unsafe {
            let (new, old) = (&raw const mask, &raw mut before);
            libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, new, old, size_of::<u64>());
        }
        before
    };
    let before = set_mask(u64::MAX);
    let result = work();
    set_mask(before);
    result
}

/// Gives the calling thread its own descriptor table in which only `kept` is open.
///
/// From then on, no other descriptor of the program may be used or dropped on this thread: its number may refer to
/// another file here. Descriptors that the thread opens do not count against the limit of the program.
///
/// # Errors
/// If the host does not support it; nothing changes then.
pub(crate) fn unshare_descriptors(kept: BorrowedFd<'_>) -> io::Result<()> {
    let kept = kept.as_raw_fd().unsigned_abs();
    let close = |first: libc::c_uint, last: libc::c_uint, flags: libc::c_uint| {
        // SAFETY: with the flag, and after it, this affects only the table of this thread, in which nothing owns a
        // descriptor; the files stay open in the table of the program.
        check(unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) })
    };
    close(kept + 1, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE)?;
    if kept > 0 { close(0, kept - 1, 0) } else { Ok(()) }
}

/// Requests short time slices for the calling thread, so that it runs soon after it wakes.
///
/// Without it, a thread that wakes on the processor of a busy child waits for the end of the child's time slice, some
/// milliseconds. Threads and children that this thread creates have time slices of the usual length. Does nothing for a
/// program with a raised priority, and nothing before Linux 6.12.
pub fn favour_latency() {
    /// The shortest time slice that Linux grants.
    const TIME_SLICE: Duration = Duration::from_micros(100);
    let len = size_of::<libc::sched_attr>() as libc::c_uint;
    // SAFETY: the struct is plain data for which zeros are valid, and the kernel writes no more than the given length.
    let mut attributes = unsafe { MaybeUninit::<libc::sched_attr>::zeroed().assume_init() };
    // SAFETY: as above. Zero stands for the calling thread.
    let read = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, len, 0) };
    // With a raised priority, resetting it for children would also take it from them.
    if read == 0 && attributes.sched_policy == libc::SCHED_OTHER as u32 && attributes.sched_nice >= 0 {
        attributes.sched_flags = libc::SCHED_FLAG_RESET_ON_FORK as u64;
        attributes.sched_runtime = TIME_SLICE.as_nanos() as u64;
        // SAFETY: the struct contains its own length. A failure only costs time.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }
}

/// Stops the kernel from reaping our children itself, which it does in a program started with SIGCHLD ignored.
pub(crate) fn keep_exit_statuses() {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the struct is plain data for which zeros are valid, the pointers are valid during the calls, and the
    // default disposition of SIGCHLD runs no code.
    unsafe {
        libc::sigaction(libc::SIGCHLD, ptr::null(), action.as_mut_ptr());
        let action = action.assume_init_mut();
        if action.sa_sigaction == libc::SIG_IGN || action.sa_flags & libc::SA_NOCLDWAIT != 0 {
            if action.sa_sigaction == libc::SIG_IGN {
                action.sa_sigaction = libc::SIG_DFL;
            }
            action.sa_flags &= !libc::SA_NOCLDWAIT;
            libc::sigaction(libc::SIGCHLD, action, ptr::null_mut());
        }
    }
}

/// Returns the units of `/proc`: clock ticks per second and bytes per page.
pub(crate) fn proc_units() -> (u64, u64) {
    // SAFETY: no memory is involved.
    let (ticks, page) = unsafe { (libc::sysconf(libc::_SC_CLK_TCK), libc::sysconf(libc::_SC_PAGESIZE)) };
    (u64::try_from(ticks).unwrap_or(100).max(1), u64::try_from(page).unwrap_or(4096))
}

/// Converts peak memory, which Linux counts in KiB, to bytes.
pub(crate) fn kibibytes(count: libc::c_long) -> u64 {
    u64::try_from(count).unwrap_or(0) * 1024
}

fn duration(time: libc::timeval) -> Duration {
    let part = |count: i64| u64::try_from(count).unwrap_or(0);
    Duration::from_secs(part(time.tv_sec)) + Duration::from_micros(part(time.tv_usec))
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn ignore_gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocked() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap()
    }

    #[test]
    fn all_signals_are_blocked_and_the_previous_mask_is_restored() {
        let before = blocked();
        let cannot_be_blocked = 1_u64 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1);
        assert_eq!(with_all_signals_blocked(blocked), !cannot_be_blocked);
        assert_eq!(blocked(), before);
    }
}

//! Creates a child and sets it up until it executes its program.
//!
//! The child shares our memory until it executes the program, while the thread that created it is suspended. This
//! avoids copying page tables, but restricts the child: it allocates nothing, takes no lock, cannot panic, and changes
//! no memory except its own stack, the fields of [`Outcome`] and `exists` of its [`CloneSlot`]. An unresponsive file
//! system may block it when it enters its directory or looks for its program; then only aborting its
//! [`Attempt`](crate::Attempt) unblocks the thread.
//!
//! The child also shares our descriptors at first (`shared_table.rs`): to copy all of them, and to close those copies,
//! would take the longer the more are open. It must not change the table before it has its own
//! ([`unshare_table`](shared_table::unshare_table)), which has only those below the number that
//! [`StdioSlots`](crate::base::slots::StdioSlots) keeps low.
//!
//! A child that enters a jail is created by an intermediate process, which enters the namespaces first: a process
//! cannot move itself into a pid namespace, but its children are created there. With `CLONE_PARENT` the child is still
//! ours.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    io,
    os::fd::{AsFd, FromRawFd, OwnedFd, RawFd},
    process, ptr,
    sync::atomic::{
        AtomicI32, AtomicU64, AtomicUsize,
        Ordering::{Relaxed, SeqCst},
    },
};

use crate::{
    Pid, Signal, Stage, Step, UserIds,
    base::{
        shared_table,
        sys::{self, WaitMode},
        user::become_user,
    },
    launch::attempt::CloneSlot,
    request::jail::{Failed, PROXY_PORT, Plan, Ruleset, build, drop_privileges, install, restrict},
};

/// The child shares our memory, and the thread that created it is suspended.
pub(crate) const SHARED_MEMORY: c_int = libc::CLONE_VM | libc::CLONE_VFORK;

/// More than ten times what the child needs in an unoptimized build.
const STACK_LEN: usize = 64 * 1024;
/// The guard region below the stack: the largest page size of any Linux.
const GUARD_LEN: usize = 64 * 1024;

/// The stack of one child at a time.
pub(crate) struct Stack {
    base: *mut c_void,
}

// SAFETY: this value owns the memory exclusively, and the memory is not tied to a thread.
unsafe impl Send for Stack {}

impl Stack {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: a new mapping at an address chosen by the kernel affects no other memory.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                GUARD_LEN + STACK_LEN,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stack = Self { base };
        // SAFETY: the range is the lower part of our own mapping.
        if unsafe { libc::mprotect(base, GUARD_LEN, libc::PROT_NONE) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(stack)
    }

    pub(crate) fn top(&mut self) -> *mut c_void {
        self.base.wrapping_byte_add(GUARD_LEN + STACK_LEN)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no child uses it: the owning thread waits for each child.
        unsafe { libc::munmap(self.base, GUARD_LEN + STACK_LEN) };
    }
}

/// Everything the child needs, prepared so that it only dereferences pointers.
pub(crate) struct ChildSetup<'a> {
    /// Paths to try in order; ends with a null pointer.
    pub(crate) candidates: &'a [*const c_char],
    /// Ends with a null pointer.
    pub(crate) argv: &'a [*const c_char],
    /// Ends with a null pointer.
    pub(crate) env: &'a [*const c_char],
    pub(crate) cwd: &'a CStr,
    /// The descriptors that become 0, 1 and 2; none is below 3.
    pub(crate) targets: [RawFd; 3],
    /// The first descriptor number that the child does not need; above those of the targets.
    pub(crate) descriptors_end: RawFd,
    pub(crate) terminal: Terminal,
    /// The limit that holds the tag.
    pub(crate) mark: Option<(sys::Resource, libc::rlimit)>,
    /// The limit on descriptors before we raised ours, if we did.
    pub(crate) file_limit: Option<libc::rlimit>,
    /// The limits that the request asks for.
    pub(crate) limits: &'a [Option<(sys::Resource, libc::rlimit)>],
    /// The file through which the child enters its cgroup; not below 3.
    pub(crate) cgroup: Option<RawFd>,
    pub(crate) parent_death: Option<Signal>,
    /// The jail that the child enters.
    pub(crate) entry: Option<JailEntry<'a>>,
    /// How the child restricts itself further.
    pub(crate) restrictions: Option<Restrictions<'a>>,
    /// The user that the child becomes.
    pub(crate) user: Option<&'a UserIds>,
}

/// The restrictions that a child applies to itself.
pub(crate) struct Restrictions<'a> {
    pub(crate) ruleset: Option<&'a Ruleset>,
    pub(crate) filter: &'a [libc::sock_filter],
}

/// A jail to enter.
pub(crate) struct JailEntry<'a> {
    /// The pidfd of its first process.
    pub(crate) init: RawFd,
    /// Its namespaces, except for the mount namespace, which the child creates itself.
    pub(crate) namespaces: c_int,
    pub(crate) plan: &'a Plan,
    /// Whether to listen for connections of the jail on [`PROXY_PORT`].
    pub(crate) has_proxy: bool,
    /// The stack of the intermediate process.
    pub(crate) stack: &'a mut Stack,
}

/// Why a child could not be created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    pub(crate) stage: Stage,
    /// The step of the confinement that failed, if one did.
    pub(crate) step: Option<Step>,
    /// The index of the mount that failed, if one did.
    pub(crate) mount: Option<usize>,
    pub(crate) errno: i32,
}

/// Whether descriptor 0 becomes the controlling terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Terminal {
    Controlling,
    Absent,
}

/// A child that runs its program.
pub(crate) struct Spawned {
    pub(crate) pid: Pid,
    pub(crate) pidfd: OwnedFd,
    /// Our own peak memory, which the kernel also counts for the child.
    pub(crate) inherited_rss_bytes: u64,
    /// The socket that listens in its jail, if the jail has a proxy.
    pub(crate) proxy: Option<OwnedFd>,
}

/// The result that the child reports through shared memory.
#[derive(Default)]
struct Outcome {
    stage: AtomicI32,
    /// The step of the confinement that failed, if one did.
    step: AtomicI32,
    /// One more than the index of the mount that failed, if one did.
    mount: AtomicUsize,
    errno: AtomicI32,
    peak_rss_bytes: AtomicU64,
}

impl Outcome {
    fn failed(&self, (stage, errno): (Stage, i32)) {
        self.errno.store(errno, Relaxed);
        self.stage.store(stage as i32, Relaxed);
    }
}

struct ChildContext<'a> {
    setup: &'a ChildSetup<'a>,
    slot: &'a CloneSlot,
    stack: *mut c_void,
    /// The flag to share our descriptors, if the child can.
    table: c_int,
    /// The pid of the parent in the pid namespace of the child.
    parent: i32,
    /// The pid of the child that the intermediate process has created.
    entered: AtomicI32,
    /// The socket that listens in the jail, created by the intermediate process.
    proxy: AtomicI32,
    outcome: Outcome,
}

/// Creates a child and returns once its program runs or has failed to start.
///
/// With a parent-death signal the calling thread must outlive the child: the kernel sends the signal when the *thread*
/// that created the child ends.
pub(crate) fn start(
    stack: &mut Stack,
    setup: &mut ChildSetup<'_>,
    slot: &CloneSlot,
) -> Result<Spawned, Failure> {
    let between = setup.entry.as_mut().map(|entry| entry.stack.top());
    let parent = match between {
        // The parent is outside the child's pid namespace.
        Some(_) => 0,
        None => i32::try_from(process::id()).unwrap_or(0),
    };
    let (entered, proxy, outcome) = (AtomicI32::new(-1), AtomicI32::new(-1), Outcome::default());
    let (stack, table) = (stack.top(), shared_table::flag());
    let mut context = ChildContext { setup, slot, stack, table, parent, entered, proxy, outcome };
    let mut failed = 0;
    let pid = sys::with_all_signals_blocked(|| {
        // SAFETY: the stacks are large enough, and exclusively ours, because CLONE_VFORK holds this thread until the
        // child has left our memory. So all that `context` points to outlives the child's use of it.
        let pid = unsafe {
            match between {
                Some(between) => create_between(between, &mut context),
                None => create(&raw mut context, context.table),
            }
        };
        failed = errno();
        pid
    });
    slot.on_created();
    let proxy = context.proxy.load(Relaxed);
    // SAFETY: the intermediate process has created this descriptor for us, and has ended.
    let proxy = (proxy >= 0).then(|| unsafe { OwnedFd::from_raw_fd(proxy) });
    let stage = stage_of(context.outcome.stage.load(Relaxed));
    let failure = |stage| Failure {
        stage,
        step: Step::from_number(context.outcome.step.load(Relaxed)),
        mount: context.outcome.mount.load(Relaxed).checked_sub(1),
        errno: context.outcome.errno.load(Relaxed),
    };
    let Some(pid) = Pid::new(pid) else {
        // The intermediate process reports its own failure.
        return Err(
            stage.map_or(Failure { stage: Stage::Fork, step: None, mount: None, errno: failed }, failure)
        );
    };
    // SAFETY: the kernel has created this descriptor for us, and from now on nothing else uses it.
    let pidfd = unsafe { OwnedFd::from_raw_fd(slot.pidfd.load(SeqCst)) };
    if let Some(stage) = stage {
        // The child is already exiting, so this does not block for long. An error means that there is nothing to reap.
        let _ = sys::reap(pidfd.as_fd(), WaitMode::Block);
        return Err(failure(stage));
    }
    Ok(Spawned { pid, pidfd, inherited_rss_bytes: context.outcome.peak_rss_bytes.load(Relaxed), proxy })
}

/// Creates the child with more flags, and returns its pid.
///
/// # Safety
/// The context and its stack must be valid and unused until the child has left our memory.
unsafe fn create(context: *mut ChildContext<'_>, flags: c_int) -> c_int {
    let flags = flags | SHARED_MEMORY | libc::CLONE_PIDFD | libc::SIGCHLD;
    // SAFETY: passed on to the caller. CLONE_PIDFD takes the address of an integer as the next argument.
    unsafe {
        let (stack, pidfd) = ((*context).stack, (*context).slot.pidfd.as_ptr());
        libc::clone(child, stack, flags, context.cast(), pidfd)
    }
}

/// Creates the intermediate process, and returns the pid of its child.
///
/// # Safety
/// As [`create`], for both stacks.
unsafe fn create_between(stack: *mut c_void, context: &mut ChildContext<'_>) -> c_int {
    // It always shares our descriptors, so that the pidfd of its child is ours.
    let flags = SHARED_MEMORY | libc::CLONE_FILES | libc::SIGCHLD;
    // SAFETY: passed on to the caller. The process is ours to reap, and is already exiting.
    unsafe {
        let between = libc::clone(enter, stack, flags, ptr::from_mut(context).cast());
        if between > 0 {
            while libc::waitpid(between, ptr::null_mut(), 0) < 0 && errno() == libc::EINTR {}
        }
    }
    context.entered.load(Relaxed)
}

/// The intermediate process: enters the namespaces of the jail and creates the child there.
extern "C" fn enter(context: *mut c_void) -> c_int {
    let context = context.cast::<ChildContext<'_>>();
    // SAFETY: `start` passes a context that outlives this process and the child, and does not access it in the
    // meantime.
    unsafe {
        let ChildContext { setup, entered, proxy, outcome, table, .. } = &*context;
        let (init, namespaces, has_proxy) = setup
            .entry
            .as_ref()
            .map_or((-1, 0, false), |entry| (entry.init, entry.namespaces, entry.has_proxy));
        if libc::setns(init, namespaces) < 0 {
            outcome.step.store(Step::Enter as i32, Relaxed);
            outcome.failed((Stage::Jail, errno()));
        } else if has_proxy && let Err(errno) = listen(proxy) {
            outcome.step.store(Step::Proxy as i32, Relaxed);
            outcome.failed((Stage::Jail, errno));
        } else {
            let pid = create(context, libc::CLONE_PARENT | *table);
            if pid < 0 {
                outcome.failed((Stage::Fork, errno()));
            }
            entered.store(pid, Relaxed);
        }
        libc::_exit(0)
    }
}

/// Listens on the loopback device of the jail, and leaves the socket to the server.
///
/// # Safety
/// Call it only in the intermediate process, in the network namespace of the jail.
unsafe fn listen(proxy: &AtomicI32) -> Result<(), i32> {
    /// How many connections may wait to be accepted.
    const BACKLOG: c_int = 64;
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: PROXY_PORT.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::to_be(libc::INADDR_LOOPBACK) },
        sin_zero: [0; 8],
    };
    // SAFETY: the address has the length that is given. The descriptor is ours and the server's alone.
    unsafe {
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let socket = libc::socket(libc::AF_INET, kind, 0);
        check(socket)?;
        proxy.store(socket, Relaxed);
        let len = size_of::<libc::sockaddr_in>() as libc::socklen_t;
        check(libc::bind(socket, (&raw const address).cast(), len))?;
        check(libc::listen(socket, BACKLOG))
    }
}

/// Decodes a stage as the child writes it; zero means success.
fn stage_of(number: i32) -> Option<Stage> {
    [
        Stage::Cgroup,
        Stage::Jail,
        Stage::Fork,
        Stage::Setup,
        Stage::Limits,
        Stage::User,
        Stage::Cwd,
        Stage::Exec,
    ]
    .into_iter()
    .find(|&stage| stage as i32 == number)
}

extern "C" fn child(context: *mut c_void) -> c_int {
    // SAFETY: `start` passes a context that outlives the child, and does not access it in the meantime.
    let ChildContext { setup, slot, parent, outcome, .. } = unsafe { &*context.cast::<ChildContext<'_>>() };
    slot.exists.store(true, SeqCst);
    // SAFETY: we are the child of `start`.
    let failed = unsafe {
        let is_set_up = enter_cgroup(setup)
            .map_err(|errno| (Stage::Cgroup, errno))
            .and_then(|()| set_up(setup, *parent, outcome).map_err(|errno| (Stage::Setup, errno)))
            .and_then(|()| enter_mounts(setup, outcome).map_err(|errno| (Stage::Jail, errno)))
            .and_then(|()| confine_files(setup, outcome).map_err(|errno| (Stage::Jail, errno)))
            .and_then(|()| set_limits(setup).map_err(|errno| (Stage::Limits, errno)))
            .and_then(|()| confine(setup, outcome).map_err(|errno| (Stage::Jail, errno)))
            .and_then(|()| switch_user(setup, *parent).map_err(|errno| (Stage::User, errno)));
        match is_set_up {
            _ if slot.is_aborted() => (Stage::Setup, libc::ECANCELED),
            Ok(()) => match libc::chdir(setup.cwd.as_ptr()) {
                0 => (Stage::Exec, execute(setup)),
                _ => (Stage::Cwd, errno()),
            },
            Err(failed) => failed,
        }
    };
    outcome.failed(failed);
    // SAFETY: this ends the child without running any of our code.
    unsafe { libc::_exit(127) }
}

/// Gives a confined process its own mounts.
///
/// # Safety
/// Call it only in the child, with all signals blocked, before it sets limits.
unsafe fn enter_mounts(setup: &ChildSetup<'_>, outcome: &Outcome) -> Result<(), i32> {
    let Some(entry) = &setup.entry else { return Ok(()) };
    // SAFETY: we are the child, and have entered the namespaces.
    unsafe { build(entry.plan) }.map_err(|Failed { step, mount, errno }| {
        outcome.step.store(step as i32, Relaxed);
        outcome.mount.store(mount.map_or(0, |index| index + 1), Relaxed);
        errno
    })
}

/// Confines files, if the child is confined.
///
/// # Safety
/// Call it only in the child, before the limits on descriptors are set.
unsafe fn confine_files(setup: &ChildSetup<'_>, outcome: &Outcome) -> Result<(), i32> {
    let Some(ruleset) = setup.restrictions.as_ref().and_then(|restrictions| restrictions.ruleset) else {
        return Ok(());
    };
    let terminal = (setup.terminal == Terminal::Controlling).then_some(0);
    // SAFETY: we are the child, and descriptor 0 is its terminal.
    unsafe { restrict(ruleset, terminal) }.inspect_err(|_| outcome.step.store(Step::Landlock as i32, Relaxed))
}

/// Drops privileges that a confined process must not have, and installs the filter of system calls.
///
/// # Safety
/// Call it only in the child, after everything that needs a capability.
unsafe fn confine(setup: &ChildSetup<'_>, outcome: &Outcome) -> Result<(), i32> {
    let Some(restrictions) = &setup.restrictions else { return Ok(()) };
    let failed = |step: Step, errno| {
        outcome.step.store(step as i32, Relaxed);
        errno
    };
    // SAFETY: we are the child.
    unsafe {
        drop_privileges().map_err(|errno| failed(Step::Privileges, errno))?;
        install(restrictions.filter).map_err(|errno| failed(Step::Filter, errno))
    }
}

/// Moves the child into its cgroup, so that nothing it does escapes the limits there.
///
/// # Safety
/// Call it only in the child, with all signals blocked, before it has its own descriptors.
unsafe fn enter_cgroup(setup: &ChildSetup<'_>) -> Result<(), i32> {
    let Some(entry_file) = setup.cgroup else { return Ok(()) };
    // SAFETY: one byte is read; zero stands for the process that writes it.
    match unsafe { libc::write(entry_file, c"0".as_ptr().cast(), 1) } {
        1 => Ok(()),
        _ => Err(errno()),
    }
}

/// Sets the limits that the request asks for.
///
/// # Safety
/// Call it only in the child, last: everything that the child still does counts against them.
unsafe fn set_limits(setup: &ChildSetup<'_>) -> Result<(), i32> {
    for (resource, limit) in setup.limits.iter().flatten() {
        // SAFETY: the struct is valid for reads during the call.
        check(unsafe { libc::setrlimit(*resource, &raw const *limit) })?;
    }
    Ok(())
}

/// Makes the child a session leader with three descriptors and the tag.
///
/// # Safety
/// Call it only in the child, with all signals blocked.
unsafe fn set_up(setup: &ChildSetup<'_>, parent: i32, outcome: &Outcome) -> Result<(), i32> {
    // SAFETY: every pointer is to a local value or null, and the rest changes only what belongs to the child.
    unsafe {
        // The kernel copies our peak memory into the child's record at the exec; until then the two are the same.
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        outcome.peak_rss_bytes.store(sys::kibibytes(usage.ru_maxrss), Relaxed);

        reset_dispositions();
        check(libc::setsid())?;
        shared_table::unshare_table(setup.descriptors_end)?;
        let [stdin, stdout, stderr] = setup.targets;
        check(libc::dup2(stdin, 0))?;
        check(libc::dup2(stdout, 1))?;
        check(libc::dup2(stderr, 2))?;
        if setup.terminal == Terminal::Controlling {
            check(libc::ioctl(0, libc::TIOCSCTTY, 0))?;
        }
        // The exec closes ours anyway; this closes those that the server itself inherited.
        let (first, last): (libc::c_uint, libc::c_uint) = (3, libc::c_uint::MAX);
        check(libc::syscall(libc::SYS_close_range, first, last, 0) as c_int)?;
        // Without the tag, the child is still found by its session and its parents.
        if let Some((resource, limit)) = &setup.mark {
            libc::setrlimit(*resource, &raw const *limit);
        }
        if let Some(limit) = &setup.file_limit {
            check(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const *limit))?;
        }
        die_with_parent(setup, parent)
    }
}

/// Sets the parent-death signal.
///
/// # Safety
/// Call it only in the child.
unsafe fn die_with_parent(setup: &ChildSetup<'_>, parent: i32) -> Result<(), i32> {
    // SAFETY: only the child is concerned.
    unsafe {
        if let Some(signal) = setup.parent_death {
            check(libc::prctl(libc::PR_SET_PDEATHSIG, signal.number()))?;
        }
        // The server may have died before we set the parent-death signal, and before its watchdog could see our tag.
        if libc::getppid() != parent {
            libc::_exit(127);
        }
    }
    Ok(())
}

/// Makes the child one of another user.
///
/// # Safety
/// Call it only in the child, after everything that only the user of the server may do.
unsafe fn switch_user(setup: &ChildSetup<'_>, parent: i32) -> Result<(), i32> {
    let Some(user) = setup.user else { return Ok(()) };
    // SAFETY: we are the child.
    unsafe {
        become_user(user)?;
        // A change of the user clears the parent-death signal.
        die_with_parent(setup, parent)
    }
}

/// Resets every signal to its default action: ignored signals would stay ignored in the program, and our handlers must
/// not run in the child once signals are unblocked.
pub(crate) unsafe fn reset_dispositions() {
    /// At least as large as the kernel's struct, in which all zeros mean the default action, no flags, no mask.
    const DEFAULT_ACTION: [u64; 4] = [0; 4];
    for signal in 1..=64 {
        // SAFETY: the kernel reads one struct. The wrapper of the C library takes locks, so this is the raw call;
        // it refuses KILL and STOP, which have no other action.
        unsafe {
            let old = ptr::null_mut::<c_void>();
            libc::syscall(libc::SYS_rt_sigaction, signal, DEFAULT_ACTION.as_ptr(), old, size_of::<u64>());
        }
    }
}

/// Unblocks signals and executes the program. Returns only on failure, with the error number.
unsafe fn execute(setup: &ChildSetup<'_>) -> i32 {
    let none: u64 = 0;
    // SAFETY: the set has the size that is given, and the strings of a setup are as the kernel expects them.
    unsafe {
        let old = ptr::null_mut::<c_void>();
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const none, old, size_of::<u64>());
        execute_candidates(setup.candidates, setup.argv, setup.env)
    }
}

/// Executes the first of the candidates that is a program. Returns only on failure, with the error number.
///
/// # Safety
/// All strings end with NUL, and all arrays with a null pointer.
pub(crate) unsafe fn execute_candidates(
    candidates: &[*const c_char],
    argv: &[*const c_char],
    env: &[*const c_char],
) -> i32 {
    let mut best = libc::ENOENT;
    let searching = candidates.len() > 2;
    // SAFETY: as the caller promises.
    unsafe {
        for &candidate in candidates.iter().take_while(|candidate| !candidate.is_null()) {
            libc::execve(candidate, argv.as_ptr(), env.as_ptr());
            match errno() {
                libc::EACCES => best = libc::EACCES,
                libc::ENOENT => {}
                // In a search of `PATH`, "not found" is more useful than an error about one of its directories.
                libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT if searching => {}
                error => return error,
            }
        }
    }
    best
}

fn check(result: c_int) -> Result<(), i32> {
    if result < 0 { Err(errno()) } else { Ok(()) }
}

/// Returns the error number of the last call, without allocating.
fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

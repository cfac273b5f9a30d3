//! A process that removes the placeholders of a jail when the jail has ended, even if the server was killed.
//!
//! It executes a built-in program (`jail/image.rs`) and shares nothing with the server but the descriptors it needs. No
//! process in the jail can see it, and it ignores all signals that can be ignored.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    ptr,
    sync::atomic::{AtomicI32, Ordering::Relaxed},
};

use rustix::{
    fs::{MemfdFlags, memfd_create},
    io::{Errno, fcntl_dupfd_cloexec},
};

use crate::{
    JailError, Pid, Step, Tag,
    base::{
        sys::{self, WaitMode},
        tag_limit::TagLimit,
    },
    kin::{adoption::Creation, reaper},
    launch::clone::{SHARED_MEMORY, Stack},
    request::jail::{JANITOR, Placeholder},
};

/// As many placeholders as a jail can have: four for each of a hundred writable directories.
const MAX_PLACEHOLDERS: usize = 400;

struct JanitorContext<'a> {
    /// The descriptors that it gets as 0, 1 and so on.
    descriptors: &'a [RawFd],
    program: RawFd,
    /// Ends with a null pointer.
    argv: &'a [*const c_char],
    mark: Option<&'static TagLimit>,
    /// Written by the process if it fails.
    errno: AtomicI32,
}

/// Hands the placeholders of a jail over to a process that removes them, and returns its pidfd, which becomes readable
/// when it is done.
pub(crate) fn start(
    stack: &mut Stack,
    init: BorrowedFd<'_>,
    placeholders: Vec<Placeholder>,
) -> Result<Option<OwnedFd>, JailError> {
    if placeholders.is_empty() {
        return Ok(None);
    }
    if placeholders.len() > MAX_PLACEHOLDERS {
        return Err(JailError::TooMany { what: "missing files".into(), limit: MAX_PLACEHOLDERS });
    }
    let failed = |errno: i32| JailError::Step { step: Step::Janitor, path: None, errno };
    let os_failed = |errno: Errno| failed(errno.raw_os_error());
    // Our copies get numbers above all numbers that the process uses, including that of its program.
    let first_copy = RawFd::try_from(2 * placeholders.len() + 2).unwrap_or(RawFd::MAX);
    let pairs =
        placeholders.iter().filter_map(|placeholder| Some([placeholder.parent(), placeholder.directory()?]));
    let copies = [init].into_iter().chain(pairs.flatten());
    let copies: Vec<OwnedFd> = copies
        .map(|descriptor| fcntl_dupfd_cloexec(descriptor, first_copy))
        .collect::<Result<_, _>>()
        .map_err(os_failed)?;
    let numbers: Vec<RawFd> = copies.iter().map(AsRawFd::as_raw_fd).collect();
    let program =
        program().and_then(|program| fcntl_dupfd_cloexec(&program, first_copy)).map_err(os_failed)?;
    let names = placeholders.iter().map(|placeholder| placeholder.name().as_ptr());
    let argv: Vec<_> = [c"remex-janitor".as_ptr()].into_iter().chain(names).chain([ptr::null()]).collect();
    let context = JanitorContext {
        descriptors: &numbers,
        program: program.as_raw_fd(),
        argv: &argv,
        mark: TagLimit::chosen(),
        errno: AtomicI32::new(0),
    };
    let pidfd = clone(stack, &context).map_err(failed)?;
    let errno = context.errno.load(Relaxed);
    if errno != 0 {
        // It is already exiting, so this does not block for long. An error means that there is nothing to reap.
        let _ = sys::reap(pidfd.as_fd(), WaitMode::Block);
        return Err(failed(errno));
    }
    placeholders.into_iter().for_each(Placeholder::hand_over);
    let ended = pidfd.try_clone().ok();
    reaper::adopt(pidfd);
    Ok(ended)
}

/// Returns a file with the program, which exists only in memory.
fn program() -> Result<OwnedFd, Errno> {
    let create = |flags| memfd_create("remex-janitor", flags);
    // A kernel before 6.3 does not know the flag, and lets every such file be executed.
    let file = match create(MemfdFlags::CLOEXEC | MemfdFlags::EXEC) {
        Err(Errno::INVAL) => create(MemfdFlags::CLOEXEC),
        file => file,
    }?;
    match rustix::io::write(&file, &JANITOR)? {
        len if len == JANITOR.len() => {}
        _ => return Err(Errno::NOSPC),
    }
    // A file that is open for writing cannot be executed.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(
        path,
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )
}

fn clone(stack: &mut Stack, context: &JanitorContext<'_>) -> Result<OwnedFd, i32> {
    let mut pidfd: c_int = -1;
    let flags = SHARED_MEMORY | libc::CLONE_PIDFD | libc::SIGCHLD;
    let creation = Creation::begin();
    // Signals stay blocked in the program.
    let pid = sys::with_all_signals_blocked(|| {
        // SAFETY: the stack is large enough, and exclusively ours, because CLONE_VFORK holds this thread until the
        // child has left our memory. So all that `context` points to outlives the child's use of it. CLONE_PIDFD takes
        // the address of an integer as the next argument.
        let pid = unsafe {
            let context = ptr::from_ref(context).cast_mut().cast();
            libc::clone(janitor, stack.top(), flags, context, ptr::from_mut(&mut pidfd))
        };
        if pid < 0 { Err(errno()) } else { Ok(pid) }
    });
    Pid::new(pid?).into_iter().for_each(|pid| creation.created(pid));
    // SAFETY: the kernel has just created this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(pidfd) })
}

extern "C" fn janitor(context: *mut c_void) -> c_int {
    // SAFETY: `start` passes a context that outlives the process's use of it, and does not access it in the meantime.
    let context = unsafe { &*context.cast::<JanitorContext<'_>>() };
    // SAFETY: we are the child, and all signals are blocked. The exit runs none of our code.
    unsafe {
        context.errno.store(execute(context), Relaxed);
        libc::_exit(127)
    }
}

/// Executes the program. Returns only on failure.
///
/// # Safety
/// Call it only in a child with its own descriptors, with all signals blocked.
unsafe fn execute(context: &JanitorContext<'_>) -> i32 {
    let JanitorContext { descriptors, program, argv, mark, .. } = context;
    if let Some(limit) = mark {
        // With this tag, no kill hits it. If setting the tag is denied, a kill may.
        _ = limit.apply_to_self(Tag::WATCHDOG);
    }
    let root: &CStr = c"/";
    // SAFETY: all strings end with NUL and both arrays with a null pointer; the rest changes only what belongs to the
    // child. The copies have numbers above those that they get here.
    unsafe {
        libc::setsid();
        libc::chdir(root.as_ptr());
        let mut end = 0;
        for descriptor in *descriptors {
            if libc::dup2(*descriptor, end) < 0 {
                return errno();
            }
            end += 1;
        }
        if libc::dup3(*program, end, libc::O_CLOEXEC) < 0 {
            return errno();
        }
        let (first, last) = (end.cast_unsigned() + 1, libc::c_uint::MAX);
        if libc::syscall(libc::SYS_close_range, first, last, 0) < 0 {
            return errno();
        }
        let env = [ptr::null::<c_char>()];
        let (argv, env) = (argv.as_ptr(), env.as_ptr());
        libc::syscall(libc::SYS_execveat, end, c"".as_ptr(), argv, env, libc::AT_EMPTY_PATH);
    }
    errno()
}

/// Returns the error number of the last call, without allocating.
fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

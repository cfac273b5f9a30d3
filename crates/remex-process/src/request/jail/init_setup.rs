//! Sets up the first process of a jail until it executes its own program (`jail/image.rs`).
//!
//! It shares our memory until then, under the same restrictions as the process in `jail/build.rs`. It has its own
//! namespaces and nothing of the host: no file, a single descriptor, no capability. So it can be started before it is
//! known which command will enter its namespaces.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, CString, c_void},
    mem::MaybeUninit,
    os::fd::RawFd,
    ptr,
};

use libc::sock_filter;

use super::{
    build::{
        Failed, change_root, check, descriptor, detach_propagation, drop_privileges, errno, install, mount,
        open,
    },
    error::Step,
    image::INIT,
};
use crate::base::shared_table::unshare_table;

/// What the first process needs.
pub(crate) struct InitSetup<'a> {
    /// Its command line, as other processes see it.
    pub(crate) name: &'a CStr,
    pub(crate) filter: &'a [sock_filter],
    /// `UID UID 1`, for the map of users.
    pub(crate) users: &'a CStr,
    /// `GID GID 1`, for the map of groups.
    pub(crate) groups: &'a CStr,
    /// The end of a pipe that the process reads; not below 3.
    pub(crate) control: RawFd,
    /// The first descriptor number that the process does not need; above that of the pipe.
    pub(crate) descriptors_end: RawFd,
    pub(crate) has_own_network: bool,
}

/// Sets the process up and executes its program. Returns only on failure.
///
/// # Safety
/// Call it only in a process that was cloned into new user, mount and pid namespaces, with all signals blocked.
pub(crate) unsafe fn become_init(setup: &InitSetup<'_>) -> Failed {
    // SAFETY: passed on to the caller.
    let set_up = || unsafe {
        // Before it opens or closes anything, because it shares our descriptors.
        unshare_table(setup.descriptors_end).map_err(Failed::at(Step::Init))?;
        map_ids(setup).map_err(Failed::at(Step::Ids))?;
        try_proc()?;
        let program = empty_root().map_err(Failed::at(Step::Base))?;
        if setup.has_own_network {
            loopback().map_err(Failed::at(Step::Loopback))?;
        }
        settle(setup).map_err(Failed::at(Step::Init))?;
        drop_privileges().map_err(Failed::at(Step::Privileges))?;
        install(setup.filter).map_err(Failed::at(Step::Filter))?;
        Ok(program)
    };
    match set_up() {
        // SAFETY: passed on to the caller.
        Ok(program) => Failed::at(Step::Init)(unsafe { execute(program, setup.name) }),
        Err(failed) => failed,
    }
}

/// Maps exactly the user and the group of the server.
unsafe fn map_ids(setup: &InitSetup<'_>) -> Result<(), i32> {
    // SAFETY: all strings end with NUL.
    unsafe {
        write_file(c"/proc/self/setgroups", b"deny")?;
        write_file(c"/proc/self/uid_map", setup.users.to_bytes())?;
        write_file(c"/proc/self/gid_map", setup.groups.to_bytes())
    }
}

/// Checks early whether commands can mount their own `/proc`, which not every container allows.
unsafe fn try_proc() -> Result<(), Failed> {
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    // SAFETY: all strings end with NUL.
    unsafe {
        detach_propagation().map_err(Failed::at(Step::Base))?;
        mount(c"proc", c"/proc", flags, c"").map_err(Failed::at(Step::Proc))
    }
}

/// Makes a file system the root that contains only the program of the process, and returns the open program.
///
/// It is mounted on `/proc` at first, which exists on every host.
unsafe fn empty_root() -> Result<RawFd, i32> {
    // SAFETY: all strings end with NUL, and as many bytes are written as there are.
    unsafe {
        libc::umask(0);
        mount(c"tmpfs", c"/proc", libc::MS_NOSUID | libc::MS_NODEV, c"mode=555,size=64k")?;
        change_root(c"/proc")?;
        // Not readable, so that the kernel makes the process that runs it non-dumpable.
        let file = open(c"/init", libc::O_CREAT | libc::O_WRONLY, 0o111)?;
        let written = libc::write(file, INIT.as_ptr().cast(), INIT.len());
        let result = if written == INIT.len() as isize { Ok(()) } else { Err(errno()) };
        libc::close(file);
        result?;
        let (none, flags) = (ptr::null::<libc::c_char>(), libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY);
        let kept = libc::MS_NOSUID | libc::MS_NODEV;
        check(libc::mount(none, c"/".as_ptr(), none, flags | kept, ptr::null()).into())?;
        open(c"/init", libc::O_PATH, 0)
    }
}

/// Brings up the loopback device of a new network namespace.
unsafe fn loopback() -> Result<(), i32> {
    // SAFETY: the struct is plain data for which zeros are valid, and the kernel reads no more than it.
    let up = || unsafe {
        let socket =
            descriptor(libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0).into())?;
        let mut request = MaybeUninit::<libc::ifreq>::zeroed().assume_init();
        (request.ifr_name[0], request.ifr_name[1]) = (b'l' as libc::c_char, b'o' as libc::c_char);
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        let set = check(libc::syscall(libc::SYS_ioctl, socket, libc::SIOCSIFFLAGS, &raw const request));
        libc::close(socket);
        set
    };
    match up() {
        // A kernel without IPv4 has nothing to bring up.
        Ok(()) | Err(libc::EAFNOSUPPORT) => Ok(()),
        other => other,
    }
}

/// Gives the first process its control pipe as descriptor 0, and lets the kernel reap its children.
unsafe fn settle(setup: &InitSetup<'_>) -> Result<(), i32> {
    // SAFETY: all pointers are to local values, and the rest changes only what belongs to the process.
    unsafe {
        check(libc::setsid().into())?;
        // The kernel's struct begins with the handler; zeros elsewhere mean no flags and no mask. All other signals are
        // blocked, and our handlers end with the `exec`.
        let ignored = [libc::SIG_IGN as u64, 0, 0, 0];
        let (action, old) = (ignored.as_ptr(), ptr::null_mut::<c_void>());
        check(libc::syscall(libc::SYS_rt_sigaction, libc::SIGCHLD, action, old, size_of::<u64>()))?;
        check(libc::dup2(setup.control, 0).into())
    }
}

/// Executes the program of the first process with a single descriptor. Returns only on failure.
unsafe fn execute(program: RawFd, name: &CStr) -> i32 {
    // SAFETY: all strings end with NUL and both arrays with a null pointer.
    unsafe {
        let program = libc::dup3(program, 1, libc::O_CLOEXEC);
        if program < 0 {
            return errno();
        }
        let (first, last): (libc::c_uint, libc::c_uint) = (2, libc::c_uint::MAX);
        if libc::syscall(libc::SYS_close_range, first, last, 0) < 0 {
            return errno();
        }
        let argv = [name.as_ptr(), ptr::null()];
        let env = [ptr::null::<libc::c_char>()];
        let (argv, env) = (argv.as_ptr(), env.as_ptr());
        libc::syscall(libc::SYS_execveat, program, c"".as_ptr(), argv, env, libc::AT_EMPTY_PATH);
        errno()
    }
}

unsafe fn write_file(path: &CStr, bytes: &[u8]) -> Result<(), i32> {
    // SAFETY: as many bytes are read as there are.
    unsafe {
        let file = open(path, libc::O_WRONLY, 0)?;
        let written = libc::write(file, bytes.as_ptr().cast(), bytes.len());
        let result = if written == bytes.len() as isize { Ok(()) } else { Err(errno()) };
        libc::close(file);
        result
    }
}

/// Returns the line that maps one id to itself.
pub(crate) fn identity(id: u32) -> CString {
    CString::new(format!("{id} {id} 1\n")).expect("digits and spaces have no NUL")
}

//! Builds a jail from inside, in the first process of its namespaces.
//!
//! That process shares our memory until it executes its own program. Like the child of [`clone`](crate::clone), it
//! allocates nothing, takes no lock, cannot panic, and changes no memory except its stack and [`Outcome`].
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, CString, c_int, c_long, c_ulong, c_void},
    io,
    mem::MaybeUninit,
    os::fd::RawFd,
    ptr,
    sync::atomic::{AtomicI32, AtomicUsize, Ordering::Relaxed},
};

use libc::sock_filter;

use super::{
    error::Step,
    image::INIT,
    plan::{Mount, Plan, Presence, Writes},
};

/// What the first process needs.
pub(crate) struct Blueprint<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) filter: &'a [sock_filter],
    /// `UID UID 1`, for the map of users.
    pub(crate) users: &'a CStr,
    /// `GID GID 1`, for the map of groups.
    pub(crate) groups: &'a CStr,
    /// The end of a pipe that the process reads; not below 3.
    pub(crate) control: RawFd,
    /// The limit that holds the tag of the process.
    pub(crate) mark: Option<(crate::sys::Resource, libc::rlimit)>,
}

/// Where the building failed, written to shared memory.
#[derive(Default)]
pub(crate) struct Outcome {
    /// A [`Step`], or 0.
    pub(crate) step: AtomicI32,
    /// The index of the mount, if it failed there.
    pub(crate) mount: AtomicUsize,
    pub(crate) errno: AtomicI32,
}

/// Builds the jail and executes the program of its first process. Returns only on failure.
///
/// # Safety
/// Call it only in a process that was cloned into new user, mount and pid namespaces, with all signals blocked.
pub(crate) unsafe fn build(blueprint: &Blueprint<'_>, outcome: &Outcome) {
    // SAFETY: passed on to the caller.
    let (step, errno) = unsafe {
        let built = map_ids(blueprint)
            .map_err(|errno| (Step::Ids, errno))
            .and_then(|()| enter_base().map_err(|errno| (Step::Base, errno)))
            .and_then(|()| {
                let mounts = &blueprint.plan.mounts;
                mounts.iter().enumerate().try_for_each(|(index, mount)| {
                    outcome.mount.store(index, Relaxed);
                    make(mount).map_err(|errno| (Step::Mount, errno))
                })
            })
            .and_then(|()| if blueprint.plan.has_own_network { loopback() } else { Ok(()) })
            .and_then(|()| leave_base().map_err(|errno| (Step::Root, errno)))
            .and_then(|program| settle(blueprint).map_err(|errno| (Step::Init, errno)).map(|()| program))
            .and_then(|program| {
                drop_privileges().map_err(|errno| (Step::Privileges, errno))?;
                install(blueprint.filter).map_err(|errno| (Step::Filter, errno))?;
                Ok(program)
            });
        match built {
            Ok(program) => (Step::Init, execute(program)),
            Err(failed) => failed,
        }
    };
    outcome.errno.store(errno, Relaxed);
    outcome.step.store(step as i32, Relaxed);
}

/// Gives up all capabilities for good, and the means to gain others.
///
/// # Safety
/// Call it only in a child.
pub(crate) unsafe fn drop_privileges() -> Result<(), i32> {
    /// As many capabilities as the kernel can ever have.
    const CAPABILITIES: c_ulong = 64;
    const VERSION_3: u32 = 0x2008_0522;
    // SAFETY: the kernel reads two words for the header and six for the sets.
    unsafe {
        check(prctl(libc::PR_SET_NO_NEW_PRIVS, 1))?;
        for capability in 0..CAPABILITIES {
            if prctl(libc::PR_CAPBSET_DROP, capability) < 0 {
                match errno() {
                    // Beyond the last one.
                    libc::EINVAL => break,
                    errno => return Err(errno),
                }
            }
        }
        check(prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as c_ulong))?;
        let header = [VERSION_3, 0];
        let none = [0_u32; 6];
        check(libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()))?;
    }
    Ok(())
}

/// Calls `prctl` with one argument; the others are zero in all their bits, as some operations demand.
unsafe fn prctl(operation: c_int, argument: c_ulong) -> c_long {
    let none: c_ulong = 0;
    // SAFETY: no memory is involved.
    unsafe { libc::prctl(operation, argument, none, none, none) }.into()
}

/// Installs a filter of system calls in the calling process.
///
/// # Safety
/// Call it only in a child that has given up gaining privileges.
pub(crate) unsafe fn install(filter: &[sock_filter]) -> Result<(), i32> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the kernel reads the program, whose length is right.
    check(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) })
}

/// Maps exactly the user and the group of the server.
unsafe fn map_ids(blueprint: &Blueprint<'_>) -> Result<(), i32> {
    // SAFETY: all strings end with NUL.
    unsafe {
        write_file(c"/proc/self/setgroups", b"deny")?;
        write_file(c"/proc/self/uid_map", blueprint.users.to_bytes())?;
        write_file(c"/proc/self/gid_map", blueprint.groups.to_bytes())
    }
}

/// Makes an empty file system the root, with the file system of the host in `/old`.
///
/// It is mounted on `/proc` at first, which exists on every host.
unsafe fn enter_base() -> Result<(), i32> {
    // SAFETY: all strings end with NUL.
    unsafe {
        libc::umask(0);
        let none = ptr::null::<libc::c_char>();
        check(libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, ptr::null()).into())?;
        mount(c"tmpfs", c"/proc", libc::MS_NOSUID | libc::MS_NODEV, c"mode=755")?;
        mkdir(c"/proc/old", 0o755)?;
        mkdir(c"/proc/new", 0o755)?;
        check(libc::syscall(libc::SYS_pivot_root, c"/proc".as_ptr(), c"/proc/old".as_ptr()))?;
        check(libc::chdir(c"/".as_ptr()).into())?;
        mkdir(c"/no-directory", 0)?;
        touch(c"/no-file", 0)?;
        // Not to be read, so that the process that runs it has no memory that others may read or write.
        let init = open(c"/init", libc::O_CREAT | libc::O_WRONLY, 0o111)?;
        let written = libc::write(init, INIT.as_ptr().cast(), INIT.len());
        let result = if written == INIT.len() as isize { Ok(()) } else { Err(errno()) };
        libc::close(init);
        result
    }
}

/// Makes `/new` the root, detaches everything else, and returns the program of the first process.
unsafe fn leave_base() -> Result<RawFd, i32> {
    // SAFETY: all strings end with NUL.
    unsafe {
        let init = open(c"/init", libc::O_PATH, 0)?;
        check(libc::chdir(c"/new".as_ptr()).into())?;
        check(libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()))?;
        // The old root is stacked on the new one.
        check(libc::umount2(c".".as_ptr(), libc::MNT_DETACH).into())?;
        check(libc::chdir(c"/".as_ptr()).into())?;
        Ok(init)
    }
}

unsafe fn make(what: &Mount) -> Result<(), i32> {
    // SAFETY: all strings end with NUL.
    unsafe {
        match what {
            Mount::Directory { path, mode } => mkdir(path, *mode),
            Mount::File { path } => touch(path, 0o666),
            Mount::Link { path, target } => check(libc::symlink(target.as_ptr(), path.as_ptr()).into()),
            Mount::Bind { from, to, writes } => bind(from, to, attributes(*writes)),
            Mount::Device { from, to } => {
                // Devices can be written to on a read-only mount, but their modes and times cannot be changed.
                let flags = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC | MOUNT_ATTR_RDONLY;
                // A host without this device is none of our business.
                unless_missing(bind(from, to, flags))
            }
            Mount::Hide { path, presence: Presence::Certain } => hide(path),
            Mount::Hide { path, presence: Presence::Possible } => unless_missing(hide(path)),
            Mount::Proc { path, writes } => {
                let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
                let read_only = if *writes == Writes::Denied { libc::MS_RDONLY } else { 0 };
                mount(c"proc", path, flags | read_only, c"")
            }
            Mount::Terminals { path } => {
                let flags = libc::MS_NOSUID | libc::MS_NOEXEC;
                mount(c"devpts", path, flags, c"newinstance,ptmxmode=0666,mode=620")
            }
            Mount::Memory { path } => mount(c"tmpfs", path, libc::MS_NOSUID | libc::MS_NODEV, c"mode=1777"),
        }
    }
}

fn attributes(writes: Writes) -> u64 {
    let confined = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
    match writes {
        Writes::Unconfined => 0,
        Writes::Allowed => confined,
        Writes::Denied => confined | MOUNT_ATTR_RDONLY,
    }
}

fn unless_missing(result: Result<(), i32>) -> Result<(), i32> {
    match result {
        Err(libc::ENOENT | libc::ENOTDIR) => Ok(()),
        other => other,
    }
}

/// Covers whatever is at a path by something that nobody may open.
unsafe fn hide(path: &CStr) -> Result<(), i32> {
    // SAFETY: the string ends with NUL, and the struct is plain data for which zeros are valid.
    unsafe {
        let place = locate(path)?;
        let mut found = MaybeUninit::<libc::stat>::zeroed().assume_init();
        let looked = check(libc::fstat(place, &raw mut found).into());
        libc::close(place);
        looked?;
        let cover =
            if found.st_mode & libc::S_IFMT == libc::S_IFDIR { c"/no-directory" } else { c"/no-file" };
        bind(cover, path, attributes(Writes::Denied))
    }
}

const MOUNT_ATTR_RDONLY: u64 = 1;
const MOUNT_ATTR_NOSUID: u64 = 2;
const MOUNT_ATTR_NODEV: u64 = 4;
const MOUNT_ATTR_NOEXEC: u64 = 8;
const OPEN_TREE_CLONE: c_int = 1;
const AT_RECURSIVE: c_int = 0x8000;
const MOVE_MOUNT_F_EMPTY_PATH: c_int = 4;
const MOVE_MOUNT_T_EMPTY_PATH: c_int = 0x40;

/// Binds a tree with everything mounted in it, with these attributes in addition to those that its mounts have.
unsafe fn bind(from: &CStr, to: &CStr, attributes: u64) -> Result<(), i32> {
    #[repr(C)]
    struct Attributes {
        set: u64,
        clear: u64,
        propagation: u64,
        user_namespace: u64,
    }
    let attributes = Attributes {
        set: attributes,
        clear: 0,
        // What the host mounts later must not appear here: it would have other attributes.
        propagation: libc::MS_PRIVATE,
        user_namespace: 0,
    };
    // SAFETY: all strings end with NUL, and the struct has the size that is given.
    unsafe {
        let empty = c"".as_ptr();
        let source = locate(from)?;
        let flags = OPEN_TREE_CLONE | AT_RECURSIVE | libc::AT_EMPTY_PATH | libc::O_CLOEXEC;
        let tree = descriptor(libc::syscall(libc::SYS_open_tree, source, empty, flags));
        libc::close(source);
        let tree = tree?;
        let set = check(libc::syscall(
            libc::SYS_mount_setattr,
            tree,
            empty,
            AT_RECURSIVE | libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<Attributes>(),
        ));
        let moved = set.and_then(|()| {
            let target = locate(to)?;
            let flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH;
            let moved = check(libc::syscall(libc::SYS_move_mount, tree, empty, target, empty, flags));
            libc::close(target);
            moved
        });
        libc::close(tree);
        moved
    }
}

/// Opens a place without following links: those that were there when the policy was resolved are not in its paths.
unsafe fn locate(path: &CStr) -> Result<RawFd, i32> {
    // SAFETY: the string ends with NUL, and the struct has the size that is given; zeros are valid in it.
    unsafe {
        let mut how = MaybeUninit::<libc::open_how>::zeroed().assume_init();
        how.flags = (libc::O_PATH | libc::O_CLOEXEC) as u64;
        how.resolve = libc::RESOLVE_NO_SYMLINKS;
        descriptor(libc::syscall(
            libc::SYS_openat2,
            libc::AT_FDCWD,
            path.as_ptr(),
            &raw const how,
            size_of::<libc::open_how>(),
        ))
    }
}

/// Brings up the loopback device of a new network namespace.
unsafe fn loopback() -> Result<(), (Step, i32)> {
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
        Err(errno) => Err((Step::Loopback, errno)),
    }
}

/// Gives the first process its tag, its control pipe as descriptor 0, and lets the kernel reap its children.
unsafe fn settle(blueprint: &Blueprint<'_>) -> Result<(), i32> {
    // SAFETY: all pointers are to local values, and the rest changes only what belongs to the process.
    unsafe {
        check(libc::setsid().into())?;
        if let Some((resource, limit)) = &blueprint.mark {
            check(libc::setrlimit(*resource, &raw const *limit).into())?;
        }
        // The kernel's struct begins with the handler; zeros elsewhere mean no flags and no mask. All other signals are
        // blocked, and our handlers end with the `exec`.
        let ignored = [libc::SIG_IGN as u64, 0, 0, 0];
        let (action, old) = (ignored.as_ptr(), ptr::null_mut::<c_void>());
        check(libc::syscall(libc::SYS_rt_sigaction, libc::SIGCHLD, action, old, size_of::<u64>()))?;
        check(libc::dup2(blueprint.control, 0).into())
    }
}

/// Executes the program of the first process with a single descriptor. Returns only on failure.
unsafe fn execute(program: RawFd) -> i32 {
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
        let argv = [c"remex-init".as_ptr(), ptr::null()];
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

unsafe fn open(path: &CStr, flags: c_int, mode: libc::mode_t) -> Result<RawFd, i32> {
    // SAFETY: the string ends with NUL.
    descriptor(unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC, libc::c_uint::from(mode)) }.into())
}

/// Creates a directory; the mask of the process is empty.
unsafe fn mkdir(path: &CStr, mode: libc::mode_t) -> Result<(), i32> {
    // SAFETY: the string ends with NUL.
    unsafe { check(libc::mkdir(path.as_ptr(), mode).into()) }
}

/// Creates an empty file; the mask of the process is empty.
unsafe fn touch(path: &CStr, mode: libc::mode_t) -> Result<(), i32> {
    // SAFETY: the string ends with NUL.
    unsafe { check(libc::mknod(path.as_ptr(), libc::S_IFREG | mode, 0).into()) }
}

/// Mounts a new file system of a kind.
unsafe fn mount(kind: &CStr, to: &CStr, flags: c_ulong, options: &CStr) -> Result<(), i32> {
    let (kind, options) = (kind.as_ptr(), options.as_ptr());
    // SAFETY: all strings end with NUL.
    check(unsafe { libc::mount(kind, to.as_ptr(), kind, flags, options.cast()) }.into())
}

fn descriptor(result: c_long) -> Result<RawFd, i32> {
    if result < 0 { Err(errno()) } else { Ok(result as RawFd) }
}

fn check(result: c_long) -> Result<(), i32> {
    if result < 0 { Err(errno()) } else { Ok(()) }
}

/// Returns the error number of the last call, without allocating.
fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Returns the line that maps one id to itself.
pub(crate) fn identity(id: u32) -> CString {
    CString::new(format!("{id} {id} 1\n")).expect("digits and spaces have no NUL")
}

//! Builds the file system of a jail from inside, in the process that will execute the command.
//!
//! That process shares our memory until then. It allocates nothing, takes no lock, cannot panic, and changes no memory
//! except its stack and what reports a failure.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, c_int, c_long, c_ulong},
    io,
    mem::MaybeUninit,
    os::fd::RawFd,
    ptr,
};

use libc::sock_filter;

use super::{
    error::Step,
    plan::{Mount, Plan, Presence, Writes},
};

/// A step that failed.
pub(crate) struct Failed {
    pub(crate) step: Step,
    /// The index of the mount, if it failed there.
    pub(crate) mount: Option<usize>,
    pub(crate) errno: i32,
}

impl Failed {
    pub(crate) fn at(step: Step) -> impl Fn(i32) -> Self {
        move |errno| Self { step, mount: None, errno }
    }
}

/// Gives the calling process its own mount namespace, with the mounts of the plan only.
///
/// # Safety
/// Call it only in a child that has entered the other namespaces of the jail, with all signals blocked.
pub(crate) unsafe fn build(plan: &Plan) -> Result<(), Failed> {
    // SAFETY: passed on to the caller.
    unsafe {
        check(libc::unshare(libc::CLONE_NEWNS).into()).map_err(Failed::at(Step::Namespaces))?;
        let mask = libc::umask(0);
        enter_base().map_err(Failed::at(Step::Base))?;
        for (index, mount) in plan.mounts.iter().enumerate() {
            make(mount).map_err(|errno| Failed { step: Step::Mount, mount: Some(index), errno })?;
        }
        leave_base().map_err(Failed::at(Step::Root))?;
        libc::umask(mask);
    }
    Ok(())
}

/// Drops all capabilities permanently, and prevents the process from gaining others.
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
                    // Beyond the last capability; or without privileges, in which case executing a program gains none
                    // either.
                    libc::EINVAL | libc::EPERM => break,
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

/// Makes an empty file system the root, with the file system of the host in `/old`.
///
/// It is mounted on `/proc` at first, which exists on every host.
unsafe fn enter_base() -> Result<(), i32> {
    // SAFETY: all strings end with NUL.
    unsafe {
        detach_propagation()?;
        mount(c"tmpfs", c"/proc", libc::MS_NOSUID | libc::MS_NODEV, c"mode=755")?;
        mkdir(c"/proc/old", 0o755)?;
        mkdir(c"/proc/new", 0o755)?;
        check(libc::syscall(libc::SYS_pivot_root, c"/proc".as_ptr(), c"/proc/old".as_ptr()))?;
        check(libc::chdir(c"/".as_ptr()).into())?;
        mkdir(c"/no-directory", 0)?;
        mkdir(c"/empty-directory", 0o555)?;
        touch(c"/no-file", 0)?;
        Ok(())
    }
}

/// Makes `/new` the root, and detaches everything else.
unsafe fn leave_base() -> Result<(), i32> {
    // SAFETY: the string ends with NUL.
    unsafe { change_root(c"/new") }
}

/// Stops mount events from propagating between this namespace and others.
pub(super) unsafe fn detach_propagation() -> Result<(), i32> {
    let none = ptr::null::<libc::c_char>();
    // SAFETY: the string ends with NUL.
    unsafe {
        check(libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, ptr::null()).into())
    }
}

/// Makes a mount the root, and detaches the old root with everything in it.
pub(super) unsafe fn change_root(to: &CStr) -> Result<(), i32> {
    // SAFETY: all strings end with NUL.
    unsafe {
        check(libc::chdir(to.as_ptr()).into())?;
        check(libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()))?;
        // The old root is stacked on the new one.
        check(libc::umount2(c".".as_ptr(), libc::MNT_DETACH).into())?;
        check(libc::chdir(c"/".as_ptr()).into())
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
                // The host may lack this device.
                unless_missing(bind(from, to, flags))
            }
            Mount::Cover { path } => bind(c"/empty-directory", path, attributes(Writes::Denied)),
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

/// Covers a path with an empty file or directory that cannot be opened.
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

/// Binds a tree with all mounts below it, and adds these attributes to theirs.
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
pub(super) unsafe fn locate(path: &CStr) -> Result<RawFd, i32> {
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

pub(super) unsafe fn open(path: &CStr, flags: c_int, mode: libc::mode_t) -> Result<RawFd, i32> {
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
pub(super) unsafe fn mount(kind: &CStr, to: &CStr, flags: c_ulong, options: &CStr) -> Result<(), i32> {
    let (kind, options) = (kind.as_ptr(), options.as_ptr());
    // SAFETY: all strings end with NUL.
    check(unsafe { libc::mount(kind, to.as_ptr(), kind, flags, options.cast()) }.into())
}

pub(super) fn descriptor(result: c_long) -> Result<RawFd, i32> {
    if result < 0 { Err(errno()) } else { Ok(result as RawFd) }
}

pub(super) fn check(result: c_long) -> Result<(), i32> {
    if result < 0 { Err(errno()) } else { Ok(()) }
}

/// Returns the error number of the last call, without allocating.
pub(super) fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
